//! What happened when, for people.

use super::{carry::Load, negotiate::fuse::Batch, spec::Kind};
use phalanx_core::Rank;

#[derive(Debug)]
pub(crate) struct Timeline {
    rank: Rank,
}

impl Timeline {
    pub fn new(rank: Rank) -> Timeline {
        Timeline { rank }
    }

    /// A tensor was submitted: its negotiation begins.
    pub fn submitted(&self, _name: &str, _kind: Kind) {}

    /// All ranks have submitted these: their negotiation ends.
    pub fn agreed(&self, _batch: &Batch) {}

    /// Ranks disagreed about it: its negotiation ends.
    pub fn dropped(&self, _name: &str) {}

    /// Data begin to move.
    pub fn moving(&self, _loads: &[Load]) {}

    /// Data have moved.
    pub fn moved(&self, _loads: &[Load], _plan: &'static str) {}
}
