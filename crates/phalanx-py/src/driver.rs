//! A thread that owns an executor, a session or tables and runs its requests one after the other (PYGRAPH-3).

use crate::{error, gate};
use pyo3::prelude::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    time::Instant,
};

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// What the thread will say, once it is done.
#[derive(Debug)]
pub struct PendingResult<R>(Receiver<std::thread::Result<R>>);

/// The most calls that may wait for those before them.
const MOST_WAITING: usize = 64;

/// The owner of a `T`. Its thread ends after the last call, once this is dropped; nobody waits for that.
#[derive(Debug)]
pub struct Driver<T> {
    /// `None` while it is dropped.
    jobs: Option<SyncSender<Job<T>>>,
    process: u32,
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        // In a forked child the queue's lock may be held for ever by a thread that is not there.
        if self.process != std::process::id() {
            std::mem::forget(self.jobs.take());
        }
    }
}

impl<T: Send + 'static> Driver<T> {
    pub fn new(name: &str, mut owned: T) -> std::io::Result<Driver<T>> {
        let (jobs, queue) = sync_channel::<Job<T>>(MOST_WAITING);
        let run = move || queue.iter().for_each(|job| job(&mut owned));
        std::thread::Builder::new().name(format!("phalanx-{name}")).spawn(run)?;
        Ok(Driver { jobs: Some(jobs), process: std::process::id() })
    }

    /// Has the thread do this, and waits for the answer.
    pub fn call<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> PyResult<R> {
        self.begin(py, call)?.wait(py)
    }

    /// Has the thread do this.
    pub fn begin<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> PyResult<PendingResult<R>> {
        if self.process != std::process::id() {
            let text = "it belongs to the process that made it, not to its forked child";
            return Err(error::raise(py, "ForkedError", text, &[]));
        }
        let (done, result) = sync_channel(1);
        let job: Job<T> = Box::new(move |owned| {
            // Nobody is left to hear it after Ctrl-C.
            let _ = done.send(catch_unwind(AssertUnwindSafe(|| call(owned))));
        });
        let jobs = self.jobs.as_ref().expect("it is not being dropped");
        jobs.try_send(job).map_err(|why| {
            let text = match why {
                TrySendError::Full(_) => "too many threads wait for its answers",
                TrySendError::Disconnected(_) => "the thread that makes its calls is gone",
            };
            error::raise(py, "PhalanxError", text, &[])
        })?;
        Ok(PendingResult(result))
    }
}

impl<R: Send> PendingResult<R> {
    pub fn wait(self, py: Python<'_>) -> PyResult<R> {
        gate::answer(py, self.0)
    }

    /// `None` if there is no answer until then; the call goes on alone.
    pub fn wait_until(self, py: Python<'_>, until: Instant) -> PyResult<Option<R>> {
        gate::answer_until(py, self.0, Some(until))
    }
}
