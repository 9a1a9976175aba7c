//! Replicas that update without waiting for each other. The threads that compute never take the GIL: for each batch they ask the thread that
//! waits for the run, which calls Python and copies the batch. So at most one batch has been read and not taken.

use super::{
    collective, error,
    program::GraphProgram,
    sequential::Wants,
    store::{GraphStore, lock},
    strategy::{self, Build, Execution},
    tensor::take,
};
use crate::{driver::Driver, gate, lent::LentTensor};
use phalanx_graph::{
    Hogwild, RunError, Setup, Tensor, exec::NamedFeeds, exec::ReaderError, graph::Effective,
};
use pyo3::{prelude::*, types::PyDict};
use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    time::Instant,
};

/// What a replica is told that has asked for a batch.
enum Read {
    Batch(NamedFeeds),
    End,
    /// The thread that has begun the run is told why.
    Failed,
}

/// The reader's end in the run.
struct Asking {
    ask: SyncSender<()>,
    read: Receiver<Read>,
}

impl Asking {
    fn next(&mut self, batch: &mut NamedFeeds) -> Result<bool, ReaderError> {
        // After Ctrl-C nobody is left to read, and the run ends.
        let asked = self.ask.send(()).ok().and_then(|()| self.read.recv().ok());
        match asked.unwrap_or(Read::End) {
            Read::Batch(next) => *batch = next,
            Read::End => return Ok(false),
            Read::Failed => return Err("an exception".into()),
        }
        Ok(true)
    }
}

/// Whether a replica asks; not any more once the run is over.
fn is_asked(py: Python<'_>, asked: &mut Receiver<()>) -> PyResult<bool> {
    let answer = gate::wait(py, None, move |deadline| {
        match asked.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(()) => Some(true),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(false),
        }
    })?;
    Ok(answer.expect("there is no other deadline"))
}

/// What Python gives next, copied: its arrays may be filled anew for the batch after it.
fn read(py: Python<'_>, next: &Bound<'_, PyAny>) -> PyResult<Read> {
    let Some(lent) = next.call0()?.extract::<Option<Vec<(String, LentTensor)>>>()? else {
        return Ok(Read::End);
    };
    // What is lent comes back out, so that its owners go with the GIL held.
    let (taken, lent) = py.detach(move || {
        let each = lent.iter().map(|(name, value)| Ok((name.clone(), take(value)?)));
        (each.collect::<PyResult<Vec<(String, Tensor)>>>(), lent)
    });
    drop(lent);
    taken.map(Read::Batch)
}

fn is_of_reader(error: &RunError) -> bool {
    match error {
        RunError::Replica { error, .. } => is_of_reader(error),
        error => matches!(error, RunError::Reader { .. }),
    }
}

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
    #[pyo3(signature = (program, loss, build, exec, devices, seed=None))]
    fn new(
        py: Python<'_>,
        program: &GraphProgram,
        loss: &str,
        build: Build,
        exec: Execution,
        devices: Option<usize>,
        seed: Option<u64>,
    ) -> PyResult<GraphHogwild> {
        let ranks = collective::of_this_process(py)?;
        let program = program.snapshot();
        let setup = Setup {
            build: build.strategy()?,
            exec: exec.strategy(),
            replicas: devices,
            collective: collective::collective(ranks),
            seed,
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

    /// Learns from what `next` gives until that is `None`, or as many batches as there are for a run; gives device, batch
    /// and loss of each update, in the order of updates.
    fn run(
        &self,
        py: Python<'_>,
        store: &GraphStore,
        next: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(usize, u64, f64)>> {
        let shared = store.shared(py)?;
        let _reading = store.reading();
        let (ask, mut asked) = sync_channel(1);
        let (give, given) = sync_channel(1);
        let answer = self.driver.begin(py, move |(hogwild, wants)| {
            let mut asking = Asking { ask, read: given };
            wants.check(&shared)?;
            hogwild.run(&mut lock(&shared), move |batch| asking.next(batch))
        })?;
        let mut failed = None;
        while is_asked(py, &mut asked)? {
            let told = read(py, next).unwrap_or_else(|why| {
                failed = Some(why);
                Read::Failed
            });
            // A run that has ended meanwhile says why.
            let _ = give.send(told);
        }
        let updates = match (answer.wait(py)?, failed) {
            (Err(why), Some(failed)) if is_of_reader(&why) => return Err(failed),
            (Err(why), failed) => {
                let why = error::of_run(py, &why);
                why.set_cause(py, failed);
                return Err(why);
            }
            (Ok(_), Some(failed)) => return Err(failed),
            (Ok(updates), None) => updates,
        };
        Ok(updates.iter().map(|u| (u.replica, u.batch, u.loss)).collect())
    }
}
