//! Products along axes.

use super::{Operator, Reduce, check};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, real},
};
use serde::{Deserialize, Serialize};

/// The product along the axes of a reduction, whose own way to reduce does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReduceProd {
    pub reduce: Reduce,
}

impl Operator for ReduceProd {
    fn name(&self) -> &'static str {
        "reduce_prod"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        self.reduce.infer(inputs)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (walk, _) = self.reduce.walk(call.dims(0));
        let (n, [_, step]) = walk.row();
        real!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            out.fill(T::ONE);
            walk.each(|[i, o]| (0..n).for_each(|k| out[o + k * step] *= x[i + k]));
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, ReduceProdGrad { reduce: self.reduce.clone() }, &[grad.x(0), grad.dy(0)])
    }
}

/// From input and gradient: each element's is the product of the others, also where some are zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReduceProdGrad {
    pub reduce: Reduce,
}

impl Operator for ReduceProdGrad {
    fn name(&self) -> &'static str {
        "reduce_prod_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let out = self.reduce.infer(&inputs[..1])?;
        check::shaped(inputs, 1, out[0].dtype, &out[0].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], _element: usize) -> usize {
        2 * dims[1].iter().product::<usize>().max(1) * size_of::<f64>()
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (walk, _) = self.reduce.walk(call.dims(0));
        let (n, [_, step]) = walk.row();
        // Of each product: how many zeros, and the product of the rest.
        let known: &mut [[f64; 2]] = call.workspace();
        known.fill([0.0, 1.0]);
        real!(call.dtype(0), T => {
            let (x, d, out) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            walk.each(|[i, o]| {
                for k in 0..n {
                    let (x, known) = (x[i + k], &mut known[o + k * step]);
                    if x == T::ZERO { known[0] += 1.0 } else { known[1] *= x.wide() }
                }
            });
            walk.each(|[i, o]| {
                for k in 0..n {
                    let (at, x) = (o + k * step, x[i + k]);
                    let [zeros, rest] = known[at];
                    let others = match (x == T::ZERO, zeros) {
                        (false, 0.0) => rest / x.wide(),
                        (true, 1.0) => rest,
                        _ => 0.0,
                    };
                    out[i + k] = d[at] * T::of(others);
                }
            });
        });
        Ok(())
    }
}
