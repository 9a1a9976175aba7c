//! The asynchronous level: tensors by name, in any order, from any thread, agreed upon and fused.
//!
//! ```
//! use phalanx_collective::{Communicator, engine::{Engine, EngineTensor, Request}};
//! use phalanx_core::ReduceOp;
//!
//! // A world of one, unless a launcher says otherwise.
//! let engine = Engine::start(Communicator::from_env()?)?;
//! let gradients = [vec![1.0f32; 4], vec![2.0; 2]];
//! let mut handles = Vec::new();
//! for (i, gradient) in gradients.into_iter().enumerate() {
//!     let request = Request::allreduce(EngineTensor::new(gradient)).name(format!("layer{i}")).op(ReduceOp::Average);
//!     handles.push(engine.submit(request)?);
//! }
//! for handle in handles {
//!     let average = handle.wait()?.tensor().and_then(EngineTensor::into_vec::<f32>);
//!     assert!(average.is_some());
//! }
//! engine.shutdown()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bell;
mod carry;
mod control;
mod counters;
mod error;
mod handle;
mod helm;
mod letter;
mod mover;
pub mod negotiate;
mod options;
mod request;
mod set;
mod shared;
mod sparse;
pub mod spec;
mod start;
mod sync;
mod tensor;
mod timeline;
mod tune;
mod whereabouts;

#[doc(hidden)]
pub use letter::fuzzing;

pub use counters::Counters;
pub use error::{EngineError, Invalid};
pub use handle::{Answer, Handle, Outcome};
pub use options::EngineOptions;
pub use request::Request;
pub use sparse::{Sparse, SparseHandle};
pub use tensor::{EngineTensor, ShapeError};
pub use timeline::TimelineError;
pub use whereabouts::{Frame, Spot, Whereabouts};

use crate::{communicator::Communicator, error::Error};
use helm::Promise;
use negotiate::{Input, report::StallReport};
use phalanx_core::{
    DType, Rank,
    config::{Autotune, Transport},
};
use phalanx_net::{World, lost::Doom};
use set::Set;
use shared::Shared;
use spec::{Kind, Spec};
use std::{path::Path, sync::Arc, thread::JoinHandle};

/// Named, asynchronous, fused collectives of one rank.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    control: Option<JoinHandle<()>>,
    mover: Option<JoinHandle<Communicator>>,
    /// Whether its communicator was given a shape, by the settings or by DDL.
    is_shaped: bool,
}

impl Engine {
    /// Starts with the settings of the world. Every rank starts its engine.
    pub fn start(communicator: Communicator) -> Result<Engine, EngineError> {
        let options = EngineOptions::from_config(communicator.world().config());
        Engine::start_with(communicator, options)
    }

    pub fn world(&self) -> &Arc<World> {
        &self.shared.world
    }

    /// Zeros in memory that ranks of one host reduce where it is. Ordinary memory where there is no arena, or no room in it.
    pub fn zeros(&self, dtype: DType, shape: Vec<u64>) -> EngineTensor {
        EngineTensor::zeros_in(self.shared.world.arena(), dtype, shape)
    }

    pub fn rank(&self) -> Rank {
        self.shared.world.rank()
    }

    /// How many ranks there are: the workers of the world.
    pub fn size(&self) -> u32 {
        self.shared.world.n_workers()
    }

    /// Whether an element's sum over all ranks has the same bits whatever travels with it and whichever ranks want it. Two
    /// ranks have one order, and in the arena of one host ranks are added in their order. Over links the order depends on the
    /// algorithm and on the place of the element.
    pub fn sums_by_rank(&self) -> bool {
        let (world, config) = (&self.shared.world, self.shared.world.config());
        let is_fixed = config.algorithm.is_none() && config.autotune == Autotune::Off && !self.is_shaped;
        let is_one_arena =
            world.topology().n_hosts() == 1 && world.arena().is_some() && config.transport != Transport::Tcp;
        self.size() <= 2 || is_fixed && is_one_arena
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        self.shared.tally.read()
    }

    /// The last report about ranks that keep others waiting.
    pub fn last_stall(&self) -> Option<StallReport> {
        self.shared.last_report()
    }

    /// Writes what happens from now on to this file, for Perfetto or Chrome; with every look that finds something to run, if these are to be marked.
    /// The file is this rank's own: another rank needs another one.
    pub fn start_timeline(&self, path: impl AsRef<Path>, mark_cycles: bool) -> Result<(), EngineError> {
        if !self.shared.is_ours() {
            return Err(EngineError::Forked);
        }
        Ok(self.shared.timeline.start(path.as_ref(), mark_cycles)?)
    }

    /// Ends the timeline, if there is one: when this returns, the file holds everything. Ending the engine does it, too.
    pub fn stop_timeline(&self) -> Result<(), EngineError> {
        if !self.shared.is_ours() {
            return Err(EngineError::Forked);
        }
        Ok(self.shared.timeline.stop()?)
    }

    /// Submits an operation.
    pub fn submit(&self, request: Request) -> Result<Handle, EngineError> {
        let set = self.set(request.set)?;
        let spec = request.spec(&set.members)?;
        let promise = request.awaited.then(|| Promise::of(&set)).flatten();
        let Request { name, places, memory, grouped, .. } = request;
        let handle = set.submit(&self.shared, name.as_deref(), spec, (places, memory), grouped)?;
        Ok(handle.promised(promise))
    }

