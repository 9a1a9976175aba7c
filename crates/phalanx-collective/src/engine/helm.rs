//! Who runs a set's operations: the mover's own thread, or a thread of the program that waits for one of them.
//!
//! A thread that waits has nothing else to do. If it runs the operations itself, nobody has to be woken to run them, nor to be told that they ran.
//! - HELM-1: one thread at a time has the mover, so batches run in the order in which they were agreed, whichever threads run them.
//! - HELM-2: nothing is left lying: a thread that gives the mover back wakes the mover's own thread if there is something to run or to wait for.
//! - HELM-3: what ends the set, changes sets, or fails is treated alike on either thread; only the mover's own thread ends it.

use super::{handle::Slot, mover::Mover, set::Set};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Promises are kept in microseconds. The mover's own thread looks for older ones whenever it wakes by itself (HELM-2).
const STALE: Duration = Duration::from_millis(100);

/// Where the mover is while no thread has it.
#[derive(Default)]
pub(crate) struct Helm {
    /// A lock because threads take it from each other; held for moments, and no other lock is taken meanwhile.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mover: Option<Box<Mover>>,
    /// When the first of these promises was made: threads wait at once for what they submitted.
    promised: Option<Instant>,
    n_promised: u32,
    /// Raised when promises are given up, so that their ends do not count.
    era: u64,
}

impl State {
    /// Whether a thread has promised to take the mover, and not so long ago that it must have been kept from it.
    fn is_promised(&self) -> bool {
        self.promised.is_some_and(|at| at.elapsed() < STALE)
    }
}

impl Helm {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no thread has the mover or has promised to take it. Who wrote news before asking may rely on a no: that thread looks for news
    /// after giving it back (HELM-2).
    pub fn is_free(&self) -> bool {
        self.is_free_and(|_| true)
    }

    pub fn is_free_and(&self, asked: impl FnOnce(&Mover) -> bool) -> bool {
        let state = self.lock();
        !state.is_promised() && state.mover.as_deref().is_some_and(asked)
    }

    pub fn put(&self, mover: Box<Mover>) {
        self.lock().mover = Some(mover);
    }

    /// For the mover's own thread, which runs nothing that another one has promised to run (HELM-1).
    pub fn take_if_free(&self) -> Option<Box<Mover>> {
        let mut state = self.lock();
        if state.is_promised() { None } else { state.mover.take() }
    }

    /// For a thread that waits (HELM-1).
    fn take(&self) -> Option<Box<Mover>> {
        self.lock().mover.take()
    }
}

impl fmt::Debug for Helm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Helm")
    }
}

/// A thread's promise to wait for an operation at once: until it is dropped, the mover's own thread sleeps.
#[derive(Debug)]
pub(crate) struct Promise {
    set: Weak<Set>,
    era: u64,
}

impl Promise {
    /// `None` where a waiting thread would not run anything.
    pub fn of(set: &Arc<Set>) -> Option<Promise> {
        if !set.is_ours() {
            return None;
        }
        let mut state = set.helm.lock();
        state.n_promised += 1;
        state.promised.get_or_insert_with(Instant::now);
        Some(Promise { set: Arc::downgrade(set), era: state.era })
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // A forked child may not take the lock.
        let Some(set) = self.set.upgrade().filter(|set| set.is_ours()) else { return };
        let mut state = set.helm.lock();
        if state.era != self.era {
            return;
        }
        state.n_promised -= 1;
        if state.n_promised == 0 {
            state.promised = None;
            drop(state);
            set.see_to_rest();
        }
    }
}

/// The mover in the hands of a thread that waits; given back however that ends.
struct Turn<'a> {
    set: &'a Set,
    mover: Option<Box<Mover>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(mover) = self.mover.take() else { return };
        self.set.helm.put(mover);
        self.set.see_to_rest();
    }
}

impl Set {
    /// HELM-2. If the mover is not free, the thread that has it, or has promised to take it, does this later.
    fn see_to_rest(&self) {
        if self.helm.is_free_and(|mover| mover.has_news() || self.is_expecting()) {
            self.bell.ring();
        }
    }

    /// A thread that does not run things any more gives up all promises, its own and those of others (HELM-2).
    pub fn give_up_promises(&self) {
        if !self.is_ours() {
            return;
        }
        let mut state = self.helm.lock();
        if state.promised.take().is_some() {
            state.n_promised = 0;
            state.era += 1;
            drop(state);
            self.see_to_rest();
        }
    }

    /// Runs what is to be run until this operation is done, or the deadline has passed, or the mover's own thread has to do something. Only where
    /// all ranks share a host: a batch that has begun is finished first. There that takes no longer than its data, unless a rank stops in it; then
    /// until that rank is found frozen.
    pub fn help(&self, slot: &Slot, deadline: Instant) {
        if !self.is_ours() || Instant::now() >= deadline {
            return;
        }
        let Some(mover) = self.helm.take() else { return };
        let mut turn = Turn { set: self, mover: Some(mover) };
        let mover = turn.mover.as_mut().expect("it was just put there");
        loop {
            let is_all = mover.help(slot, deadline);
            if slot.is_done() || !is_all || Instant::now() >= deadline {
                return;
            }
            self.bell.look_out(deadline, &|| slot.is_done() || mover.has_news());
        }
    }
}
