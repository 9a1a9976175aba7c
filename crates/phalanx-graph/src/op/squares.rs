//! The squared norm of several tensors in two steps, for tensors that are not in one place. It has the bits of [`SquaredNorm`](super::SquaredNorm).

use super::{Operator, check, update::pieces};
use crate::{
    ir::{Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, dot, fast, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// The sum of all squares of one tensor, as f64. A sparse one must be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Squares;

impl Operator for Squares {
    fn name(&self) -> &'static str {
        "squares"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        match inputs[0].dtype {
            DType::F32 | DType::F64 => Ok(vec![Sig::dense(DType::F64, Shape::scalar())]),
            got => Err(Misfit::DType { slot: 0, wanted: "f32 or f64", got }),
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let mut own = 0.0;
        real!(call.dtype(0), T => {
            pieces::<T>(call, 0, |_, g| own += fast(#[inline(always)] || dot(g, g)));
        });
        call.output::<f64>(0)[0] = own;
        Ok(())
    }
}

/// The sum of what [`Squares`] gives, in the order of the inputs, as another element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumSquares {
    pub dtype: DType,
}

impl Operator for SumSquares {
    fn name(&self) -> &'static str {
        "sum_squares"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        if inputs.is_empty() {
            return Err(Misfit::Count { wanted: 1, got: 0 });
        }
        for slot in 0..inputs.len() {
            check::scalar(inputs, slot, DType::F64)?;
        }
        match self.dtype {
            DType::F32 | DType::F64 => Ok(vec![Sig::dense(self.dtype, Shape::scalar())]),
            got => Err(Misfit::DType { slot: 0, wanted: "f32 or f64", got }),
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let total = (0..call.n_inputs()).fold(0.0, |total, slot| total + call.input::<f64>(slot)[0]);
        real!(call.out_dtype(0), T => call.output::<T>(0)[0] = T::of(total));
        Ok(())
    }
}
