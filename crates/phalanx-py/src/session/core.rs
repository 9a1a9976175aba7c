//! The exchanges of one session with the other ranks.

use super::{
    error,
    part::{LentPart, Named, strictness},
};
use crate::{
    array::Array,
    driver::Driver,
    gate,
    graph::{GraphProgram, GraphStore, store_lock},
    state::{self, Running},
};
use phalanx_checkpoint::{About, Keep, mark_done};
use phalanx_train::session::{
    Boundary, Peers, Reason, SessionError, ShardWriters, StateOrigin, StepVerdict, StepWish, StorePart,
    Wanted, Writer, restore, share,
};
use pyo3::{
    exceptions::{PyTimeoutError, PyValueError},
    prelude::*,
};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    time::{Duration, Instant},
};

/// What it is made of, until it is closed.
#[derive(Debug)]
struct Parts {
    peers: Arc<Peers>,
    boundary: Boundary,
    writer: Option<Writer>,
    dir: Option<PathBuf>,
}

type Owned = Option<Parts>;

/// One session, as its own thread owns it.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct SessionCore {
    rank: u32,
    n_ranks: u32,
    driver: Driver<Owned>,
}

/// Who wants it, and why.
type Why = (String, String);
/// Step, rank, who wanted it, why, and whether the system wants the machine back.
type Stop = (u64, u32, String, String, bool);
/// What is said of a checkpoint, its path, newer ones that are not whole, and tensors that were left.
type Told = (String, PathBuf, Vec<String>, Vec<String>);
/// What it was made of, and tensors that were taken over.
type Restored = (Option<Told>, Vec<(String, Array)>);

