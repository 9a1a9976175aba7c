//! The store, which keeps variables between runs, for Python.

use super::{
    error,
    program::GraphProgram,
    tensor::{Given, give, take},
};
use crate::{gate, lent::LentTensor};
use phalanx_graph::{Executor, Init, Options, RunError, Store, Tensor, VarKind};
use pyo3::prelude::*;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    thread::ThreadId,
};

/// The store, and the executor that uses it for now. A lock because executors run on threads of their own; a run holds it to its end.
pub type Shared = Arc<Mutex<Store>>;

pub fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parameters and states by name.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct GraphStore {
    store: Shared,
    /// Threads that read batches for a run on it. A lock because several may; held for moments.
    readers: Mutex<Vec<ThreadId>>,
}

/// As long as it lives, its thread reads batches for a run on the store.
#[derive(Debug)]
pub struct ReaderGuard<'a>(&'a GraphStore);

impl Drop for ReaderGuard<'_> {
    fn drop(&mut self) {
        let mut readers = self.0.readers();
        let own = readers.iter().position(|&reader| reader == std::thread::current().id());
        own.map(|at| readers.swap_remove(at));
    }
}

impl GraphStore {
    fn readers(&self) -> MutexGuard<'_, Vec<ThreadId>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a run. One that a run's own reader begins would wait for ever.
    pub fn shared(&self, py: Python<'_>) -> PyResult<Shared> {
        if self.readers().contains(&std::thread::current().id()) {
            return Err(error::of_reader(py));
        }
        Ok(self.store.clone())
    }

    pub fn reading(&self) -> ReaderGuard<'_> {
        self.readers().push(std::thread::current().id());
        ReaderGuard(self)
    }

    /// At once if nobody uses it, or else as soon as the run has ended that does. During a run that reads batches it is
    /// refused: the run may wait for a batch of the asking thread.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> PyResult<T> {
        match self.store.try_lock() {
            Ok(mut store) => return Ok(call(&mut store)),
            Err(TryLockError::Poisoned(store)) => return Ok(call(&mut store.into_inner())),
            Err(TryLockError::WouldBlock) => {}
        }
        if !self.readers().is_empty() {
            return Err(error::of_reader(py));
        }
        let shared = self.store.clone();
        gate::enter(py, "store", move || call(&mut lock(&shared)))
    }
}

#[pymethods]
impl GraphStore {
    /// Everything random in the runs on it comes from the seed.
    #[new]
    fn new(seed: u64) -> GraphStore {
        GraphStore { store: Arc::new(Mutex::new(Store::new(seed))), readers: Mutex::default() }
    }

    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |store| store.names().map(str::to_string).collect())
    }

    fn get(&self, py: Python<'_>, name: String) -> PyResult<Option<Given>> {
        let value = self.with(py, move |store| match store.kept_by(&name) {
            Some(process) => Err(RunError::KeptElsewhere { var: name, process }),
            None => match store.get(&name) {
                None if store.is_served(&name) => Err(RunError::OnServers { var: name }),
                value => Ok(value),
            },
        })?;
        Ok(value.map_err(|why| error::of_run(py, &why))?.map(|value| give(py, &value)))
    }

    /// The code of a variable's type, and its shape.
    fn form(&self, py: Python<'_>, name: String) -> PyResult<Option<(u8, Vec<usize>)>> {
        self.with(py, move |store| store.sig(&name).map(|sig| (sig.dtype as u8, sig.shape.at(0))))
    }

    /// Bytes of memory that a variable takes here: none if another rank keeps it.
    fn bytes_of(&self, py: Python<'_>, name: String) -> PyResult<usize> {
        self.with(py, move |store| store.bytes_of(&name))
    }

    /// What one replica has.
    fn get_copy(&self, py: Python<'_>, name: String, replica: usize) -> PyResult<Option<Given>> {
        let value = self.with(py, move |store| store.get_copy(&name, replica))?;
        Ok(value.map(|value| give(py, &value)))
    }

    fn set(&self, py: Python<'_>, name: String, value: LentTensor) -> PyResult<()> {
        let value = take(&value)?;
        self.with(py, move |store| store.set(&name, &value))?.map_err(|why| error::of_run(py, &why))
    }

    /// Gives everything that this program keeps in the store its first value, from a seed; also what has one already, in whatever
    /// shape.
    fn initialise(&self, py: Python<'_>, program: &GraphProgram, seed: u64) -> PyResult<()> {
        let made = Executor::new(program.snapshot(), Options::default());
        let executor = made.map_err(|why| error::of_program(py, &why))?;
        let done = self.with(py, move |store| begin(&executor, store, seed))?;
        done.map_err(|why| error::of_run(py, &why))
    }
}

/// Whether a variable has its value from elsewhere, so that it stays as it is.
fn is_given(executor: &Executor, name: &str) -> bool {
    let program = executor.program();
    let kind = program.find(name).map(|id| &program.var(id).kind);
    match kind {
        Some(VarKind::Parameter(learn)) => learn.init == Init::Given,
        Some(VarKind::State(init)) => *init == Init::Given,
        _ => false,
    }
}

fn begin(executor: &Executor, store: &mut Store, seed: u64) -> Result<(), RunError> {
    let mut fresh = Store::new(seed);
    executor.prepare(&mut fresh)?;
    store.renew(executor.program())?;
    // What another rank keeps comes back with its first value.
    let kept: Vec<String> =
        fresh.names().filter(|name| store.kept_by(name).is_some()).map(str::to_string).collect();
    for name in kept {
        if let Some(value) = fresh.get(&name) {
            store.set(&name, &value)?;
        }
    }
    executor.prepare(store)?;
    let names: Vec<String> = fresh.names().map(str::to_string).collect();
    let values: Vec<(String, Option<Tensor>)> =
        names.into_iter().map(|name| (name.clone(), fresh.get(&name))).collect();
    for (name, value) in values.into_iter().filter(|(name, _)| !is_given(executor, name)) {
        if let Some(value) = value {
            store.set(&name, &value)?;
        }
    }
    Ok(())
}
