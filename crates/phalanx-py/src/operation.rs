//! A submitted operation, as Python sees it.

use crate::{array::Array, error, gate};
use phalanx_collective::engine::{EngineTensor, Handle, Outcome};
use pyo3::{
    exceptions::{PyTimeoutError, PyValueError},
    prelude::*,
};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// One submitted operation: ask whether it is done, wait for what it gives.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct Operation {
    #[pyo3(get)]
    name: String,
    /// Whether the results are new memory, not that of tensors which were given.
    makes: bool,
    /// A lock because threads may wait for it at the same time; held for moments. `None` while one waits, and after.
    handle: Mutex<Option<Handle>>,
}

impl Operation {
    pub fn new(handle: Handle, makes: bool) -> Operation {
        Operation { name: handle.name().to_string(), makes, handle: Mutex::new(Some(handle)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcome(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Outcome> {
        let taken = || {
            PyValueError::new_err(format!(
                "{} has already been waited for, or another thread waits for it",
                self.name
            ))
        };
        let mut handle = Some(self.lock().take().ok_or_else(taken)?);
        let until = timeout_s.map(|s| Instant::now() + Duration::from_secs_f64(s.clamp(0.0, 1e9)));
        let waited = gate::wait(py, until, |deadline| match handle.take()?.wait_until(deadline) {
            Ok(answer) => Some(answer),
            Err(again) => {
                handle = Some(again);
                None
            }
        });
        match waited {
            Ok(Some(answer)) => answer.map_err(|why| error::of_engine(py, &why)),
            unfinished => {
                // A deadline or Ctrl-C: it can be waited for again.
                *self.lock() = handle;
                unfinished?;
                let text = format!("{} is not done after {} s", self.name, timeout_s.unwrap_or_default());
                Err(PyTimeoutError::new_err(text))
            }
        }
    }
}

#[pymethods]
impl Operation {
    /// Whether it is done; then its name is free again.
    fn poll(&self) -> bool {
        self.lock().as_ref().is_some_and(Handle::poll)
    }

    /// Waits, and gives the results that are new memory, and for alltoall the rows that came from each rank.
    #[pyo3(signature = (timeout_s = None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<(Vec<Array>, Vec<u64>)> {
        let outcome = self.outcome(py, timeout_s)?;
        let made: Vec<EngineTensor> = if self.makes { outcome.tensors } else { Vec::new() };
        Ok((made.into_iter().map(Array::new).collect(), outcome.received))
    }

    /// Waits for a join, and gives the rank that joined last.
    fn wait_joined(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        Ok(self.outcome(py, None)?.last_joined.map(|rank| rank.0))
    }
}
