//! What recurrent operations share: shape rules, the slots of their gradients, the loops over time, and the states before each
//! step. An operation adds what its gates compute.

use super::{OpKind, check, ragged::Ragged, ragged::lengths};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Gemm, Mat, Real, Size, fast},
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

/// The same with weights `[h, gates * h]`, as Paddle has them; lengths are for the caller to check.
pub(super) fn projected(
    inputs: &[Sig],
    gates: usize,
    states: std::ops::Range<usize>,
) -> Result<usize, Misfit> {
    let (_, width) = super::ragged::sequence(inputs, 0)?;
    let x = &inputs[0];
    check::rank(inputs, 1, 2, "2 ([h, gates * h])")?;
    let h = check::fixed(inputs, 1, 0)?;
    if h == 0 || h.checked_mul(gates) != Some(width) {
        return Err(Misfit::Pair { a: x.shape.clone(), b: inputs[1].shape.clone() });
    }
    check::shaped(inputs, 1, x.dtype, &Shape::from([h, width]))?;
    let first = state(x, h).shape;
    for slot in states {
        check::shaped(inputs, slot, x.dtype, &first)?;
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

/// The inputs of a gradient: those that are always there, the gradients of outputs that were given, and the lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots<'a> {
    pub fixed: usize,
    pub given: &'a [bool],
    pub ragged: bool,
}

impl Slots<'_> {
    /// Of a gradient, if it was given.
    pub fn of(&self, which: usize) -> Option<usize> {
        self.given[which].then(|| self.fixed + self.given[..which].iter().filter(|g| **g).count())
    }

    pub fn lengths(&self) -> Option<usize> {
        self.ragged.then(|| self.count() - 1)
    }

    pub fn count(&self) -> usize {
        self.fixed + self.given.iter().filter(|g| **g).count() + usize::from(self.ragged)
    }

    /// Gradients have the shapes of their outputs, and lengths are those of the samples of `x`.
    pub fn check(&self, inputs: &[Sig], shapes: &[&Shape], x: usize) -> Result<(), Misfit> {
        for (which, shape) in shapes.iter().enumerate() {
            if let Some(slot) = self.of(which) {
                check::shaped(inputs, slot, inputs[x].dtype, shape)?;
            }
        }
        self.lengths().map_or(Ok(()), |slot| lengths(inputs, slot, x))
    }
}

/// Adds the gradient of a recurrence: an operation that knows which of the first `N` outputs have gradients. It takes what `fixed`
/// names, then those, then the lengths. The outputs behind are for the gradient only: nothing is learned through them.
pub(super) fn append_grad<const N: usize>(
    grad: &mut Grad<'_>,
    n_outputs: usize,
    ragged: bool,
    fixed: impl Fn(&Grad<'_>) -> Vec<crate::ir::VarId>,
    kind: impl Fn([bool; N]) -> OpKind,
) -> Result<bool, GraphError> {
    if (N..n_outputs).any(|slot| grad.has_dy(slot)) {
        return Ok(false);
    }
    let given: [bool; N] = std::array::from_fn(|slot| grad.has_dy(slot));
    let mut inputs = fixed(grad);
    inputs.extend((0..N).filter(|&slot| given[slot]).map(|slot| grad.dy(slot)));
    if ragged {
        inputs.push(grad.x(4));
    }
    let found = grad.emit_all(kind(given), &inputs)?;
    for (slot, d) in found.into_iter().enumerate() {
        grad.pass(slot, d)?;
    }
    Ok(true)
}

/// Where a recurrence is: the sample, its row among all of all time, and how many steps came before.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellPosition {
    pub sample: usize,
    pub row: usize,
    pub nth: usize,
}

/// How the weights of the states lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightLayout {
    /// `[gates * h, h]`, as PyTorch has them.
    Rows,
    /// `[h, gates * h]`, as Paddle has them.
    Columns,
}

/// Sizes of a recurrence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub n: usize,
    pub time: usize,
    pub h: usize,
    pub gates: usize,
    pub layout: WeightLayout,
}

impl Sizes {
    fn wide(&self) -> usize {
        self.gates * self.h
    }

    /// Of `forth`, `back` and `weights`.
    fn products(&self) -> [Size; 3] {
        let (n, h, wide) = (self.n, self.h, self.wide());
        let (m, columns) = if self.layout == WeightLayout::Rows { (wide, h) } else { (h, wide) };
        [Size { m: n, n: wide, k: h }, Size { m: n, n: h, k: wide }, Size { m, n: columns, k: n * self.time }]
    }