    /// Says that this rank has no more data: it takes part in the others' operations with zeros and empty tensors until all have joined.
    pub fn join(&self) -> Result<Handle, EngineError> {
        self.set(0)?.join(&self.shared)
    }

    /// Makes a process set of these ranks. Every rank of the world calls it, with the same ranks; waits for all.
    pub fn add_process_set(&self, ranks: &[u32]) -> Result<u32, EngineError> {
        if !self.shared.is_ours() {
            return Err(EngineError::Forked);
        }
        let ranks = well_formed(ranks, self.size())?;
        if let Some(id) = self.shared.sets().find(&ranks) {
            return Err(EngineError::BadSet(format!("process set {id} already has exactly these ranks")));
        }
        let splits = ranks.iter().map(|r| u64::from(r.0)).collect();
        let outcome = self.change_sets(Kind::AddSet, splits)?.wait()?;
        Ok(outcome.set.expect("a set was made"))
    }

    /// Removes a process set. Every rank of the world calls it; false if it is the first, or does not exist.
    pub fn remove_process_set(&self, set: u32) -> Result<bool, EngineError> {
        // In a forked child a lock may be held for ever by a thread that is not there.
        if !self.shared.is_ours() {
            return Err(EngineError::Forked);
        }
        if set == 0 || !self.shared.sets().known.contains_key(&set) {
            return Ok(false);
        }
        self.change_sets(Kind::RemoveSet, vec![u64::from(set)])?.wait()?;
        Ok(true)
    }

    fn change_sets(&self, kind: Kind, splits: Vec<u64>) -> Result<Handle, EngineError> {
        let spec = Spec { splits, ..Spec::new(kind, Vec::new()) };
        self.set(0)?.submit(&self.shared, Some(kind.name()), spec, (Vec::new(), None), false)
    }

    /// Numbers and ranks of all process sets.
    pub fn process_sets(&self) -> Vec<(u32, Vec<Rank>)> {
        self.shared.sets().known.iter().map(|(id, (ranks, _))| (*id, ranks.clone())).collect()
    }

    fn set(&self, id: u32) -> Result<Arc<Set>, EngineError> {
        if !self.shared.is_ours() {
            return Err(EngineError::Forked);
        }
        match self.shared.sets().known.get(&id) {
            None => Err(EngineError::NoSuchSet { set: id }),
            Some((_, None)) => Err(EngineError::NotAMember { rank: self.rank(), set: id }),
            Some((_, Some(set))) => Ok(set.clone()),
        }
    }

    /// Ends the engine on every rank: what was submitted by all still runs, everything else fails. Gives the communicator back, for another
    /// engine or for its own sake.
    pub fn shutdown(mut self) -> Result<Communicator, EngineError> {
        self.end()
    }

    fn end(&mut self) -> Result<Communicator, EngineError> {
        let (Some(control), Some(mover)) = (self.control.take(), self.mover.take()) else {
            return Err(EngineError::Taken);
        };
        if !self.shared.is_ours() {
            // The threads are the parent's.
            std::mem::forget((control, mover));
            return Err(EngineError::Forked);
        }
        if let Ok(set) = self.set(0) {
            set.drive(&self.shared, Input::Leave);
        }
        let gone = |_| EngineError::Failed(Arc::new(Error::Panicked { doing: "ran" }));
        control.join().map_err(gone)?;
        let communicator = mover.join().map_err(gone)?;
        self.shared.take_kept().into_iter().try_for_each(|mover| mover.join().map_err(gone))?;
        // A timeline that could not be written has said so; the communicator is as good as before.
        let _ = self.shared.timeline.stop();
        Ok(communicator)
    }
}

impl AsRef<Engine> for Engine {
    fn as_ref(&self) -> &Engine {
        self
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Its threads end by themselves, and nobody waits for them here. Without them it was shut down before.
            let is_running = self.control.is_some();
            std::mem::forget((self.control.take(), self.mover.take()));
            if is_running && self.shared.is_ours() {
                // The others learn of the panic, not of a shutdown; also where the process goes on without this thread.
                let why = "the thread that owned its engine panicked".to_string();
                let _ = self.shared.give_up(Doom::GaveUp { rank: self.rank(), why });
                let _ = self.shared.timeline.stop();
            }
            return;
        }
        // A caller that wants to know calls shutdown().
        let _ = self.end();
    }
}

/// Sorted, distinct ranks of the world.
fn well_formed(ranks: &[u32], n: u32) -> Result<Vec<Rank>, EngineError> {
    let bad = |why: String| Err(EngineError::BadSet(why));
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    if sorted.is_empty() {
        return bad("a process set needs at least one rank".into());
    }
    if let Some(rank) = sorted.iter().find(|r| **r >= n) {
        return bad(format!(
            "rank {rank} of the process set {ranks:?} does not exist in a world of {n} ranks"
        ));
    }
    if let Some(pair) = sorted.windows(2).find(|p| p[0] == p[1]) {
        return bad(format!("rank {} is listed twice in the process set {ranks:?}", pair[0]));
    }
    Ok(sorted.into_iter().map(Rank).collect())
}
