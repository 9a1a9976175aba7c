//! What recurrent operations share: shape rules, the products of one step of time, and the states before each step.

use super::{check, ragged::Ragged, ragged::lengths};
use crate::{
    ir::{Misfit, Shape, Sig},
    kernel::{Gemm, Mat, Real, Size},
};

/// Input `[n, time, gates * h]` that was multiplied by its weights already, weights `[gates * h, h]`, and the slots of the
/// first states `[n, h]`; the lengths come last. Gives `h`.
pub(super) fn recurrent(
    inputs: &[Sig],
    gates: usize,
    states: std::ops::Range<usize>,
    ragged: bool,
) -> Result<usize, Misfit> {
    check::count(inputs, states.end + usize::from(ragged))?;
    let (_, width) = super::ragged::sequence(inputs, 0)?;
    let x = &inputs[0];
    check::rank(inputs, 1, 2, "2 ([gates * h, h])")?;
    let h = check::fixed(inputs, 1, 1)?;
    if h == 0 || width != gates * h {
        return Err(Misfit::Pair { a: x.shape.clone(), b: inputs[1].shape.clone() });
    }
    check::shaped(inputs, 1, x.dtype, &Shape::from([gates * h, h]))?;
    let state = Shape(vec![x.shape.dims()[0], h.into()]);
    for slot in states.clone() {
        check::shaped(inputs, slot, x.dtype, &state)?;
    }
    if ragged {
        lengths(inputs, states.end, 0)?;
    }
    Ok(h)
}

/// `[n, time, h]` for the `[n, time, ...]` of an input.
pub(super) fn along(x: &Sig, width: usize) -> Sig {
    Sig::dense(x.dtype, Shape(vec![x.shape.dims()[0], x.shape.dims()[1], width.into()]))
}

/// `[n, h]` for the `[n, time, ...]` of an input.
pub(super) fn state(x: &Sig, h: usize) -> Sig {
    Sig::dense(x.dtype, Shape(vec![x.shape.dims()[0], h.into()]))
}

/// Sizes of a recurrence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub n: usize,
    pub time: usize,
    pub h: usize,
    pub gates: usize,
}

impl Sizes {
    fn wide(&self) -> usize {
        self.gates * self.h
    }

    /// Of `forth`, `back` and `weights`.
    fn products(&self) -> [Size; 3] {
        let (n, h, wide) = (self.n, self.h, self.wide());
        [Size { m: n, n: wide, k: h }, Size { m: n, n: h, k: wide }, Size { m: wide, n: h, k: n * self.time }]
    }

    /// Elements of scratch memory that any of the products wants.
    pub fn scratch(&self, element: usize) -> usize {
        let wanted = if element == size_of::<f32>() { f32::scratch } else { f64::scratch };
        self.products().map(wanted).into_iter().max().unwrap_or(0)
    }

    /// `z = state * w^T`: what the states say to all gates.
    pub fn forth<T: Real>(&self, state: &[T], w: &[T], z: &mut [T], scratch: &mut [T]) {
        let [size, ..] = self.products();
        T::gemm(size, Mat::new(state, self.h), Mat::new(w, self.h).t(), z, false, scratch);
    }

    /// `d_state = dz * w`.
    pub fn back<T: Real>(&self, dz: &[T], w: &[T], d_state: &mut [T], scratch: &mut [T]) {
        let [_, size, _] = self.products();
        T::gemm(size, Mat::new(dz, self.wide()), Mat::new(w, self.h), d_state, false, scratch);
    }

    /// `dw = dz^T * before`, over all samples and all time.
    pub fn weights<T: Real>(&self, dz: &[T], before: &[T], dw: &mut [T], scratch: &mut [T]) {
        let [.., size] = self.products();
        T::gemm(size, Mat::new(dz, self.wide()).t(), Mat::new(before, self.h), dw, false, scratch);
    }

    /// The state that each step of time began with; zero behind the ends.
    pub fn before<T: Real>(
        &self,
        ragged: &Ragged<'_>,
        reverse: bool,
        first: &[T],
        y: &[T],
        before: &mut [T],
    ) {
        let h = self.h;
        ragged.blank(before, T::ZERO);
        for sample in 0..self.n {
            let mut from = &first[sample * h..][..h];
            for nth in 0..ragged.len(sample) {
                let row = ragged.at(sample, nth, reverse).expect("within its length");
                before[row * h..][..h].copy_from_slice(from);
                from = &y[row * h..][..h];
            }
        }
    }
}

/// A row of so many parts of `h` each.
#[inline(always)]
pub(super) fn parts<T, const N: usize>(row: &[T], h: usize) -> [&[T]; N] {
    std::array::from_fn(|i| &row[i * h..(i + 1) * h])
}

/// The same, to write.
#[inline(always)]
pub(super) fn parts_mut<T, const N: usize>(row: &mut [T], h: usize) -> [&mut [T]; N] {
    let mut rest = row;
    std::array::from_fn(|_| {
        let (part, after) = std::mem::take(&mut rest).split_at_mut(h);
        rest = after;
        part
    })
}
