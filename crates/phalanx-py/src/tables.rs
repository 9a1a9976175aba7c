//! Tables on servers, for `phalanx.torch.ServedEmbedding`.

use crate::{
    driver::Driver,
    error::{self, Detail},
    gate,
    graph::of_parallax,
    lent::{LentTensor, dtype},
    state,
};
use phalanx_core::{
    DType,
    kernel::update::{Adagrad, Adam, Momentum},
};
use phalanx_net::World;
use phalanx_ps::{
    Consistency, PsError, RowReduction, Search, SearchRun, Spread, TableClip, TableCounters, TableRule,
    TableSpec, TableTerms, TableUpdate, Tables, TablesOffer, Trial,
};
use phalanx_train::parallax::{cluster_of, measure_rows};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The tables of this world; every rank opens the same ones.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct ServedTables {
    /// A lock because threads may call at the same time, and each call waits for its answer. `None` once they are closed.
    tables: Arc<Mutex<Option<Tables>>>,
    /// The thread that makes calls which wait: one for all of them, because a new one for each takes as long as a small call.
    driver: Driver<()>,
    /// The process that opened them.
    owner: u32,
}

/// The bytes that this machine can give; nothing where it does not tell.
#[pyfunction]
pub fn free_memory() -> Option<u64> {
    phalanx_ps::free_memory()
}

/// Seconds of a step that tables are predicted to take: their rows gathered by all ranks, and on servers. Each table has its name, the bytes
/// of a row, and the numbers of rows that this rank touches in a step, as they come. Every rank calls it with the same tables, and all get the
/// same numbers.
#[pyfunction]
pub fn predicted(py: Python<'_>, tables: Vec<(String, usize, LentTensor)>) -> PyResult<(f64, f64)> {
    let (mut rows, mut widths) = (BTreeMap::new(), BTreeMap::new());
    for (name, row_bytes, ids) in &tables {
        rows.insert(name.clone(), Some(numbers(ids)?.into_iter().map(|id| id as i64).collect()));
        widths.insert(name.clone(), *row_bytes as f64);
    }
    let engine = state::engine(py)?;
    let (world, ranks) = (engine.world().clone(), state::Running::ranks(&engine));
    drop(engine);
    let cluster = cluster_of(&world, 0);
    let rates = gate::enter(py, "measure", move || measure_rows(&ranks, &world, &rows))?;
    let rates = rates.map_err(|why| of_parallax(py, why))?;
    let each = rates.rows.iter().map(|(name, rows)| rates.predicted(cluster, *rows, widths[name]));
    Ok(each.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))
}

/// Name, rows, elements of a row, element type; rule and its numbers; reduction; type on the wire; partitions; spread; whether rows
/// travel as often as they are touched.
type Described =
    (String, u64, usize, u8, (String, BTreeMap<String, f64>), String, Option<String>, u32, String, bool);

#[pymethods]
impl ServedTables {
    /// A staleness below 0 is no bound; `None` is none at all.
    #[new]
    fn new(
        py: Python<'_>,
        tables: Vec<Described>,
        staleness: Option<i64>,
        collects: bool,
    ) -> PyResult<ServedTables> {
        let specs = tables.into_iter().map(spec).collect::<PyResult<Vec<TableSpec>>>()?;
        let consistency = match staleness {
            None => Consistency::Sync,
            Some(k) => u64::try_from(k).map_or(Consistency::Async, Consistency::Bounded),
        };
        let terms = TableTerms { consistency, collects, ..TableTerms::default() };
        let world: Arc<World> = state::engine(py)?.world().clone();
        let opened = gate::enter(py, "tables", move || {
            TablesOffer::of(&specs, terms).send(&world)?;
            Tables::open_as(&world, specs, terms)
        })?;
        let opened = opened.map_err(|why| of_tables(py, why))?;
        let driver = Driver::new("tables", ())?;
        Ok(ServedTables { tables: Arc::new(Mutex::new(Some(opened))), driver, owner: std::process::id() })
    }

