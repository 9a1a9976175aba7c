//! What can be wrong with tables and their servers.

use phalanx_core::Rank;
use phalanx_net::{NetError, frame::FrameError, lost::Doom};

#[derive(Debug, thiserror::Error)]
pub enum PsError {
    #[error("table {table:?}: {why}")]
    Spec { table: String, why: String },
    #[error("there are two tables {0:?}; give each its own name")]
    Twice(String),
    #[error("table {table:?}: row {id} at place {at} is not in 0..{height}")]
    Row { table: String, at: usize, id: u64, height: u64 },
    #[error("table {table:?}: {what} {got} bytes where {n_rows} rows of {row_bytes} bytes need {wanted}")]
    Length { table: String, what: &'static str, got: usize, wanted: usize, n_rows: usize, row_bytes: usize },
    #[error("table {table:?}: step {step} was pushed already; the next one is {next}")]
    PushedTwice { table: String, step: u64, next: u64 },
    #[error(
        "table {table:?}: step {step} comes before step {next} was pushed; push every step once, in order, with no rows if there are none"
    )]
    Skipped { table: String, step: u64, next: u64 },
    #[error("the world has no table number {0}")]
    NoTable(usize),
    #[error(
        "table {table:?} is {mine} on rank {rank} and {theirs} on rank {other}; every rank must open the same tables"
    )]
    Differs { table: String, rank: Rank, mine: String, other: Rank, theirs: String },
    #[error("rank {rank}, which serves {serves}, is lost: {why}")]
    ServerLost { rank: Rank, serves: String, why: String },
    #[error("table {table:?}: no answer for step {step} within {waited_s:.0} s; {missing}")]
    Late { table: String, step: u64, waited_s: f64, missing: String },
    #[error(
        "after {waited_s:.0} s these ranks have not closed their tables: {}; every rank closes them",
        listed(ranks)
    )]
    Unclosed { waited_s: f64, ranks: Vec<Rank> },
    #[error("a server refused: {0}")]
    Refused(String),
    #[error(
        "rank {rank}, which serves {serves}, needs {bytes} bytes for them and has {available}; use fewer rows, narrower ones, or more hosts"
    )]
    Memory { rank: Rank, serves: String, bytes: u64, available: u64 },
    #[error("the tables were not opened: {0}")]
    Unopened(String),
    #[error("the tables stay cut as they were: {0}")]
    Uncut(String),
    #[error("rank 0 offered tables that cannot be read: {0}")]
    Offer(FrameError),
    #[error("the tables are closed; read what they hold before that, for example with state_dict()")]
    Closed,
    #[error(
        "these tables belong to the process that opened them, and this one was forked from it; use them in the parent only"
    )]
    Forked,
    #[error("servers of tables could not be started: {0}")]
    Thread(std::io::Error),
    #[error(transparent)]
    Net(#[from] NetError),
}

fn listed(ranks: &[Rank]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl From<Doom> for PsError {
    fn from(doom: Doom) -> PsError {
        PsError::Net(doom.into())
    }
}
