//! DDL for Python: where ranks sit, how a result is judged, what a report says.

use crate::{error, lent::LentTensor, state};
use phalanx_collective::{
    Communicator, Meter,
    ddl::{
        Baseline, DdlOptions, IterationDumps, Rebinder, TierReport, Tolerance, UsedWays,
        check::{self, Against, CheckError, DumpHead, Number, OffElement},
        greeting,
    },
    plan::Wiring,
};
use phalanx_core::{Rank, ReduceOp};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// What `init` settled, beside the engine.
#[derive(Debug)]
pub struct DdlState {
    pub options: DdlOptions,
    pub wiring: Wiring,
    pub meter: Arc<Meter>,
    used: UsedWays,
    /// A lock because every thread of Python's may call; held for moments.
    baseline: Mutex<Baseline>,
    /// A lock because every thread of Python's may call; never held while anything waits.
    turns: Mutex<(IterationDumps, Option<Instant>)>,
    /// The same; a thread that moves the process holds it for a few system calls.
    rebinder: Mutex<(Rebinder, Option<Instant>)>,
}

impl DdlState {
    pub fn new(options: DdlOptions, wiring: Wiring, communicator: &Communicator) -> DdlState {
        let (meter, used) = (communicator.meter(), UsedWays::new(communicator, &wiring));
        let baseline = Mutex::new(Baseline::new(communicator.mpi_version(), options.is_by_mpi()));
        meter.take_times(options.dump_iter > 0);
        let turns = Mutex::new((IterationDumps::new(options.dump_iter), None));
        let rebinder = Mutex::new((Rebinder::new(options.rebind_iter), None));
        DdlState { options, wiring, meter, used, baseline, turns, rebinder }
    }

    fn report(&self) -> TierReport {
        TierReport::new(&self.wiring, &self.used.now(), &self.meter.read())
    }