#[pymethods]
impl SessionCore {
    /// Session `number` of this process; ranks number theirs alike. `dir` is where it saves; `to_chief`: rank 0 writes all shards.
    #[new]
    #[pyo3(signature = (number, dir, keep_last, keep_every, to_chief, listens))]
    fn new(
        py: Python<'_>,
        number: u64,
        dir: Option<PathBuf>,
        keep_last: usize,
        keep_every: Option<u64>,
        to_chief: bool,
        listens: bool,
    ) -> PyResult<SessionCore> {
        let engine = state::engine(py)?;
        let peers = Arc::new(Running::ranks(&engine).peers(number));
        let (rank, n_ranks) = (peers.rank.0, peers.n_ranks);
        let driver = Driver::new("session", None)?;
        let made = driver.call(py, move |owned: &mut Owned| {
            let keep = Keep { last: keep_last, every: keep_every };
            let shards = if to_chief { ShardWriters::chief() } else { ShardWriters::Each };
            let writer = Writer::start(dir.as_deref(), keep, shards, peers.clone())?;
            let boundary = Boundary::new(peers.clone(), dir.is_some(), listens);
            *owned = Some(Parts { peers, boundary, writer, dir });
            Ok(())
        })?;
        made.map_err(|why| error::of_session(py, &why))?;
        Ok(SessionCore { rank, n_ranks, driver })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    /// Loads the checkpoint at a path, or the newest one of the session's own directory, into a store. `continues`: random numbers go on, too.
    fn restore_graph(
        &self,
        py: Python<'_>,
        program: &GraphProgram,
        store: &GraphStore,
        path: Option<PathBuf>,
        strict: &str,
        continues: bool,
    ) -> PyResult<Option<Told>> {
        let (shared, program, strictness) = (store.shared(py)?, program.snapshot(), strictness(strict)?);
        let origin = self.ask(py, move |parts| {
            let mut store = store_lock(&shared);
            store.admit(&program).map_err(SessionError::Run)?;
            let mut part = StorePart::new(&program, &mut store);
            let origin = restore(parts.wanted(&path), &mut part, &parts.peers, strictness)?;
            if let (StateOrigin::Checkpoint { about, .. }, true) = (&origin, continues) {
                store.set_randomness(about.seed, about.run);
            }
            Ok(origin)
        })?;
        told(origin)
    }

    /// The same for tensors of Python's. What begins with one of `open` is taken over as it is found.
    fn restore(
        &self,
        py: Python<'_>,
        tensors: Vec<Named>,
        open: Vec<String>,
        path: Option<PathBuf>,
        strict: &str,
    ) -> PyResult<Restored> {
        let strictness = strictness(strict)?;
        let mut part = LentPart::new(tensors, open);
        let (origin, part) = self.ask(py, move |parts| {
            let origin = restore(parts.wanted(&path), &mut part, &parts.peers, strictness)?;
            Ok((origin, part))
        })?;
        Ok((told(origin)?, part.into_made()))
    }

    /// Gives all ranks what the chief has, and what it says of it.
    fn share(
        &self,
        py: Python<'_>,
        tensors: Vec<Named>,
        open: Vec<String>,
        about: &str,
    ) -> PyResult<(String, Vec<(String, Array)>)> {
        let about = read(about)?;
        let mut part = LentPart::new(tensors, open);
        let (about, part) = self.ask(py, move |parts| {
            let about = share(about, &mut part, &parts.peers)?;
            Ok((about, part))
        })?;
        Ok((write(&about)?, part.into_made()))
    }

    /// What all ranks do after this step: whether they save, and why they stop, if they do.
    #[pyo3(signature = (step, stop, fail, save))]
    fn cross(
        &self,
        py: Python<'_>,
        step: u64,
        stop: Option<Why>,
        fail: Option<Why>,
        save: bool,
    ) -> PyResult<(bool, Option<Stop>)> {
        let wish = StepWish { stop: stop.map(reason), fail: fail.map(reason), save };
        let verdict = self.ask(py, move |parts| parts.cross(step, wish))?;
        let stop = verdict.stopped.map(|s| (s.step, s.rank.0, s.reason.by, s.reason.why, s.is_asked));
        Ok((verdict.saves, stop))
    }

    /// Ends the session as a failure of this rank. The other ranks learn of it at their next boundary; this one waits for that no longer than
    /// it says, nor than until `is_told` says that they know. Gives whether they have come to the boundary. What is being saved is written
    /// afterwards.
    #[pyo3(signature = (step, by, why, timeout_s, is_told=None))]
    fn leave(
        &self,
        py: Python<'_>,
        step: u64,
        by: String,
        why: String,
        timeout_s: f64,
        is_told: Option<Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (crossed, mut heard) = sync_channel(1);
        self.driver.begin(py, move |owned: &mut Owned| {
            if let Some(parts) = owned {
                // Other ranks may never come, and this process may live on.
                parts.boundary.deafen();
                let wish = StepWish { fail: Some(Reason { by, why }), ..StepWish::default() };
                // It is an error by intention.
                let _ = parts.cross(step, wish);
            }
            // Nobody waits for it after Ctrl-C.
            let _ = crossed.send(());
        })?;
        // Other ranks have heard of it before: a disk may take long.
        self.driver.begin(py, |owned| drop(owned.take()))?;
        let until = after(timeout_s);
        loop {
            let slice = until.min(Instant::now() + gate::SLICE);
            let heard = &mut heard;
            let has_left = gate::wait(py, Some(slice), move |deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                // A panic has ended it, too.
                (heard.recv_timeout(left) != Err(RecvTimeoutError::Timeout)).then_some(())
            })?;
            if has_left.is_some() {
                return Ok(true);
            }
            let is_told = is_told.as_ref().map_or(Ok(false), |ask| ask.call0()?.is_truthy())?;
            if is_told || Instant::now() >= until {
                return Ok(false);
            }
        }
    }

