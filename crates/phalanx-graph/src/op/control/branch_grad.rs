//! Backwards through the branch that was taken.

use super::{Inside, branch};
use crate::{
    ir::{Body, Misfit, Sig},
    kernel::{Call, KernelError},
    op::Operator,
};
use serde::{Deserialize, Serialize};

/// From the condition, what the bodies capture, and the gradients of what they gave: the gradients of captured values.
/// Each body goes forward and back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CondGrad {
    pub then: Body,
    pub other: Body,
    pub stream: u32,
}

impl Operator for CondGrad {
    fn name(&self) -> &'static str {
        "cond_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        branch::agreed(&self.then, &self.other, inputs)
    }

    fn bodies(&self) -> Vec<Inside<'_>> {
        branch::both(&self.then, &self.other)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        branch::run(call, [&self.then, &self.other], self.stream)
    }
}
