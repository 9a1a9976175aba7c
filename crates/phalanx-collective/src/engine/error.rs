//! The errors of the engine. Programming errors and failures are separate variants: recovery must never retry a programming error.

use super::{
    negotiate::{message::OpFault, report::ranks_text},
    timeline::TimelineError,
};
use crate::error::Error;
use phalanx_core::{DType, OpError, Rank, ReduceOp};
use phalanx_net::lost::Cause;
use std::{fmt, sync::Arc};

#[derive(Clone, thiserror::Error)]
pub enum EngineError {
    /// Ranks submitted different things under one name. Every rank that did gets it; the engine goes on.
    #[error("{name}: {fault}")]
    Mismatch { name: String, fault: OpFault },
    #[error(
        "{name} is already submitted and its handle has not been waited on; wait for it, or give every pending operation its own name"
    )]
    DuplicateName { name: String },
    #[error("{name}: {why}")]
    Invalid { name: String, why: Invalid },
    #[error(transparent)]
    Op(#[from] OpError),
    #[error("process set {set} does not exist; add_process_set makes one")]
    NoSuchSet { set: u32 },
    #[error("rank {rank} is not a member of process set {set}")]
    NotAMember { rank: Rank, set: u32 },
    #[error("{0}")]
    BadSet(String),
    #[error("rank {rank} is lost: {cause}")]
    PeerLost { rank: Rank, cause: Cause },
    #[error("rank {rank} has shut down its engine, which ends the engines of all ranks")]
    ShutDown { rank: Rank },
    #[error(
        "{name} waited {waited_s:.1} s for {}, which is longer than PHALANX_STALL_ABORT allows{seen}",
        ranks_text(missing)
    )]
    Stalled {
        name: String,
        missing: Vec<Rank>,
        waited_s: f64,
        /// What the missing ranks did instead, as the end of a sentence.
        seen: String,
    },
    #[error("the engine belongs to the process that started it; start one after fork(), not before")]
    Forked,
    #[error("the result was already taken")]
    Taken,
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    #[error("{0}")]
    Failed(Arc<Error>),
}

/// What is wrong with a submission, as this rank can see by itself.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Invalid {
    #[error("root {root} is not a member of the process set, which has ranks {members}")]
    Root { root: Rank, members: String },
    #[error("reducescatter does not take a tensor without dimensions; give it one, e.g. shape [1]")]
    Scalar,
    #[error("reducescatter supports only sum and average, not {op}")]
    Reduction { op: String },
    #[error("splits are for {have} ranks, but the process set has {want}")]
    Splits { have: usize, want: usize },
    #[error("splits add up to {have} rows, but the tensor has {want}")]
    Rows { have: u64, want: u64 },
    #[error("without splits the {rows} rows must divide evenly among {n} ranks")]
    Uneven { rows: u64, n: usize },
    #[error("a group needs at least one tensor")]
    EmptyGroup,
    #[error("{have} outputs were given for {want} tensors, or their shapes differ")]
    Outputs { have: usize, want: usize },
    #[error("adasum is defined for floating-point tensors, not for {dtype}")]
    Adasum { dtype: DType },
    #[error("{dtype} cannot be sent as {wire}: compression is for f32 and f64, to f16 or bf16")]
    Wire { dtype: DType, wire: DType },
    #[error("MPI reduces allreduces of all ranks only, without factors, compression or adasum")]
    ByMpi,
    #[error("sparse tensors can only be summed or averaged, not {op}")]
    Sparse { op: ReduceOp },
    #[error("{indices} indices were given for {rows} rows of values")]
    Indices { indices: u64, rows: u64 },
}

impl EngineError {
    /// Whether ranks, hosts or networks failed, rather than the program being wrong.
    pub fn is_failure(&self) -> bool {
        match self {
            EngineError::PeerLost { .. } | EngineError::ShutDown { .. } | EngineError::Stalled { .. } => true,
            EngineError::Failed(error) => error.is_failure(),
            _ => false,
        }
    }
}

impl From<Error> for EngineError {
    fn from(error: Error) -> EngineError {
        match error {
            Error::PeerLost { rank, cause } => EngineError::PeerLost { rank, cause },
            other => EngineError::Failed(Arc::new(other)),
        }
    }
}

/// As `Display`: a program whose `main` returns this error prints the `Debug` form, and people read it.
impl fmt::Debug for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
