//! Static programs whose variables are on servers, for `phalanx.parallax`.

use super::{
    error,
    parallel::{copied, each, fed},
    program::GraphProgram,
    store::{GraphStore, lock},
    tensor::{Given, give},
};
use crate::{
    gate,
    lent::LentTensor,
    state::{self, Running},
    tables::{Counted, counted, of_tables},
};
use phalanx_core::{DType, Rank};
use phalanx_graph::{
    Program, RunError, Store, Tensor,
    exec::Served,
    graph::{ServedVar, servable},
};
use phalanx_net::World;
use phalanx_ps::PsError;
use phalanx_train::parallax::{
    AllotmentStrategy, Cluster, FirstRows, Lodging, MeasuredRates, ParallaxConfig, ParallaxError,
    ServedProgram, TouchedRows, cluster_of, fed_rows, measure_rows, place_with,
};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A program, and those of its variables that are on servers. Every rank makes it of the same program.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct GraphTables {
    /// A lock because threads of Python share it, and a search counts; tables have a thread of their own behind it.
    served: Arc<Mutex<ServedProgram>>,
    /// Whether this worker writes the first rows.
    writes: bool,
    sync: bool,
    /// The process that opened them.
    owner: u32,
}

/// Bytes a second between hosts and of memory; the rows of each table, of a worker and of a host's workers together.
pub type Rates = (f64, f64, Vec<(String, f64, f64)>);

fn strategy(name: &str, rates: Option<Rates>) -> PyResult<AllotmentStrategy> {
    Ok(match name {
        "AUTO" => {
            let missing = || PyValueError::new_err("AUTO needs rates: measure them first");
            let (wire, memory, rows) = rates.ok_or_else(missing)?;
            let rows = rows.into_iter().map(|(table, raw, union)| (table, TouchedRows { raw, union }));
            AllotmentStrategy::Auto(MeasuredRates { wire, memory, rows: rows.collect() })
        }
        "PS" => AllotmentStrategy::Ps,
        "HYBRID" => AllotmentStrategy::Hybrid,
        "MPI" => AllotmentStrategy::AllReduce,
        _ => {
            return Err(PyValueError::new_err(format!("run_option must be PS, MPI or HYBRID, not {name:?}")));
        }
    })
}

fn wire(name: Option<&str>) -> PyResult<Option<DType>> {
    Ok(match name {
        None => None,
        Some("float16") => Some(DType::F16),
        Some("bfloat16") => Some(DType::BF16),
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "rows travel as \"float16\" or \"bfloat16\", not {other:?}"
            )));
        }
    })
}

#[pymethods]
impl GraphTables {
    /// Places all learned parameters, and opens what is on servers. `staleness` is for workers that are not in step. `search` has the fewest
    /// partitions, and the steps of a trial that warm up and that count. `rates` are for the option "AUTO", and `samples` are those of a
    /// worker in a step, for tables of which it has no rows.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (program, option, *, average, sync, staleness, wire_dtype, partitions, search, collects, merges, rates=None, samples=1))]
    fn new(
        py: Python<'_>,
        program: &GraphProgram,
        option: &str,
        average: bool,
        sync: bool,
        staleness: Option<u64>,
        wire_dtype: Option<&str>,
        partitions: Option<u32>,
        search: Option<(u32, u64, u64)>,
        collects: bool,
        merges: bool,
        rates: Option<Rates>,
        samples: usize,
    ) -> PyResult<GraphTables> {
        let config = ParallaxConfig {
            strategy: strategy(option, rates)?,
            samples_per_worker: samples,
            average_sparse: average,
            sync,
            staleness,
            wire: wire(wire_dtype)?,
            partitions,
            search,
            local_aggregation: collects,
            merge_rows: merges,
            ..ParallaxConfig::default()
        };
        let program = program.snapshot();
        let world: Arc<World> = state::engine(py)?.world().clone();
        let writes = world.rank() == Rank(0);
        let opened = gate::enter(py, "tables", move || {
            ServedProgram::open(&program, &world, &config, FirstRows::Written)
        })?;
        let served = Arc::new(Mutex::new(opened.map_err(|why| of_parallax(py, why))?));
        Ok(GraphTables { served, writes, sync, owner: std::process::id() })
    }