    /// The weights as `[h, gates * h]`.
    fn mat<'a, T>(&self, w: &'a [T]) -> Mat<'a, T> {
        match self.layout {
            WeightLayout::Rows => Mat::new(w, self.h).t(),
            WeightLayout::Columns => Mat::new(w, self.wide()),
        }
    }

    /// Elements of scratch memory that any of the products wants.
    pub fn scratch(&self, element: usize) -> usize {
        let wanted = if element == size_of::<f32>() { f32::scratch } else { f64::scratch };
        self.products().map(wanted).into_iter().max().unwrap_or(0)
    }

    /// Step after step: multiplies the states by their weights into `z`, and lets `cell` make the next state of each sample from its
    /// state, its part of `z`, its number and the row that it is at.
    pub fn forward<T: Real>(
        &self,
        (ragged, reverse): (&Ragged<'_>, bool),
        w: &[T],
        state: &mut [T],
        (z, scratch): (&mut [T], &mut [T]),
        mut cell: impl FnMut(&mut [T], &[T], usize, usize),
    ) {
        let (h, wide) = (self.h, self.wide());
        for nth in 0..ragged.longest() {
            self.forth(state, w, z, scratch);
            fast(
                #[inline(always)]
                || {
                    for s in 0..self.n {
                        let Some(row) = ragged.at(s, nth, reverse) else { continue };
                        cell(&mut state[s * h..][..h], &z[s * wide..][..wide], s, row);
                    }
                },
            );
        }
    }

    /// Step after step, from the last: adds the gradient of the outputs to that of the states, lets `cell` compute the gates' gradient
    /// from it, and multiplies that by the weights. `carry` takes the product to the states of the step before.
    pub fn backward<T: Real>(
        &self,
        (ragged, reverse): (&Ragged<'_>, bool),
        w: &[T],
        (dy, dh): (Option<&[T]>, &mut [T]),
        (dz, earlier, scratch): (&mut [T], &mut [T], &mut [T]),
        mut cell: impl FnMut(&mut [T], &mut [T], CellPosition),
        carry: impl Fn(usize, &mut [T], &[T]),
    ) {
        let (h, wide) = (self.h, self.wide());
        for nth in (0..ragged.longest()).rev() {
            fast(
                #[inline(always)]
                || {
                    for sample in 0..self.n {
                        let dz = &mut dz[sample * wide..][..wide];
                        let Some(row) = ragged.at(sample, nth, reverse) else {
                            dz.fill(T::ZERO);
                            continue;
                        };
                        let dh = &mut dh[sample * h..][..h];
                        if let Some(dy) = dy {
                            dh.iter_mut().zip(&dy[row * h..][..h]).for_each(|(d, &v)| *d += v);
                        }
                        cell(dh, dz, CellPosition { sample, row, nth });
                    }
                },
            );
            self.back(dz, w, earlier, scratch);
            carry(nth, dh, earlier);
        }
    }

    /// What the states say to all gates.
    fn forth<T: Real>(&self, state: &[T], w: &[T], z: &mut [T], scratch: &mut [T]) {
        let [size, ..] = self.products();
        T::gemm(size, Mat::new(state, self.h), self.mat(w), z, false, scratch);
    }

    /// What the gradients of all gates say to the states.
    fn back<T: Real>(&self, dz: &[T], w: &[T], d_state: &mut [T], scratch: &mut [T]) {
        let [_, size, _] = self.products();
        T::gemm(size, Mat::new(dz, self.wide()), self.mat(w).t(), d_state, false, scratch);
    }

    /// The gradient of the weights, over all samples and all time.
    pub fn weights<T: Real>(&self, dz: &[T], before: &[T], dw: &mut [T], scratch: &mut [T]) {
        let [.., size] = self.products();
        let (gates, states) = (Mat::new(dz, self.wide()), Mat::new(before, self.h));
        match self.layout {
            WeightLayout::Rows => T::gemm(size, gates.t(), states, dw, false, scratch),
            WeightLayout::Columns => T::gemm(size, states.t(), gates, dw, false, scratch),
        }
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

/// The sums of a row's gates: what the input says, and what the state does.
#[inline(always)]
pub(super) fn added<T: Real>(sums: &mut [T], x: &[T], z: &[T]) {
    for (to, (&a, &b)) in sums.iter_mut().zip(x.iter().zip(z)) {
        *to = a + b;
    }
}

/// A row of `n` parts of `h` each.
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
