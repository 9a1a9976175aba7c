//! Arithmetic of whole numbers, which has no gradient. The second operand is stretched over the first, as in `binary`.

use super::{Operator, binary::stretches, check};
use crate::{
    ir::{Misfit, Sig},
    kernel::{Call, KernelError, Walk, stretched, strides},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WholeOp {
    Add,
    Sub,
    Mul,
    /// Rounded down, as in Python.
    FloorDiv,
    /// With the sign of the divisor, as in Python.
    Mod,
    Max,
    Min,
}

/// `x op y` of int32 or int64. Results that are too large wrap around; a divisor of zero is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    pub op: WholeOp,
    pub axis: usize,
}

impl Operator for Whole {
    fn name(&self) -> &'static str {
        match self.op {
            WholeOp::Add => "add_whole",
            WholeOp::Sub => "sub_whole",
            WholeOp::Mul => "mul_whole",
            WholeOp::FloorDiv => "floordiv",
            WholeOp::Mod => "mod",
            WholeOp::Max => "max_whole",
            WholeOp::Min => "min_whole",
        }
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        stretches(inputs, self.axis)?;
        let x = check::dense(inputs, 0)?;
        match x.dtype {
            DType::I32 | DType::I64 => Ok(vec![x.clone()]),
            got => Err(Misfit::DType { slot: 0, wanted: "i32 or i64", got }),
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dims, y_dims) = (call.dims(0), call.dims(1));
        let walk = Walk::new(dims, [strides(dims), stretched(y_dims, dims, self.axis)]);
        let (n, [_, step]) = walk.row();
        macro_rules! compute {
            ($t:ident) => {{
                let (x, y, out) = (call.input::<$t>(0), call.input::<$t>(1), call.output::<$t>(0));
                let mut zero = None;
                walk.each(|[o, b]| {
                    for i in 0..n {
                        let (a, b) = (x[o + i], y[b + i * step]);
                        out[o + i] = match self.op {
                            WholeOp::Add => a.wrapping_add(b),
                            WholeOp::Sub => a.wrapping_sub(b),
                            WholeOp::Mul => a.wrapping_mul(b),
                            WholeOp::Max => a.max(b),
                            WholeOp::Min => a.min(b),
                            WholeOp::FloorDiv | WholeOp::Mod if b == 0 => {
                                zero.get_or_insert(o + i);
                                0
                            }
                            WholeOp::FloorDiv => {
                                let rest = a.wrapping_rem(b);
                                a.wrapping_div(b) - $t::from(rest != 0 && (rest < 0) != (b < 0))
                            }
                            WholeOp::Mod => {
                                let rest = a.wrapping_rem(b);
                                if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
                            }
                        };
                    }
                });
                zero
            }};
        }
        let zero = match call.dtype(0) {
            DType::I32 => compute!(i32),
            DType::I64 => compute!(i64),
            other => return Err(KernelError::DType(other)),
        };
        match zero {
            None => Ok(()),
            Some(at) => Err(KernelError::ZeroDivisor { at }),
        }
    }
}
