//! Losses of classes. Others are made of arithmetic by the layers.

use super::{Arith, Binary, Operator, SoftmaxGrad, check, softmax::normalise};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, Pair, Real, fast, largest, real},
};
use serde::{Deserialize, Serialize};

/// Labels are one class number for each row of scores: the same shape with a last dimension of 1, or without it.
fn classes(inputs: &[Sig], scores: usize, labels: usize) -> Result<Sig, Misfit> {
    let x = check::real(inputs, scores)?;
    let y = check::index(inputs, labels)?;
    let Some((&last, outer)) = x.shape.dims().split_last() else {
        return Err(Misfit::Rank { slot: scores, wanted: "at least 1", got: x.shape.clone() });
    };
    if !last.is_batch() {
        let mut with_one = outer.to_vec();
        with_one.push(Dim::Fixed(1));
        if y.shape.dims() == outer || y.shape.dims() == with_one {
            return Ok(Sig::dense(x.dtype, y.shape.clone()));
        }
    }
    Err(Misfit::Pair { a: x.shape.clone(), b: y.shape.clone() })
}

/// Which class each row has; one that is `ignored` counts nothing.
fn label(at: usize, value: i64, n: usize, ignored: Option<i64>) -> Result<Option<usize>, KernelError> {
    if Some(value) == ignored {
        return Ok(None);
    }
    match usize::try_from(value) {
        Ok(class) if class < n => Ok(Some(class)),
        _ => Err(KernelError::Index { input: 1, at, value, limit: n }),
    }
}

/// The loss of a probability of zero, as in Paddle.
const MOST: f64 = 1e20;
/// Slopes are those of no smaller probability: one over it is still an f32.
const LEAST: f64 = 1e-30;

/// From probabilities and class numbers: minus the logarithm of the right class's, at most [`MOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrossEntropy {
    pub ignored: Option<i64>,
}

impl Operator for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        Ok(vec![classes(inputs, 0, 1)?])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0)[call.dims(0).len() - 1];
        let labels = call.input::<i64>(1);
        real!(call.dtype(0), T => {
            let (p, out) = (call.input::<T>(0), call.output::<T>(0));
            for (i, (o, &l)) in out.iter_mut().zip(labels).enumerate() {
                *o = label(i, l, n, self.ignored)?.map_or(T::ZERO, |c| (-p[i * n + c].ln()).smaller(T::of(MOST)));
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, CrossEntropyGrad { of: *self }, &[grad.x(0), grad.x(1), grad.dy(0)])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrossEntropyGrad {
    pub of: CrossEntropy,
}

impl Operator for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let out = classes(inputs, 0, 1)?;
        check::shaped(inputs, 2, out.dtype, &out.shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0)[call.dims(0).len() - 1];
        let labels = call.input::<i64>(1);
        real!(call.dtype(0), T => {
            let (p, d, out) = (call.input::<T>(0), call.input::<T>(2), call.output::<T>(0));
            out.fill(T::ZERO);
            for (i, &l) in labels.iter().enumerate() {
                if let Some(c) = label(i, l, n, self.of.ignored)? {
                    out[i * n + c] = -d[i] / p[i * n + c].larger(T::of(LEAST));
                }
            }
        });
        Ok(())
    }
}

/// Softmax and cross entropy in one, from scores and class numbers: gives losses and probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftmaxCrossEntropy {
    pub ignored: Option<i64>,
}

