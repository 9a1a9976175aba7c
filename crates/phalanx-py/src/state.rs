//! The one engine of this process, and the communicator that outlives it (PY-3).

use crate::{ddl::DdlState, error, gate, graph::collective, native, stack, task::Task};
use phalanx_collective::{
    Communicator, Error,
    ddl::{self, DdlError, DdlWish},
    engine::{Engine, EngineError, EngineOptions, Whereabouts},
};
use phalanx_core::Config;
use phalanx_net::{NetError, World, task::TaskSpec};
use phalanx_train::Ranks;
use pyo3::prelude::*;
use std::{
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

/// The engine while calls use it. The last call to let go of it hands it to `shutdown`, which sleeps until then; where no thread waits any more
/// the engine ends there.
#[derive(Debug)]
pub struct Running {
    engine: Option<Engine>,
    home: SyncSender<Engine>,
    /// Its ranks, for all executors of static programs: they number these (RANKS-1).
    ranks: OnceLock<Arc<Ranks>>,
    /// Where it was started by DDL's Init.
    pub ddl: Option<DdlState>,
}

impl Running {
    /// The ranks of this engine, the same for every caller.
    pub fn ranks(self: &Arc<Running>) -> Arc<Ranks> {
        self.ranks.get_or_init(|| Arc::new(collective::of_engine(self))).clone()
    }

    fn new(engine: Engine, ddl: Option<DdlState>) -> (Arc<Running>, Receiver<Engine>) {
        let (home, last) = sync_channel(1);
        (Arc::new(Running { engine: Some(engine), home, ranks: OnceLock::new(), ddl }), last)
    }
}

impl Deref for Running {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.engine.as_ref().expect("it goes home with the last who uses it")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            // Nobody waits: the engine, which comes back with the error, ends here.
            let _ = self.home.try_send(engine);
        }
    }
}

struct State {
    /// The process to which the rest belongs.
    owner: u32,
    engine: Option<(Arc<Running>, Receiver<Engine>)>,
    /// Waits for the next engine.
    idle: Option<Communicator>,
    /// Somebody is starting or ending an engine.
    changing: bool,
}

/// A lock because every thread of Python's may call; PY-3 says when it is taken.
static STATE: Mutex<State> = Mutex::new(State { owner: 0, engine: None, idle: None, changing: false });

/// The process ends with a failure, and nothing is ended in order any more.
static ABANDONED: AtomicBool = AtomicBool::new(false);

pub fn is_abandoned() -> bool {
    // Relaxed: the interpreter, which ends, calls both.
    ABANDONED.load(Ordering::Relaxed)
}

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
pub fn engine(py: Python<'_>) -> PyResult<Arc<Running>> {
    let state = lock();
    if state.owner != std::process::id() {
        return Err(error::of_engine(py, &EngineError::Forked));
    }
    state.engine.as_ref().map(|(engine, _)| engine.clone()).ok_or_else(|| error::not_initialized(py))
}

#[pyfunction]
pub fn is_initialized() -> bool {
    let state = lock();
    state.owner == std::process::id() && state.engine.is_some()
}