    /// Copies this rank's share of a store, and has it written.
    fn save_graph(
        &self,
        py: Python<'_>,
        program: &GraphProgram,
        store: &GraphStore,
        about: &str,
    ) -> PyResult<()> {
        let (shared, program, about) = (store.shared(py)?, program.snapshot(), read(about)?);
        self.ask(py, move |parts| {
            let mut store = store_lock(&shared);
            let (seed, run) = store.randomness();
            let about = About { seed, run, world: parts.peers.n_ranks, ..about };
            let part = StorePart::new(&program, &mut store);
            parts.writer.as_mut().map_or(Ok(()), |writer| writer.save(about, &part))
        })
    }

    /// The same for tensors of Python's.
    fn save(&self, py: Python<'_>, tensors: Vec<Named>, about: &str) -> PyResult<()> {
        let about = read(about)?;
        let part = LentPart::new(tensors, Vec::new());
        // It comes back out, so that its owners go with the GIL held.
        let part = self.ask(py, move |parts| {
            let about = About { world: parts.peers.n_ranks, ..about };
            parts.writer.as_mut().map_or(Ok(()), |writer| writer.save(about, &part))?;
            Ok(part)
        })?;
        drop(part);
        Ok(())
    }

    /// The last step that is on the disk, or on its way there.
    fn newest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.ask(py, |parts| Ok(parts.writer.as_ref().and_then(Writer::newest)))
    }

    /// Ends the session: waits until its last checkpoint is written, and marks the training as done if it is.
    fn close(&self, py: Python<'_>, is_done: bool, timeout_s: f64) -> PyResult<()> {
        let pending = self.driver.begin(py, move |owned| {
            let Some(mut parts) = owned.take() else { return Ok(()) };
            parts.writer.as_mut().map_or(Ok(()), Writer::wait)?;
            match parts.dir.filter(|_| is_done && parts.peers.is_chief()) {
                Some(dir) => mark_done(&dir).map_err(SessionError::Checkpoint),
                None => Ok(()),
            }
        })?;
        match pending.wait_until(py, after(timeout_s))? {
            Some(closed) => closed.map_err(|why| error::of_session(py, &why)),
            None => {
                let text = format!("the last checkpoint was not written in {timeout_s} s");
                Err(PyTimeoutError::new_err(text))
            }
        }
    }
}

impl SessionCore {
    fn ask<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Parts) -> Result<T, SessionError> + Send + 'static,
    ) -> PyResult<T> {
        let answer = self.driver.call(py, move |owned| match owned {
            Some(parts) => call(parts),
            None => Err(SessionError::Ended),
        })?;
        answer.map_err(|why| error::of_session(py, &why))
    }
}

impl Parts {
    fn cross(&mut self, step: u64, wish: StepWish) -> Result<StepVerdict, SessionError> {
        let verdict = self.boundary.cross(step, wish, self.writer.as_mut())?;
        if let Some(writer) = &mut self.writer {
            writer.begun();
        }
        Ok(verdict)
    }

    fn wanted<'a>(&'a self, path: &'a Option<PathBuf>) -> Wanted<'a> {
        match (path, &self.dir) {
            (Some(path), _) => Wanted::At(path),
            (None, Some(dir)) => Wanted::Newest(dir),
            (None, None) => unreachable!("Python asks for the newest one only with a directory"),
        }
    }
}

fn after(seconds: f64) -> Instant {
    Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e9))
}

fn reason((by, why): Why) -> Reason {
    Reason { by, why }
}

fn told(origin: StateOrigin) -> PyResult<Option<Told>> {
    match origin {
        StateOrigin::Anew => Ok(None),
        StateOrigin::Checkpoint { about, path, skipped, left } => {
            Ok(Some((write(&about)?, path, skipped, left)))
        }
    }
}

fn read(about: &str) -> PyResult<About> {
    serde_json::from_str(about).map_err(|why| PyValueError::new_err(why.to_string()))
}

pub fn write(about: &About) -> PyResult<String> {
    serde_json::to_string(about).map_err(|why| PyValueError::new_err(why.to_string()))
}
