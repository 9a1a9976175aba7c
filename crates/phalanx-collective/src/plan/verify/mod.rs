//! Proves plans: runs all ranks together on symbols instead of numbers.
//!
//! What is checked, for one request and the plans of all its ranks:
//! - VER-1: every element of every `Out` is what the operation says: the right contributions, each once, prescaled once, postscaled once.
//! - VER-2: after an allreduce all ranks have the same bits: the same reductions in the same order, up to the order of two operands.
//! - VER-3: nothing but `Out` and scratch is written, no span leaves its buffer or slot, and what one step reads and writes does not overlap,
//!   with `In` and `Out` laid over each other as the request says.
//! - VER-4: no deadlock on a wire without buffers and with `N_SLOTS` slots a rank. Every wait is for something that happens once and stays, so one
//!   schedule without deadlock means that there is none with one.
//! - VER-5: the arena's rules ARENA-1..3 and PLAN-3; no rank reads what was not published in that turn.
//! - VER-6: with buffers in the arena no rank reads or writes, between two `Sync`s, what another writes, nor before their owner has begun or after it
//!   may have ended.
//! - VER-7: after a barrier every rank has heard, directly or not, from every other.

mod machine;
mod memory;
mod race;

use super::{
    PlanRequest,
    step::{Buf, CollectiveOp, Plan},
};
use phalanx_core::Rank;
use std::fmt;

/// More ranks than this are for the simulator.
pub const MAX_RANKS: u32 = 128;

/// What the plans cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanCost {
    /// Bytes that each rank sends over links.
    pub sent_bytes: Vec<u64>,
    /// Bytes that leave each host.
    pub host_bytes: Vec<u64>,
    /// Bytes that all ranks send along each tier.
    pub tier_bytes: Vec<u64>,
    /// Steps of each rank.
    pub n_steps: Vec<usize>,
}

/// What is wrong with a set of plans: where it was noticed, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PlanFault {
    pub rank: Rank,
    /// The step at which it was noticed; none if at the beginning or the end.
    pub step: Option<usize>,
    pub what: What,
}

impl fmt::Display for PlanFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "rank {} at step {step}: {}", self.rank, self.what),
            None => write!(f, "rank {}: {}", self.rank, self.what),
        }
    }
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    #[error("{n_plans} plans for {n_ranks} ranks; at most {MAX_RANKS} can be verified")]
    WrongNumber { n_plans: usize, n_ranks: u32 },
    #[error("its group or its number of turns is not that of rank {other}")]
    GroupsDiffer { other: Rank },
    #[error("an arena step in a plan without a group")]
    NoGroup,
    #[error("elements {at}..{end} of {buf:?}, which has {len}")]
    OutOfBounds { buf: Buf, at: u64, end: u64, len: u64 },
    #[error("elements {at}..{end} of a slot of {len}")]
    OutOfSlot { at: u64, end: u64, len: u64 },
    #[error("writes memory that is not part of Out or scratch")]
    WritesInput,
    #[error("one step uses the same elements in two ways that exclude each other")]
    Overlap,
    #[error("lengths differ: {a} and {b} elements")]
    LengthsDiffer { a: u64, b: u64 },
    #[error("rank {peer} sends {sent} elements where {taken} are expected")]
    TransferDiffers { peer: Rank, sent: u64, taken: u64 },
    #[error("an empty transfer, or one with itself")]
    EmptyTransfer,
    #[error("turn {turn} is not after turn {last}, or not below the plan's number of turns")]
    TurnOutOfOrder { turn: u32, last: i64 },
    #[error("reads turn {turn} after releasing it")]
    ReadsReleased { turn: u32 },
    #[error("reads elements of turn {turn} that rank {peer} did not publish")]
    NotPublished { peer: Rank, turn: u32 },
    #[error("does not publish turn 0")]
    NoFirstTurn,
    #[error("cannot reduce: {0}")]
    CannotReduce(&'static str),
    #[error("cannot scale: {0}")]
    CannotScale(&'static str),
    #[error("{peer}'s memory is used before rank {peer} is known to have begun")]
    PeerNotReady { peer: Rank },
    #[error(
        "touches elements of rank {owner} in the same interval in which rank {other} does, and one writes"
    )]
    Race { owner: Rank, other: Rank },
    #[error("rank {by} may still use this rank's memory when it ends")]
    EndsEarly { by: Rank },
    #[error("waits for rank {peer} for ever")]
    Deadlock { peer: Rank },
    #[error("element {at} of Out is wrong: {found}")]
    WrongResult { at: u64, found: String },
    #[error("element {at} of Out has not the bits that rank {other} has")]
    BitsDiffer { at: u64, other: Rank },
    #[error("ends the barrier without having heard from rank {other}")]
    NotHeard { other: Rank },
}

/// Runs the plans of all ranks, `plans[r]` for rank r, together.
pub fn verify(request: &PlanRequest, plans: &[Plan]) -> Result<PlanCost, PlanFault> {
    let n_ranks = request.n_ranks();
    if plans.len() != n_ranks as usize || n_ranks > MAX_RANKS {
        let what = What::WrongNumber { n_plans: plans.len(), n_ranks };
        return Err(PlanFault { rank: Rank::ZERO, step: None, what });
    }
    check_groups(plans)?;
    let mut machine = machine::Machine::new(request, plans);
    machine.run()?;
    machine.races.check()?;
    let outcome = machine.outcome();
    check_results(request, &outcome)?;
    Ok(outcome.report)
}

/// The members of a group agree on who they are and on the number of turns, and all publish turn 0.
fn check_groups(plans: &[Plan]) -> Result<(), PlanFault> {
    for (r, plan) in plans.iter().enumerate() {
        let rank = Rank::at(r);
        let fault = |what| PlanFault { rank, step: None, what };
        if plan.group.is_empty() {
            continue;
        }
        for &other in &plan.group {
            let same =
                plans.get(other.index()).is_some_and(|p| p.group == plan.group && p.n_turns == plan.n_turns);
            if !same {
                return Err(fault(What::GroupsDiffer { other }));
            }
        }
        if !plan.group.contains(&rank) || !plan.group.is_sorted() {
            return Err(fault(What::GroupsDiffer { other: rank }));
        }
    }
    Ok(())
}

fn check_results(request: &PlanRequest, outcome: &machine::Outcome) -> Result<(), PlanFault> {
    let everybody = memory::full(request.n_ranks());
    for r in 0..request.n_ranks() {
        let rank = Rank(r);
        let fault = |what| PlanFault { rank, step: None, what };
        let out = &outcome.outs[rank.index()];
        let expected = memory::Expected::new(request, rank);
        for (at, value) in out.iter().enumerate() {
            if !expected.is_met(at as u64, value) {
                let found = format!("{value:?}");
                return Err(fault(What::WrongResult { at: at as u64, found }));
            }
            if request.op == CollectiveOp::Allreduce && *value != outcome.outs[0][at] {
                return Err(fault(What::BitsDiffer { at: at as u64, other: Rank::ZERO }));
            }
        }
        let missing = everybody & !outcome.heard[rank.index()];
        if request.op == CollectiveOp::Barrier && missing != 0 {
            return Err(fault(What::NotHeard { other: Rank(missing.trailing_zeros()) }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
