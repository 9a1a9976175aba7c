//! Which rank accessed whose memory between which synchronisations.
//!
//! Only plans that use peers' buffers directly can race: everywhere else a rank's memory is its own.

use super::{PlanFault, What, memory::RankSet};
use phalanx_core::Rank;
use std::ops::Range;

/// One use of memory.
#[derive(Clone, Debug)]
struct Access {
    owner: Rank,
    /// How many `Sync`s the user had passed.
    interval: u32,
    by: Rank,
    step: usize,
    cells: Range<usize>,
    writes: bool,
}

/// All uses of memory by plans with direct steps.
#[derive(Debug)]
pub(super) struct Races {
    is_needed: bool,
    accesses: Vec<Access>,
    /// `Sync`s that each rank passes in all.
    pub n_syncs: Vec<u32>,
}

/// Who does what in which step.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub rank: Rank,
    pub step: usize,
}

impl Races {
    pub fn new(is_needed: bool, n_ranks: usize) -> Races {
        Races { is_needed, accesses: Vec::new(), n_syncs: vec![0; n_ranks] }
    }

    pub fn record(&mut self, by: By, owner: Rank, cells: Range<usize>, writes: bool) {
        if self.is_needed && !cells.is_empty() {
            let interval = self.n_syncs[by.rank.index()];
            self.accesses.push(Access { owner, interval, by: by.rank, step: by.step, cells, writes });
        }
    }

    /// A peer's buffers may be used once the peer is known to have begun.
    pub fn check_ready(heard: RankSet, peer: Rank) -> Result<(), What> {
        if heard >> peer.0 & 1 == 1 { Ok(()) } else { Err(What::PeerNotReady { peer }) }
    }

    pub fn check(&self) -> Result<(), PlanFault> {
        for access in self.accesses.iter().filter(|a| a.by != a.owner) {
            if self.n_syncs[access.owner.index()] <= access.interval {
                let what = What::EndsEarly { by: access.by };
                return Err(PlanFault { rank: access.owner, step: None, what });
            }
        }
        let mut order: Vec<&Access> = self.accesses.iter().collect();
        order.sort_by_key(|a| (a.owner, a.interval, a.cells.start));
        for (i, a) in order.iter().enumerate() {
            let near = order[i + 1..].iter().take_while(|b| {
                (b.owner, b.interval) == (a.owner, a.interval) && b.cells.start < a.cells.end
            });
            for b in near {
                if a.by != b.by && (a.writes || b.writes) {
                    let what = What::Race { owner: a.owner, other: b.by };
                    return Err(PlanFault { rank: a.by, step: Some(a.step), what });
                }
            }
        }
        Ok(())
    }
}
