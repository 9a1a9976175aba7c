//! The other ranks that train the same program, reached through the engine that `init` has started.
//! - PYRANKS-1: calls of one executor have the same names in the same order on all ranks.
//! - PYRANKS-2: a rank that gives up a run takes part in the next call with something that fits nothing, so that everybody's run fails
//!   there and all are as far as before.
//! - PYRANKS-3: whoever fails there asks everybody for the reason, and the rank that gave up has left it: what kind of reason
//!   it is, and words.

use crate::state::{self, Running};
use phalanx_collective::engine::{Engine, EngineError, Request, Tensor};
use phalanx_core::{DType, Rank, ReduceOp};
use phalanx_graph::{BuildStrategy, Collective, CollectiveError, exec::Alone};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The ranks of this process's world for one executor; `None` if it is alone.
pub fn of_this_process(py: Python<'_>, label: &str) -> PyResult<Option<Arc<Ranks>>> {
    if !state::is_initialized() {
        return Ok(None);
    }
    let engine = state::engine(py)?;
    if engine.size() == 1 {
        return Ok(None);
    }
    let (index, n) = (engine.rank().index(), engine.size() as usize);
    let calls = Mutex::new(Calls { n_made: 0, over: false });
    Ok(Some(Arc::new(Ranks { engine: Arc::downgrade(&engine), label: label.to_string(), index, n, calls })))
}

/// For an executor: these ranks, or nobody.
pub fn collective(ranks: Option<&Arc<Ranks>>) -> Arc<dyn Collective> {
    match ranks {
        Some(ranks) => ranks.clone(),
        None => Arc::new(Alone),
    }
}

/// Why a rank does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Something is wrong, as its words say.
    Failed,
    /// Its loader has no more batches.
    Ended,
}

impl Cause {
    /// In the exchange of reasons; 0 is who has none.
    fn code(self) -> u8 {
        match self {
            Cause::Failed => 1,
            Cause::Ended => 2,
        }
    }
}

#[derive(Debug)]
pub struct Ranks {
    /// Weak, because executors outlive `shutdown`, which waits for whoever uses the engine.
    engine: Weak<Running>,
    label: String,
    index: usize,
    n: usize,
    /// A lock because workers of one executor share it. Held for as long as a call lasts: the next one, and giving up, wait for it.
    calls: Mutex<Calls>,
}

#[derive(Debug)]
struct Calls {
    n_made: u64,
    /// This run has failed here or elsewhere, and everybody knows.
    over: bool,
}

impl Ranks {
    /// Takes out of a strategy what is true of these ranks, for an executor that does without them.
    pub fn leave(&self, build: &mut BuildStrategy) {
        if (build.num_trainers, build.trainer_id) == (Some(self.n), Some(self.index)) {
            (build.num_trainers, build.trainer_id) = (None, None);
        }
    }

