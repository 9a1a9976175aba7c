//! Counters of what the engine has done so far, readable at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts since the engine started. Relaxed throughout: they are read for people, and order nothing.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub submitted: AtomicU64,
    pub operations: AtomicU64,
    pub failed: AtomicU64,
    pub bytes: AtomicU64,
    pub batches: AtomicU64,
    pub fused_batches: AtomicU64,
    pub packed_bytes: AtomicU64,
    pub replayed: AtomicU64,
    pub cached: AtomicU64,
    pub negotiated: AtomicU64,
    pub moving_us: AtomicU64,
    pub waits: AtomicU64,
}

/// A reading of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations submitted by this rank.
    pub submitted: u64,
    /// Operations that ran.
    pub operations: u64,
    /// Operations that were refused because ranks disagreed.
    pub failed: u64,
    /// Bytes of the tensors of operations that ran.
    pub bytes: u64,
    pub batches: u64,
    /// Batches of more than one operation.
    pub fused_batches: u64,
    /// Bytes copied into and out of the fusion buffer.
    pub packed_bytes: u64,
    /// Operations run from a recording, without a word between ranks.
    pub replayed: u64,
    /// Operations announced by number.
    pub cached: u64,
    /// Operations announced in full.
    pub negotiated: u64,
    /// Microseconds spent moving data.
    pub moving_us: u64,
    /// Times the engine had nothing to do and slept.
    pub waits: u64,
}

impl Tally {
    pub fn read(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Counters {
            submitted: get(&self.submitted),
            operations: get(&self.operations),
            failed: get(&self.failed),
            bytes: get(&self.bytes),
            batches: get(&self.batches),
            fused_batches: get(&self.fused_batches),
            packed_bytes: get(&self.packed_bytes),
            replayed: get(&self.replayed),
            cached: get(&self.cached),
            negotiated: get(&self.negotiated),
            moving_us: get(&self.moving_us),
            waits: get(&self.waits),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