    /// Fills `out` with the rows of these numbers, as of a step.
    fn pull(
        &self,
        py: Python<'_>,
        table: usize,
        step: u64,
        ids: LentTensor,
        out: LentTensor,
    ) -> PyResult<()> {
        let ids = numbers(&ids)?;
        self.fetch(py, out, move |tables, bytes| tables.pull(table, step, &ids, bytes))
    }

    /// The same for a part: 0 is the table, then come its states.
    fn read(&self, py: Python<'_>, table: usize, part: u8, ids: LentTensor, out: LentTensor) -> PyResult<()> {
        let ids = numbers(&ids)?;
        self.fetch(py, out, move |tables, bytes| tables.read(table, part, &ids, bytes))
    }

    fn write(
        &self,
        py: Python<'_>,
        table: usize,
        part: u8,
        ids: LentTensor,
        rows: LentTensor,
    ) -> PyResult<()> {
        let ids = numbers(&ids)?;
        self.call(py, move |tables| tables.write(table, part, &ids, rows.0.bytes()))
    }

    fn push(
        &self,
        py: Python<'_>,
        table: usize,
        step: u64,
        ids: LentTensor,
        grads: LentTensor,
        rate: f64,
    ) -> PyResult<()> {
        let ids = numbers(&ids)?;
        self.call(py, move |tables| tables.push(table, step, &ids, grads.0.bytes(), rate))
    }

    /// A step of the others, for which this rank has no data.
    fn attend(&self, py: Python<'_>, table: usize, step: u64) -> PyResult<()> {
        self.call(py, move |tables| tables.attend(table, step))
    }

    /// How many steps the rule of a table has counted.
    fn age(&self, py: Python<'_>, table: usize) -> PyResult<u64> {
        self.look(py, move |tables| Ok(tables.age(table)))
    }

    /// The rule has counted this many; every rank says so, between the same steps.
    fn set_age(&self, py: Python<'_>, table: usize, age: u64) -> PyResult<()> {
        self.call(py, move |tables| tables.set_age(table, age))
    }

    /// Cuts all tables anew; every rank calls it between the same steps.
    fn reshard(&self, py: Python<'_>, partitions: u32) -> PyResult<()> {
        self.call(py, move |tables| tables.reshard(partitions))
    }

    /// Why this rank could not have its part of that number of partitions, if it could not.
    fn admits(&self, py: Python<'_>, partitions: u32) -> PyResult<Option<String>> {
        self.call(py, move |tables| Ok(tables.admits(partitions).err().map(|why| why.to_string())))
    }

    /// The step that the next push of a table is of.
    fn step(&self, py: Python<'_>, table: usize) -> PyResult<u64> {
        self.look(py, move |tables| Ok(tables.step(table)))
    }

    /// Where the tables are, as text.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        self.look(py, |tables| Ok(tables.placement().explain(tables.specs())))
    }

    /// Rows that workers of this host wanted and that were fetched, that they gave and that were sent; bytes out and in.
    fn counters(&self, py: Python<'_>) -> PyResult<Counted> {
        self.call(py, |tables| Ok(counted(tables.counters())))
    }

    /// Says that this rank wants nothing more, and waits until nobody needs what it serves. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_owner(py)?;
        let held = self.tables.clone();
        let take = move || held.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Not by the driver: another call, or a second one of this, is answered while it waits for other ranks.
        let closed = gate::enter(py, "tables", move || take().map_or(Ok(()), Tables::close))?;
        closed.map_err(|why| of_tables(py, why))
    }
}

/// Tables that nobody closed are an end that is not in order (`Tables::drop`).
impl Drop for ServedTables {
    fn drop(&mut self) {
        if self.owner != std::process::id() || state::is_abandoned() {
            // They are the parent's; or the process ends, and the others shall learn of that.
            std::mem::forget(std::mem::replace(&mut self.tables, Arc::new(Mutex::new(None))));
        }
    }
}

