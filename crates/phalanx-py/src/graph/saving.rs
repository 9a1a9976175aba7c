//! Programs and their variables as bytes. Python writes and reads the files.

use super::{
    error,
    program::GraphProgram,
    store::{GraphStore, lock},
};
use crate::gate;
use phalanx_graph::{
    Executor, GraphError, Options, RunError, VarKind,
    ir::Var,
    saved::{self, SavedError},
};
use pyo3::{prelude::*, pybacked::PyBackedBytes, types::PyBytes};

/// What can go wrong between bytes and a store.
enum Fault {
    File(SavedError),
    Program(GraphError),
    Store(RunError),
}

impl Fault {
    fn raise(&self, py: Python<'_>, path: &str) -> PyErr {
        match self {
            Fault::File(why) => error::of_loading(py, path, why),
            Fault::Program(why) => error::of_program(py, why),
            Fault::Store(why) => error::of_run(py, why),
        }
    }
}

fn all_str(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// All that lives in the store, or only what is learned.
fn which(only_parameters: bool) -> impl Fn(&Var) -> bool {
    move |var| !only_parameters || matches!(var.kind, VarKind::Parameter(_))
}

/// The part of a program that predicts these variables, with all that it needs.
#[pyfunction]
pub fn graph_save<'py>(
    py: Python<'py>,
    store: &GraphStore,
    program: &GraphProgram,
    feeds: Vec<String>,
    fetches: Vec<String>,
    notes: String,
) -> PyResult<Bound<'py, PyBytes>> {
    let (shared, program) = (store.shared(py)?, program.snapshot());
    let made = gate::enter(py, "save", move || {
        saved::save_as(&program, &mut lock(&shared), &all_str(&feeds), &all_str(&fetches), &notes)
    })?;
    Ok(PyBytes::new(py, &made.map_err(|why| error::of_saving(py, &why))?))
}

/// Program, feeds, fetches and notes, after its parameters went into the store.
#[pyfunction]
pub fn graph_load(
    py: Python<'_>,
    store: &GraphStore,
    bytes: PyBackedBytes,
    path: &str,
) -> PyResult<(GraphProgram, Vec<String>, Vec<String>, String)> {
    let shared = store.shared(py)?;
    let loaded = gate::enter(py, "load", move || {
        let saved = saved::load(&bytes).map_err(Fault::File)?;
        let executor = Executor::new(saved.program.clone(), Options::default()).map_err(Fault::Program)?;
        let mut store = lock(&shared);
        executor.prepare(&mut store).map_err(Fault::Store)?;
        saved.give(&mut store).map_err(Fault::Store)?;
        Ok((saved.program, saved.feeds, saved.fetches, saved.notes))
    })?;
    let (program, feeds, fetches, notes) = loaded.map_err(|why: Fault| why.raise(py, path))?;
    Ok((GraphProgram::of(program), feeds, fetches, notes))
}

/// What a program has in the store.
#[pyfunction]
pub fn graph_save_values<'py>(
    py: Python<'py>,
    store: &GraphStore,
    program: &GraphProgram,
    only_parameters: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let (shared, program) = (store.shared(py)?, program.snapshot());
    let made = gate::enter(py, "save", move || {
        saved::save_values(&program, &mut lock(&shared), which(only_parameters))
    })?;
    Ok(PyBytes::new(py, &made.map_err(|why| error::of_saving(py, &why))?))
}

/// Puts what a program wants into the store, if all of it fits; with all of it, the next run is the one that would have
/// come next.
#[pyfunction]
pub fn graph_load_values(
    py: Python<'_>,
    store: &GraphStore,
    program: &GraphProgram,
    only_parameters: bool,
    bytes: PyBackedBytes,
    path: &str,
) -> PyResult<()> {
    let (shared, program) = (store.shared(py)?, program.snapshot());
    let loaded = gate::enter(py, "load", move || {
        let values = saved::load_values(&bytes).map_err(Fault::File)?;
        values.fits(&program, which(only_parameters)).map_err(Fault::File)?;
        let executor = Executor::new(program.clone(), Options::default()).map_err(Fault::Program)?;
        let mut store = lock(&shared);
        store.admit_to_set(executor.program()).map_err(Fault::Store)?;
        values.give(&program, &mut store, which(only_parameters)).map_err(Fault::Store)?;
        if !only_parameters {
            values.go_on(&mut store);
        }
        Ok(())
    })?;
    loaded.map_err(|why: Fault| why.raise(py, path))
}
