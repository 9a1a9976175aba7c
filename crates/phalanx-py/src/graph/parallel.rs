//! The executor for several replicas.

use super::{
    collective, error,
    program::GraphProgram,
    sequential::Wants,
    served::{GraphTables, trained},
    store::{GraphStore, Shared, lock},
    strategy::{self, Build, Execution},
    tensor::{Given, give, take},
};
use crate::{driver::Driver, gate, lent::LentTensor};
use phalanx_graph::{
    BuildError, Feed, Fetch, Fetched, Merge, ParallelExecutor, RunError, Setup, Tensor,
    exec::Refusal,
    graph::{Effective, PassList},
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};

/// A program on several replicas.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct GraphParallelExecutor {
    driver: Driver<(ParallelExecutor, Wants)>,
    effective: Effective,
}

/// How a variable is given to the replicas, with the memory of its own.
pub(super) enum Taken {
    Split(Tensor),
    Replicate(Tensor),
    Each(Vec<Tensor>),
}

fn taken(kind: &str, lent: &[LentTensor]) -> PyResult<Taken> {
    let mut tensors = lent.iter().map(take).collect::<PyResult<Vec<Tensor>>>()?;
    let mut one = || tensors.pop().ok_or_else(|| PyValueError::new_err("the feed is empty"));
    Ok(match kind {
        "split" => Taken::Split(one()?),
        "replicate" => Taken::Replicate(one()?),
        "each" => Taken::Each(tensors),
        _ => return Err(PyValueError::new_err(format!("{kind:?} is not a form of feed"))),
    })
}

/// Name and values of each feed.
pub(super) fn copied(feeds: &[(String, String, Vec<LentTensor>)]) -> PyResult<Vec<(String, Taken)>> {
    feeds.iter().map(|(name, kind, lent)| Ok((name.clone(), taken(kind, lent)?))).collect()
}

/// A feed; where each replica has its own, of these.
pub(super) fn fed<'a>(value: &'a Taken, list: &'a [&'a Tensor]) -> Feed<'a> {
    match value {
        Taken::Split(value) => Feed::Split(value),
        Taken::Replicate(value) => Feed::Replicate(value),
        Taken::Each(_) => Feed::PerReplica(list),
    }
}

fn merge(kind: &str) -> PyResult<Merge> {
    Ok(match kind {
        "concat" => Merge::Concat,
        "unmerged" => Merge::Unmerged,
        "mean" => Merge::Mean,
        "sum" => Merge::Sum,
        "first" => Merge::First,
        _ => return Err(PyValueError::new_err(format!("values cannot be merged by {kind:?}"))),
    })
}

/// One value, or those of each replica.
#[derive(IntoPyObject)]
enum Out {
    One(Given),
    Each(Vec<Given>),
}

