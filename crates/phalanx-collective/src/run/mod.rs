//! Executes plans: the only place where steps become memory and messages.

pub(crate) mod arena;
pub(crate) mod ear;
pub(crate) mod exchange;
pub(crate) mod memory;

use crate::{
    meter::Meter,
    plan::step::{Plan, Step},
};
use arena::ArenaRun;
use exchange::LinkRun;
use memory::Buffers;
use phalanx_core::{Rank, kernel::ReduceKernel};
use phalanx_net::NetError;
use std::time::Instant;

/// Why a plan ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    Net(NetError),
    /// Seen by every rank of the host alike; the communicator stays usable.
    Disagreed {
        a: Rank,
        a_call: String,
        b: Rank,
        b_call: String,
    },
    /// Some ranks' buffers are in the arena and others' are not: all see it alike and run the plan for private memory instead.
    MixedMemory,
}

/// For those who want to know how long the steps along each tier take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock<'a> {
    pub meter: &'a Meter,
    /// The tier of each step.
    pub tiers: &'a [u8],
}

/// Runs one rank's plan.
pub(crate) fn run(
    plan: &Plan,
    buffers: &mut Buffers<'_>,
    reduction: Option<&ReduceKernel>,
    (mut arena, links): (Option<ArenaRun<'_>>, &mut LinkRun<'_>),
    clock: Option<Clock<'_>>,
) -> Result<(), Stop> {
    if let Some(arena) = arena.as_mut().filter(|_| plan.n_turns == 0) {
        // A plan of links alone says what it calls to the ranks of its host all the same: theirs may be a plan of another kind.
        arena.introduce(buffers)?;
    }
    for (i, step) in plan.steps.iter().enumerate() {
        let began = clock.map(|_| Instant::now());
        match step {
            Step::Copy { src, dst } => buffers.copy(*src, *dst),
            Step::Scale { span, pre, post } => {
                let reduction = reduction.expect("only reductions scale").only(*pre, *post);
                if !reduction.is_plain() {
                    buffers.scale(&reduction, *span);
                }
            }
            Step::Exchange { sends, recvs } => links.exchange(sends, recvs, buffers, reduction)?,
            shared => arena
                .as_mut()
                .expect("a plan with arena steps is made only for ranks that share a lane")
                .step(shared, buffers, reduction)?,
        }
        if let (Some(clock), Some(began)) = (clock, began) {
            clock.meter.took(usize::from(clock.tiers[i]), began.elapsed());
        }
    }
    match arena {
        Some(mut arena) => arena.finish(plan),
        None => Ok(()),
    }
}
