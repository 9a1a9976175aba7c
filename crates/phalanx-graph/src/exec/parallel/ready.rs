//! Which tasks are ready, how many are left, and which workers sleep. It knows tasks only by their numbers.
//! - POOL-2: no wake-up is lost: a worker registers before it sleeps and checks once more; a worker that adds work checks for
//!   sleepers after that.
//!
//! Everything that two threads share here is SeqCst: POOL-2 needs one order of registering, looking and putting down.
//! Locks and atomics come from `super::sync`, so that tests/pool.rs can try all orders there are.

use super::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(super) struct Ready {
    /// One for each worker; the best is on top.
    queues: Vec<Mutex<BinaryHeap<(u64, u32)>>>,
    /// Tasks in all queues.
    n_ready: AtomicUsize,
    n_left: AtomicUsize,
    n_sleepers: AtomicUsize,
    park: Mutex<()>,
    wake: Condvar,
    broken: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A worker that panics between two changes breaks the run, which says so; the data itself stays whole.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Ready {
    pub(super) fn new(n_workers: usize) -> Ready {
        Ready {
            queues: (0..n_workers).map(|_| Mutex::new(BinaryHeap::new())).collect(),
            n_ready: AtomicUsize::new(0),
            n_left: AtomicUsize::new(0),
            n_sleepers: AtomicUsize::new(0),
            park: Mutex::new(()),
            wake: Condvar::new(),
            broken: AtomicBool::new(false),
        }
    }

    /// Makes room for `n` tasks, so that queues do not grow while they run.
    pub(super) fn reserve(&self, n_tasks: usize) {
        self.queues.iter().for_each(|queue| lock(queue).reserve(n_tasks));
    }

    /// A run of `n` tasks begins.
    pub(super) fn begin(&self, n_tasks: usize) {
        self.n_left.store(n_tasks, Ordering::SeqCst);
    }

    /// Puts a task down in a worker's queue.
    pub(super) fn push(&self, home: usize, priority: u64, task: u32) {
        lock(&self.queues[home]).push((priority, task));
        self.n_ready.fetch_add(1, Ordering::SeqCst);
        if self.n_sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.park));
            self.wake.notify_one();
        }
    }

    fn pop(&self, queue: usize) -> Option<usize> {
        let (_, task) = lock(&self.queues[queue]).pop()?;
        self.n_ready.fetch_sub(1, Ordering::SeqCst);
        Some(task as usize)
    }

    /// The best of its own, or, being idle, the best of another's.
    pub(super) fn next(&self, worker: usize) -> Option<usize> {
        if self.n_ready.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let n = self.queues.len();
        (0..n).find_map(|i| self.pop((worker + i) % n))
    }

    /// A task has ended, after everything it made possible was put down.
    pub(super) fn done(&self) {
        if self.n_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.wake_all();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.n_left.load(Ordering::SeqCst) == 0 || self.is_broken()
    }

    /// Sleeps until there may be something to do, or the run is over.
    pub(super) fn sleep(&self) {
        let guard = lock(&self.park);
        self.n_sleepers.fetch_add(1, Ordering::SeqCst);
        // The last look, after which nobody can put work down without seeing the sleeper (POOL-2).
        if self.n_ready.load(Ordering::SeqCst) == 0 && !self.is_over() {
            drop(self.wake.wait(guard).unwrap_or_else(|e| e.into_inner()));
        }
        self.n_sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends the run for all workers: one of them has left it in the middle of something.
    pub(super) fn break_off(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    fn wake_all(&self) {
        drop(lock(&self.park));
        self.wake.notify_all();
    }
}
