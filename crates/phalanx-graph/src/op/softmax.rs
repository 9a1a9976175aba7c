//! Softmax over the last axis.

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, Pair, Real, dot, fast, largest, real, sum, total},
};
use serde::{Deserialize, Serialize};

/// Over the last axis; with `log`, its logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Softmax {
    pub log: bool,
}

impl Operator for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::real(inputs, 0)?;
        if x.shape.rank() == 0 {
            return Err(Misfit::Rank { slot: 0, wanted: "at least 1", got: x.shape.clone() });
        }
        Ok(vec![x.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0).last().copied().unwrap_or(1);
        real!(call.dtype(0), T => {
            let out = match call.pair::<T>(0, 0) {
                Pair::Same(out) => out,
                Pair::Apart(x, out) => {
                    out.copy_from_slice(x);
                    out
                }
            };
            fast(#[inline(always)] || {
                for row in out.chunks_exact_mut(n.max(1)) {
                    if self.log {
                        let top = largest(row);
                        let log = top + T::of(total([&*row], #[inline(always)] |[v]| (v - top).exp())).ln();
                        row.iter_mut().for_each(|v| *v -= log);
                    } else {
                        let part = T::ONE / normalise(row);
                        row.iter_mut().for_each(|v| *v *= part);
                    }
                }
            });
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, SoftmaxGrad { log: self.log }, &[grad.y(0), grad.dy(0)])
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

/// No score of a bounded softmax counts as farther below the largest than this, as in Paddle: no probability is zero, so
/// that its logarithm has a slope.
const FLOOR: f64 = -64.0;

/// Over the last axis, for probabilities that a loss takes the logarithm of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundedSoftmax;

impl Operator for BoundedSoftmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        Softmax { log: false }.infer(inputs)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0).last().copied().unwrap_or(1);
        real!(call.dtype(0), T => {
            let (out, floor) = (call.update::<T>(0, 0), T::of(FLOOR));
            fast(#[inline(always)] || {
                for row in out.chunks_exact_mut(n.max(1)) {
                    let least = largest(row) + floor;
                    row.iter_mut().for_each(|v| *v = at_least(*v, least));
                    let part = T::ONE / normalise(row);
                    row.iter_mut().for_each(|v| *v *= part);
                }
            });
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, SoftmaxGrad { log: false }, &[grad.y(0), grad.dy(0)])
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

/// At least `floor`; NaN stays.
#[inline(always)]
fn at_least<T: Real>(v: T, floor: T) -> T {
    if v < floor { floor } else { v }
}

/// Replaces a row by exp(x - its largest); gives their sum.
#[inline(always)]
pub(super) fn normalise<T: Real>(row: &mut [T]) -> T {
    let top = largest(row);
    row.iter_mut().for_each(|v| *v = (*v - top).exp());
    T::of(sum(row))
}

/// From output and its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftmaxGrad {
    pub log: bool,
}

impl Operator for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        check::like(inputs, 1, 0)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0).last().copied().unwrap_or(1).max(1);
        real!(call.dtype(0), T => {
            let (y, dx) = (call.input::<T>(0), call.update::<T>(1, 0));
            fast(#[inline(always)] || {
                for (y, d) in y.chunks_exact(n).zip(dx.chunks_exact_mut(n)) {
                    if self.log {
                        let all = T::of(sum(d));
                        d.iter_mut().zip(y).for_each(|(d, &y)| *d -= y.exp() * all);
                    } else {
                        let along = T::of(dot(y, d));
                        d.iter_mut().zip(y).for_each(|(d, &y)| *d = y * (*d - along));
                    }
                }
            });
        });
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(1, 0)]
    }
}
