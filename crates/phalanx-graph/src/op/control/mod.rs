//! Loops and branches. What they do is a body: a program of its own, planned and checked with theirs.
//! - CONTROL-1: a loop ends after `most` rounds at the latest, with an error if its condition still holds.
//! - CONTROL-2: random numbers within a body are functions of seed, run, place, and round or branch: gradients draw the
//!   same again, and replicas draw what one would.

mod branch;
mod branch_grad;
mod repeat;
mod repeat_grad;

pub use branch::Cond;
pub use branch_grad::CondGrad;
pub use repeat::While;
pub use repeat_grad::WhileGrad;

use crate::{
    ir::{Body, Misfit, Op, Program, Sig},
    kernel::{Call, Env, KernelError, Stream, Within},
};
use phalanx_core::DType;

/// A body of an operation, and which of its inputs each value lies in that the body takes; `None` for what the operation
/// puts there itself.
#[derive(Clone, Debug)]
pub struct Inside<'a> {
    pub body: &'a Body,
    pub at: Vec<Option<usize>>,
}

/// Whether gradients go through such values.
fn is_real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// Whether a body gives what is wanted of it.
fn gives(what: &'static str, wanted: &[Sig], got: &[Sig]) -> Result<(), Misfit> {
    if wanted.len() != got.len() {
        return Err(Misfit::GivesCount { what, wanted: wanted.len(), got: got.len() });
    }
    for (slot, (wanted, got)) in wanted.iter().zip(got).enumerate() {
        if wanted != got {
            let (wanted, got) = (Box::new(wanted.clone()), Box::new(got.clone()));
            return Err(Misfit::Gives { what, slot, wanted, got });
        }
    }
    Ok(())
}

/// What a body is told in its `nth` round, or as this branch (CONTROL-2).
fn env_of(env: Env, stream: u32, nth: u64) -> Env {
    Env { seed: Stream::new(env.seed, u64::from(stream), env.run).bits(nth), ..env }
}

/// All operations of a body, once.
fn perform(call: &mut Call<'_>, nth: usize, body: &Body, env: Env) -> Result<(), KernelError> {
    let program = body.program();
    for (id, op) in program.ops() {
        let mut inner = call.inner(nth, id.index(), env);
        let ended = op.kind.operator().run(&mut inner);
        if let Err(why) = ended {
            return Err(within(program, op, &inner, why));
        }
        if env.check_finite {
            let inner = call.inner(nth, id.index(), env);
            finite(program, op, &inner)?;
        }
    }
    Ok(())
}

fn finite(program: &Program, op: &Op, inner: &Call<'_>) -> Result<(), KernelError> {
    for (slot, &id) in op.outputs.iter().enumerate() {
        if let Some((at, value)) = inner.first_bad(slot) {
            let var = program.var(id).name.clone();
            return Err(within(program, op, inner, KernelError::NotFinite { var, at, value }));
        }
    }
    Ok(())
}

/// Names the operation that failed, unless one within it is to blame.
fn within(program: &Program, op: &Op, inner: &Call<'_>, why: KernelError) -> KernelError {
    if matches!(why, KernelError::Within(_)) {
        return why;
    }
    let shown = op.inputs.iter().zip(inner.operands());
    let shown = shown.map(|(&id, o)| format!("{}: {}{:?}", program.var(id).name, o.dtype, o.dims));
    let inputs = shown.collect::<Vec<_>>().join(", ");
    KernelError::Within(Box::new(Within { op: op.name(), site: op.site.clone(), inputs, why }))
}
