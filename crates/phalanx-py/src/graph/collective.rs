//! The other ranks that train the same program, reached through the engine that `init` has started.

use crate::state::{self, Running};
use phalanx_collective::engine::Engine;
use phalanx_graph::{BuildStrategy, Collective, exec::Alone};
use phalanx_train::{Lent, Ranks};
use pyo3::prelude::*;
use std::sync::Arc;

/// The ranks of this process's world; `None` if it is alone.
pub fn of_this_process(py: Python<'_>) -> PyResult<Option<Arc<Ranks>>> {
    if !state::is_initialized() {
        return Ok(None);
    }
    let engine = state::engine(py)?;
    Ok((engine.size() > 1).then(|| Running::ranks(&engine)))
}

/// The ranks of an engine. They hold it only while they use it: executors outlive `shutdown`, which waits for those that use it.
pub fn of_engine(engine: &Arc<Running>) -> Ranks {
    let (index, n, weak) = (engine.rank().index(), engine.size() as usize, Arc::downgrade(engine));
    Ranks::of_lender(index, n, move || weak.upgrade().map(|engine| engine as Lent))
}

impl AsRef<Engine> for Running {
    fn as_ref(&self) -> &Engine {
        self
    }
}

/// For an executor: these ranks, or nobody.
pub fn collective(ranks: Option<Arc<Ranks>>) -> Arc<dyn Collective> {
    match ranks {
        Some(ranks) => ranks,
        None => Arc::new(Alone),
    }
}

/// Takes out of a strategy what is true of these ranks, for an executor that does without them.
pub fn leave(ranks: &Ranks, build: &mut BuildStrategy) {
    if (build.num_trainers, build.trainer_id) == (Some(ranks.processes()), Some(ranks.index())) {
        (build.num_trainers, build.trainer_id) = (None, None);
    }
}
