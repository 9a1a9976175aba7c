//! Conditions from conditions.

use super::{Operator, check};
use crate::{
    ir::{Misfit, Sig},
    kernel::{Call, KernelError},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Puts booleans of one shape together; `Not` takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Logical {
    And,
    Or,
    Xor,
    Not,
}

impl Operator for Logical {
    fn name(&self) -> &'static str {
        match self {
            Logical::And => "logical_and",
            Logical::Or => "logical_or",
            Logical::Xor => "logical_xor",
            Logical::Not => "logical_not",
        }
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, if *self == Logical::Not { 1 } else { 2 })?;
        for slot in 0..inputs.len() {
            let sig = check::dense(inputs, slot)?;
            if sig.dtype != DType::Bool {
                return Err(Misfit::DType { slot, wanted: "bool", got: sig.dtype });
            }
            check::like(inputs, slot, 0)?;
        }
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let out = call.output::<u8>(0);
        let x = call.input::<u8>(0).iter().map(|&v| v != 0);
        if *self == Logical::Not {
            out.iter_mut().zip(x).for_each(|(o, x)| *o = u8::from(!x));
            return Ok(());
        }
        let y = call.input::<u8>(1).iter().map(|&v| v != 0);
        for (o, (x, y)) in out.iter_mut().zip(x.zip(y)) {
            *o = u8::from(match self {
                Logical::And => x && y,
                Logical::Or => x || y,
                Logical::Xor | Logical::Not => x != y,
            });
        }
        Ok(())
    }
}
