//! Checkpoints as files, for evaluators and for programs that look at them.

use super::{
    core::write,
    error,
    part::{LentPart, Named, strictness},
};
use crate::{
    array::Array,
    gate,
    graph::{GraphProgram, GraphStore, store_lock},
};
use phalanx_checkpoint::{
    About, Checkpoint, CheckpointError, Checkpoints, Follow, Followed, Newest, OwnedTensors, Part,
    Strictness, TensorMisfit,
};
use phalanx_train::session::StorePart;
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, UNIX_EPOCH},
};

/// Names of what was loaded, and tensors that were made for it.
type LoadedFiles = (Vec<String>, Vec<(String, Array)>);

/// Name, code of the element type, shape, and the rank that alone has it.
type Listed = (String, u8, Vec<u64>, Option<u32>);

/// One checkpoint that is whole, or was.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct CheckpointFile {
    checkpoint: Arc<Checkpoint>,
}

#[pymethods]
impl CheckpointFile {
    /// The checkpoint at this path, or the newest whole one in it.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<CheckpointFile> {
        let opened = gate::enter(py, "checkpoint", move || {
            let found = Checkpoints::open(&path).latest()?;
            match found.checkpoint {
                Some(newest) => Ok(newest),
                None if found.skipped.is_empty() => Checkpoint::open(&path),
                None => Err(CheckpointError::NoneWhole { dir: path, skipped: found.skipped }),
            }
        })?;
        let checkpoint = Arc::new(opened.map_err(|why| error::of_checkpoint(py, &why))?);
        Ok(CheckpointFile { checkpoint })
    }

    #[getter]
    fn step(&self) -> u64 {
        self.checkpoint.step()
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.checkpoint.path().to_path_buf()
    }

    /// What was said of it, as JSON.
    fn about(&self) -> PyResult<String> {
        write(&self.checkpoint.manifest().about)
    }

    /// What is wrong with its files, compared to their digests; `None` if it is whole.
    fn damage(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let checkpoint = self.checkpoint.clone();
        let verified = gate::enter(py, "checkpoint", move || checkpoint.verify())?;
        Ok(verified.err().map(|why| why.to_string()))
    }

    fn tensors(&self) -> Vec<Listed> {
        let all = self.checkpoint.manifest().tensors.iter().map(|t| t.info.clone());
        all.map(|info| (info.name, info.dtype as u8, info.shape, info.owner)).collect()
    }

    /// Loads into a store, and gives what was left as it is.
    fn load_graph(
        &self,
        py: Python<'_>,
        program: &GraphProgram,
        store: &GraphStore,
        strict: &str,
    ) -> PyResult<Vec<String>> {
        let (shared, program, strictness) = (store.shared(py)?, program.snapshot(), strictness(strict)?);
        let checkpoint = self.checkpoint.clone();
        let loaded = gate::enter(py, "checkpoint", move || {
            let mut store = store_lock(&shared);
            if let Err(why) = store.admit(&program) {
                let (tensor, cause) = (String::new(), why.into());
                return Err(CheckpointError::Part { tensor, action: "admitted", cause });
            }
            load(&checkpoint, &mut StorePart::new(&program, &mut store), strictness)
        })?;
        loaded.map_err(|why| error::of_checkpoint(py, &why))
    }

    /// Loads into tensors of Python's; gives what was left as it is, and what was taken over.
    fn load(
        &self,
        py: Python<'_>,
        tensors: Vec<Named>,
        open: Vec<String>,
        strict: &str,
    ) -> PyResult<LoadedFiles> {
        let (checkpoint, strictness) = (self.checkpoint.clone(), strictness(strict)?);
        let mut part = LentPart::new(tensors, open);
        let (loaded, part) = gate::enter(py, "checkpoint", move || {
            let loaded = load(&checkpoint, &mut part, strictness);
            (loaded, part)
        })?;
        let left = loaded.map_err(|why| error::of_checkpoint(py, &why))?;
        Ok((left, part.into_made()))
    }

    /// Saves the state of one process, and gives the path.
    #[staticmethod]
    fn save_graph(
        py: Python<'_>,
        dir: PathBuf,
        step: u64,
        program: &GraphProgram,
        store: &GraphStore,
        only: Vec<String>,
    ) -> PyResult<PathBuf> {
        let (shared, program) = (store.shared(py)?, program.snapshot());
        let saved = gate::enter(py, "checkpoint", move || {
            let mut store = store_lock(&shared);
            let (seed, run) = store.randomness();
            let about = About { step, seed, run, world: 1, ..About::default() };
            let part = StorePart::new(&program, &mut store);
            let mut chosen = OwnedTensors::new();
            for info in part.tensors().into_iter().filter(|info| only.contains(&info.name)) {
                let mut bytes = vec![0; info.bytes() as usize];
                let read = part.read(&info.name, 0, &mut bytes);
                let tensor = info.name.clone();
                read.map_err(|cause| CheckpointError::Part { tensor, action: "read", cause })?;
                chosen.insert(info, bytes);
            }
            Checkpoints::open(&dir).save(about, &chosen).map(|made| made.path().to_path_buf())
        })?;
        saved.map_err(|why| error::of_checkpoint(py, &why))
    }
}

