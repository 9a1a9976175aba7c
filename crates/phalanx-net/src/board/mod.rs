//! The board where ranks meet under a launcher that does not say where rank 0 is: rank 0 serves the hub on a port of the system's choice
//! and puts its addresses on the board; the others read them there.
//!
//! What the boards have in common is [`Notices`]: `publish`, `look` and `replace`. A *private* board (PMI, PMIx) can be read and written
//! only by the processes of one job, so ranks may agree on a secret through it ([`agree`]). A *shared* board (etcd, a directory) can be
//! read by others; it takes a secret that the ranks already have.
//!
//! - RDZV-1: a board never carries the job's secret. On a private board it is sealed for each rank with a key that only rank 0 and this
//!   rank can compute; on a shared board ranks without a given secret get an error.
//! - RDZV-2: what a board answers is bounded in length and checked; nonsense is an error that shows it.
//! - RDZV-3: every wait on a board ends by `PHALANX_START_TIMEOUT`, with an error that says who was waited for.

mod agree;
mod announcement;
mod answer;
mod base64;
mod encoding;
mod etcd;
mod file;
pub(crate) mod fuzzing;
mod held;
mod http;
pub(crate) mod kube;
mod mpi;
mod occupant;
mod pmi1;
mod pmi2;
mod pmix;
mod process;
mod seal;
mod shared;
mod wire;

pub(crate) use agree::fresh_id;
pub(crate) use shared::Post;

use crate::{
    discover::BoardAddress,
    error::{BoardError, NetError},
    hub::Hub,
    secret::Secret,
};
use agree::Disagreement;
use held::Numbered;
use phalanx_core::Rank;
use shared::Claim;
use std::{
    fmt,
    path::Path,
    time::{Duration, Instant},
};

/// How often a board that does not tell of changes is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A place for short texts under short names. A text is written once, by one rank; other ranks look for it.
pub(crate) trait Notices: fmt::Debug + Send {
    /// Puts a text under a name that has none yet; [`BoardError::There`] says that it has one, on a board that does not end with the job.
    fn publish(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError>;

    /// Puts a text under a name, whatever is there.
    fn replace(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError>;

    /// Waits until every rank has come so far, and what they published can be seen, where the board needs that.
    fn settle(&mut self, wait: Wait) -> Result<(), BoardError>;

    /// The text that this rank has put under the name.
    fn look(&mut self, by: Rank, key: &str, wait: Wait) -> Result<String, BoardError>;

    /// What is under the name now, on a board that does not end with the job.
    fn glance(&mut self, key: &str, wait: Wait) -> Result<Option<String>, BoardError> {
        self.look(Rank::ZERO, key, wait).map(Some)
    }

    /// The longest text it takes.
    fn longest(&self) -> usize;

    /// Takes away what this rank has put under the name, where the board does not end with the job.
    fn withdraw(&mut self, _key: &str, _text: &str) {}

    /// Says goodbye, where the launcher would otherwise take the end of this process for a failure.
    fn finish(&mut self) {}
}

/// The time that all of a meeting may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    since: Instant,
    until: Instant,
}

impl Wait {
    pub fn within(time: Duration) -> Wait {
        let since = Instant::now();
        Wait { since, until: since + time }
    }

    /// `None` when the time is up.
    pub fn left(&self) -> Option<Duration> {
        self.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// The same, or `None` when so little is left that what is asked now would not be answered in time.
    pub fn left_to_look(&self) -> Option<Duration> {
        self.left().filter(|left| *left > LOOK_EVERY)
    }

    pub fn waited_s(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }

    pub fn late(&self, whom: impl Into<String>) -> BoardError {
        BoardError::Late { whom: whom.into(), waited_s: self.waited_s() }
    }
}

/// Who meets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    pub rank: Rank,
    pub n_ranks: u32,
}

/// What a rank knows once it has met the others on a board.
pub(crate) struct Meet {
    /// Of the hub that rank 0 serves, the likeliest first.
    pub addresses: Vec<String>,
    pub secret: Secret,
    /// Set on rank 0.
    pub hub: Option<Hub>,
    /// A shared board, to be kept until the world has formed.
    pub post: Option<Post>,
}

/// Whether etcd can be asked for this job.
pub(crate) fn etcd_answers(endpoints: &[String], job: &str, wait: Wait) -> Result<(), BoardError> {
    etcd::Etcd::new(endpoints, job).answers(wait)
}

/// Whether a directory could be a board; it is not made.
pub(crate) fn directory_is_fit(path: &Path) -> Result<(), BoardError> {
    file::Directory::is_fit(path)
}

/// A shared board on which the launchers of several hosts find each other.
pub(crate) fn post(address: &BoardAddress, given: &Secret) -> Result<Post, BoardError> {
    let (board, claim): (Box<dyn Notices>, Claim) = match address {
        BoardAddress::Etcd { endpoints, job } => (Box::new(etcd::Etcd::new(endpoints, job)), Claim::Wait),
        BoardAddress::File { dir } => (Box::new(file::Directory::open(dir)?), Claim::TakeOver),
        // A process of a launcher's job has these; a launcher does not.
        BoardAddress::Pmix | BoardAddress::Pmi1 { .. } | BoardAddress::Pmi2 { .. } => {
            return Err(BoardError::Refused {
                answer: "it is private to the processes of one launcher".into(),
            });
        }
    };
    Ok(Post::new(board, address.to_string(), given.clone(), claim).of_launchers())
}

/// Meets the other ranks. `serve` opens the hub on rank 0.
pub(crate) fn meet(
    address: &BoardAddress,
    party: Party,
    given: Option<Secret>,
    within: Duration,
    serve: &dyn Fn(&Secret) -> Result<Hub, NetError>,
) -> Result<Meet, NetError> {
    let wait = Wait::within(within);
    let hub = |secret: &Secret| (party.rank == Rank::ZERO).then(|| serve(secret)).transpose();
    let on_shared_board = |board: Box<dyn Notices>, claim| {
        let given = given.clone().ok_or(BoardError::NoSecret)?;
        let mut post = Post::new(board, address.to_string(), given, claim);
        let met = post.meet(party, wait, &hub)?;
        Ok::<_, Disagreement>(Meet { post: Some(post), ..met })
    };
    let agree = |board: Numbered<'_>| agree::on_private_board(board, party, given.clone(), wait, &hub);
    let met = match address {
        BoardAddress::Pmi1 { fd } => held::with(address, || pmi1::Pmi1::open(*fd, wait), agree),
        BoardAddress::Pmi2 { fd, job } => {
            held::with(address, || pmi2::Pmi2::open(*fd, job, party.rank, wait), agree)
        }
        BoardAddress::Etcd { endpoints, job } => {
            let board = Box::new(etcd::Etcd::new(endpoints, job));
            on_shared_board(board, Claim::Wait)
        }
        BoardAddress::File { dir } => file::Directory::open(dir)
            .map_err(Disagreement::from)
            .and_then(|board| on_shared_board(Box::new(board), Claim::TakeOver)),
        BoardAddress::Pmix => held::with(address, pmix::Pmix::open, agree),
    };
    met.map_err(|error| error.at(address))
}