    fn baseline(&self) -> MutexGuard<'_, Baseline> {
        self.baseline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn settled(py: Python<'_>) -> PyResult<Arc<state::Running>> {
    let running = state::engine(py)?;
    if running.ddl.is_none() {
        let text = "DDL is not initialized: call phalanx.ddl.init() instead of another init()";
        return Err(error::raise(py, "NotInitializedError", text, &[]));
    }
    Ok(running)
}

fn with<T>(py: Python<'_>, ask: impl FnOnce(&DdlState, &state::Running) -> T) -> PyResult<T> {
    let running = settled(py)?;
    let state = running.ddl.as_ref().expect("it was just seen");
    Ok(ask(state, &running))
}

/// `(dims, ways, hosts, dev_sync)`.
type ShapeTuple = (Vec<u32>, Vec<&'static str>, u32, u8);
/// Ranks, way, bytes, messages and seconds of a tier.
type TierTuple = (u32, &'static str, u64, u64, f64);
/// Rank, index, value, baseline, text.
type FoundTuple = (u32, u64, Value, Value, String);

/// An integer or a float.
#[derive(Clone, Copy, Debug, FromPyObject, IntoPyObject)]
pub enum Value {
    Whole(i64),
    Real(f64),
}

impl From<Number> for Value {
    fn from(number: Number) -> Value {
        match number {
            Number::Whole(x) => Value::Whole(x),
            Number::Real(x) => Value::Real(x),
        }
    }
}

impl From<Value> for Number {
    fn from(value: Value) -> Number {
        match value {
            Value::Whole(x) => Number::Whole(x),
            Value::Real(x) => Number::Real(x),
        }
    }
}

#[pyfunction]
pub fn ddl_shape(py: Python<'_>) -> PyResult<ShapeTuple> {
    with(py, |ddl, running| {
        let ways = ddl.used.now();
        let n_hosts = running.world().workers().n_hosts();
        (ddl.wiring.grid.tiers().dims().to_vec(), ways, n_hosts, ddl.options.dev_sync)
    })
}

/// What this rank says of its place, if `-dbg_level` asks for it.
#[pyfunction]
pub fn ddl_greeting(py: Python<'_>) -> PyResult<Option<String>> {
    with(py, |ddl, running| {
        let place = (running.rank(), running.world().workers().n_hosts());
        greeting(&ddl.options, &ddl.wiring, &ddl.used.now(), place)
    })
}

/// A rank's coordinates.
#[pyfunction]
pub fn ddl_coordinates(py: Python<'_>, rank: u32) -> PyResult<Vec<u32>> {
    with(py, |ddl, _| {
        let n = ddl.wiring.grid.n_ranks();
        if rank >= n {
            return Err(PyValueError::new_err(format!("rank {rank} does not exist among {n} ranks")));
        }
        Ok(ddl.wiring.grid.coordinates(Rank(rank)))
    })?
}

/// The ranks with which this one reduces, along each tier.
#[pyfunction]
pub fn ddl_groups(py: Python<'_>) -> PyResult<Vec<Vec<u32>>> {
    with(py, |ddl, running| {
        let grid = &ddl.wiring.grid;
        let group = |tier| grid.group(running.rank(), tier).into_iter().map(|r| r.0).collect();
        (0..ddl.wiring.n_tiers()).map(group).collect()
    })
}

/// Ranks, way, bytes, messages and seconds of each tier.
#[pyfunction]
pub fn ddl_report(py: Python<'_>) -> PyResult<Vec<TierTuple>> {
    with(py, |ddl, _| {
        let lines = ddl.report().tiers.into_iter();
        let line = lines.map(|l| {
            let traffic = l.traffic;
            (l.n_ranks, l.way, traffic.bytes, traffic.messages, traffic.time.as_secs_f64())
        });
        line.collect()
    })
}

/// A call with this tensor begins.
#[pyfunction]
pub fn ddl_begin(py: Python<'_>, tensor: &str) -> PyResult<()> {
    with(py, |ddl, _| {
        let mut turns = ddl.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.1 = Some(turns.0.begin(tensor));
        let mut rebinder = ddl.rebinder.lock().unwrap_or_else(PoisonError::into_inner);
        rebinder.1 = Some(rebinder.0.begin(tensor));
    })
}

/// It has its result.
#[pyfunction]
pub fn ddl_end(py: Python<'_>) -> PyResult<()> {
    with(py, |ddl, _| {
        let mut turns = ddl.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(began) = turns.1.take() {
            turns.0.end(began);
        }
    })
}

/// After the call and its check: what this rank tells the others, if it is time for a report.
#[pyfunction]
pub fn ddl_dump_due(py: Python<'_>) -> PyResult<Option<Vec<f64>>> {
    with(py, |ddl, _| {
        let mut turns = ddl.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.0.due(|| ddl.report())
    })
}

/// After the same call: what this rank tells the others, if it is time to look for a slow rank.
#[pyfunction]
pub fn ddl_rebind_due(py: Python<'_>) -> PyResult<Option<Vec<f64>>> {
    with(py, |ddl, _| {
        let mut rebinder = ddl.rebinder.lock().unwrap_or_else(PoisonError::into_inner);
        let began = rebinder.1.take()?;
        rebinder.0.end(began)
    })
}

/// Moves this process, if what all ranks told asks for it; then the text says so.
#[pyfunction]
pub fn ddl_rebind(py: Python<'_>, all: Vec<f64>) -> PyResult<Option<String>> {
    with(py, |ddl, running| {
        let mut rebinder = ddl.rebinder.lock().unwrap_or_else(PoisonError::into_inner);
        rebinder.0.check(running.rank(), &all)
    })
}

/// The report of what all ranks told.
#[pyfunction]
pub fn ddl_shown(py: Python<'_>, all: Vec<f64>) -> PyResult<String> {
    with(py, |ddl, _| {
        let mut turns = ddl.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.0.shown(&all, ddl.report())
    })
}

type Record = (u64, Value, Value, Option<u32>);

fn reduction(op: u8) -> PyResult<ReduceOp> {
    let known = [(0, ReduceOp::Average), (1, ReduceOp::Sum), (3, ReduceOp::Min), (4, ReduceOp::Max)];
    let known = known.into_iter().chain([(5, ReduceOp::Product)]).find(|(number, _)| *number == op);
    known
        .map(|(_, op)| op)
        .ok_or_else(|| PyValueError::new_err(format!("no reduction of DDL has the number {op}")))
}

/// Whether a check may ask MPI.
#[pyfunction]
pub fn ddl_may_ask_mpi(py: Python<'_>) -> PyResult<bool> {
    with(py, |ddl, _| ddl.baseline().may_be_mpi())
}

/// Notes why MPI is not asked.
#[pyfunction]
pub fn ddl_without_mpi(py: Python<'_>, why: String) -> PyResult<()> {
    with(py, |ddl, _| ddl.baseline().go_without(why))
}

/// What the last check compared with, if there was one.
#[pyfunction]
pub fn ddl_baseline(py: Python<'_>) -> PyResult<Option<String>> {
    with(py, |ddl, _| ddl.baseline().last())
}

/// What this rank tells the others of its worst fault, and its faults. `other` has all inputs, or MPI's result.
#[pyfunction]
pub fn ddl_judge(
    py: Python<'_>,
    result: LentTensor,
    other: LentTensor,
    by_mpi: bool,
    op: u8,
    rtol: f64,
) -> PyResult<(Vec<i64>, Vec<Record>)> {
    let op = reduction(op)?;
    Ok(py.detach(move || {
        let (result, other) = (result.0, other.0);
        let tolerance = Tolerance { rtol, atol: None };
        let against = if by_mpi { Against::Result(other.bytes()) } else { Against::Gathered(other.bytes()) };
        let faults = check::judge(result.dtype(), op, result.bytes(), against, tolerance);
        let record = check::record(&faults).to_vec();
        let faults = faults.into_iter().map(|f| (f.index, f.value.into(), f.baseline.into(), f.nan_from));
        (record, faults.collect())
    }))
}

fn found(
    py: Python<'_>,
    tensor: &str,
    records: &[i64],
    code: u8,
    by_mpi: bool,
) -> PyResult<Option<(CheckError, String)>> {
    let dtype = crate::lent::dtype(code)?;
    with(py, |ddl, _| {
        let baseline = ddl.baseline().used(by_mpi);
        check::verdict(tensor, dtype, records, &baseline).map(|error| (error, baseline))
    })
}

/// The element that all ranks raise, if anything; ranks then tell each other whose input was not a finite number there.
#[pyfunction]
pub fn ddl_found(
    py: Python<'_>,
    tensor: &str,
    records: Vec<i64>,
    code: u8,
    by_mpi: bool,
) -> PyResult<Option<u64>> {
    Ok(found(py, tensor, &records, code, by_mpi)?.map(|(error, _)| error.index))
}

/// What all ranks raise, as (rank, index, value, baseline, text); this rank's faults are written to `ddl.dumpRRR`, and a file that cannot be written
/// is said. Two flags: whether the baseline is MPI's, and whether the result is.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "arguments of Python")]
pub fn ddl_verdict(
    py: Python<'_>,
    tensor: &str,
    records: Vec<i64>,
    told: Vec<i64>,
    faults: Vec<Record>,
    code: u8,
    by_whom: (bool, bool),
    op: u8,
    rtol: f64,
) -> PyResult<Option<FoundTuple>> {
    let (by_mpi, is_mpi) = by_whom;
    let Some((mut found, baseline)) = found(py, tensor, &records, code, by_mpi)? else { return Ok(None) };
    found.nan_from = check::blame(&told);
    let (dtype, op) = (crate::lent::dtype(code)?, reduction(op)?);
    let text = found.to_string();
    with(py, |ddl, running| {
        let head = DumpHead {
            rank: running.rank().0,
            tensor,
            dtype: dtype.name(),
            op: op.name(),
            tiers: &ddl.wiring.grid.tiers().to_string(),
            ways: &if is_mpi { check::BY_MPI.to_string() } else { ddl.used.now().join(",") },
            baseline: &baseline,
            rtol,
            error: &text,
        };
        let fault = |(index, value, baseline, nan_from): Record| OffElement {
            index,
            value: value.into(),
            baseline: baseline.into(),
            nan_from,
        };
        let faults: Vec<OffElement> = faults.into_iter().map(fault).collect();
        check::dump(Path::new(""), &head, &faults);
    })?;
    Ok(Some((found.rank.0, found.index, found.value.into(), found.baseline.into(), text)))
}
