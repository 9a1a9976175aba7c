//! How a server waits for the end of its world.
//!
//! - SERVE-1: a server's wait ends well when every worker has left in order, and with the worker and the cause as soon as one is lost.
//!   What becomes of other servers does not end it.
//!
//! Workers are not told that a server is lost: only an operation that needs it fails (LOST-1).

use super::{AGREEMENT, World};
use crate::{error::NetError, lost::Doom};
use std::time::{Duration, Instant};

/// How often `go_on` is asked.
const SLICE: Duration = Duration::from_millis(50);

impl World {
    /// Waits until every worker has left in order: true. False when `until` has come, or when `go_on` says no, which is asked every moment.
    pub fn serve_until_workers_left(
        &self,
        until: Option<Instant>,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<bool, NetError> {
        loop {
            let slice = Instant::now() + SLICE;
            let left =
                until.map_or(slice, |until| until.min(slice)).saturating_duration_since(Instant::now());
            match self.casualties.await_leaving(0..self.n_workers(), left) {
                Some(Ok(())) => return Ok(true),
                Some(Err(doom)) => return Err(self.explained(doom).into()),
                None if until.is_some_and(|until| Instant::now() >= until) || !go_on() => return Ok(false),
                None => {}
            }
        }
    }

    /// The loss of a worker with the words of the hub, which may know more of it and come a moment later.
    fn explained(&self, doom: Doom) -> Doom {
        if let Some(agreed) = self.casualties.await_agreement(AGREEMENT) {
            return agreed;
        }
        doom.culprit().and_then(|rank| self.casualties.verdict(rank)).unwrap_or(doom)
    }
}
