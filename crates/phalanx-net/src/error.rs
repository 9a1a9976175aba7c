//! The errors of communication between ranks.

use crate::{
    arena::Unmet,
    auth::AuthError,
    discover::DiscoverError,
    lost::{Cause, Doom},
    socket::AddressError,
};
use phalanx_core::{ConfigError, Rank};
use std::{io, path::Path};

/// A failure of ranks, hosts or networks. Mistakes in a call are a type of their own, so that recovery never retries a bug.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("rank {rank} is lost: {cause}")]
    PeerLost { rank: Rank, cause: Cause },
    #[error("waited {waited_s:.1} s for rank {rank}, which is alive but did not make the call")]
    Late { rank: Rank, waited_s: f64 },
    #[error("ranks {a} and {b} call different operations: rank {a} calls {a_call}, rank {b} calls {b_call}")]
    Mismatch { a: Rank, a_call: String, b: Rank, b_call: String },
    #[error("rank {rank} gave up: {why}")]
    GaveUp { rank: Rank, why: String },
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("cannot reach the meeting point at {tried} within {waited_s:.0} s: {last}")]
    NoMeeting { tried: String, waited_s: f64, last: String },
    #[error("the meeting point refused this rank: {why}")]
    Refused { why: String },
    #[error(
        "the world did not form within {waited_s:.0} s: missing ranks{missing}; raise PHALANX_START_TIMEOUT if they are only slow"
    )]
    NotFormed { waited_s: f64, missing: String },
    #[error("cannot connect to rank {rank} at {tried}: {last}")]
    NoLink { rank: Rank, tried: String, last: String },
    #[error("handshake with {with}: {error}")]
    Auth { with: String, error: AuthError },
    #[error(
        "cannot share memory with the other ranks of this host: {error}; PHALANX_TRANSPORT=tcp does not need shared memory"
    )]
    Arena { error: io::Error },
    #[error("cannot get the job's secret: {why}")]
    Secret { why: String },
    #[error("cannot meet the other ranks through {board}: {error}")]
    Board { board: String, error: BoardError },
    #[error("{what}: {error}")]
    System { what: &'static str, error: io::Error },
}

impl NetError {
    /// The error of a wait on `rank` that did not end well.
    pub fn of(rank: Rank, unmet: Unmet) -> NetError {
        match unmet {
            Unmet::Doomed(doom) => doom.into(),
            Unmet::Late { waited_ms } => NetError::Late { rank, waited_s: waited_ms as f64 / 1000.0 },
        }
    }

    /// The same for a rank whose secret is the user's own key: hosts without a common home have different ones, which looks like nobody there.
    pub(crate) fn of_users_key(self, path: &Path) -> NetError {
        match self {
            NetError::NoMeeting { tried, waited_s, last } => {
                let last = format!(
                    "{last}; no secret was given, so this rank used {}: if hosts have no common home, put the same file there on all of \
                     them, or set PHALANX_SECRET to the same random text on every rank",
                    path.display()
                );
                NetError::NoMeeting { tried, waited_s, last }
            }
            other => other,
        }
    }

    /// What every rank should be told about it, by the rank it happened to.
    pub fn doom(&self, me: Rank) -> Doom {
        match self {
            NetError::PeerLost { rank, cause } => {
                Doom::Lost(crate::lost::Lost { rank: *rank, cause: cause.clone() })
            }
            NetError::Mismatch { a, a_call, b, b_call } => {
                Doom::Mismatch { a: *a, a_call: a_call.clone(), b: *b, b_call: b_call.clone() }
            }
            NetError::GaveUp { rank, why } => Doom::GaveUp { rank: *rank, why: why.clone() },
            other => Doom::GaveUp { rank: me, why: other.to_string() },
        }
    }
}

impl From<Doom> for NetError {
    fn from(doom: Doom) -> NetError {
        match doom {
            Doom::Lost(lost) => NetError::PeerLost { rank: lost.rank, cause: lost.cause },
            Doom::Mismatch { a, a_call, b, b_call } => NetError::Mismatch { a, a_call, b, b_call },
            Doom::GaveUp { rank, why } => NetError::GaveUp { rank, why },
        }
    }
}

