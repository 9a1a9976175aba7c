//! Functions about the world and its process sets.

use crate::{array::Array, error, gate, lent::dtype, state};
use phalanx_net::lost::Doom;
use pyo3::{prelude::*, types::PyDict};
use std::path::PathBuf;

/// Rank, size, local rank, local size, cross rank and cross size.
#[pyfunction]
pub fn place(py: Python<'_>) -> PyResult<(u32, u32, u32, u32, u32, u32)> {
    let engine = state::engine(py)?;
    let (rank, topology) = (engine.rank(), engine.world().workers());
    let cross = topology.cross(rank);
    let cross_rank = cross.iter().position(|r| *r == rank).unwrap_or(0) as u32;
    let local_size = topology.neighbours(rank).len() as u32;
    Ok((rank.0, engine.size(), topology.local_of(rank), local_size, cross_rank, cross.len() as u32))
}

/// How many hosts have workers, and how many ranks only serve.
#[pyfunction]
pub fn hosts(py: Python<'_>) -> PyResult<(usize, usize)> {
    let engine = state::engine(py)?;
    let world = engine.world();
    Ok((world.workers().hosts().len(), world.servers().len()))
}

/// Whether every host has equally many ranks.
#[pyfunction]
pub fn is_homogeneous(py: Python<'_>) -> PyResult<bool> {
    Ok(state::engine(py)?.world().workers().even().is_some())
}

/// Whether objects must not travel pickled: `PHALANX_STRICT`, which is the same on all ranks of a world.
#[pyfunction]
pub fn is_strict(py: Python<'_>) -> PyResult<bool> {
    Ok(state::engine(py)?.world().config().strict)
}

/// After how many steps ranks compare their parameters: `PHALANX_CHECK`; 0 is never, `None` is unset.
#[pyfunction]
pub fn check_every(py: Python<'_>) -> PyResult<Option<u64>> {
    Ok(state::engine(py)?.world().config().check)
}

/// Seconds between lines that say how fast this rank trains: `PHALANX_THROUGHPUT`; 0 is never.
#[pyfunction]
pub fn throughput_every(py: Python<'_>) -> PyResult<f64> {
    Ok(state::engine(py)?.world().config().throughput.as_secs_f64())
}

/// Up to how many bytes small tensors travel together: `PHALANX_FUSION_BYTES`.
#[pyfunction]
pub fn fusion_bytes(py: Python<'_>) -> PyResult<u64> {
    Ok(state::engine(py)?.world().config().fusion_bytes)
}

/// Ends the world: every rank that waits gets an error with this rank and this reason. The process may live on, without the others.
#[pyfunction]
pub fn give_up(py: Python<'_>, why: String) -> PyResult<()> {
    let engine = state::engine(py)?;
    gate::enter(py, "give_up", move || {
        let world = engine.world();
        world.doom(Doom::GaveUp { rank: world.rank(), why });
    })
}

/// Zeros in memory that ranks of one host reduce where it is.
#[pyfunction]
pub fn zeros(py: Python<'_>, code: u8, n: u64) -> PyResult<Array> {
    let engine = state::engine(py)?;
    Ok(Array::new(engine.zeros(dtype(code)?, vec![n])))
}

/// Numbers and ranks of all process sets.
#[pyfunction]
pub fn process_sets(py: Python<'_>) -> PyResult<Vec<(u32, Vec<u32>)>> {
    let sets = state::engine(py)?.process_sets();
    Ok(sets.into_iter().map(|(id, ranks)| (id, ranks.into_iter().map(|r| r.0).collect())).collect())
}

/// Makes a process set; every rank of the world calls it.
#[pyfunction]
pub fn add_process_set(py: Python<'_>, ranks: Vec<u32>) -> PyResult<u32> {
    let engine = state::engine(py)?;
    let added = gate::enter(py, "set", move || engine.add_process_set(&ranks))?;
    added.map_err(|why| error::of_engine(py, &why))
}

/// Removes a process set; every rank of the world calls it. False if there is none to remove.
#[pyfunction]
pub fn remove_process_set(py: Python<'_>, id: u32) -> PyResult<bool> {
    let engine = state::engine(py)?;
    let removed = gate::enter(py, "set", move || engine.remove_process_set(id))?;
    removed.map_err(|why| error::of_engine(py, &why))
}

/// What the engine has done so far.
#[pyfunction]
pub fn counters<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
    let counters = state::engine(py)?.counters();
    let dict = PyDict::new(py);
    dict.set_item("submitted", counters.submitted)?;
    dict.set_item("operations", counters.operations)?;
    dict.set_item("failed", counters.failed)?;
    dict.set_item("batches", counters.batches)?;
    dict.set_item("fused_batches", counters.fused_batches)?;
    dict.set_item("replayed", counters.replayed)?;
    dict.set_item("bytes", counters.bytes)?;
    Ok(dict)
}

/// The last report about ranks that keep others waiting.
#[pyfunction]
pub fn last_stall(py: Python<'_>) -> PyResult<Option<String>> {
    Ok(state::engine(py)?.last_stall().map(|report| report.to_string()))
}

/// Writes what happens from now on to a file of this rank's own.
#[pyfunction]
#[pyo3(signature = (path, mark_cycles = false))]
pub fn start_timeline(py: Python<'_>, path: PathBuf, mark_cycles: bool) -> PyResult<()> {
    let engine = state::engine(py)?;
    py.detach(|| engine.start_timeline(path, mark_cycles)).map_err(|why| error::of_engine(py, &why))
}

/// Ends the timeline, if there is one; then the file holds everything.
#[pyfunction]
pub fn stop_timeline(py: Python<'_>) -> PyResult<()> {
    let engine = state::engine(py)?;
    py.detach(|| engine.stop_timeline()).map_err(|why| error::of_engine(py, &why))
}
