//! The handle of a submission: poll it, wait for it, or set a callback.
//!
//! - HANDLE-1: an operation is answered exactly once, and every way of asking gets that answer.
//! - HANDLE-2: its name is free again once the result was seen, or no handle is left to see it.

use super::{error::EngineError, helm::Promise, set::Set, spec::Name, tensor::EngineTensor};
use phalanx_core::Rank;
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
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
    pub tensors: Vec<EngineTensor>,
    /// The inputs of new tensors, if they are to be recycled.
    pub given: Vec<EngineTensor>,
    /// Alltoall: rows received from each rank.
    pub received: Vec<u64>,
    /// Join: the rank that joined last.
    pub last_joined: Option<Rank>,
    /// Process sets: the number of the new one.
    pub set: Option<u32>,
}

impl Outcome {
    /// The only tensor.
    pub fn tensor(self) -> Option<EngineTensor> {
        self.tensors.into_iter().next()
    }
}

pub type Answer = Result<Outcome, EngineError>;
type Callback = Box<dyn FnOnce(&Answer) + Send>;
type Taker = Box<dyn FnOnce(Answer) + Send>;

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
    /// There is an answer, perhaps just being shown to callbacks.
    given: bool,
    taken: bool,
    answer: Option<Answer>,
    callbacks: Vec<Callback>,
    /// Who gets the answer itself, after all callbacks.
    taker: Option<Taker>,
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

    /// Answers, and calls the callbacks.
    pub fn answer(&self, answer: Answer) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.given, true) {
            self.call_back(state, answer); // HANDLE-1
        }
    }

    /// Calls all callbacks, those that come meanwhile included, outside of the lock: they may ask this very handle, or wait for a thread that does.
    fn call_back<'a>(&'a self, mut state: MutexGuard<'a, State>, answer: Answer) {
        while !state.callbacks.is_empty() {
            let callbacks = std::mem::take(&mut state.callbacks);
            drop(state);
            for call in callbacks {
                // A callback that panics must not take the engine's thread with it.
                if catch_unwind(AssertUnwindSafe(|| call(&answer))).is_err() {
                    tracing::error!("a callback panicked");
                }
            }
            state = self.lock();
        }
        let Some(take) = state.taker.take() else {
            state.answer = Some(answer);
            self.done.store(true, Ordering::Release);
            drop(state);
            return self.answered.notify_all();
        };
        // Before it is called: it may submit under the same name (HANDLE-2).
        state.taken = true;
        self.done.store(true, Ordering::Release);
        drop(state);
        self.observe();
        if catch_unwind(AssertUnwindSafe(|| take(answer))).is_err() {
            tracing::error!("a callback panicked");
        }
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// HANDLE-2.
    pub fn is_free(&self) -> bool {
        self.is_done() && self.observed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
    /// Where the operation runs, as long as there is an engine.
    set: Weak<Set>,
    /// That somebody waits for it soon.
    promise: Option<Promise>,
}

impl Handle {
    pub(crate) fn new(name: Name, slot: Arc<Slot>, set: Weak<Set>) -> Handle {
        Handle { name, slot, set, promise: None }
    }

    pub(crate) fn promised(mut self, promise: Option<Promise>) -> Handle {
        self.promise = promise;
        self
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

    /// Waits for the answer and takes it. A deadline that passes gives the handle back. Where all ranks share a host, the thread that waits runs
    /// this set's operations itself if no other does, and calls their callbacks.
    pub fn wait_until(mut self, deadline: Instant) -> Result<Answer, Handle> {
        let start = Instant::now();
        while !self.slot.is_done() && start.elapsed() < YIELD_FOR {
            if let Some(set) = self.set.upgrade() {
                set.help(&self.slot, deadline);
            }
            if !self.slot.is_done() {
                rustix::thread::sched_yield();
            }
        }
        if !self.slot.is_done()
            && let Some(set) = self.set.upgrade()
        {
            // From here on it only sleeps, or does something else.
            set.give_up_promises();
        }
        self.promise = None;
        let mut state = self.slot.lock();
        while state.answer.is_none() && !state.taken {
            let now = Instant::now();
            if now >= deadline {
                drop(state);
                return Err(self);
            }
            let slept = self.slot.answered.wait_timeout(state, deadline - now);
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.slot.observe();
        state.taken = true;
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

    /// Calls back once it is done: at once if it is, otherwise from a thread of the engine or one that waits for an operation, which must not be kept long. The callback must not
    /// wait for this very handle. After the answer was taken it gets [`EngineError::Taken`].
    pub fn on_done(&self, call: impl FnOnce(&Answer) + Send + 'static) {
        let mut state = self.slot.lock();
        if state.taken {
            drop(state);
            return call(&Err(EngineError::Taken));
        }
        state.callbacks.push(Box::new(call));
        // Without an answer here it is not there yet, or is being shown to others, and then to this one.
        if let Some(answer) = state.answer.take() {
            self.slot.call_back(state, answer);
        }
    }

    /// Gives the answer away once it is there: at once if it is, otherwise from a thread of the engine or one that waits for an operation, which must not be kept long. The name
    /// is free by then.
    pub fn then(self, take: impl FnOnce(Answer) + Send + 'static) {
        let mut state = self.slot.lock();
        if state.taken {
            drop(state);
            return take(Err(EngineError::Taken));
        }
        state.taker = Some(Box::new(take));
        if let Some(answer) = state.answer.take() {
            self.slot.call_back(state, answer);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Who takes the answer sees it when it is there, not now.
        if self.slot.lock().taker.is_none() {
            self.slot.observed.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn callbacks_may_ask_and_panic() {
        let slot = Arc::new(Slot::default());
        let handle = Arc::new(Handle::new("x".into(), slot.clone(), Weak::new()));
        let (told, tell) = mpsc::channel();
        handle.on_done(|_| panic!("as ordered"));
        for _ in 0..2 {
            let (again, told) = (handle.clone(), told.clone());
            handle.on_done(move |_| again.on_done(move |_| told.send(()).unwrap()));
            slot.answer(Ok(Outcome::default()));
        }
        assert_eq!(tell.try_iter().count(), 2, "HANDLE-1");
        let alone = Arc::try_unwrap(handle).unwrap();
        alone.wait().unwrap();
    }

    #[test]
    fn an_answer_is_given_away_after_callbacks_have_seen_it_and_its_name_is_free() {
        for early in [true, false] {
            let n_seen = Arc::new(AtomicU64::new(0));
            let slot = Arc::new(Slot::new(n_seen.clone()));
            let handle = Handle::new("x".into(), slot.clone(), Weak::new());
            let (told, tell) = mpsc::channel();
            let (seen, free) = (told.clone(), slot.clone());
            handle.on_done(move |_| seen.send((vec![], false)).unwrap());
            let answer = || slot.answer(Ok(Outcome { received: vec![3], ..Outcome::default() }));
            if early {
                answer();
            }
            handle.then(move |answer| told.send((answer.unwrap().received, free.is_free())).unwrap());
            if !early {
                assert_eq!(n_seen.load(Ordering::Relaxed), 0, "nobody has seen it yet");
                answer();
            }
            assert_eq!(n_seen.load(Ordering::Relaxed), 1);
            let said: Vec<(Vec<u64>, bool)> = tell.try_iter().collect();
            assert_eq!(said, [(vec![], false), (vec![3], true)], "HANDLE-1, HANDLE-2");
        }
    }

    #[test]
    fn every_way_of_asking_gets_the_one_answer() {
        let slot = Arc::new(Slot::default());
        let handle = Handle::new("x".into(), slot.clone(), Weak::new());
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