fn load(
    checkpoint: &Checkpoint,
    part: &mut dyn Part,
    strictness: Strictness,
) -> Result<Vec<String>, CheckpointError> {
    let loaded = checkpoint.load(part, strictness)?;
    Ok(loaded.left.iter().map(TensorMisfit::to_string).collect())
}

/// Sees checkpoints as they appear.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct CheckpointFollower {
    /// A lock because threads may ask at the same time; held by one that waits, without the GIL.
    follow: Mutex<Follow>,
}

#[pymethods]
impl CheckpointFollower {
    /// `job_began`: the followed training is of a job that began then, in seconds since 1970.
    #[new]
    #[pyo3(signature = (dir, newest_only, job_began = None))]
    fn new(dir: PathBuf, newest_only: bool, job_began: Option<f64>) -> PyResult<CheckpointFollower> {
        let newest = if newest_only { Newest::Only } else { Newest::Each };
        let mut follow = Follow::new(dir, newest);
        if let Some(began) = job_began {
            let time = Duration::try_from_secs_f64(began).ok().and_then(|time| UNIX_EPOCH.checked_add(time));
            let time = time.ok_or_else(|| PyValueError::new_err("a job began after 1970"))?;
            follow = follow.of_job(time);
        }
        Ok(CheckpointFollower { follow: Mutex::new(follow) })
    }

    /// Whether a training has left the mark `done` that ends this follower, or one of an earlier job; `None` without a mark.
    fn ended(&self, py: Python<'_>) -> Option<bool> {
        py.detach(|| self.follow.lock().unwrap_or_else(PoisonError::into_inner).ended())
            .map(|(_, is_ours)| is_ours)
    }

    /// The next checkpoint; or none, and whether the training is done.
    #[pyo3(signature = (timeout_s = None))]
    fn next(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<(Option<CheckpointFile>, bool)> {
        if timeout_s.is_some_and(f64::is_nan) {
            return Err(PyValueError::new_err("a time must be a number"));
        }
        let until = timeout_s.map(|s| Instant::now() + Duration::from_secs_f64(s.clamp(0.0, 1e9)));
        let next = gate::wait(py, until, |deadline| {
            let mut follow = self.follow.lock().unwrap_or_else(PoisonError::into_inner);
            match follow.next(deadline) {
                Ok(Followed::TimedOut) => None,
                other => Some(other),
            }
        })?;
        match next {
            None => Ok((None, false)),
            Some(Ok(Followed::Checkpoint(found))) => {
                Ok((Some(CheckpointFile { checkpoint: Arc::new(*found) }), false))
            }
            Some(Ok(_)) => Ok((None, true)),
            Some(Err(why)) => Err(error::of_checkpoint(py, &why)),
        }
    }

    /// Checkpoints that were passed over since the last call because they are not whole.
    fn take_skipped(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| {
            let mut follow = self.follow.lock().unwrap_or_else(PoisonError::into_inner);
            follow.take_skipped().iter().map(ToString::to_string).collect()
        })
    }
}