impl Operator for SoftmaxCrossEntropy {
    fn name(&self) -> &'static str {
        "softmax_with_cross_entropy"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        Ok(vec![classes(inputs, 0, 1)?, inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0)[call.dims(0).len() - 1];
        let labels = call.input::<i64>(1);
        real!(call.dtype(0), T => {
            let loss = call.output::<T>(0);
            let p = match call.pair::<T>(0, 1) {
                Pair::Same(p) => p,
                Pair::Apart(x, p) => {
                    p.copy_from_slice(x);
                    p
                }
            };
            for (i, (&l, row)) in labels.iter().zip(p.chunks_exact_mut(n)).enumerate() {
                let class = label(i, l, n, self.ignored)?;
                // The score of the class, before the row becomes probabilities: its loss stays finite where the
                // probability is too small to write down.
                let score = class.map(|c| row[c]);
                let (top, total) = fast(#[inline(always)] || {
                    let top = largest(row);
                    let total = normalise(row);
                    let part = T::ONE / total;
                    row.iter_mut().for_each(|v| *v *= part);
                    (top, total)
                });
                loss[i] = score.map_or(T::ZERO, |s| total.ln() - (s - top));
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        if grad.has_dy(1) {
            grad.give(0, SoftmaxGrad { log: false }, &[grad.y(1), grad.dy(1)])?;
        }
        if grad.has_dy(0) {
            grad.give(0, SoftmaxCrossEntropyGrad { of: *self }, &[grad.y(1), grad.x(1), grad.dy(0)])?;
        }
        Ok(true)
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 1)]
    }
}

/// From probabilities, class numbers and the gradient of the losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftmaxCrossEntropyGrad {
    pub of: SoftmaxCrossEntropy,
}

impl Operator for SoftmaxCrossEntropyGrad {
    fn name(&self) -> &'static str {
        "softmax_with_cross_entropy_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let out = classes(inputs, 0, 1)?;
        check::shaped(inputs, 2, out.dtype, &out.shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0)[call.dims(0).len() - 1];
        let labels = call.input::<i64>(1);
        real!(call.dtype(0), T => {
            let d = call.input::<T>(2);
            let dx = call.update::<T>(0, 0);
            for (i, (&l, row)) in labels.iter().zip(dx.chunks_exact_mut(n)).enumerate() {
                match label(i, l, n, self.of.ignored)? {
                    Some(c) => {
                        row[c] -= T::ONE;
                        let by = d[i];
                        fast(#[inline(always)] || row.iter_mut().for_each(|v| *v *= by));
                    }
                    None => row.fill(T::ZERO),
                }
            }
        });
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

/// The cross entropy of two outcomes, element by element, from scores and targets between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigmoidCrossEntropy {
    /// Instead of losses, gives their derivatives to the scores: sigmoid(x) - target.
    pub derivative: bool,
}

impl Operator for SigmoidCrossEntropy {
    fn name(&self) -> &'static str {
        "sigmoid_cross_entropy"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        check::like(inputs, 1, 0)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let derivative = self.derivative;
        real!(call.dtype(0), T => {
            let (x, t, out) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            for ((o, &x), &t) in out.iter_mut().zip(x).zip(t) {
                *o = match derivative {
                    true => x.sigmoid() - t,
                    false => x.larger(T::ZERO) - x * t + (-x.abs()).exp().ln_1p(),
                };
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        if self.derivative || grad.wants(1) {
            return Ok(false);
        }
        let slope = grad.emit(SigmoidCrossEntropy { derivative: true }, &[grad.x(0), grad.x(1)])?;
        grad.give(0, Binary::same(Arith::Mul), &[slope, grad.dy(0)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{BATCH, Shape};
    use phalanx_core::DType;

    #[test]
    fn labels_of_either_shape_fit_and_others_do_not() {
        let scores = Sig::dense(DType::F32, [BATCH, Dim::Fixed(10)]);
        let labels = |shape: Shape| Sig::dense(DType::I64, shape);
        for shape in [Shape::from([BATCH]), Shape::from([BATCH, Dim::Fixed(1)])] {
            assert_eq!(classes(&[scores.clone(), labels(shape.clone())], 0, 1).unwrap().shape, shape);
        }
        assert!(classes(&[scores, labels(Shape::from([BATCH, Dim::Fixed(10)]))], 0, 1).is_err());
    }
}
