//! How the engine's own threads wait for work.
//!
//! - BELL-1: no wake-up is lost: a thread that goes to sleep is counted before it checks once more; a writer checks for sleepers after it wrote.
//!
//! Locks and atomics come from `super::sync`, so that tests/bell.rs can try all orders there are.

use super::sync::{Arc, Arena, AtomicU32, Condvar, Mutex, Ordering, fence};
use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

/// Work often comes right after work: look for it this long before sleeping.
const YIELD_FOR: Duration = Duration::from_micros(60);
/// Without shared memory nothing but a ring can be news; the nap is a safety net.
const NAP: Duration = Duration::from_millis(250);
/// In a doomed world the end is near.
const SHORT_NAP: Duration = Duration::from_millis(5);

/// Wakes a thread when this process or, through the arena, another rank has news.
#[derive(Debug)]
pub(crate) struct Bell {
    arena: Option<Arc<Arena>>,
    n_asleep: AtomicU32,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    pub fn new(arena: Option<Arc<Arena>>) -> Bell {
        Bell { arena, n_asleep: AtomicU32::new(0), lock: Mutex::new(()), rung: Condvar::new() }
    }

    /// Call after the write that the sleeper may be waiting for.
    pub fn ring(&self) {
        if let Some(arena) = &self.arena {
            arena.nudge();
            arena.rouse();
        }
        // BELL-1, as in the arena (WAIT-2): a thread that falls asleep after this look sees what was written before.
        fence(Ordering::SeqCst);
        if self.n_asleep.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.rung.notify_all();
        }
    }

    /// The same, where a thread that looks out has the work: others sleep on.
    pub fn nudge(&self) {
        if let Some(arena) = &self.arena {
            arena.nudge();
        }
    }

    /// Waits until `ready` or the deadline, for a thread that can do the work itself; without shared memory, not at all.
    pub fn look_out(&self, deadline: Instant, ready: &dyn Fn() -> bool) -> bool {
        self.arena.as_ref().is_some_and(|arena| arena.look_out(deadline, ready))
    }

    /// Waits until `ready`. While it is `idle`, nothing that another rank writes can make it so.
    pub fn wait(&self, ready: &dyn Fn() -> bool, idle: &dyn Fn() -> bool) {
        let mut nap = NAP;
        if let Some(arena) = &self.arena {
            if arena.linger(YIELD_FOR, ready, idle) {
                return;
            }
            nap = SHORT_NAP;
        }
        while !ready() {
            let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.n_asleep.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !ready() {
                drop(self.rung.wait_timeout(guard, nap));
            }
            self.n_asleep.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
