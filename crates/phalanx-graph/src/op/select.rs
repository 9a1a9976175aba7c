//! One of two values, element by element, as booleans say.

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// The second input where the first is true, the third elsewhere. What is not taken has no effect, not even as NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Where;

fn condition(inputs: &[Sig]) -> Result<(), Misfit> {
    let (is, x) = (check::dense(inputs, 0)?, check::real(inputs, 1)?);
    if is.dtype != DType::Bool {
        return Err(Misfit::DType { slot: 0, wanted: "bool", got: is.dtype });
    }
    if is.shape != x.shape {
        return Err(Misfit::Pair { a: is.shape.clone(), b: x.shape.clone() });
    }
    Ok(())
}

impl Operator for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        condition(inputs)?;
        check::like(inputs, 2, 1)?;
        Ok(vec![inputs[1].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let is = call.input::<u8>(0);
        real!(call.dtype(1), T => {
            let (x, y, out) = (call.input::<T>(1), call.input::<T>(2), call.output::<T>(0));
            for (((out, &is), &x), &y) in out.iter_mut().zip(is).zip(x).zip(y) {
                *out = if is != 0 { x } else { y };
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (is, dy) = (grad.x(0), grad.dy(0));
        grad.give(1, Masked { keep: true }, &[is, dy])?;
        grad.give(2, Masked { keep: false }, &[is, dy])
    }
}

/// The second input where the first is `keep`, zero elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masked {
    pub keep: bool,
}

impl Operator for Masked {
    fn name(&self) -> &'static str {
        "masked"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        condition(inputs)?;
        Ok(vec![inputs[1].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let is = call.input::<u8>(0);
        real!(call.dtype(1), T => {
            let (x, out) = (call.input::<T>(1), call.output::<T>(0));
            for ((out, &is), &x) in out.iter_mut().zip(is).zip(x) {
                *out = if (is != 0) == self.keep { x } else { T::ZERO };
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(1, *self, &[grad.x(0), grad.dy(0)])
    }
}