    /// A run begins; no worker is at work.
    pub fn begin(&self) {
        self.lock().over = false;
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// PYRANKS-1.
    fn name(&self, calls: &Calls, part: &str) -> String {
        format!("graph: training of `{}`, exchange {}{part}", self.label, calls.n_made)
    }

    /// Makes the parts of one call, one after the other.
    fn call<T>(
        &self,
        call: &'static str,
        make: impl FnOnce(&mut dyn FnMut(&str, Request) -> Result<Tensor, String>) -> Result<T, String>,
    ) -> Result<T, CollectiveError> {
        let failed = |why: String| CollectiveError::Failed { call, why };
        let mut calls = self.lock();
        if calls.over {
            return Err(failed("the run was given up".to_string()));
        }
        let Some(engine) = self.engine.upgrade() else {
            return Err(failed("phalanx.shutdown() was called".to_string()));
        };
        let mut is_misfit = false;
        let mut submit = |part: &str, request: Request| {
            let named = request.name(self.name(&calls, part));
            let answer = engine.submit(named).and_then(|handle| handle.wait());
            is_misfit |= matches!(answer, Err(EngineError::Mismatch { .. }));
            let tensor = answer.map_err(|why| why.to_string())?.tensor();
            tensor.ok_or_else(|| "the engine gave nothing back".to_string())
        };
        let made = make(&mut submit);
        let gave_up = if is_misfit { self.who_gave_up(&engine, &calls) } else { None };
        calls.n_made += 1;
        calls.over = made.is_err();
        made.map_err(|why| gave_up.unwrap_or_else(|| failed(why)))
    }

    /// PYRANKS-3. Everybody for whom a call did not fit comes here, and who gave up was here before.
    fn who_gave_up(&self, engine: &Engine, calls: &Calls) -> Option<CollectiveError> {
        let asked = engine.submit(self.reason(calls, None)).and_then(|handle| handle.wait());
        told(asked.ok()?.tensor()?.bytes(), self.n)
    }

    /// The exchange of reasons: a code, a length and a text from each rank.
    fn reason(&self, calls: &Calls, reason: Option<(Cause, &str)>) -> Request {
        let (code, why) = reason.map_or((0, ""), |(cause, why)| (cause.code(), why));
        let mut bytes = vec![code];
        bytes.extend((why.len() as u32).to_le_bytes());
        bytes.extend(why.as_bytes());
        Request::allgather(Tensor::new(bytes)).name(self.name(calls, ", reasons"))
    }

    /// PYRANKS-2. Nobody waits for the answer: the others come when they come.
    pub fn give_up(&self, cause: Cause, why: &str) {
        let mut calls = self.lock();
        if calls.over {
            return;
        }
        if let Some(engine) = self.engine.upgrade() {
            let odd = Request::allreduce(Tensor::new(vec![0i8])).name(self.name(&calls, ""));
            // If the engine does not take them, it has failed, and then on all ranks.
            let _ = engine.submit(odd);
            let _ = engine.submit(self.reason(&calls, Some((cause, why))));
        }
        calls.n_made += 1;
        calls.over = true;
    }
}

/// The first rank that has a reason, in what all have told.
fn told(mut rest: &[u8], n: usize) -> Option<CollectiveError> {
    for process in 0..n {
        let (&code, after) = rest.split_first()?;
        let (length, after) = after.split_first_chunk()?;
        let (why, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if code == Cause::Ended.code() {
            return Some(CollectiveError::Ended { process });
        }
        if code != 0 {
            let why = String::from_utf8_lossy(why).into_owned();
            return Some(CollectiveError::Aborted { process, why });
        }
        rest = after;
    }
    None
}

impl Collective for Ranks {
    fn processes(&self) -> usize {
        self.n
    }

    fn index(&self) -> usize {
        self.index
    }

    fn all_reduce(&self, data: &mut [u8], dtype: DType) -> Result<(), CollectiveError> {
        let tensor = match dtype {
            DType::F64 => Tensor::new(data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect()),
            _ => Tensor::new(data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        };
        let sum = self.call("the sum of gradients", |submit| {
            submit("", Request::allreduce(tensor).op(ReduceOp::Sum))
        })?;
        data.copy_from_slice(sum.bytes());
        Ok(())
    }

    fn broadcast(&self, data: &mut [u8], root: usize) -> Result<(), CollectiveError> {
        let tensor = Tensor::new(data.to_vec());
        let all = self.call("the broadcast of parameters", |submit| {
            submit("", Request::broadcast(tensor, Rank(root as u32)))
        })?;
        data.copy_from_slice(all.bytes());
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.call("the exchange between processes", |submit| {
            let lengths = submit("", Request::allgather(Tensor::new(vec![mine.len() as i64])))?;
            let all = submit(", bytes", Request::allgather(Tensor::new(mine.to_vec())))?;
            let lengths = lengths.into_vec::<i64>().ok_or("lengths came back as something else")?;
            let mut rest = all.bytes();
            let mut parts = Vec::with_capacity(self.n);
            for length in lengths {
                let (own, after) = rest.split_at_checked(length as usize).ok_or("bytes are missing")?;
                parts.push(own.to_vec());
                rest = after;
            }
            Ok(parts)
        })
    }

    fn abort(&self, why: &str) {
        self.give_up(Cause::Failed, why);
    }
}