impl ServedTables {
    /// In a forked child the lock may be held for ever by a thread that is not there.
    fn check_owner(&self, py: Python<'_>) -> PyResult<()> {
        match self.owner == std::process::id() {
            true => Ok(()),
            false => Err(of_tables(py, PsError::Forked)),
        }
    }

    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Tables) -> Result<T, PsError> + Send + 'static,
    ) -> PyResult<T> {
        self.check_owner(py)?;
        let held = self.tables.clone();
        let run = move |_: &mut ()| with(held.lock().unwrap_or_else(PoisonError::into_inner), call);
        self.driver.call(py, run)?.map_err(|why| of_tables(py, why))
    }

    /// The same for what waits for nobody: at once, unless another call is under way.
    fn look<T: Send + 'static>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&mut Tables) -> Result<T, PsError> + Send + 'static,
    ) -> PyResult<T> {
        self.check_owner(py)?;
        match self.tables.try_lock() {
            Ok(tables) => with(tables, look).map_err(|why| of_tables(py, why)),
            Err(_) => self.call(py, look),
        }
    }

    fn fetch(
        &self,
        py: Python<'_>,
        mut out: LentTensor,
        call: impl FnOnce(&mut Tables, &mut [u8]) -> Result<(), PsError> + Send + 'static,
    ) -> PyResult<()> {
        self.call(py, move |tables| {
            call(tables, out.bytes_mut().map_err(|why| PsError::Refused(why.to_string()))?)
        })
    }
}

/// Tables that are closed answer nothing.
fn with<T>(
    mut tables: MutexGuard<'_, Option<Tables>>,
    call: impl FnOnce(&mut Tables) -> Result<T, PsError>,
) -> Result<T, PsError> {
    tables.as_mut().map_or(Err(PsError::Closed), call)
}

/// Numbers of rows, from a tensor of 64-bit integers.
fn numbers(ids: &LentTensor) -> PyResult<Vec<u64>> {
    if ids.0.dtype() != DType::I64 {
        return Err(PyValueError::new_err(format!("numbers of rows are int64, not {}", ids.0.dtype())));
    }
    let number = |bytes: &[u8; 8]| {
        let id = i64::from_ne_bytes(*bytes);
        u64::try_from(id).map_err(|_| PyValueError::new_err(format!("a row has no number like {id}")))
    };
    ids.0.bytes().as_chunks::<8>().0.iter().map(number).collect()
}

fn spec(described: Described) -> PyResult<TableSpec> {
    let (name, height, width, code, (rule, numbers), reduction, wire, partitions, spread, raw) = described;
    let number = |key: &str| numbers.get(key).copied().unwrap_or_default();
    let update = match rule.as_str() {
        "sgd" => TableUpdate::Sgd,
        "momentum" => TableUpdate::Momentum(Momentum {
            mu: number("momentum"),
            nesterov: number("nesterov") != 0.0,
            rate_inside: false,
        }),
        "adagrad" => TableUpdate::Adagrad(Adagrad { epsilon: number("eps") }),
        "sparse_adam" => TableUpdate::Adam(Adam {
            beta1: number("beta1"),
            beta2: number("beta2"),
            epsilon: number("eps"),
            decay: 0.0,
            epsilon_first: true,
        }),
        _ => return Err(PyValueError::new_err(format!("no rule of tables is called {rule:?}"))),
    };
    let reduction = match reduction.as_str() {
        "sum" => RowReduction::Sum,
        "mean" => RowReduction::Mean,
        "by-touch" => RowReduction::ByTouch,
        _ => {
            let text = format!("reduction must be \"sum\", \"mean\" or \"by-touch\", not {reduction:?}");
            return Err(PyValueError::new_err(text));
        }
    };
    let spread = match spread.as_str() {
        "mod" => Spread::Mod,
        "range" => Spread::Range,
        _ => {
            return Err(PyValueError::new_err(format!(
                "spread must be \"mod\" or \"range\", not {spread:?}"
            )));
        }
    };
    let wire = match wire.as_deref() {
        None => None,
        Some("float16") => Some(DType::F16),
        Some("bfloat16") => Some(DType::BF16),
        Some(other) => {
            let text =
                format!("rows travel as \"float16\" or \"bfloat16\", or as they are (None), not {other:?}");
            return Err(PyValueError::new_err(text));
        }
    };
    Ok(TableSpec {
        name,
        height,
        width,
        dtype: dtype(code)?,
        // Ranks write the first rows.
        first: Arc::new(|_, _| ()),
        rule: TableRule { first_state: number("first_state"), clip: TableClip::No, ..TableRule::new(update) },
        reduction,
        wire,
        partitions,
        spread,
        raw,
    })
}

