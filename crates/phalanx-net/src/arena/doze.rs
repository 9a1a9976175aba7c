//! Sleeping and waking (WAIT-2), and nothing else. Atomics and the futex come from `super::sync`, so that tests/naps.rs can try every
//! order of execution.

use super::sync::{self, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// What one thread of a process needs to fall asleep. Several threads of a process share all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bed<'a> {
    /// Where sleeping processes are registered, and this one's place in it.
    pub sleepers: &'a AtomicU64,
    pub bit: u64,
    /// Counted up by the process that wakes this one.
    pub bell: &'a AtomicU32,
    /// Threads of this process that sleep or are about to.
    pub n_sleeping: &'a AtomicU32,
}

impl Bed<'_> {
    /// Sleeps once, unless `judge` has an answer: until the bell rings, or the nap is over. Ok(true): the answer was yes.
    pub fn nap<E>(&self, nap: Duration, judge: &dyn Fn() -> Result<bool, E>) -> Result<bool, E> {
        let heard = self.bell.load(Ordering::Acquire);
        // WAIT-2: registered before the last look; the fence keeps the look behind it.
        self.n_sleeping.fetch_add(1, Ordering::SeqCst);
        self.sleepers.fetch_or(self.bit, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let judged = judge();
        if matches!(judged, Ok(false)) {
            // A changed bell, a wake-up, a signal and the nap's end all mean the same: look again.
            sync::wait(self.bell, heard, nap);
        }
        self.wake_up();
        judged
    }

    /// Takes this thread off the list. The bit is the process's, so the last sleeper clears it; a thread that came meanwhile gets it back. A process that
    /// came and went again has cleared nothing, and a bit that stays would make every writer ring for nobody.
    fn wake_up(&self) {
        if self.n_sleeping.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        loop {
            self.sleepers.fetch_and(!self.bit, Ordering::SeqCst);
            if self.n_sleeping.load(Ordering::SeqCst) == 0 {
                return;
            }
            self.sleepers.fetch_or(self.bit, Ordering::SeqCst);
            ring(self.bell);
            // Who still sleeps now takes the bit off after this.
            if self.n_sleeping.load(Ordering::SeqCst) > 0 {
                return;
            }
        }
    }
}

/// Between a write and [`sleepers`]: the two may not change places (WAIT-2).
#[inline]
pub(super) fn after_write() {
    fence(Ordering::SeqCst);
}

/// Who may be asleep.
#[inline]
pub(super) fn sleepers(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Wakes a process, whatever it waits for.
pub(super) fn ring(bell: &AtomicU32) {
    bell.fetch_add(1, Ordering::Release);
    sync::wake(bell);
}
