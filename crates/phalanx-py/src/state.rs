//! The one engine of this process, and the communicator that outlives it (PY-3).

use crate::{error, gate, stack};
use phalanx_collective::{
    Communicator, Error,
    engine::{Engine, EngineError, Options, Whereabouts},
};
use phalanx_core::Config;
use phalanx_net::{NetError, World};
use pyo3::prelude::*;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

struct State {
    /// The process to which the rest belongs.
    owner: u32,
    engine: Option<Arc<Engine>>,
    /// Waits for the next engine.
    idle: Option<Communicator>,
    /// Somebody is starting or ending an engine.
    changing: bool,
}

/// A lock because every thread of Python's may call; PY-3 says when it is taken.
static STATE: Mutex<State> = Mutex::new(State { owner: 0, engine: None, idle: None, changing: false });

/// Other threads of this rank have so long to finish their calls before an engine ends.
const PATIENCE: Duration = Duration::from_secs(10);

fn lock() -> MutexGuard<'static, State> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id();
    if state.owner == 0 {
        state.owner = me;
    }
    state
}

/// The running engine.
pub fn engine(py: Python<'_>) -> PyResult<Arc<Engine>> {
    let state = lock();
    if state.owner != std::process::id() {
        return Err(error::of_engine(py, &EngineError::Forked));
    }
    state.engine.clone().ok_or_else(|| error::not_initialized(py))
}

#[pyfunction]
pub fn is_initialized() -> bool {
    let state = lock();
    state.owner == std::process::id() && state.engine.is_some()
}

/// Joins the world if this process has not, and starts its engine if it does not run. Reads the environment. Says whether it did anything.
/// `whereabouts` gives (file, line, function) of where the program is, innermost first; another thread calls it when other ranks wait for this one.
#[pyfunction]
#[pyo3(signature = (process_sets = Vec::new(), whereabouts = None))]
pub fn init(py: Python<'_>, process_sets: Vec<Vec<u32>>, whereabouts: Option<Py<PyAny>>) -> PyResult<bool> {
    let idle = {
        let mut state = lock();
        if state.owner != std::process::id() {
            return Err(error::of_engine(py, &EngineError::Forked));
        }
        if state.engine.is_some() {
            return Ok(false);
        }
        if state.changing {
            return Err(busy(py));
        }
        state.changing = true;
        state.idle.take()
    };
    let whereabouts = whereabouts.map(stack::whereabouts);
    let started = gate::enter(py, "init", move || start(idle, process_sets, whereabouts));
    let mut state = lock();
    state.changing = false;
    match started? {
        Ok(engine) => state.engine = Some(Arc::new(engine)),
        Err(Refusal::World(why)) => {
            drop(state);
            return Err(error::of_joining(py, &why));
        }
        Err(Refusal::Engine(why)) => {
            drop(state);
            return Err(error::of_engine(py, &why));
        }
    }
    Ok(true)
}

enum Refusal {
    World(Error),
    Engine(EngineError),
}

fn start(
    idle: Option<Communicator>,
    process_sets: Vec<Vec<u32>>,
    whereabouts: Option<Whereabouts>,
) -> Result<Engine, Refusal> {
    // Nothing more can be done in a world that is over.
    let usable = |comm: &Communicator| comm.world().casualties().doomed().is_none();
    let (communicator, options) = match idle.filter(usable) {
        Some(communicator) => {
            let variables = std::env::vars_os();
            let readable =
                variables.filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
            let config = Config::from_vars(readable);
            let config = config.map_err(|why| Refusal::World(Error::Net(NetError::Config(why))))?;
            (communicator, Options::from_config(&config))
        }
        None => {
            let communicator = Communicator::from_env().map_err(Refusal::World)?;
            let options = Options::from_config(communicator.world().config());
            (communicator, options)
        }
    };
    Engine::start_with(communicator, Options { process_sets, whereabouts, ..options })
        .map_err(Refusal::Engine)
}

/// Ends the engine on every rank, and keeps the world for the next one.
#[pyfunction]
pub fn shutdown(py: Python<'_>) -> PyResult<()> {
    let engine = {
        let mut state = lock();
        if state.owner != std::process::id() {
            return Ok(());
        }
        let Some(engine) = state.engine.take() else { return Ok(()) };
        state.changing = true;
        engine
    };
    let ended = gate::enter(py, "shutdown", move || {
        let alone = alone(engine, Instant::now() + PATIENCE)?;
        Some(alone.shutdown())
    });
    let mut state = lock();
    state.changing = false;
    match ended? {
        None => {
            drop(state);
            let text = "another thread of this rank is still inside a call; the engine ends with it";
            Err(error::raise(py, "PhalanxError", text, &[]))
        }
        Some(Ok(communicator)) => {
            state.idle = Some(communicator);
            Ok(())
        }
        Some(Err(why)) => {
            drop(state);
            Err(error::of_engine(py, &why))
        }
    }
}

/// Leaves the world, too; the next `init` joins it anew, if it can.
#[pyfunction]
pub fn close(py: Python<'_>) -> PyResult<()> {
    if lock().owner == std::process::id() {
        stack::close(py)?;
    }
    shutdown(py)?;
    let idle = lock().idle.take();
    gate::enter(py, "close", move || drop(idle))
}

/// Leaves everything as it is for the process to end: the others shall learn of its end, not of a shutdown.
#[pyfunction]
pub fn abandon(py: Python<'_>) -> PyResult<()> {
    let mut state = lock();
    let is_ours = state.owner == std::process::id();
    std::mem::forget((state.engine.take(), state.idle.take()));
    drop(state);
    if is_ours { stack::close(py) } else { Ok(()) }
}

/// Asks the world of this process something, with or without a running engine.
pub fn with_world<T>(ask: impl FnOnce(&World) -> T) -> Option<T> {
    let state = lock();
    if state.owner != std::process::id() {
        return None;
    }
    if let Some(engine) = state.engine.clone() {
        drop(state);
        return Some(ask(engine.world()));
    }
    // Not under the lock, because the answer may take a while.
    let world = state.idle.as_ref()?.world_arc();
    drop(state);
    Some(ask(&world))
}

/// The engine, once no other thread has it.
fn alone(mut engine: Arc<Engine>, deadline: Instant) -> Option<Engine> {
    loop {
        match Arc::try_unwrap(engine) {
            Ok(alone) => return Some(alone),
            Err(_) if Instant::now() >= deadline => return None,
            Err(again) => engine = again,
        }
        std::thread::yield_now();
    }
}

fn busy(py: Python<'_>) -> PyErr {
    error::raise(py, "PhalanxError", "another thread is inside init() or shutdown()", &[])
}
