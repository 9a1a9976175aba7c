//! Submissions: converts Python arguments to a request.

use crate::{
    error,
    lent::{LentTensor, dtype},
    operation::Operation,
    state,
};
use phalanx_collective::engine::{EngineError, Request};
use phalanx_core::{Rank, ReduceOp};
use pyo3::{exceptions::PyValueError, prelude::*};

/// Submits an operation on tensors; which one, `kind` says. Several tensors, or `grouped`, are a group: all of it runs, or none.
#[pyfunction]
#[pyo3(signature = (kind, tensors, *, name = None, outputs = None, op = 1, prescale = 1.0, postscale = 1.0, root = 0, process_set = 0,
                    wire = None, device = -1, splits = None, grouped = false, awaited = false, note = None,
                    mpi = false, check = 0.0))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn submit(
    py: Python<'_>,
    kind: &str,
    tensors: Vec<LentTensor>,
    name: Option<&str>,
    outputs: Option<Vec<LentTensor>>,
    op: u8,
    prescale: f64,
    postscale: f64,
    root: u32,
    process_set: u32,
    wire: Option<u8>,
    device: i32,
    splits: Option<Vec<u64>>,
    grouped: bool,
    awaited: bool,
    note: Option<&str>,
    mpi: bool,
    check: f64,
) -> PyResult<Operation> {
    let engine = state::engine(py)?;
    let mut tensors: Vec<_> = tensors.into_iter().map(|lent| lent.0).collect();
    let grouped = grouped || tensors.len() > 1;
    let mut one = || tensors.pop().ok_or_else(|| PyValueError::new_err(format!("{kind} needs a tensor")));
    let (request, makes) = match (kind, grouped) {
        ("allreduce", false) => (Request::allreduce(one()?), false),
        ("allreduce", true) => (Request::grouped_allreduce(tensors), false),
        ("broadcast", false) => (Request::broadcast(one()?, Rank(root)), false),
        ("allgather", false) => (Request::allgather(one()?), true),
        ("allgather", true) => (Request::grouped_allgather(tensors), true),
        ("alltoall", false) => (Request::alltoall(one()?, splits), true),
        ("reducescatter", false) => (Request::reducescatter(one()?), true),
        ("reducescatter", true) => (Request::grouped_reducescatter(tensors), true),
        ("barrier", false) => (Request::barrier(), false),
        _ => return Err(PyValueError::new_err(format!("there is no operation {kind:?} of several tensors"))),
    };
    let raise = |why: EngineError| error::of_engine(py, &why);
    let mut request = reduction(request, op)?.scale(prescale, postscale).set(process_set).device(device);
    if awaited {
        request = request.awaited();
    }
    if let Some(note) = note {
        request = request.note(note);
    }
    if mpi {
        request = request.by_mpi();
    }
    if check > 0.0 {
        request = request.checked(check, -1.0);
    }
    if let Some(name) = name {
        request = request.name(name);
    }
    if let Some(code) = wire {
        request = request.compress(dtype(code)?);
    }
    if let Some(outputs) = outputs {
        request = request.into(outputs.into_iter().map(|lent| lent.0).collect()).map_err(raise)?;
    }
    Ok(Operation::new(engine.submit(request).map_err(raise)?, makes))
}

/// Horovod's numbers.
fn reduction(request: Request, op: u8) -> PyResult<Request> {
    Ok(match op {
        0 => request.op(ReduceOp::Average),
        1 => request.op(ReduceOp::Sum),
        2 => request.adasum(),
        3 => request.op(ReduceOp::Min),
        4 => request.op(ReduceOp::Max),
        5 => request.op(ReduceOp::Product),
        _ => return Err(PyValueError::new_err(format!("no reduction has the number {op}"))),
    })
}

/// Says that this rank has no more data.
#[pyfunction]
pub fn join(py: Python<'_>) -> PyResult<Operation> {
    let handle = state::engine(py)?.join().map_err(|why| error::of_engine(py, &why))?;
    Ok(Operation::new(handle, false))
}