/// Joins the world if this process has not, and starts its engine if it does not run. Reads the environment. Says whether it did anything.
/// `whereabouts` gives (file, line, function) of where the program is, innermost first; another thread calls it when other ranks wait for this one.
/// `task` says who this process is; without it the environment does. `ddl` has what DDL's Init was told: ranks a host, if said, and options.
#[pyfunction]
#[pyo3(signature = (process_sets = Vec::new(), whereabouts = None, task = None, ddl = None))]
pub fn init(
    py: Python<'_>,
    process_sets: Vec<Vec<u32>>,
    whereabouts: Option<Py<PyAny>>,
    task: Option<PyRef<'_, Task>>,
    ddl: Option<(Option<u32>, String)>,
) -> PyResult<bool> {
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
    let task = task.map(|task| task.spec.clone());
    let started = gate::enter(py, "init", move || start(idle, task, ddl, (process_sets, whereabouts)));
    let mut state = lock();
    state.changing = false;
    match started? {
        Ok((engine, ddl)) => {
            let running = Running::new(engine, ddl);
            native::use_engine(&running.0);
            state.engine = Some(running);
        }
        Err(Refusal::Ddl(why, communicator)) => {
            // Nobody started; with other options all may.
            state.idle = Some(*communicator);
            drop(state);
            return Err(match why {
                DdlError::World(why) => error::of_joining(py, &why),
                why => error::raise(py, "InitializationError", &why.to_string(), &[]),
            });
        }
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
    Ddl(DdlError, Box<Communicator>),
    Engine(EngineError),
}

fn start(
    idle: Option<Communicator>,
    task: Option<TaskSpec>,
    ddl: Option<(Option<u32>, String)>,
    (process_sets, whereabouts): (Vec<Vec<u32>>, Option<Whereabouts>),
) -> Result<(Engine, Option<DdlState>), Refusal> {
    // Nothing more can be done in a world that is over.
    let usable = |comm: &Communicator| comm.world().casualties().doomed().is_none();
    let (mut communicator, options) = match idle.filter(usable) {
        Some(mut communicator) => {
            // What an earlier DDL had asked for.
            communicator.unwire();
            let variables = std::env::vars_os();
            let readable =
                variables.filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
            let config = Config::from_vars(readable);
            let config = config.map_err(|why| Refusal::World(Error::Net(NetError::Config(why))))?;
            (communicator, EngineOptions::from_config(&config))
        }
        None => {
            let world = World::from_env_as(task.as_ref(), phalanx_collective::BUILD);
            let world = world.map_err(|why| Refusal::World(why.into()))?;
            let communicator = Communicator::of_world(Arc::new(world)).map_err(Refusal::World)?;
            let options = EngineOptions::from_config(communicator.world().config());
            (communicator, options)
        }
    };
    let ddl = match ddl {
        None => None,
        Some((n_local, given)) => {
            let from_env = std::env::var("DDL_OPTIONS").ok();
            let told = DdlWish { n_local, options: &given, from_env: from_env.as_deref() };
            match ddl::wire(&mut communicator, &told) {
                Ok((options, wiring)) => Some(DdlState::new(options, wiring, &communicator)),
                Err(why) => return Err(Refusal::Ddl(why, Box::new(communicator))),
            }
        }
    };
    let engine = Engine::start_with(communicator, EngineOptions { process_sets, whereabouts, ..options })
        .map_err(Refusal::Engine)?;
    Ok((engine, ddl))
}

/// Ends the engine on every rank, and keeps the world for the next one.
#[pyfunction]
pub fn shutdown(py: Python<'_>) -> PyResult<()> {
    let (engine, last) = {
        let mut state = lock();
        if state.owner != std::process::id() {
            return Ok(());
        }
        let Some(engine) = state.engine.take() else { return Ok(()) };
        state.changing = true;
        engine
    };
    let ended = gate::enter(py, "shutdown", move || {
        drop(engine);
        // It comes from the thread that used it last, which may be this very one.
        Some(last.recv_timeout(PATIENCE).ok()?.shutdown())
    });
    let mut state = lock();
    state.changing = false;
    match ended? {
        None => {
            drop(state);
            let text =
                "another thread of this rank is still inside a call; the engine ends when that call returns";
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
    ABANDONED.store(true, Ordering::Relaxed);
    drop(state);
    if is_ours { stack::close(py) } else { Ok(()) }
}

/// Asks the world of this process something, with or without a running engine.
pub fn with_world<T>(ask: impl FnOnce(&World) -> T) -> Option<T> {
    let state = lock();
    if state.owner != std::process::id() {
        return None;
    }
    if let Some((engine, _)) = &state.engine {
        let engine = engine.clone();
        drop(state);
        return Some(ask(engine.world()));
    }
    // Not under the lock, because the answer may take a while.
    let world = state.idle.as_ref()?.world_arc();
    drop(state);
    Some(ask(&world))
}

fn busy(py: Python<'_>) -> PyErr {
    error::raise(py, "PhalanxError", "another thread is inside init() or shutdown()", &[])
}