    /// Rates for "AUTO": what the first step of each rank touches is counted, links and memory are timed. Every rank calls it with what it
    /// would feed, and all get the same numbers.
    #[staticmethod]
    fn measured(
        py: Python<'_>,
        program: &GraphProgram,
        feeds: Vec<(String, String, Vec<LentTensor>)>,
    ) -> PyResult<Rates> {
        let program = program.snapshot();
        let engine = state::engine(py)?;
        let (world, ranks) = (engine.world().clone(), Running::ranks(&engine));
        // What is lent comes back out, so that its owners go with the GIL held.
        let (copied, feeds) = py.detach(move || (copied(&feeds), feeds));
        let copied = copied?;
        drop(feeds);
        let rates = gate::enter(py, "measure", move || {
            let lists: Vec<Vec<&Tensor>> = copied.iter().map(|(_, value)| each(value)).collect();
            let named = copied.iter().zip(&lists);
            let feeds: Vec<_> =
                named.map(|((name, value), list)| (name.as_str(), fed(value, list))).collect();
            measure_rows(&ranks, &world, &fed_rows(&program, &feeds))
        })?;
        let MeasuredRates { wire, memory, rows } = rates.map_err(|why| of_parallax(py, why))?;
        Ok((wire, memory, rows.into_iter().map(|(table, rows)| (table, rows.raw, rows.union)).collect()))
    }

    /// Where each learned parameter would be, and why: its name, whether on servers, the reason.
    #[staticmethod]
    #[pyo3(signature = (program, option, rates=None, samples=1))]
    fn places(
        py: Python<'_>,
        program: &GraphProgram,
        option: &str,
        rates: Option<Rates>,
        samples: usize,
    ) -> PyResult<Vec<(String, bool, String)>> {
        // What it costs depends on the ranks; where it goes does, too, where that was measured.
        let cluster = match rates {
            Some(_) => cluster_of(state::engine(py)?.world(), samples),
            None => Cluster { hosts: 1, workers_per_host: 1, samples_per_worker: samples },
        };
        let (program, strategy, nothing) = (program.snapshot(), strategy(option, rates)?, BTreeMap::new());
        let placed = place_with(&program, &strategy, &nothing, cluster, FirstRows::Written);
        let placed = placed.map_err(|why| PyValueError::new_err(why.to_string()))?;
        let each = placed.vars.into_iter().map(|var| (var.name, var.at == Lodging::Servers, var.why));
        Ok(each.collect())
    }

    /// The bytes of tables with sparse gradients that servers could have, with their states.
    #[staticmethod]
    fn table_bytes(program: &GraphProgram) -> u64 {
        let program = program.snapshot();
        let all = program.vars().filter_map(|(_, var)| servable(&program, &var.name).ok());
        let bytes = |var: &ServedVar| (var.volume() * var.dtype.size() * (1 + var.states.len())) as u64;
        all.filter(|var| var.sparse).map(|var| bytes(&var)).sum()
    }

    /// What is on servers: each name, whether workers have a copy of it, and its rows.
    fn names(&self) -> Vec<(String, bool, usize)> {
        self.lock().allotment().served().map(|var| (var.name.clone(), !var.sparse, var.height)).collect()
    }

    /// Puts what the store has onto the servers: rank 0 writes it, every rank says how old the rules are. Ranks meet before the next step.
    fn fill(&self, py: Python<'_>, store: &GraphStore) -> PyResult<()> {
        let writes = self.writes;
        self.with(py, store, move |served, store| {
            for var in served.allotment().served() {
                for name in std::iter::once(&var.name).chain(&var.states).filter(|_| writes) {
                    served.set(name, &value_of(store, name)?)?;
                }
                if let Some(counter) = &var.counter {
                    let age = value_of(store, counter)?.to_f64()[0];
                    served.set_age(&var.name, age as u64)?;
                }
            }
            Ok(())
        })
    }

    /// Leaves to the servers what they have: the store gives its memory back, and takes the servers' value where workers have a copy.
    fn leave(&self, py: Python<'_>, store: &GraphStore) -> PyResult<()> {
        self.with(py, store, |served, store| {
            for var in served.allotment().served() {
                if !var.sparse
                    && let Some(value) = served.value(&var.name)?
                {
                    store.take_from_servers(&var.name, &value)?;
                }
                store.leave_to_servers(&var.name, !var.sparse)?;
                for name in &var.states {
                    store.leave_to_servers(name, false)?;
                }
            }
            Ok(())
        })
    }

