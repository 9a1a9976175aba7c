//! Sorted rows, and where their elements were.

use super::{Operator, TopK, check, metric::is_above};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, Real, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// The last axis in ascending or descending order, and the places of its elements. Equals keep their order; NaN counts as
/// larger than all numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sort {
    pub descending: bool,
}

impl Operator for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        // It is the top k of all.
        TopK { k: 1 }.infer(inputs)?;
        let x = &inputs[0];
        Ok(vec![x.clone(), Sig::dense(DType::I64, x.shape.clone())])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0).last().copied().unwrap_or(1).max(1);
        real!(call.dtype(0), T => {
            let (x, out, at) = (call.input::<T>(0), call.output::<T>(0), call.output::<i64>(1));
            for ((x, out), at) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)).zip(at.chunks_exact_mut(n)) {
                at.iter_mut().enumerate().for_each(|(i, at)| *at = i as i64);
                at.sort_unstable_by(|&a, &b| self.order(x, a, b));
                out.iter_mut().zip(&*at).for_each(|(out, &at)| *out = x[at as usize]);
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        put_back(grad)
    }
}

impl Sort {
    /// Without equals, so that no memory is needed to keep their order.
    fn order<T: Real>(&self, x: &[T], a: i64, b: i64) -> Ordering {
        let (first, second) = (x[a as usize], x[b as usize]);
        let above = match (is_above(first, second), is_above(second, first)) {
            (true, _) => Ordering::Greater,
            (_, true) => Ordering::Less,
            _ => return a.cmp(&b),
        };
        if self.descending { above.reverse() } else { above }
    }
}

/// The gradient of values that were taken from places of the last axis: output 0 has them, output 1 says from where.
pub(super) fn put_back(grad: &mut Grad<'_>) -> Result<bool, GraphError> {
    let shape = grad.sig(grad.x(0)).shape.clone();
    let n = shape.dims().last().and_then(|d| d.fixed()).expect("infer saw a fixed size");
    if !grad.has_dy(0) {
        return Ok(true);
    }
    grad.give(0, PutAlong { n }, &[grad.y(1), grad.dy(0)])
}

/// Rows of `n` zeros with the values of the second input in the places that the first names; those of one place are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutAlong {
    pub n: usize,
}

impl Operator for PutAlong {
    fn name(&self) -> &'static str {
        "put_along"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let (at, d) = (check::index(inputs, 0)?, check::real(inputs, 1)?);
        if at.shape != d.shape || d.shape.rank() == 0 {
            return Err(Misfit::Pair { a: at.shape.clone(), b: d.shape.clone() });
        }
        let mut out = d.clone();
        out.shape.0[d.shape.rank() - 1] = Dim::Fixed(self.n);
        Ok(vec![out])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let k = call.dims(0).last().copied().unwrap_or(1).max(1);
        let at = call.input::<i64>(0);
        real!(call.dtype(1), T => {
            let (d, out) = (call.input::<T>(1), call.output::<T>(0));
            out.fill(T::ZERO);
            for (i, (&place, &d)) in at.iter().zip(d).enumerate() {
                let limit = self.n;
                let wrong = KernelError::Index { input: 0, at: i, value: place, limit };
                let place = usize::try_from(place).ok().filter(|&p| p < limit).ok_or(wrong)?;
                out[i / k * limit + place] += d;
            }
        });
        Ok(())
    }
}
