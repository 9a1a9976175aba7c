//! What operations over sequences `[n, t, width]` share: their shapes, and in which order steps come.

use super::check;
use crate::{
    ir::{Dim, Misfit, Sig},
    kernel::{Gemm, Mat, Size},
};
use std::ops::Range;

/// The output `[n, t, h]` for gates `[n, t, parts * h]` and weights `[h, parts * h]`.
pub(super) fn sequence(inputs: &[Sig], gates: usize, weights: usize, parts: usize) -> Result<Sig, Misfit> {
    let (x, w) = (check::real(inputs, gates)?, check::real(inputs, weights)?);
    check::rank(inputs, gates, 3, "3 ([n, t, gates])")?;
    check::rank(inputs, weights, 2, "2 ([h, gates])")?;
    let h = check::fixed(inputs, weights, 0)?;
    let width = Dim::Fixed(parts * h);
    if h == 0 || x.shape.dims()[2] != width || w.shape.dims()[1] != width || x.dtype != w.dtype {
        return Err(Misfit::Pair { a: x.shape.clone(), b: w.shape.clone() });
    }
    let mut out = x.clone();
    out.shape.0[2] = Dim::Fixed(h);
    Ok(out)
}

/// Elements that the largest of these products wants.
pub(super) fn scratch<const N: usize>(element: usize, sizes: [Size; N]) -> usize {
    let wanted = if element == size_of::<f32>() { f32::scratch } else { f64::scratch };
    sizes.map(wanted).into_iter().max().unwrap_or(0)
}

/// The steps of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub n: usize,
    pub h: usize,
    time: usize,
    reverse: bool,
}

impl Walk {
    pub(super) fn new(gates: &[usize], weights: &[usize], reverse: bool) -> Walk {
        Walk { n: gates[0], h: weights[0], time: gates[1], reverse }
    }

    /// Each step, and the one before it.
    pub(super) fn steps(self) -> impl DoubleEndedIterator<Item = (usize, Option<usize>)> {
        let place = move |i: usize| if self.reverse { self.time - 1 - i } else { i };
        (0..self.time).map(move |i| (place(i), i.checked_sub(1).map(place)))
    }

    /// Where sample `i` lies at a step.
    pub(super) fn row(self, i: usize, step: usize, width: usize) -> Range<usize> {
        let begin = (i * self.time + step) * width;
        begin..begin + width
    }

    /// All samples at a step.
    pub(super) fn matrix<T>(self, data: &[T], step: usize, width: usize) -> Mat<'_, T> {
        Mat::new(&data[step * width..], self.time * width)
    }
}
