//! This process's one engine, from init to shutdown and to the next init. The one `static` is here: C functions have no other place.
//!
//! The world and its communicator outlive engines: they are joined once, kept while no engine runs, and left when the process exits.

use crate::{abi::Status, failure::Failure, guard, handles::Handles};
use phalanx_collective::{
    Communicator,
    ddl::{self, DdlOptions, DdlWish},
    engine::{Engine, EngineOptions},
};
use phalanx_core::{Config, Rank};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

pub static PROCESS: Process = Process {
    owner: AtomicU32::new(0),
    life: Mutex::new(()),
    state: Mutex::new(State::Out),
    ending: AtomicBool::new(false),
    left: Condvar::new(),
    handles: Handles::new(),
};

/// How often a shutdown looks by itself whether all threads have left the engine.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

pub struct Process {
    /// The process that joined a world, 0 if none did. Looked at before any lock: after fork() a lock may be held by a thread that is not there.
    owner: AtomicU32,
    /// Held through all of an init or shutdown, so that they follow each other.
    life: Mutex<()>,
    /// Held for a moment only.
    state: Mutex<State>,
    /// Somebody waits for `left`.
    ending: AtomicBool,
    left: Condvar,
    pub handles: Handles,
}

enum State {
    /// In no world.
    Out,
    /// Joined, without an engine.
    Resting(Box<Communicator>),
    Running(Arc<EngineRun>),
}

/// One engine's life.
pub struct EngineRun {
    pub engine: Engine,
    /// Whether Horovod's functions may change process sets.
    pub dynamic: bool,
}

/// The right to use the engine; a shutdown waits for it.
pub struct Lease(Option<Arc<EngineRun>>);

impl Deref for Lease {
    type Target = EngineRun;

    fn deref(&self) -> &EngineRun {
        self.0.as_ref().expect("it is taken when the lease is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.0.take());
        if PROCESS.ending.load(Ordering::SeqCst) {
            PROCESS.left.notify_all();
        }
    }
}

/// What init was asked for.
pub struct Wish {
    /// The ranks of the world; empty means all.
    pub ranks: Vec<i64>,
    pub process_sets: Vec<Vec<u32>>,
    /// DDL's option string, where DDL's Init asks.
    pub ddl: Option<String>,
}

impl Process {
    /// The engine, if one runs.
    pub fn engine(&self) -> Result<Lease, Failure> {
        self.check_owner()?;
        match &*self.state() {
            State::Running(session) => Ok(Lease(Some(session.clone()))),
            _ => Err(Failure::new(
                Status::NotInitialized,
                "phalanx is not initialized; call phalanx_init() or horovod_init() first",
            )),
        }
    }

    pub fn check_owner(&self) -> Result<(), Failure> {
        match self.owner.load(Ordering::Acquire) {
            0 => Ok(()),
            owner if owner == std::process::id() => Ok(()),
            owner => Err(Failure::new(
                Status::Forked,
                format!(
                    "process {} was forked from process {owner}, which has called init; call it after fork(), not before",
                    std::process::id()
                ),
            )),
        }
    }

