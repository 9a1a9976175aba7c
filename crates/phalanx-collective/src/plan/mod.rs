//! Collective algorithms as data.
//!
//! An algorithm is a pure function from a [`PlanRequest`] and a rank to the steps of that rank. It may depend on nothing but the
//! request, which is the same on every rank: that is what makes the plans of different ranks fit together.
//! - PLAN-1: for one request and one algorithm the plans of all ranks, run together, give every rank the result of the operation;
//!   `verify` checks it with symbols instead of numbers.
//! - PLAN-2: memory outside a rank's `Out` and scratch is never written; where `In` is part of `Out`, that part may be.
//! - PLAN-3: every rank of an arena plan publishes turn 0, empty if it has no data: what the executor sends along with
//!   the first turn (the call's signature) reaches every rank.
//!
//! A new algorithm is one file and one line of [`ALGORITHMS`].

pub mod step;

mod alone;
mod arena;
mod chain;
mod dissemination;
mod doubling;
mod draft;
mod extent;
mod halving;
mod layout;
mod pairwise;
#[cfg(test)]
mod proofs;
mod ring;
mod seats;
mod select;
pub mod simulate;
mod tiers;
mod tree;
pub mod verify;
mod wiring;

pub use draft::Draft;
pub use extent::Extent;
pub use select::select;
pub use wiring::Wiring;

use phalanx_core::{Rank, Topology};
use std::{fmt, str::FromStr, sync::Arc};
use step::{CollectiveOp, Layout, Plan};

/// Everything an algorithm may depend on; the same on every rank.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    pub op: CollectiveOp,
    pub layout: Layout,
    /// Which ranks share a host.
    pub topology: Arc<Topology>,
    /// The shape of the network and its ways, where the user gave one; it holds exactly the ranks of `topology`.
    pub tiers: Option<Wiring>,
    pub elem_bytes: u32,
    /// `In` and `Out` are the same memory where the operation's line in [`Layout`] says so.
    pub in_place: bool,
    pub memory: Memory,
    /// Capacity of one arena slot.
    pub slot_bytes: u64,
    /// Preferred size of a pipelined piece.
    pub segment_bytes: u64,
    /// Do not use the arena, even inside a host.
    pub links_only: bool,
}

/// Where the caller's buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Visible to their own rank only.
    Private,
    /// As `Private`, but the kernel lets every rank of the host read the others' inputs.
    Readable,
    /// Every rank's buffers are in the arena, where the whole host sees them.
    Arena,
}

impl PlanRequest {
    pub fn n_ranks(&self) -> u32 {
        self.topology.n_ranks()
    }

    /// Elements that fit in one slot.
    pub fn slot_len(&self) -> u64 {
        self.slot_bytes / u64::from(self.elem_bytes)
    }

    /// Elements in a pipelined piece: at least one.
    pub fn segment_len(&self) -> u64 {
        (self.segment_bytes / u64::from(self.elem_bytes)).max(1)
    }

    /// Whether ranks of one host may talk through shared memory.
    fn has_arena(&self) -> bool {
        !self.links_only && self.slot_len() > 0
    }

    /// Whether all ranks share one arena and there is somebody to talk to.
    fn is_one_arena(&self) -> bool {
        self.has_arena() && self.topology.n_hosts() == 1 && self.n_ranks() > 1
    }
}

/// One line of the table of algorithms.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub supports: fn(&PlanRequest) -> bool,
    pub draft: for<'a> fn(&'a PlanRequest, Rank) -> Draft<'a>,
}

/// Every algorithm there is, in the order in which listings show them.
pub static ALGORITHMS: &[Entry] = &[
    Entry { name: "alone", supports: alone::supports, draft: alone::draft },
    Entry { name: "arena-all", supports: arena::all::supports, draft: arena::all::draft },
    Entry { name: "arena-split", supports: arena::split::supports, draft: arena::split::draft },
    Entry { name: "arena-direct", supports: arena::direct::supports, draft: arena::direct::draft },
    Entry { name: "arena", supports: arena::staged::supports, draft: arena::staged::draft },
    Entry { name: "ring", supports: ring::supports, draft: ring::draft },
    Entry { name: "halving", supports: halving::supports, draft: halving::draft },
    Entry { name: "doubling", supports: doubling::supports, draft: doubling::draft },
    Entry { name: "tree", supports: tree::supports, draft: tree::draft },
    Entry { name: "chain", supports: chain::supports, draft: chain::draft },
    Entry { name: "pairwise", supports: pairwise::supports, draft: pairwise::draft },
    Entry { name: "dissemination", supports: dissemination::supports, draft: dissemination::draft },
    Entry { name: "tiers", supports: tiers::large::supports, draft: tiers::large::draft },
    Entry { name: "tiers-pipelined", supports: tiers::pipelined::supports, draft: tiers::pipelined::draft },
    Entry {
        name: "tiers-overlapped",
        supports: tiers::overlapped::supports,
        draft: tiers::overlapped::draft,
    },
    Entry { name: "tiers-small", supports: tiers::small::supports, draft: tiers::small::draft },
    Entry { name: "tiers-rooted", supports: tiers::rooted::supports, draft: tiers::rooted::draft },
];

/// A line of [`ALGORITHMS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Algorithm(u16);

impl Algorithm {
    /// All algorithms, in the order of the table.
    pub fn all() -> impl Iterator<Item = Algorithm> {
        (0..ALGORITHMS.len()).map(|i| Algorithm(i as u16))
    }

    /// The algorithm of this name, if there is one.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::all().find(|a| a.name() == name)
    }

    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Whether `build` can plan this request.
    pub fn supports(self, request: &PlanRequest) -> bool {
        (self.entry().supports)(request)
    }

    /// Whether it can be the best for this request. Others are not priced: their plans may have millions of steps.
    pub fn is_worth_pricing(self, request: &PlanRequest) -> bool {
        self.name() != "tiers-overlapped" || select::overlaps(request)
    }

    /// The algorithms that can plan this request; never empty.
    pub fn supporting(request: &PlanRequest) -> impl Iterator<Item = Algorithm> {
        Algorithm::all().filter(move |a| a.supports(request))
    }

    /// What `build` collects, one step at a time: for worlds whose plans are too large to hold.
    pub fn draft(self, request: &PlanRequest, me: Rank) -> Draft<'_> {
        assert!(self.supports(request), "{self} cannot plan {request:?}; ask supports() first");
        (self.entry().draft)(request, me)
    }

    fn entry(self) -> &'static Entry {
        &ALGORITHMS[usize::from(self.0)]
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Algorithm({})", self.name())
    }
}

/// A name that is no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown algorithm {name:?}; known: {}", Algorithm::all().map(Algorithm::name).collect::<Vec<_>>().join(" "))]
pub struct UnknownAlgorithm {
    pub name: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Algorithm, UnknownAlgorithm> {
        Algorithm::named(name).ok_or_else(|| UnknownAlgorithm { name: name.to_string() })
    }
}

/// What rank `me` does. The algorithm must support the request.
pub fn build(algorithm: Algorithm, request: &PlanRequest, me: Rank) -> Plan {
    let draft = algorithm.draft(request, me);
    Plan {
        name: algorithm.name(),
        group: draft.group.to_vec(),
        n_turns: draft.n_turns,
        scratch_len: draft.scratch_len,
        steps: draft.steps.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_algorithm() {
        for algorithm in Algorithm::all() {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm), "names are unique");
        }
        let error = "rong".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.starts_with("unknown algorithm \"rong\"; known: alone arena-all"), "{error}");
    }
}
