//! The errors of a collective.

use phalanx_core::{OpError, Rank, topology::TopologyError};
use phalanx_net::{NetError, lost::Cause};
use std::fmt;

/// Programming errors and failures are different variants, so that recovery never retries a bug: see [`Error::is_failure`].
#[derive(thiserror::Error)]
pub enum Error {
    #[error("rank {rank} is lost: {cause}")]
    PeerLost { rank: Rank, cause: Cause },
    #[error("ranks {a} and {b} call different operations: rank {a} calls {a_call}, rank {b} calls {b_call}")]
    Mismatch { a: Rank, a_call: String, b: Rank, b_call: String },
    #[error(transparent)]
    Op(#[from] OpError),
    #[error("{what}: {have} elements were given instead of {want}")]
    Length { what: &'static str, have: u64, want: u64 },
    #[error("{what} has {have} bytes, which is not a whole number of {dtype} elements")]
    Ragged { what: &'static str, have: u64, dtype: phalanx_core::DType },
    #[error("root {root} does not exist in a communicator of {size} ranks")]
    NoSuchRoot { root: Rank, size: u32 },
    #[error("{0}")]
    Split(String),
    /// A fault of our own. The world is over for all ranks.
    #[error(
        "the engine panicked while it {doing}; this is a bug of Phalanx, please report it with the lines above"
    )]
    Panicked { doing: &'static str },
    #[error("PHALANX_ALGORITHM={name} is not an algorithm; {known}")]
    NoSuchAlgorithm { name: String, known: String },
    #[error("PHALANX_TIERS: {0}")]
    Tiers(#[from] TopologyError),
    #[error("PHALANX_WAYS says how each tier of PHALANX_TIERS works: set that, too, e.g. PHALANX_TIERS=4x3")]
    WaysAlone,
    #[error(
        "this process is a server, rank {rank} of its world: communicators and engines are made of the workers, ranks 0 to {}; \
         call World::serve_until_workers_left (in Python: TaskSpec().create_server()), or start it without PHALANX_ROLE=server",
        n_workers.saturating_sub(1)
    )]
    Serves { rank: Rank, n_workers: u32 },
    /// All ranks get it alike, and the world goes on.
    #[error("MPI cannot be used: {why} (rank {rank})")]
    NoMpi { rank: Rank, why: String },
    #[error("this world already has its communicator; split() makes others")]
    WorldTaken,
    #[error(
        "the arena is full: {bytes} bytes do not fit. Each rank has 64 GiB there (4 GiB or 256 MiB where address space or \
         file size are limited: ulimit -v, ulimit -f), as far as memory reaches; no setting changes that. Drop vectors that \
         are not needed any more, or use ordinary memory"
    )]
    ArenaFull { bytes: u64 },
    #[error(transparent)]
    Net(NetError),
}

/// As `Display`: a program whose `main` returns this error prints the `Debug` form, and people read it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Whether ranks, hosts or networks failed, rather than the calls being wrong.
    pub fn is_failure(&self) -> bool {
        matches!(self, Error::PeerLost { .. } | Error::Net(_))
    }
}

impl From<NetError> for Error {
    fn from(error: NetError) -> Error {
        match error {
            NetError::PeerLost { rank, cause } => Error::PeerLost { rank, cause },
            NetError::Mismatch { a, a_call, b, b_call } => Error::Mismatch { a, a_call, b, b_call },
            other => Error::Net(other),
        }
    }
}
