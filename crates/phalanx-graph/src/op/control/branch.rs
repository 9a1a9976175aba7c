//! The branch.

use super::{CondGrad, Inside, env_of, gives, is_real, perform};
use crate::{
    grad::{Grad, backward},
    ir::{Body, GraphError, Misfit, Op, Sig},
    kernel::{BodySlot, Call, KernelError},
    op::{Operator, check},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// From a condition and what its bodies capture: what `then` gives if the condition holds, and else what `other` gives.
/// Only that one runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cond {
    pub then: Body,
    pub other: Body,
    pub stream: u32,
}

/// The two bodies of a branch, each of which takes all inputs but the condition.
pub(super) fn both<'a>(then: &'a Body, other: &'a Body) -> Vec<Inside<'a>> {
    let inside =
        |body: &'a Body| Inside { body, at: (0..body.takes().count()).map(|i| Some(1 + i)).collect() };
    vec![inside(then), inside(other)]
}

/// What both bodies give; it must be the same.
pub(super) fn agreed(then: &Body, other: &Body, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
    let Some((_, rest)) = inputs.split_first() else { return Err(Misfit::Count { wanted: 1, got: 0 }) };
    check::scalar(inputs, 0, DType::Bool)?;
    let wanted = then.infer("branch for true", rest, 1)?;
    let got = other.infer("branch for false", rest, 1)?;
    if wanted.is_empty() {
        return Err(Misfit::GivesCount { what: "branch for true", wanted: 1, got: 0 });
    }
    gives("branch for false", &wanted, &got)?;
    Ok(wanted)
}

/// Runs the body that the condition says, and gives what it gives.
pub(super) fn run(call: &mut Call<'_>, bodies: [&Body; 2], stream: u32) -> Result<(), KernelError> {
    let nth = usize::from(call.byte_at(BodySlot::Input(0)) == 0);
    let env = env_of(call.env, stream, nth as u64);
    perform(call, nth, bodies[nth], env)?;
    for slot in 0..bodies[nth].gives().len() {
        call.transfer(BodySlot::Give(nth, slot), BodySlot::Output(slot));
    }
    Ok(())
}

impl Operator for Cond {
    fn name(&self) -> &'static str {
        "cond"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        agreed(&self.then, &self.other, inputs)
    }

    fn bodies(&self) -> Vec<Inside<'_>> {
        both(&self.then, &self.other)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        run(call, [&self.then, &self.other], self.stream)
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let wants = self.then.wants();
        let is_wanted = |s: &usize| grad.wants(1 + s) && is_real(wants[*s].dtype);
        let wrt: Vec<usize> = (0..wants.len()).filter(is_wanted).collect();
        let of: Vec<usize> = (0..self.then.gives().len()).filter(|&s| grad.has_dy(s)).collect();
        if wrt.is_empty() {
            return Ok(true);
        }
        let back = |body: &Body| backward(body, &of, |_| true, &wrt);
        let (then, other) = (back(&self.then)?, back(&self.other)?);
        let mut inputs: Vec<_> = (0..grad.n_inputs()).map(|s| grad.x(s)).collect();
        inputs.extend(of.iter().map(|&s| grad.dy(s)));
        let found = grad.emit_all(CondGrad { then, other, stream: self.stream }, &inputs)?;
        for (slot, d) in wrt.into_iter().zip(found) {
            grad.pass(1 + slot, d)?;
        }
        Ok(true)
    }

    fn for_test(&self, op: &Op) -> Option<Op> {
        let kind = Cond { then: self.then.for_test(), other: self.other.for_test(), stream: self.stream };
        Some(Op { kind: kind.into(), ..op.clone() })
    }
}
