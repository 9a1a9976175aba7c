//! Sums, means and extremes along axes.

use super::{Arith, Binary, Operator, Reshape, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, MAX_RANK, Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, Real, Strides, Walk, real, strides, sums},
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reduction {
    Sum,
    Mean,
    Max,
    Min,
}

/// Reduces along axes; without `keep` they go, with it they have size 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduce {
    pub op: Reduction,
    /// Ascending. None means all.
    pub axes: Vec<usize>,
    pub keep: bool,
}

impl Reduce {
    fn reduces(&self, axis: usize) -> bool {
        self.axes.is_empty() || self.axes.contains(&axis)
    }

    fn kept(&self, shape: &Shape, keep: bool) -> Shape {
        let dims = shape.dims().iter().enumerate();
        Shape(
            dims.filter_map(|(i, &d)| match self.reduces(i) {
                false => Some(d),
                true => keep.then_some(Dim::Fixed(1)),
            })
            .collect(),
        )
    }

    pub(super) fn walk(&self, dims: &[usize]) -> (Walk<2>, usize) {
        let mut out: Strides = [0; MAX_RANK];
        let (mut stride, mut count) = (1, 1);
        for (axis, &n) in dims.iter().enumerate().rev() {
            if self.reduces(axis) {
                count *= n;
            } else {
                out[axis] = stride;
                stride *= n;
            }
        }
        (Walk::new(dims, [strides(dims), out]), count)
    }
}

impl Operator for Reduce {
    fn name(&self) -> &'static str {
        match self.op {
            Reduction::Sum => "reduce_sum",
            Reduction::Mean => "reduce_mean",
            Reduction::Max => "reduce_max",
            Reduction::Min => "reduce_min",
        }
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::real(inputs, 0)?;
        for &axis in &self.axes {
            check::axis(axis, x.shape.rank(), "axes")?;
        }
        Ok(vec![Sig::dense(x.dtype, self.kept(&x.shape, self.keep))])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (walk, count) = self.walk(call.dims(0));
        real!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            match self.op {
                Reduction::Sum => sums(walk, x, out, |s| s),
                Reduction::Mean => sums(walk, x, out, |s| s / count as f64),
                Reduction::Max => extreme(walk, x, out, T::LOWEST, T::larger),
                Reduction::Min => extreme(walk, x, out, -T::LOWEST, T::smaller),
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (x, y, dy) = (grad.x(0), grad.y(0), grad.dy(0));
        let shape = grad.sig(x).shape.clone();
        let kept = Reshape { shape: self.kept(&shape, true) };
        match self.op {
            Reduction::Sum | Reduction::Mean => grad.give(0, ReduceGrad { reduce: self.clone() }, &[x, dy]),
            Reduction::Max | Reduction::Min => {
                let (wide_y, wide_dy) = (grad.emit(kept.clone(), &[y])?, grad.emit(kept, &[dy])?);
                let ones = grad.emit(ReduceGrad { reduce: self.clone() }, &[x, wide_y])?;
                grad.give(0, Binary { op: Arith::Mul, axis: 0 }, &[ones, wide_dy])
            }
        }
    }
}

fn extreme<T: Real>(walk: Walk<2>, x: &[T], out: &mut [T], begin: T, f: impl Fn(T, T) -> T) {
    out.fill(begin);
    let (n, [_, step]) = walk.row();
    walk.each(|[i, o]| {
        for k in 0..n {
            let at = &mut out[o + k * step];
            *at = f(*at, x[i + k]);
        }
    });
}

/// For a sum or mean, the gradient spread over what was added up; for an extreme, one shared by all that equal it, zero for
/// the others. Nothing equals NaN: there all are NaN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReduceGrad {
    pub reduce: Reduce,
}

impl Operator for ReduceGrad {
    fn name(&self) -> &'static str {
        "reduce_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let (x, y) = (check::real(inputs, 0)?, check::real(inputs, 1)?);
        let kept = self.reduce.kept(&x.shape, true).volume();
        if kept != y.shape.volume() {
            return Err(Misfit::Pair { a: x.shape.clone(), b: y.shape.clone() });
        }
        Ok(vec![x.clone()])
    }

    fn workspace(&self, dims: &[&[usize]], _element: usize) -> usize {
        match self.reduce.op {
            Reduction::Sum | Reduction::Mean => 0,
            Reduction::Max | Reduction::Min => dims[1].iter().product::<usize>() * size_of::<u64>(),
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (walk, count) = self.reduce.walk(call.dims(0));
        let (n, [_, step]) = walk.row();
        real!(call.dtype(0), T => {
            let (x, y, out) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            if matches!(self.reduce.op, Reduction::Sum | Reduction::Mean) {
                let mean = self.reduce.op == Reduction::Mean;
                let share = if mean { T::ONE / T::of(count as f64) } else { T::ONE };
                walk.each(|[i, o]| {
                    let out = &mut out[i..i + n];
                    match step {
                        0 => out.fill(y[o] * share),
                        1 => out.iter_mut().zip(&y[o..o + n]).for_each(|(out, &y)| *out = y * share),
                        _ => out.iter_mut().enumerate().for_each(|(k, out)| *out = y[o + k * step] * share),
                    }
                });
                return Ok(());
            }
            let equals: &mut [u64] = call.workspace();
            equals.fill(0);
            walk.each(|[i, o]| {
                for k in 0..n {
                    equals[o + k * step] += u64::from(x[i + k] == y[o + k * step]);
                }
            });
            walk.each(|[i, o]| {
                for k in 0..n {
                    let at = o + k * step;
                    let own = if x[i + k] == y[at] { T::ONE } else { T::ZERO };
                    out[i + k] = own / T::of(equals[at] as f64);
                }
            });
        });
        Ok(())
    }
}