/// What can go wrong on a board where ranks meet.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    #[error("{what}: {error}")]
    System { what: &'static str, error: io::Error },
    #[error("waited {waited_s:.1} s for {whom}; raise PHALANX_START_TIMEOUT if they are only slow")]
    Late { whom: String, waited_s: f64 },
    #[error("it answered {answer:?}, which is not an answer to what was asked")]
    Nonsense { answer: String },
    #[error("it refused: {answer}")]
    Refused { answer: String },
    #[error("it closed the connection; after MPI_Finalize ranks cannot meet through it any more")]
    Closed,
    #[error("rank {rank} has put nothing under {key:?}; is it another version of phalanx?")]
    Missing { rank: Rank, key: String },
    #[error("it takes at most {longest} bytes, the text under {key:?} has {n}")]
    TooLong { key: String, n: usize, longest: usize },
    #[error(
        "{name} cannot be used: {why}; install it (Debian: libpmix2), or set PHALANX_RENDEZVOUS=host:port to an address of rank 0's host"
    )]
    Library { name: &'static str, why: String },
    #[error(
        "MPI of this process has begun to use it, and Slurm serves one library for each process; start with srun --mpi=pmix, or set \
         PHALANX_SECRET or PHALANX_SECRET_FILE, the same on every rank"
    )]
    MpiFirst,
    #[error("{address} cannot be reached: {error}")]
    Unreachable { address: String, error: io::Error },
    #[error("{path}: {error}")]
    File { path: String, error: io::Error },
    #[error("others can write {path}: choose a directory that is yours, or run chmod go-w on it")]
    OthersWrite { path: String },
    #[error(
        "what {who} wrote there was made with another secret; is it another job's? Give all of this job the same secret, or this job a place of \
         its own"
    )]
    OtherSecret { who: String },
    #[error(
        "waited {waited_s:.1} s for {what} of this job to replace an entry where nobody answers: {why}; raise PHALANX_START_TIMEOUT if it is \
         only slow"
    )]
    Stale { what: &'static str, waited_s: f64, why: Box<BoardError> },
    #[error("an entry {key:?} is there and does not go away; remove it, or give this job a place of its own")]
    There { key: String },
    #[error("what rank 0 wrote there is of another build of phalanx; install the same one on every host")]
    OtherBuild,
    #[error(
        "{what} of this job is already there ({who}); give every process a number of its own, or this job a place of its own"
    )]
    Taken { what: &'static str, who: String },
    #[error("{what} of another job meets there ({who}); give this job a place of its own")]
    TakenByOther { what: &'static str, who: String },
    #[error(
        "etcd at {address} took the question and did not answer within {waited_s:.1} s; see that it runs and has a leader: \
         etcdctl --endpoints {address} endpoint health"
    )]
    SilentEtcd { address: String, waited_s: f64 },
    #[error(
        "etcd at {address} wants TLS, and phalanx speaks plain HTTP to it; name an endpoint without TLS (others can read what is there, but \
         nobody can change it without the secret), or use host:port or file:/directory"
    )]
    EtcdTls { address: String },
    #[error(
        "etcd at {address} wants a user and a password, which phalanx does not send; allow the prefix /phalanx/ without, or use host:port or \
         file:/directory"
    )]
    EtcdUser { address: String },
    #[error(
        "others can read it, so it does not carry a secret, and this rank has none; set PHALANX_SECRET to the same random text on every \
         rank, or PHALANX_SECRET_FILE to a file with it, or put the same ~/.phalanx/secret (mode 600) on every host"
    )]
    NoSecret,
    #[error("descriptor {fd} cannot be used: {error}")]
    NotInherited { fd: i32, error: io::Error },
    #[error(
        "rank {with} was given a secret, rank {without} was not; set PHALANX_SECRET or PHALANX_SECRET_FILE for every rank or for none"
    )]
    SecretOnSome { with: Rank, without: Rank },
}
