//! The atomics and the futex that [`super::doze`] uses. A test replaces them.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::{thread::futex, time::Timespec};
use std::time::Duration;

/// Sleeps while the word has this value, but no longer than this.
pub fn wait(word: &AtomicU32, value: u32, at_most: Duration) {
    let limit = Timespec { tv_sec: at_most.as_secs() as _, tv_nsec: at_most.subsec_nanos() as _ };
    // Whatever ends it, the caller looks again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
}

/// Wakes all threads that sleep on the word.
pub fn wake(word: &AtomicU32) {
    // Failure to wake nobody is no failure.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
