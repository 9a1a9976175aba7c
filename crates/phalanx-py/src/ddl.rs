//! DDL for Python: where ranks sit, how a result is judged, what a report says.

use crate::{error, lent::LentTensor, state};
use phalanx_collective::{
    Meter,
    ddl::{
        DdlOptions, Iterations, Rebinder, TierReport, Tolerance,
        check::{self, DumpHead, GATHERED, OffElement},
    },
    plan::Wiring,
};
use phalanx_core::{DType, Rank, ReduceOp, Way};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// What `init` settled, beside the engine.
#[derive(Debug)]
pub struct DdlState {
    pub options: DdlOptions,
    pub wiring: Wiring,
    pub meter: Arc<Meter>,
    /// A lock because every thread of Python's may call; never held while anything waits.
    turns: Mutex<(Iterations, Option<Instant>)>,
    /// The same; a thread that moves the process holds it for a few system calls.
    rebinder: Mutex<(Rebinder, Option<Instant>)>,
}

impl DdlState {
    pub fn new(options: DdlOptions, wiring: Wiring, meter: Arc<Meter>) -> DdlState {
        meter.take_times(options.dump_iter > 0);
        let turns = Mutex::new((Iterations::new(options.dump_iter), None));
        let rebinder = Mutex::new((Rebinder::new(options.rebind_iter), None));
        DdlState { options, wiring, meter, turns, rebinder }
    }

    fn report(&self) -> TierReport {
        TierReport::new(&self.wiring, &self.meter.read())
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

/// `(dims, ways, hosts, dev_sync, dbg_level)`.
type ShapeTuple = (Vec<u32>, Vec<&'static str>, u32, u8, u8);
/// Ranks, way, bytes, messages and seconds of a tier.
type TierTuple = (u32, &'static str, u64, u64, f64);
/// Rank, index, value, baseline, text.
type FoundTuple = (u32, u64, f64, f64, String);

#[pyfunction]
pub fn ddl_shape(py: Python<'_>) -> PyResult<ShapeTuple> {
    with(py, |ddl, running| {
        let ways = ddl.wiring.ways.iter().map(|way| way.name()).collect();
        let n_hosts = running.world().workers().n_hosts();
        let DdlOptions { dev_sync, dbg_level, .. } = ddl.options;
        (ddl.wiring.grid.tiers().dims().to_vec(), ways, n_hosts, dev_sync, dbg_level)
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
            (l.n_ranks, l.way.name(), traffic.bytes, traffic.messages, traffic.time.as_secs_f64())
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

/// It has ended; what this rank tells the others, if it is time for a report.
#[pyfunction]
pub fn ddl_end(py: Python<'_>) -> PyResult<Option<Vec<f64>>> {
    with(py, |ddl, _| {
        let mut turns = ddl.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let began = turns.1.take()?;
        turns.0.end(began).then(|| ddl.report().words(&turns.0))
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
        let text = ddl.report().shown(&turns.0, &all);
        turns.0.reset();
        text
    })
}

type Record = (u64, f64, f64, Option<u32>);

fn reduction(op: u8) -> PyResult<ReduceOp> {
    let known = [(0, ReduceOp::Average), (1, ReduceOp::Sum), (3, ReduceOp::Min), (4, ReduceOp::Max)];
    let known = known.into_iter().chain([(5, ReduceOp::Product)]).find(|(number, _)| *number == op);
    known
        .map(|(_, op)| op)
        .ok_or_else(|| PyValueError::new_err(format!("no reduction of DDL has the number {op}")))
}

/// What this rank tells the others of its worst fault, and its faults.
#[pyfunction]
pub fn ddl_judge(
    py: Python<'_>,
    result: LentTensor,
    gathered: LentTensor,
    op: u8,
    rtol: f64,
    atol: Option<f64>,
) -> PyResult<(Vec<f64>, Vec<Record>)> {
    let op = reduction(op)?;
    Ok(py.detach(move || {
        let (result, gathered) = (result.0, gathered.0);
        let tolerance = Tolerance { rtol, atol };
        let faults = check::judge(result.dtype(), op, result.bytes(), gathered.bytes(), tolerance);
        let record = check::record(&faults).to_vec();
        (record, faults.into_iter().map(|f| (f.index, f.value, f.baseline, f.nan_from)).collect())
    }))
}

/// What all ranks raise, as (rank, index, value, baseline, text), if anything; this rank's faults are written to `ddl.dumpRRR`, and a file that
/// cannot be written is said.
#[pyfunction]
pub fn ddl_verdict(
    py: Python<'_>,
    tensor: &str,
    records: Vec<f64>,
    faults: Vec<Record>,
    code: u8,
    op: u8,
    rtol: f64,
) -> PyResult<Option<FoundTuple>> {
    let Some(found) = check::verdict(tensor, &records) else { return Ok(None) };
    let (dtype, op): (DType, ReduceOp) = (crate::lent::dtype(code)?, reduction(op)?);
    let text = found.to_string();
    with(py, |ddl, running| {
        let head = DumpHead {
            rank: running.rank().0,
            tensor,
            dtype: dtype.name(),
            op: op.name(),
            tiers: &ddl.wiring.grid.tiers().to_string(),
            ways: &Way::show(&ddl.wiring.ways),
            baseline: GATHERED,
            rtol,
            error: &text,
        };
        let faults: Vec<OffElement> = faults
            .into_iter()
            .map(|(index, value, baseline, nan_from)| OffElement { index, value, baseline, nan_from })
            .collect();
        if let Err(why) = check::dump(&head, &faults) {
            phalanx_net::voice::warn(&format!("ddl.dump{:03} cannot be written: {why}", head.rank));
        }
    })?;
    Ok(Some((found.rank.0, found.index, found.value, found.baseline, text)))
}