#[pymethods]
impl GraphParallelExecutor {
    #[new]
    #[pyo3(signature = (program, loss, build, exec, devices, seed=None, number=None, tables=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        program: &GraphProgram,
        loss: Option<String>,
        build: Build,
        exec: Execution,
        devices: Option<usize>,
        seed: Option<u64>,
        number: Option<u64>,
        tables: Option<PyRef<'_, GraphTables>>,
    ) -> PyResult<GraphParallelExecutor> {
        let world = collective::of_this_process(py)?;
        let (mut build_strategy, without) = (build.strategy()?, build.without_passes);
        // Prediction is every rank's own: some of them may not even want it.
        let ranks = world.clone().filter(|_| loss.is_some());
        if let (None, Some(world)) = (&ranks, &world) {
            collective::leave(world, &mut build_strategy);
        }
        // Workers that are not in step reduce nothing between them.
        let in_step = tables.as_ref().is_none_or(|tables| tables.is_sync());
        let collective = collective::collective(ranks.filter(|_| in_step));
        let (program, served) = match &tables {
            None => (program.snapshot(), None),
            Some(tables) => {
                let (program, names, served) = trained(tables);
                build_strategy.served = names;
                (program, served)
            }
        };
        let wants = Wants::of(&program);
        let made = gate::enter(py, "build", move || {
            let mut passes = PassList::standard();
            for pass in &without {
                passes.remove(pass)?;
            }
            let (build, exec) = (build_strategy, exec.strategy());
            let setup = Setup { build, exec, replicas: devices, collective, served, passes, seed, number };
            ParallelExecutor::new(&program, loss.as_deref(), setup)
        })?;
        let executor = made.map_err(|why: BuildError| error::of_build(py, &why))?;
        let effective = executor.effective().clone();
        Ok(GraphParallelExecutor { driver: Driver::new("parallel", (executor, wants))?, effective })
    }

    /// The strategies as they hold.
    fn effective<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        strategy::effective(py, &self.effective)
    }

    #[getter]
    fn devices(&self) -> usize {
        self.effective.replicas
    }

    /// Finds the program's parameters and states in the store, as a run would.
    fn prepare(&self, py: Python<'_>, store: &GraphStore) -> PyResult<()> {
        let shared = store.shared(py)?;
        let prepared = self.driver.call(py, move |(executor, wants)| {
            begin(executor, wants, &shared)?;
            executor.prepare(&mut lock(&shared))
        })?;
        prepared.map_err(|why| error::of_run(py, &why))
    }

    /// Puts into the store what owners on other ranks have. All ranks call it.
    fn gather(&self, py: Python<'_>, store: &GraphStore) -> PyResult<()> {
        let shared = store.shared(py)?;
        let gathered = self.driver.call(py, move |(executor, wants)| {
            begin(executor, wants, &shared)?;
            executor.gather(&mut lock(&shared))
        })?;
        gathered.map_err(|why| error::of_run(py, &why))
    }

    /// Runs the program on name, kind and values of what is fed, and gives what is fetched, each merged in its way.
    fn run(
        &self,
        py: Python<'_>,
        store: &GraphStore,
        feeds: Vec<(String, String, Vec<LentTensor>)>,
        fetch: Vec<(String, String)>,
    ) -> PyResult<Vec<Out>> {
        let shared = store.shared(py)?;
        // What is lent comes back out, so that its owners go with the GIL held.
        let (copied, feeds) = py.detach(move || (copied(&feeds), feeds));
        let copied = copied?;
        drop(feeds);
        let merges = fetch.iter().map(|(_, kind)| merge(kind)).collect::<PyResult<Vec<Merge>>>()?;
        let ran = self.driver.call(py, move |(executor, wants)| {
            let lists: Vec<Vec<&Tensor>> = copied.iter().map(|(_, value)| each(value)).collect();
            let named = copied.iter().zip(&lists);
            let feeds: Vec<_> =
                named.map(|((name, value), list)| (name.as_str(), fed(value, list))).collect();
            let wanted = fetch.iter().zip(&merges).map(|((name, _), &merge)| Fetch { name, merge });
            let wanted: Vec<Fetch<'_>> = wanted.collect();
            begin(executor, wants, &shared)?;
            executor.run(&mut lock(&shared), &feeds, &wanted)
        })?;
        let fetched = ran.map_err(|why| error::of_run(py, &why))?;
        Ok(fetched.iter().map(|fetched| out(py, fetched)).collect())
    }

    /// Tells the other ranks, who may be waiting already, that this one does not run, and why: there are no more batches, or
    /// what is said.
    fn give_up(&self, py: Python<'_>, why: String, ended: bool) -> PyResult<()> {
        let why = if ended { Refusal::Ended } else { Refusal::Failed(why) };
        self.driver.call(py, move |(executor, _)| executor.refuse(&why))
    }

    /// Gives the memory of temporaries back.
    fn drop_scopes(&self, py: Python<'_>) -> PyResult<()> {
        self.driver.call(py, |(executor, _)| executor.drop_scopes())
    }

    fn arena_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.driver.call(py, |(executor, _)| executor.arena_bytes())
    }

    /// Tasks of one run, tasks that were visited in all runs, and nanoseconds for each.
    fn dry_run(&self, py: Python<'_>, store: &GraphStore, n_runs: usize) -> PyResult<(usize, usize, f64)> {
        let shared = store.shared(py)?;
        let ran = self.driver.call(py, move |(executor, wants)| {
            begin(executor, wants, &shared)?;
            executor.dry_run(&mut lock(&shared), n_runs)
        })?;
        let seen = ran.map_err(|why| error::of_run(py, &why))?;
        Ok((seen.n_tasks, seen.n_visited, seen.ns_per_task))
    }

    /// Begins or ends the recording of when tasks run.
    fn record(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        self.driver.call(py, move |(executor, _)| executor.record(on))
    }

    /// The last run, for `chrome://tracing`, if it was recorded.
    fn trace(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.driver.call(py, |(executor, _)| executor.trace())
    }

    /// The graph after all passes, for graphviz.
    fn to_dot(&self, py: Python<'_>) -> PyResult<String> {
        self.driver.call(py, |(executor, _)| executor.graph().to_dot())
    }

    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        self.driver.call(py, |(executor, _)| executor.graph().to_json())
    }

    /// The passes there are, in order.
    #[staticmethod]
    fn passes() -> Vec<String> {
        PassList::standard().names().map(str::to_string).collect()
    }
}

/// What comes before everything else; other ranks are told if it comes to nothing.
fn begin(executor: &mut ParallelExecutor, wants: &mut Wants, store: &Shared) -> Result<(), RunError> {
    wants.check(store).inspect_err(|why| executor.refuse(&Refusal::Failed(why.to_string())))
}

/// What each replica has of a feed, where each has its own.
pub(super) fn each(taken: &Taken) -> Vec<&Tensor> {
    match taken {
        Taken::Each(values) => values.iter().collect(),
        Taken::Split(_) | Taken::Replicate(_) => Vec::new(),
    }
}

fn out(py: Python<'_>, fetched: &Fetched) -> Out {
    match fetched {
        Fetched::One(value) => Out::One(give(py, value)),
        Fetched::Each(values) => Out::Each(values.iter().map(|value| give(py, value)).collect()),
    }
}
