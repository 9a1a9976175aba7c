//! From the threads of the engine and the program to the writer.

use super::{Record, What};
use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

/// Records that wait for the writer at most; a record is 40 bytes, and what it shares.
const LIMIT: usize = 1 << 16;
/// The writer lets records gather this long: one wake-up and one write for all of them.
const GATHER: Duration = Duration::from_millis(20);
/// Nothing is awaited this long without a look around.
const NAP: Duration = Duration::from_secs(1);

const CLOSED: u8 = 0;
const OPEN: u8 = 1;
const WITH_CYCLES: u8 = 2;

#[derive(Debug)]
pub struct Queue {
    /// Relaxed: a record more or less at either end is no matter; the inbox decides.
    state: AtomicU8,
    /// A lock because many threads record. Held for a push or a swap, never while anything is written.
    inbox: Mutex<Inbox>,
    /// Rung with the first record after the writer took all, when the inbox is half full, and at the end.
    bell: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct Inbox {
    open: bool,
    began: Instant,
    records: Vec<Record>,
    n_lost: u64,
}

/// What the writer gets.
#[derive(Debug, Default)]
pub struct Taken {
    pub records: Vec<Record>,
    /// Records that did not fit.
    pub n_lost: u64,
    pub at_ns: u64,
    /// Nothing comes after this.
    pub is_last: bool,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::with_limit(LIMIT)
    }
}

impl Queue {
    pub fn with_limit(limit: usize) -> Queue {
        let inbox = Inbox { open: false, began: Instant::now(), records: Vec::new(), n_lost: 0 };
        Queue { state: AtomicU8::new(CLOSED), inbox: Mutex::new(inbox), bell: Condvar::new(), limit }
    }

    /// Accepts records from now on, of times since `began`.
    pub fn open(&self, began: Instant, mark_cycles: bool) {
        let mut inbox = self.inbox();
        *inbox = Inbox { open: true, began, records: Vec::new(), n_lost: 0 };
        self.state.store(if mark_cycles { WITH_CYCLES } else { OPEN }, Ordering::Relaxed);
    }

    /// Accepts nothing more; the writer still gets what is there.
    pub fn close(&self) {
        let mut inbox = self.inbox();
        inbox.open = false;
        self.state.store(CLOSED, Ordering::Relaxed);
        self.bell.notify_all();
    }

    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) != CLOSED
    }

    pub fn marks_cycles(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WITH_CYCLES
    }

    /// Records what happens now, in the order of time.
    pub fn push(&self, all: impl IntoIterator<Item = What>) {
        let mut inbox = self.inbox();
        if !inbox.open {
            return;
        }
        // Under the lock, so that records are in the order of their times.
        let at_ns = inbox.began.elapsed().as_nanos() as u64;
        let before = inbox.records.len();
        for what in all {
            if inbox.records.len() < self.limit {
                inbox.records.push(Record { at_ns, what });
            } else {
                inbox.n_lost += 1;
            }
        }
        let after = inbox.records.len();
        if (before == 0 && after > 0) || (before < self.limit / 2 && after >= self.limit / 2) {
            self.bell.notify_all();
        }
    }

    /// Waits until there is something, and a moment more, and takes all of it in exchange for an empty list.
    pub fn take(&self, taken: &mut Taken) {
        taken.records.clear();
        let mut inbox = self.inbox();
        while inbox.open && inbox.records.is_empty() {
            inbox = self.bell.wait_timeout(inbox, NAP).unwrap_or_else(PoisonError::into_inner).0;
        }
        let more = |inbox: &mut Inbox| inbox.open && inbox.records.len() < self.limit / 2;
        inbox = self.bell.wait_timeout_while(inbox, GATHER, more).unwrap_or_else(PoisonError::into_inner).0;
        std::mem::swap(&mut inbox.records, &mut taken.records);
        taken.n_lost = std::mem::take(&mut inbox.n_lost);
        taken.at_ns = inbox.began.elapsed().as_nanos() as u64;
        taken.is_last = !inbox.open;
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