    /// Starts the engine, unless it runs. A wish that cannot be read is made known to the other ranks, too, so that none waits for this one.
    pub fn init(&self, wish: Result<Wish, Failure>) -> Result<(), Failure> {
        self.check_owner()?;
        guard::may_wait()?;
        let _life = lock(&self.life);
        let mut communicator = {
            let mut state = self.state();
            match std::mem::replace(&mut *state, State::Out) {
                running @ State::Running(_) => {
                    *state = running;
                    return Ok(());
                }
                State::Resting(communicator) => Some(*communicator),
                State::Out => None,
            }
        };
        self.owner.store(std::process::id(), Ordering::Release);
        leave_at_exit();
        let result = start(&mut communicator, wish);
        let mut state = self.state();
        match result {
            Ok(session) => *state = State::Running(Arc::new(session)),
            Err(failure) => {
                match communicator {
                    Some(communicator) => *state = State::Resting(Box::new(communicator)),
                    None => self.owner.store(0, Ordering::Release),
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Ends the engine, if one runs.
    pub fn shutdown(&self) -> Result<(), Failure> {
        self.check_owner()?;
        guard::may_wait()?;
        let _life = lock(&self.life);
        let mut state = self.state();
        let mut session = match std::mem::replace(&mut *state, State::Out) {
            State::Running(session) => session,
            other => {
                *state = other;
                return Ok(());
            }
        };
        self.ending.store(true, Ordering::SeqCst);
        let session = loop {
            match Arc::try_unwrap(session) {
                Ok(alone) => break alone,
                Err(again) => session = again,
            }
            let waited = self.left.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        self.ending.store(false, Ordering::SeqCst);
        drop(state);
        let communicator = session.engine.shutdown()?;
        // A world that is over cannot be started from again.
        if communicator.world().casualties().doomed().is_none() {
            *self.state() = State::Resting(Box::new(communicator));
        } else {
            self.owner.store(0, Ordering::Release);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins a world where there is none, agrees with the other ranks on what was wished, and starts the engine. Leaves the communicator where it is
/// if ranks disagree, and takes it away if it is of no more use.
fn start(place: &mut Option<Communicator>, wish: Result<Wish, Failure>) -> Result<EngineRun, Failure> {
    let mut communicator = match place.take() {
        Some(mut communicator) => {
            // What an earlier ddl_init() had asked for.
            communicator.unwire();
            communicator
        }
        None => Communicator::from_env()?,
    };
    if let Ok(Wish { ddl: Some(given), .. }) = &wish {
        let from_env = std::env::var("DDL_OPTIONS").ok();
        let told = DdlWish { n_local: None, options: given, from_env: from_env.as_deref() };
        let shaped = ddl::wire(&mut communicator, &told);
        if let Err(why) = shaped.map_err(Failure::from).and_then(|(options, _)| without_reports(&options)) {
            *place = Some(communicator);
            return Err(why);
        }
    }
    let options = wish.and_then(|wish| options(&communicator, wish));
    match agree(&mut communicator, &options)? {
        None => {}
        Some(failure) => {
            *place = Some(communicator);
            return Err(options.err().unwrap_or(failure));
        }
    }
    let engine = Engine::start_with(communicator, options?)?;
    Ok(EngineRun { engine, dynamic: is_dynamic() })
}

/// Reports by iteration go by the names of tensors, which DDL's C functions do not have; and this library prints nothing. The same on all ranks.
fn without_reports(options: &DdlOptions) -> Result<(), Failure> {
    let named = "is for Rust and Python, whose tensors have names: leave it out";
    let printed =
        "is for Rust and Python, which print: leave it out, and ask ddl_rank() and ddl_local_rank()";
    let reports = [
        ("-dump_iter", options.dump_iter, named),
        ("-rebind_iter", options.rebind_iter, named),
        ("-dbg_level", options.dbg_level.into(), printed),
    ];
    match reports.into_iter().find(|(_, value, _)| *value > 0) {
        Some((flag, _, why)) => Err(Failure::invalid(format!("{flag} {why}"))),
        None => Ok(()),
    }
}

/// The settings of the next engine. The environment is read anew: it may have changed since the last one.
fn options(communicator: &Communicator, wish: Wish) -> Result<EngineOptions, Failure> {
    let n = communicator.size();
    let all = || (0..n).map(Rank);
    if !wish.ranks.is_empty() && !wish.ranks.iter().copied().eq(all().map(|r| i64::from(r.0))) {
        return Err(Failure::invalid(format!(
            "init with the ranks {:?} of {n}: a world has all ranks in order; use process sets for some of them",
            wish.ranks
        )));
    }
    let mut seen = vec![all().map(|r| r.0).collect::<Vec<u32>>()];
    for ranks in &wish.process_sets {
        let sorted = sorted_set(ranks, n)?;
        if seen.contains(&sorted) {
            return Err(Failure::new(
                Status::ExistingSet,
                format!("a process set with exactly the ranks {sorted:?} already exists"),
            ));
        }
        seen.push(sorted);
    }
    let vars = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let config = Config::from_vars(vars).map_err(|e| Failure::invalid(e.to_string()))?;
    Ok(EngineOptions { process_sets: seen.split_off(1), ..EngineOptions::from_config(&config) })
}

/// Distinct ranks of a world of `n`, sorted.
pub fn sorted_set(ranks: &[u32], n: u32) -> Result<Vec<u32>, Failure> {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    if sorted.is_empty() {
        return Err(Failure::invalid("a process set needs at least one rank"));
    }
    if let Some(rank) = sorted.iter().find(|r| **r >= n) {
        return Err(Failure::invalid(format!(
            "rank {rank} of the process set {ranks:?} does not exist among {n} ranks"
        )));
    }
    if let Some(pair) = sorted.windows(2).find(|p| p[0] == p[1]) {
        return Err(Failure::invalid(format!(
            "rank {} is listed twice in the process set {ranks:?}",
            pair[0]
        )));
    }
    Ok(sorted)
}

/// Whether all ranks can start, and with the same process sets; every rank takes part, whatever it was asked for.
fn agree(
    communicator: &mut Communicator,
    options: &Result<EngineOptions, Failure>,
) -> Result<Option<Failure>, Failure> {
    let mut hasher = DefaultHasher::new();
    let sets = options.as_ref().ok().map(|o| &o.process_sets);
    sets.hash(&mut hasher);
    let mine = [i64::from(options.is_err()), hasher.finish() as i64];
    let n = communicator.size() as usize;
    let mut all = vec![0i64; 2 * n];
    communicator.allgather(&mine, &mut all, &vec![2; n])?;
    let rows: Vec<&[i64]> = all.chunks(2).collect();
    if let Some(rank) = rows.iter().position(|row| row[0] != 0) {
        return Ok(Some(Failure::invalid(format!(
            "rank {rank} cannot start with its arguments or settings; its own error says why"
        ))));
    }
    let other = rows.iter().position(|row| row[1] != rows[0][1]);
    Ok(other
        .map(|rank| Failure::invalid(format!("ranks 0 and {rank} were started with different process sets"))))
}

/// As Horovod reads it.
fn is_dynamic() -> bool {
    std::env::var("HOROVOD_DYNAMIC_PROCESS_SETS").is_ok_and(|v| v.trim().parse::<i64>().is_ok_and(|n| n > 0))
}

/// A process that exits while no engine runs leaves its world in order; one that exits in the middle of something is lost to the others.
fn leave_at_exit() {
    extern "C" fn leave() {
        if PROCESS.check_owner().is_err() {
            return;
        }
        let taken = guard::guard(
            |_| None,
            || {
                let mut state = PROCESS.state.try_lock().ok();
                let resting = state.as_mut().filter(|s| matches!(***s, State::Resting(_)));
                Ok(resting.map(|state| std::mem::replace(&mut **state, State::Out)))
            },
        );
        guard::guard(
            |_| (),
            || {
                drop(taken);
                Ok(())
            },
        );
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Where there is no room for it, the others see the process end instead.
        // SAFETY: `leave` is an ordinary function without arguments, and never unwinds.
        let _ = unsafe { libc::atexit(leave) };
    });
}
