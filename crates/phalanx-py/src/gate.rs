//! The only way in which Python waits for Rust: without the GIL, with checks for Ctrl-C, and with panics as exceptions (PY-2).

use crate::error;
use pyo3::prelude::*;
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    time::{Duration, Instant},
};

/// Signals are looked for this often.
pub const SLICE: Duration = Duration::from_millis(50);

/// Waits in slices: `attempt` waits until its deadline at most and gives back what it has then, if anything.
///
/// `until` ends the wait with `None`.
pub fn wait<T: Send>(
    py: Python<'_>,
    until: Option<Instant>,
    mut attempt: impl FnMut(Instant) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    loop {
        let slice = Instant::now() + SLICE;
        let deadline = until.map_or(slice, |until| until.min(slice));
        let result = py.detach(|| catch_unwind(AssertUnwindSafe(|| attempt(deadline))));
        if let Some(value) = result.map_err(|panic| panicked(py, &*panic))? {
            return Ok(Some(value));
        }
        py.check_signals()?;
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(None);
        }
    }
}

/// Runs what cannot be waited for in slices on a thread of its own, and waits for that. After Ctrl-C it goes on alone, and what it gives is dropped.
pub fn enter<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, result) = sync_channel(1);
    let run = move || {
        // Nobody is left to hear it after Ctrl-C.
        let _ = done.send(catch_unwind(AssertUnwindSafe(call)));
    };
    std::thread::Builder::new().name(format!("phalanx-{name}")).spawn(run)?;
    answer(py, result)
}

/// Waits for what a thread gives, or for its panic.
pub fn answer<T: Send>(py: Python<'_>, result: Receiver<std::thread::Result<T>>) -> PyResult<T> {
    Ok(answer_until(py, result, None)?.expect("there is no other deadline"))
}

/// The same; `None` if there is no answer until then.
pub fn answer_until<T: Send>(
    py: Python<'_>,
    result: Receiver<std::thread::Result<T>>,
    until: Option<Instant>,
) -> PyResult<Option<T>> {
    let mut result = Some(result);
    let answer = wait(py, until, move |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        match result.as_ref()?.recv_timeout(left) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                result = None;
                Some(Err(Box::new("the thread ended without an answer") as Box<dyn Any + Send>))
            }
        }
    })?;
    answer.transpose().map_err(|panic| panicked(py, &*panic))
}

/// Panics behind the gate, so that a test can see what Python makes of it.
#[pyfunction]
pub fn _panic(py: Python<'_>, text: String) -> PyResult<()> {
    enter(py, "panic", move || panic!("{text}"))
}

/// The bug that this panic shows.
pub fn panicked(py: Python<'_>, panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    error::raise(py, "PhalanxError", &format!("phalanx has a bug, please report it: {text}"), &[])
}