    /// Puts into the store what servers have, after the steps that this rank has made.
    fn gather(&self, py: Python<'_>, store: &GraphStore) -> PyResult<()> {
        self.with(py, store, |served, store| {
            for var in served.allotment().served() {
                for name in std::iter::once(&var.name).chain(&var.states) {
                    if let Some(value) = served.value(name)? {
                        store.take_from_servers(name, &value)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// A parameter or a state that is on servers.
    fn value(&self, py: Python<'_>, name: String) -> PyResult<Option<Given>> {
        let value = self.call(py, move |served| served.value(&name))?;
        Ok(value.map(|value| give(py, &value)))
    }

    /// Where everything is, and why.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |served| served.explain())
    }

    /// Rows that workers of this host wanted and that were fetched, that they gave and that were sent; bytes out and in.
    fn counters(&self, py: Python<'_>) -> PyResult<Counted> {
        self.call(py, |served| served.counters()).map(counted)
    }

    /// A step took this long. At the end of a trial: its seconds, which all ranks bring together for `end_trial`.
    fn timed(&self, seconds: f64) -> Option<f64> {
        self.lock().timed(seconds)
    }

    /// A step failed: its trial has crashed.
    fn crash_trial(&self) {
        self.lock().crash_trial();
    }

    /// Into how many partitions tables should be cut next, if all ranks admit it.
    fn end_trial(&self, py: Python<'_>, seconds: f64) -> PyResult<u32> {
        self.call(py, move |served| served.end_trial(seconds))
    }

    /// Why this rank could not have its part of that number of partitions, if it could not.
    fn admits(&self, py: Python<'_>, partitions: u32) -> PyResult<Option<String>> {
        self.call(py, move |served| Ok(served.admits(partitions).err().map(|why| why.to_string())))
    }

    /// A rank has not admitted what `end_trial` or this gave: the partitions instead, or none if tables stay as they are.
    fn refused_trial(&self) -> Option<u32> {
        self.lock().refused_trial()
    }

    /// Cuts the tables anew; every rank calls it between the same steps.
    fn reshard(&self, py: Python<'_>, partitions: u32) -> PyResult<()> {
        self.call(py, move |served| served.reshard(partitions))
    }

    /// The number that a search has found.
    #[getter]
    fn found(&self) -> Option<u32> {
        self.lock().found_partitions()
    }

    /// Says that this rank wants nothing more, and waits until no rank needs what it serves. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |served| served.close())
    }
}

impl GraphTables {
    pub fn is_sync(&self) -> bool {
        self.sync
    }

    /// What an executor runs.
    pub fn lock(&self) -> MutexGuard<'_, ServedProgram> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut ServedProgram) -> Result<T, ParallaxError> + Send + 'static,
    ) -> PyResult<T> {
        if self.owner != std::process::id() {
            return Err(of_tables(py, PsError::Forked));
        }
        let held = self.served.clone();
        let run = move || call(&mut held.lock().unwrap_or_else(PoisonError::into_inner));
        gate::enter(py, "tables", run)?.map_err(|why| of_parallax(py, why))
    }

    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        store: &GraphStore,
        call: impl FnOnce(&ServedProgram, &mut Store) -> Result<T, ParallaxError> + Send + 'static,
    ) -> PyResult<T> {
        let shared = store.shared(py)?;
        self.call(py, move |served| call(served, &mut lock(&shared)))
    }
}

/// Tables that nobody closed are an end that is not in order. In a forked child they are the parent's; where the process ends by an error the
/// others shall learn of that.
impl Drop for GraphTables {
    fn drop(&mut self) {
        if self.owner != std::process::id() || state::is_abandoned() {
            std::mem::forget(self.served.clone());
        }
    }
}

fn value_of(store: &mut Store, name: &str) -> Result<Tensor, ParallaxError> {
    let missing = || RunError::UnknownState { var: name.to_string() };
    Ok(store.get(name).ok_or_else(missing)?)
}

/// The program that an executor trains, and what else it needs of the tables.
pub fn trained(tables: &GraphTables) -> (Program, Vec<String>, Option<Arc<dyn Served>>) {
    let served = tables.lock();
    (served.program().clone(), served.names(), served.served())
}

pub fn of_parallax(py: Python<'_>, why: ParallaxError) -> PyErr {
    match why {
        ParallaxError::Build(why) => error::of_build(py, &why),
        ParallaxError::Run(why) => error::of_run(py, &why),
        ParallaxError::Collective(why) => error::of_run(py, &RunError::Collective(why)),
        ParallaxError::Tables(why) => of_tables(py, why),
        ParallaxError::Unsynced { .. }
        | ParallaxError::Unclipped { .. }
        | ParallaxError::Stale(_)
        | ParallaxError::Search
        | ParallaxError::SearchFrom(_)
        | ParallaxError::Unknown { .. }
        | ParallaxError::Length { .. }
        | ParallaxError::Place(_) => PyValueError::new_err(why.to_string()),
    }
}
