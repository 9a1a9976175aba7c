//! Reports Python's stack to ranks that wait for this one, and the exception that ends the program to the launcher.
//!
//! No thread calls Python once the process is about to end: a thread that holds or awaits the GIL during finalization would be ended in the
//! middle of our code.

use crate::{gate, state};
use phalanx_collective::engine::{Frame, Whereabouts};
use phalanx_net::hub::message::FailureKind;
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

#[derive(Clone, Copy, Debug)]
struct Door {
    is_open: bool,
    n_inside: u32,
}

/// A lock because the thread that asks and the one that ends the process meet here. Never held while either waits for the GIL.
static DOOR: Mutex<Door> = Mutex::new(Door { is_open: false, n_inside: 0 });
static LEFT: Condvar = Condvar::new();

/// How long the end of the process waits for somebody who is asking Python right now.
const PATIENCE: Duration = Duration::from_millis(500);

fn door() -> MutexGuard<'static, Door> {
    DOOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the engine asks `ask`, a function that gives (file, line, function), innermost first.
pub fn whereabouts(ask: Py<PyAny>) -> Whereabouts {
    door().is_open = true;
    Whereabouts::new(move || {
        if !enter() {
            return Vec::new();
        }
        let frames = Python::try_attach(|py| frames(py, &ask));
        leave();
        frames.unwrap_or_default()
    })
}

fn frames(py: Python<'_>, ask: &Py<PyAny>) -> Vec<Frame> {
    // A function of ours that fails has nothing to say; a report without a line is better than none.
    let said: PyResult<Vec<(String, u32, String)>> = ask.call0(py).and_then(|said| said.extract(py));
    let frame = |(file, line, function)| Frame { file, line, function };
    said.unwrap_or_default().into_iter().map(frame).collect()
}

fn enter() -> bool {
    let mut door = door();
    if door.is_open {
        door.n_inside += 1;
    }
    door.is_open
}

fn leave() {
    door().n_inside -= 1;
    LEFT.notify_all();
}

/// See the module. Not in a forked child, where a thread that is not there may hold the lock.
pub fn close(py: Python<'_>) -> PyResult<()> {
    door().is_open = false;
    let until = Instant::now() + PATIENCE;
    // Without the GIL, so that the thread that waits for it gets it.
    gate::wait(py, Some(until), |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = LEFT.wait_timeout_while(door(), left, |door| door.n_inside > 0);
        (waited.unwrap_or_else(PoisonError::into_inner).0.n_inside == 0).then_some(())
    })
    .map(drop)
}

/// Tells the launcher why this rank is about to end; false where there is none. `kind` is "own", "thread" or "follows": another rank failed first.
#[pyfunction]
pub fn tell_failure(py: Python<'_>, kind: &str, text: String) -> PyResult<bool> {
    let kind = match kind {
        "own" => FailureKind::Own,
        "thread" => FailureKind::OfThread,
        "follows" => FailureKind::FollowsAnother,
        other => {
            return Err(PyValueError::new_err(format!(
                "a failure must be own, thread or follows, not {other:?}"
            )));
        }
    };
    Ok(state::with_world(|world| py.detach(|| world.tell_failure(kind, &text))).unwrap_or(false))
}
