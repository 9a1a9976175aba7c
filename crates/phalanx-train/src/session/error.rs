//! What can go wrong in a session.

use crate::events::EventError;
use phalanx_checkpoint::CheckpointError;
use phalanx_collective::engine::EngineError;
use phalanx_core::Rank;
use phalanx_graph::{BuildError, exec::RunError};
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Every rank gets it at the same step.
    #[error("training stopped at step {step}: {by} of rank {rank}: {why}")]
    Failed { step: u64, rank: Rank, by: String, why: String },
    /// Every rank gets it at the same step.
    #[error("step {step} could not be saved: rank {rank}: {why}")]
    Save { step: u64, rank: Rank, why: String },
    #[error("the session has ended")]
    Ended,
    #[error("ranks cannot agree ({during}): {why}")]
    Ranks { during: String, why: EngineError },
    #[error("what a rank said cannot be read ({of}): {why}; do all ranks run the same build?")]
    Words { of: String, why: String },
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Checkpoint(CheckpointError),
    #[error(transparent)]
    Engine(EngineError),
    #[error(transparent)]
    Build(BuildError),
    #[error(transparent)]
    Run(RunError),
    #[error("rank 0 cannot use the directory for checkpoints: {why}")]
    Directory { why: String },
    #[error(
        "ranks do not save alike: {chief} on rank 0, {other} on rank {rank}. Give all ranks the same options"
    )]
    Unlike { rank: Rank, chief: String, other: String },
    #[error("rank {rank} cannot restore the training: {why}")]
    Restore { rank: Rank, why: String },
    #[error(transparent)]
    Events(EventError),
}
