//! The state that asynchronous replicas share: the source of batches and the target of updates.

use super::{NamedFeeds, ReaderError, Replica, Update};
use crate::{
    exec::{RunError, Store, Tensor},
    graph::Halves,
    kernel::Env,
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

type Reader<'a> = &'a mut (dyn FnMut(&mut NamedFeeds) -> Result<bool, ReaderError> + Send);

pub(super) struct HogwildRun<'a> {
    pub halves: &'a Halves,
    pub loss: &'a str,
    /// As of the first batch.
    pub env: Env,
    /// A lock because the reader can serve only one at a time; held as long as it reads one batch.
    pub reading: Mutex<Reading<'a>>,
    /// One lock for the whole update, not one for each parameter: counters, rates and norms over all gradients are of one
    /// update then (HOGWILD-2). Held for the update and two copies, never while anybody computes gradients or reads.
    pub state: Mutex<HogwildState<'a>>,
    /// Only says that there is no use in going on. What was done is under the locks, so no ordering is needed.
    pub is_over: AtomicBool,
}

pub(super) struct Reading<'a> {
    pub reader: Reader<'a>,
    /// Batches so far.
    pub n: u64,
    pub is_over: bool,
}

pub(super) struct HogwildState<'a> {
    pub store: &'a mut Store,
    pub updates: &'a mut Vec<Update>,
    /// The first failure.
    pub failed: Option<RunError>,
}

fn lock<'a, T>(mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    // A panic under a lock is caught there, so a poisoned lock's data is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HogwildRun<'_> {
    /// What a replica does: a number of batches, or until a replica has failed or the reader has no more.
    pub fn work(&self, number: usize, replica: &mut Replica, n_batches: usize) {
        for _ in 0..n_batches {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let ended = catch_unwind(AssertUnwindSafe(|| self.learn(number, replica)));
            let error = match ended {
                Ok(Ok(true)) => continue,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => error,
                Err(panic) => RunError::Broken { why: message(&*panic) },
            };
            return self.fail(RunError::Replica { replica: number, error: Box::new(error) });
        }
    }

    /// HOGWILD-3: the first failure is the one that is told.
    pub fn fail(&self, error: RunError) {
        self.is_over.store(true, Ordering::Relaxed);
        lock(&self.state).failed.get_or_insert(error);
    }

    pub fn end(self) -> Result<(), RunError> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.failed.map_or(Ok(()), Err)
    }

    /// One batch; `false` if there is none.
    fn learn(&self, number: usize, replica: &mut Replica) -> Result<bool, RunError> {
        let Some(batch) = self.next(&mut replica.batch)? else { return Ok(false) };
        let feeds = replica.batch.iter().map(|(name, value)| (name.as_str(), value));
        let fetch = [self.loss];
        let samples = replica.executor.check(feeds.clone(), &fetch, &replica.loss)?;
        let plan = replica.executor.plan(samples, &fetch)?;
        replica.executor.feed(plan, feeds);
        // By batch and not by replica, so that no two have the same random numbers.
        let env = Env { run: self.env.run + batch, ..self.env };
        let (n_network, n_all) = (self.halves.n_network, self.halves.program.ops.len());
        replica.executor.steps(plan, 0..n_network, &mut replica.own, env)?;
        replica.executor.fetch(plan, &mut replica.own, &mut replica.loss);
        let loss = number_of(&replica.loss[0]);
        let mut state = lock(&self.state);
        if state.failed.is_some() {
            // Its batch is lost, but nothing follows a failure.
            return Ok(false);
        }
        let buffers = state.store.buffers_mut();
        replica.put(buffers, &self.halves.statistics);
        replica.executor.steps(plan, n_network..n_all, buffers, env)?;
        replica.take(buffers, &self.halves.fresh);
        state.store.runs += 1;
        state.updates.push(Update { replica: number, batch, loss });
        Ok(true)
    }

    /// Has the next batch read and gives its number (HOGWILD-1).
    fn next(&self, batch: &mut NamedFeeds) -> Result<Option<u64>, RunError> {
        let mut reading = lock(&self.reading);
        if reading.is_over {
            return Ok(None);
        }
        let n = reading.n;
        let read = catch_unwind(AssertUnwindSafe(|| (reading.reader)(batch)));
        // After the end, or a failure, it is not asked again.
        reading.is_over = !matches!(read, Ok(Ok(true)));
        match read {
            Ok(Ok(true)) => {
                reading.n += 1;
                Ok(Some(n))
            }
            Ok(Ok(false)) => Ok(None),
            Ok(Err(why)) => Err(RunError::Reader { batch: n, why: why.to_string() }),
            Err(panic) => Err(RunError::ReaderPanicked { batch: n, why: message(&*panic) }),
        }
    }
}

/// A loss is one number, whatever its type.
fn number_of(loss: &Tensor) -> f64 {
    loss.data::<f32>().map_or_else(|_| loss.data::<f64>().map_or(f64::NAN, |v| v[0]), |v| f64::from(v[0]))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message").to_string()
}
