//! Replicas that learn without waiting for each other. Batches are given beforehand: the threads that compute never take
//! the GIL.

use super::{
    collective,
    driver::Driver,
    error,
    program::GraphProgram,
    sequential::Wants,
    store::{GraphStore, lock},
    strategy::{self, Build, Execution},
    tensor::take,
};
use crate::lent::Lent;
use phalanx_graph::{
    Hogwild, Setup, Tensor,
    exec::{Batch, each},
    graph::Effective,
};
use pyo3::{prelude::*, types::PyDict};

/// A program whose replicas take the next batch each on its own.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct GraphHogwild {
    driver: Driver<(Hogwild, Wants)>,
    effective: Effective,
}

#[pymethods]
impl GraphHogwild {
    #[new]
    fn new(
        py: Python<'_>,
        program: &GraphProgram,
        loss: &str,
        build: Build,
        exec: Execution,
        devices: Option<usize>,
    ) -> PyResult<GraphHogwild> {
        let ranks = collective::of_this_process(py, loss)?;
        let program = program.snapshot();
        let setup = Setup {
            build: build.strategy()?,
            exec: exec.strategy(),
            replicas: devices,
            collective: collective::collective(ranks.as_ref()),
            ..Setup::default()
        };
        let made = Hogwild::new(&program, loss, setup).map_err(|why| error::of_build(py, &why))?;
        let effective = made.effective().clone();
        let wants = Wants::of(&program);
        Ok(GraphHogwild { driver: Driver::new("hogwild", (made, wants))?, effective })
    }

    /// The strategies as they hold.
    fn effective<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        strategy::effective(py, &self.effective)
    }

    #[getter]
    fn devices(&self) -> usize {
        self.effective.replicas
    }

    /// Learns from these batches, each once; gives device, batch and loss of each update, in the order of updates.
    fn run(
        &self,
        py: Python<'_>,
        store: &GraphStore,
        batches: Vec<Vec<(String, Lent)>>,
    ) -> PyResult<Vec<(usize, u64, f64)>> {
        let shared = store.shared();
        // What is lent comes back out, so that its owners go with the GIL held.
        let (taken, batches) = py.detach(move || {
            let one = |batch: &Vec<(String, Lent)>| {
                let each = batch.iter().map(|(name, lent)| Ok((name.clone(), take(lent)?)));
                each.collect::<PyResult<Vec<(String, Tensor)>>>()
            };
            (batches.iter().map(one).collect::<PyResult<Vec<Batch>>>(), batches)
        });
        drop(batches);
        let taken = taken?;
        let ran = self.driver.call(py, move |(hogwild, wants)| {
            wants.check(&shared)?;
            hogwild.run(&mut lock(&shared), each(taken))
        })?;
        let updates = ran.map_err(|why| error::of_run(py, &why))?;
        Ok(updates.iter().map(|u| (u.replica, u.batch, u.loss)).collect())
    }
}