/// Counters by their names in Python.
pub type Counted = BTreeMap<&'static str, u64>;

pub fn counted(all: TableCounters) -> Counted {
    let TableCounters { office, bytes_out, bytes_in } = all;
    BTreeMap::from([
        ("wanted_rows", office.wanted_rows),
        ("pulled_rows", office.pulled_rows),
        ("given_rows", office.given_rows),
        ("pushed_rows", office.pushed_rows),
        ("bytes_out", bytes_out),
        ("bytes_in", bytes_in),
    ])
}

/// A search for the number of partitions with which steps are fastest; it decides, Python times and cuts.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct PartitionSearch {
    /// A lock because objects of Python are shared; held only to count.
    run: Mutex<SearchRun>,
}

#[pymethods]
impl PartitionSearch {
    /// Begins with `first` partitions, never fewer than `least` or more than `most`; trials have steps that warm up and steps that count.
    #[new]
    fn new(first: u32, least: u32, most: u32, warm: u64, timed: u64) -> PartitionSearch {
        PartitionSearch { run: Mutex::new(SearchRun::new(Search::new(first, least, most), warm, timed)) }
    }

    #[getter]
    fn first(&self) -> u32 {
        self.lock().first()
    }

    #[getter]
    fn found(&self) -> Option<u32> {
        self.lock().found()
    }

    /// A step took this long. At the end of a trial: its seconds, which all workers bring together for `end`.
    fn step(&self, seconds: f64) -> Option<f64> {
        self.lock().step(seconds)
    }

    /// What all workers needed; gives the partitions to go on with.
    fn end(&self, seconds: f64) -> u32 {
        self.lock().end(Trial::Took(seconds))
    }

    /// A rank has not admitted what `end` or this gave: the partitions instead, or none if tables stay as they are.
    fn refused(&self) -> Option<u32> {
        self.lock().refused()
    }
}

impl PartitionSearch {
    fn lock(&self) -> MutexGuard<'_, SearchRun> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub fn of_tables(py: Python<'_>, why: PsError) -> PyErr {
    let text = why.to_string();
    let tensor = |name: &str| ("tensor", Detail::Text(name.to_string()));
    match why {
        PsError::ServerLost { rank, why, .. } => {
            let details = [("rank", Detail::Number(rank.0)), ("cause", Detail::Text(why))];
            error::raise(py, "RankLostError", &text, &details)
        }
        PsError::Net(net) => error::of_collective(py, &net.into()),
        PsError::Differs { table, rank, other, .. } => {
            let ranks = Detail::Numbers(vec![rank.0, other.0]);
            error::raise(py, "MismatchError", &text, &[tensor(&table), ("ranks", ranks)])
        }
        PsError::Refused(_) => error::raise(py, "MismatchError", &text, &[]),
        PsError::Forked => error::raise(py, "ForkedError", &text, &[]),
        PsError::Unclosed { ranks, .. } => {
            let ranks = Detail::Numbers(ranks.iter().map(|rank| rank.0).collect());
            error::raise(py, "StalledError", &text, &[("ranks", ranks)])
        }
        PsError::Late { table, .. } => error::raise(py, "StalledError", &text, &[tensor(&table)]),
        PsError::Thread(_) | PsError::Closed | PsError::Offer(_) => {
            error::raise(py, "PhalanxError", &text, &[])
        }
        PsError::Spec { .. }
        | PsError::Twice(_)
        | PsError::Row { .. }
        | PsError::Length { .. }
        | PsError::PushedTwice { .. }
        | PsError::Skipped { .. }
        | PsError::NoTable(_)
        | PsError::Memory { .. }
        | PsError::Unopened(_)
        | PsError::Uncut(_) => PyValueError::new_err(text),
    }
}
