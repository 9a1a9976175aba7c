//! The executor for one replica, one operation after the other.

use super::{
    error,
    program::GraphProgram,
    store::{GraphStore, Shared, lock},
    tensor::{Given, give, take},
};
use crate::{driver::Driver, lent::LentTensor};
use phalanx_graph::{Executor, Options, Program, RunError, Sig, Tensor, ir::Site};
use pyo3::prelude::*;
use std::sync::Arc;

/// What a program keeps in the store, and the store that is known to have it.
#[derive(Debug)]
pub struct Wants {
    states: Vec<(String, Sig, Site)>,
    ready: Option<Shared>,
}

impl Wants {
    pub fn of(program: &Program) -> Wants {
        let states = program.vars().filter(|(_, v)| v.is_persistable());
        let states = states.map(|(_, v)| (v.name.clone(), v.sig.clone(), v.site.clone())).collect();
        Wants { states, ready: None }
    }

    /// Parameters come from a startup program; what nobody has initialised is named. Nothing ever leaves a store.
    pub fn check(&mut self, store: &Shared) -> Result<(), RunError> {
        if self.ready.as_ref().is_some_and(|known| Arc::ptr_eq(known, store)) {
            return Ok(());
        }
        let names: Vec<String> = lock(store).names().map(str::to_string).collect();
        for (var, wanted, site) in &self.states {
            if names.binary_search(var).is_err() {
                let (var, wanted, site) = (var.clone(), wanted.clone(), site.clone());
                return Err(RunError::Uninitialised { var, wanted, site });
            }
        }
        self.ready = Some(store.clone());
        Ok(())
    }
}

/// A program, checked and ready to run on one replica.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct GraphExecutor {
    driver: Driver<(Executor, Wants)>,
}

#[pymethods]
impl GraphExecutor {
    #[new]
    #[pyo3(signature = (program, check_nan_inf, seed=None))]
    fn new(
        py: Python<'_>,
        program: &GraphProgram,
        check_nan_inf: bool,
        seed: Option<u64>,
    ) -> PyResult<GraphExecutor> {
        let options = Options { check_finite: check_nan_inf, seed, ..Options::default() };
        let program = program.snapshot();
        let wants = Wants::of(&program);
        let executor = Executor::new(program, options).map_err(|why| error::of_program(py, &why))?;
        Ok(GraphExecutor { driver: Driver::new("executor", (executor, wants))? })
    }

    /// Runs all operations and gives the fetched variables.
    fn run(
        &self,
        py: Python<'_>,
        store: &GraphStore,
        feeds: Vec<(String, LentTensor)>,
        fetch: Vec<String>,
    ) -> PyResult<Vec<Given>> {
        let shared = store.shared(py)?;
        // What is lent comes back out, so that its owners go with the GIL held.
        let (taken, feeds) = py.detach(move || {
            let each = feeds.iter().map(|(_, lent)| take(lent));
            (each.collect::<PyResult<Vec<Tensor>>>(), feeds)
        });
        let taken = taken?;
        let names: Vec<String> = feeds.into_iter().map(|(name, _)| name).collect();
        let ran = self.driver.call(py, move |(executor, wants)| {
            let feeds: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&taken).collect();
            let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
            wants.check(&shared)?;
            executor.run(&mut lock(&shared), &feeds, &fetch)
        })?;
        let values = ran.map_err(|why| error::of_run(py, &why))?;
        Ok(values.iter().map(|value| give(py, value)).collect())
    }

    fn arena_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.driver.call(py, |(executor, _)| executor.arena_bytes())
    }
}
