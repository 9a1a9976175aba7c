//! Streams that other ranks have opened to this rank and that it has not used yet.

use crate::channel::Channel;
use phalanx_core::Rank;
use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// Streams that others opened to this rank, waiting to be taken.
#[derive(Debug, Default)]
pub struct Inbox {
    /// A lock because the watch thread fills what operations take.
    streams: Mutex<BTreeMap<(Rank, u32), Channel>>,
    arrived: Condvar,
}

impl Inbox {
    pub fn put(&self, rank: Rank, stream: u32, channel: Channel) {
        self.lock().insert((rank, stream), channel);
        self.arrived.notify_all();
    }

    /// The stream that `rank` opened, if it comes before the deadline.
    pub fn take(&self, rank: Rank, stream: u32, deadline: Instant) -> Option<Channel> {
        let left = deadline.saturating_duration_since(Instant::now());
        let absent = |streams: &mut BTreeMap<_, _>| !streams.contains_key(&(rank, stream));
        let waited = self.arrived.wait_timeout_while(self.lock(), left, absent);
        waited.unwrap_or_else(PoisonError::into_inner).0.remove(&(rank, stream))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Rank, u32), Channel>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
