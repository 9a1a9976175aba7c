//! The messages between nodes. All of them cross the wire.

use super::{
    agree::SpecConflict,
    report::{Missed, StallReport},
};
use crate::engine::{
    spec::{Name, Spec},
    whereabouts::Spot,
};
use phalanx_core::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Counts changes between negotiating (even) and replaying (odd); what was said in an earlier generation is void.
pub type Generation = u32;

/// One message between neighbours in the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Upward: what every rank below (and including) the sender has submitted.
    Announce(Announce),
    /// Upward, replaying: every rank below is ready for this many batches. `frozen`: one of them wants to stop.
    Ready { generation: Generation, count: u64, frozen: bool },
    /// Upward, replaying: no rank below will be ready for more than this many batches.
    Final { generation: Generation, count: u64 },
    /// Downward, replaying: this many batches may run.
    Commit { generation: Generation, count: u64 },
    /// Downward, replaying: be ready for nothing new.
    Freeze { generation: Generation },
    /// Downward, replaying: it ends after this many batches.
    Stop { generation: Generation, count: u64 },
    /// Downward: what happens next, in this order, on every rank.
    Respond { generation: Generation, responses: Vec<Response> },
    /// Upward: somebody has waited too long for these.
    Waiting(Vec<RankStatus>),
    /// Downward: every rank says what it waits for.
    Roll,
    /// Upward: where the programs of these places are.
    Located(Vec<(u32, Spot)>),
    /// Downward: what the roll call found.
    Report(StallReport),
}

/// News of a part of the tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Announce {
    pub generation: Generation,
    pub submitted: Vec<Announced>,
    /// Places that will submit nothing more until all have joined.
    pub joined: Vec<u32>,
    /// A rank that wants everything to end; not necessarily one of the set.
    pub leaving: Option<Rank>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Announced {
    /// All of it as agreed before under this number.
    Known {
        table: u32,
        id: u32,
    },
    Full(Box<Merged>),
}

/// One name's submissions of a part of the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    pub name: Name,
    /// Whose submission `spec` is.
    pub first: u32,
    pub spec: Spec,
    pub conflict: Option<SpecConflict>,
    /// What each place alone knew of an uneven operation.
    pub rows: Vec<(u32, Vec<u64>)>,
    /// Places that had joined instead of submitting it.
    pub absent: Vec<u32>,
}

/// An operation that every rank of the set has submitted alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    pub name: Name,
    pub spec: Spec,
    /// Of each place; empty where nothing is uneven, or the place has joined.
    pub rows: Vec<Vec<u64>>,
    /// Places that had joined instead of submitting it, and bring nothing.
    pub absent: Vec<u32>,
}

/// What happens next on every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// One batch.
    Run(Vec<Item>),
    Fail {
        name: Name,
        fault: OpFault,
    },
    AllJoined {
        last: u32,
    },
    /// From now on these batches run over and over.
    Replay {
        batches: Vec<Vec<u32>>,
    },
    /// Numbers of agreed operations begin again.
    NewTable,
    Tune(Tuning),
    /// Nothing happens any more.
    Over {
        rank: Rank,
        why: EngineEnd,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Item {
    Known(u32),
    New { agreed: Box<Agreed>, remember: Option<u32> },
}

/// Why one operation does not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OpFault {
    Conflict(SpecConflict),
    /// The root of a broadcast has joined and has nothing to send.
    RootJoined {
        root: Rank,
    },
    /// Ranks submitted tensors without a first dimension to an operation that joins along it.
    NoRows {
        rank: Rank,
        kind: String,
    },
}

/// Why nothing runs any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EngineEnd {
    ShutDown,
    /// These ranks kept the named tensor waiting longer than allowed.
    Stalled {
        name: Name,
        missing: Vec<Rank>,
        waited_ms: u64,
        /// What they do instead.
        missed: Vec<Missed>,
    },
}

/// Values that all ranks change at the same place of the sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    pub fusion_bytes: u64,
    pub segment_bytes: u64,
    pub algorithm: Option<String>,
}

/// What one rank is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    pub place: u32,
    /// Names it submitted that do not run yet, and for how long.
    pub waiting: Vec<(Name, u64)>,
    /// The last operation that ran there, and when.
    pub last: Option<(Name, u64)>,
    /// Whether it will say where its program is.
    pub says_where: bool,
}

impl fmt::Display for OpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpFault::Conflict(conflict) => conflict.fmt(f),
            OpFault::RootJoined { root } => {
                write!(f, "rank {root} is the root but has joined, so it has no data to send")
            }
            OpFault::NoRows { rank, kind } => {
                write!(
                    f,
                    "rank {rank} tried to {kind} a tensor without dimensions; give it one, e.g. shape [1]"
                )
            }
        }
    }
}
