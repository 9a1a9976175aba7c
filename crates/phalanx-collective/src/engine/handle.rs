//! What a submission returns: a way to ask, wait, or be told.
//!
//! - HANDLE-1: an operation is answered exactly once, and every way of asking gets that answer.
//! - HANDLE-2: its name is free again once the answer was seen, or nobody is left who could see it.

use super::{error::EngineError, spec::Name, tensor::Tensor};
use phalanx_core::Rank;
use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Before a waiting thread sleeps, it yields this long: most answers are near.
const YIELD_FOR: Duration = Duration::from_micros(100);

/// What an operation gives back.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The tensors that were submitted in place, or the new ones.
    pub tensors: Vec<Tensor>,
    /// Alltoall: rows received from each rank.
    pub received: Vec<u64>,
    /// Join: the rank that joined last.
    pub last_joined: Option<Rank>,
    /// Process sets: the number of the new one.
    pub set: Option<u32>,
}

impl Outcome {
    /// The only tensor.
    pub fn tensor(self) -> Option<Tensor> {
        self.tensors.into_iter().next()
    }
}

pub type Answer = Result<Outcome, EngineError>;
type Callback = Box<dyn FnOnce(&Answer) + Send>;

/// The place where the answer will be.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
    answered: Condvar,
    /// Says so without the lock; set after the answer.
    done: AtomicBool,
    /// The answer was seen, or nobody is left who could.
    observed: AtomicBool,
    /// Counts the answers that were seen. Relaxed: it tells what a program's own thread has seen before it submits more.
    n_seen: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    answer: Option<Answer>,
    callbacks: Vec<Callback>,
}

impl Slot {
    pub fn new(n_seen: Arc<AtomicU64>) -> Slot {
        Slot { n_seen, ..Slot::default() }
    }

    fn observe(&self) {
        if !self.observed.swap(true, Ordering::AcqRel) {
            self.n_seen.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Answers, and calls whoever wanted to be called; outside of any lock.
    pub fn answer(&self, answer: Answer) {
        let mut state = self.lock();
        if self.done.load(Ordering::Acquire) {
            return; // HANDLE-1
        }
        let callbacks = std::mem::take(&mut state.callbacks);
        if callbacks.is_empty() {
            state.answer = Some(answer);
        } else {
            drop(state);
            callbacks.into_iter().for_each(|call| call(&answer));
            state = self.lock();
            // Callbacks that came meanwhile would be forgotten otherwise.
            std::mem::take(&mut state.callbacks).into_iter().for_each(|call| call(&answer));
            state.answer = Some(answer);
        }
        self.done.store(true, Ordering::Release);
        drop(state);
        self.answered.notify_all();
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// HANDLE-2.
    pub fn is_free(&self) -> bool {
        self.is_done() && self.observed.load(Ordering::Acquire)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot(done: {})", self.is_done())
    }
}

/// One submitted operation.
#[derive(Debug)]
pub struct Handle {
    name: Name,
    slot: Arc<Slot>,
}

impl Handle {
    pub(crate) fn new(name: Name, slot: Arc<Slot>) -> Handle {
        Handle { name, slot }
    }

    /// The full name under which other ranks find it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the answer is there.
    pub fn poll(&self) -> bool {
        let done = self.slot.is_done();
        if done {
            self.slot.observe();
        }
        done
    }

    /// Waits for the answer and takes it. A deadline that passes gives the handle back.
    pub fn wait_until(self, deadline: Instant) -> Result<Answer, Handle> {
        let start = Instant::now();
        while !self.slot.is_done() && start.elapsed() < YIELD_FOR {
            rustix::thread::sched_yield();
        }
        let mut state = self.slot.lock();
        while !self.slot.is_done() {
            let now = Instant::now();
            if now >= deadline {
                drop(state);
                return Err(self);
            }
            let slept = self.slot.answered.wait_timeout(state, deadline - now);
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.slot.observe();
        let answer = state.answer.take();
        drop(state);
        Ok(answer.unwrap_or(Err(EngineError::Taken)))
    }

    /// Waits as long as it takes: the engine answers every operation, if only by its failure.
    pub fn wait(self) -> Answer {
        let mut handle = self;
        loop {
            match handle.wait_until(Instant::now() + Duration::from_secs(3600)) {
                Ok(answer) => return answer,
                Err(again) => handle = again,
            }
        }
    }

    /// Calls back once it is done: at once if it is, otherwise from a thread of the engine, which must not be kept long. The callback must not
    /// wait for this very handle. After the answer was taken it gets [`EngineError::Taken`].
    pub fn on_done(&self, call: impl FnOnce(&Answer) + Send + 'static) {
        let mut state = self.slot.lock();
        match &state.answer {
            Some(answer) => call(answer),
            None if self.slot.is_done() => call(&Err(EngineError::Taken)),
            None => state.callbacks.push(Box::new(call)),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.slot.observed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn every_way_of_asking_gets_the_one_answer() {
        let slot = Arc::new(Slot::default());
        let handle = Handle::new("x".into(), slot.clone());
        let (told, tell) = mpsc::channel();
        handle.on_done(move |answer| told.send(answer.as_ref().unwrap().received.clone()).unwrap());
        assert!(!handle.poll());
        let handle = handle.wait_until(Instant::now()).unwrap_err();
        slot.answer(Ok(Outcome { received: vec![3], ..Outcome::default() }));
        slot.answer(Err(EngineError::Taken));
        assert!(!slot.is_free(), "HANDLE-2");
        assert_eq!(handle.wait().unwrap().received, [3], "HANDLE-1");
        assert_eq!(tell.try_recv(), Ok(vec![3]));
        assert!(slot.is_free(), "HANDLE-2");
    }
}
