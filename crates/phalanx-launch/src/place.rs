//! Which rank runs on which host: fills the hosts' slots in the order given.
//!
//! - PLACE-1: ranks are numbered host by host; a host takes no more ranks than it has slots.
//! - PLACE-2: local rank i of every host that has one forms a cross group, numbered by host.

use crate::hosts::HostSlots;
use phalanx_core::Rank;
use std::ops::Range;

/// The ranks of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRanks {
    pub name: String,
    pub ranks: Range<u32>,
}

/// Every rank's host. At least one rank, at least one host, no host without a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldPlan {
    hosts: Vec<HostRanks>,
}

/// What a rank is told about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub rank: Rank,
    pub size: u32,
    pub local_rank: u32,
    pub local_size: u32,
    pub cross_rank: u32,
    pub cross_size: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    #[error("-np 0: a world has at least one rank; write e.g. -np 4")]
    NoRanks,
    #[error("-np {n_ranks} asks for more ranks than the {slots} slots of {source_flag}; {advice}")]
    TooFewSlots { n_ranks: u32, slots: u64, source_flag: &'static str, advice: String },
}

impl WorldPlan {
    /// `source_flag` is where the slots came from, for the error.
    pub fn fill(
        hosts: &[HostSlots],
        n_ranks: u32,
        source_flag: &'static str,
    ) -> Result<WorldPlan, PlaceError> {
        if n_ranks == 0 {
            return Err(PlaceError::NoRanks);
        }
        let slots: u64 = hosts.iter().map(|h| u64::from(h.slots)).sum();
        if slots < u64::from(n_ranks) {
            let first = hosts.first().map_or("localhost", |h| &h.name);
            let more = u64::from(n_ranks) - slots + hosts.first().map_or(0, |h| u64::from(h.slots));
            let advice = format!("lower -np or give more slots, e.g. {first}:{more}");
            return Err(PlaceError::TooFewSlots { n_ranks, slots, source_flag, advice });
        }
        let mut next = 0;
        let mut filled = Vec::new();
        for host in hosts {
            let end = n_ranks.min(next + host.slots.min(n_ranks - next));
            if next < end {
                filled.push(HostRanks { name: host.name.clone(), ranks: next..end });
            }
            next = end;
        }
        Ok(WorldPlan { hosts: filled })
    }

    pub fn hosts(&self) -> &[HostRanks] {
        &self.hosts
    }

    pub fn n_ranks(&self) -> u32 {
        self.hosts.last().map_or(0, |h| h.ranks.end)
    }

    /// The host of a rank, as an index.
    pub fn host_of(&self, rank: Rank) -> usize {
        self.hosts.iter().position(|h| h.ranks.contains(&rank.0)).expect("every rank of the plan has a host")
    }

    pub fn host_name(&self, rank: Rank) -> &str {
        &self.hosts[self.host_of(rank)].name
    }

    pub fn place(&self, rank: Rank) -> Assignment {
        let host = self.host_of(rank);
        let ranks = &self.hosts[host].ranks;
        let local_rank = rank.0 - ranks.start;
        let has_peer = |h: &&HostRanks| h.ranks.len() as u32 > local_rank;
        Assignment {
            rank,
            size: self.n_ranks(),
            local_rank,
            local_size: ranks.len() as u32,
            cross_rank: self.hosts[..host].iter().filter(has_peer).count() as u32,
            cross_size: self.hosts.iter().filter(has_peer).count() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(slots: &[u32]) -> Vec<HostSlots> {
        slots.iter().enumerate().map(|(i, &slots)| HostSlots { name: format!("h{i}"), slots }).collect()
    }

    fn ranges(slots: &[u32], n: u32) -> Vec<Range<u32>> {
        let plan = WorldPlan::fill(&hosts(slots), n, "-H").unwrap();
        plan.hosts().iter().map(|h| h.ranks.clone()).collect()
    }

    #[test]
    fn slots_are_filled_in_order() {
        assert_eq!(ranges(&[2, 2], 4), [0..2, 2..4], "PLACE-1");
        assert_eq!(ranges(&[4, 2, 9], 5), [0..4, 4..5], "a host without ranks is no host of the world");
        assert_eq!(ranges(&[u32::MAX, u32::MAX], 3).first(), Some(&(0..3)));
    }

    #[test]
    fn cross_ranks_count_the_hosts_that_have_the_local_rank() {
        let plan = WorldPlan::fill(&hosts(&[2, 1, 3]), 6, "-H").unwrap();
        let place = |r| {
            let p = plan.place(Rank(r));
            (p.local_rank, p.local_size, p.cross_rank, p.cross_size)
        };
        assert_eq!(place(0), (0, 2, 0, 3));
        assert_eq!(place(1), (1, 2, 0, 2));
        assert_eq!(place(2), (0, 1, 1, 3));
        assert_eq!(place(4), (1, 3, 1, 2), "PLACE-2: h1 has no local rank 1");
        assert_eq!(place(5), (2, 3, 0, 1));
        assert_eq!(plan.host_name(Rank(4)), "h2");
    }

    #[test]
    fn errors_say_both_numbers_and_the_flag() {
        let error = WorldPlan::fill(&hosts(&[2, 1]), 4, "-H").unwrap_err().to_string();
        assert_eq!(
            error,
            "-np 4 asks for more ranks than the 3 slots of -H; lower -np or give more slots, e.g. h0:3"
        );
        assert_eq!(WorldPlan::fill(&hosts(&[2]), 0, "-H"), Err(PlaceError::NoRanks));
    }
}
