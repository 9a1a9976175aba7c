//! Sessions: a training loop that resumes by itself, stops on all ranks after the same step, and survives `kill -9`.
//!
//! [`Session`] trains a static program. [`Boundary`], [`Writer`] and the hooks are what every session is made of, whatever its steps
//! are; Python's sessions use the same ones.
//!
//! - SESS-1: the chief takes the newest whole checkpoint, or begins anew; the other ranks take over what it has.
//! - SESS-2: training that was killed and resumed has the bits of training that was not, from the last saved step on.

mod asked;
mod boundary;
mod error;
mod hook;
mod options;
mod peers;
mod restore;
mod sent;
mod store_part;
mod vote;
mod writer;

pub use boundary::{Boundary, StepVerdict, StepWish, Stopped};
pub use error::SessionError;
pub use hook::{
    Better, EarlyStopping, Hook, HookAction, Logging, NanLoss, Period, Profiler, SaveCheckpoints,
    StepCounter, StepInfo, StopAtStep, StopAtTime, Summaries, Timer,
};
pub use options::SessionOptions;
pub use peers::Peers;
pub use restore::{StateOrigin, Wanted, restore, share};
pub use sent::ShardWriters;
pub use store_part::StorePart;
pub use vote::Reason;
pub use writer::Writer;

use crate::{
    Ranks,
    events::{EventError, EventWriter},
};
use phalanx_checkpoint::{About, mark_done};
use phalanx_core::DType;
use phalanx_graph::{Feed, Fetch, ParallelExecutor, Program, Setup, Store, exec::Fetched};
use std::{path::PathBuf, sync::Arc, time::Instant};

/// Trains a static program, with all ranks of a world.
///
/// ```no_run
/// # use phalanx_graph::{Feed, Fetch, Program, Tensor};
/// # use phalanx_train::session::{Session, SessionOptions, StopAtStep};
/// # fn train(program: Program, digits: Tensor) -> Result<(), Box<dyn std::error::Error>> {
/// let options = SessionOptions::new().checkpoints("checkpoints").hook(StopAtStep::at(1000));
/// let mut session = Session::new(&program, "loss", options)?;
/// while !session.should_stop() {
///     session.run(&[("image", Feed::Split(&digits))], &[Fetch::mean("loss")])?;
/// }
/// session.close()?;
/// # Ok(())
/// # }
/// ```
pub struct Session {
    program: Program,
    executor: ParallelExecutor,
    store: Store,
    peers: Arc<Peers>,
    boundary: Boundary,
    writer: Option<Writer>,
    hooks: Vec<Box<dyn Hook>>,
    events: Option<EventWriter>,
    checkpoint_dir: Option<PathBuf>,
    begin: Instant,
    step: u64,
    origin: StateOrigin,
    /// What the program asked for since the last step.
    asked: Option<Reason>,
    stopped: Option<Stopped>,
    /// What failed on this rank alone; all ranks learn of it at the next boundary (BOUND-2).
    fault: Option<Reason>,
    /// The last call failed: the values may be those of a step that was cut off.
    is_failed: bool,
    /// All ranks have agreed on a failure.
    is_closed: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("Session");
        fields.field("step", &self.step).field("stopped", &self.stopped).finish_non_exhaustive()
    }
}

impl Session {
    /// Joins the other ranks, and takes over the newest checkpoint if there is one (SESS-1).
    pub fn new(program: &Program, loss: &str, options: SessionOptions) -> Result<Session, SessionError> {
        let ranks = match options.ranks {
            Some(ranks) => ranks,
            None => Arc::new(Ranks::from_env().map_err(SessionError::Engine)?),
        };
        let peers = Arc::new(ranks.peers(options.number));
        let setup = Setup { collective: ranks, ..options.setup };
        let executor = ParallelExecutor::new(program, Some(loss), setup).map_err(SessionError::Build)?;
        let program = program.clone();
        let mut store = Store::new(options.seed);
        store.admit(&program).map_err(SessionError::Run)?;
        let dir = options.checkpoint_dir;
        let mut writer = Writer::start(dir.as_deref(), options.keep, options.shards, peers.clone())?;
        let origin = match &dir {
            Some(dir) => {
                let mut part = StorePart::new(&program, &mut store);
                restore(Wanted::Newest(dir), &mut part, &peers, options.strictness)?
            }
            None => StateOrigin::Anew,
        };
        if let StateOrigin::Checkpoint { about, .. } = &origin {
            store.set_randomness(about.seed, about.run);
        }
        let step = origin.step();
        let mut boundary = Boundary::new(peers.clone(), dir.is_some(), options.listens);
        let mut hooks = options.hooks;
        if peers.is_chief() {
            hooks.extend(options.chief_only_hooks);
        }
        // One clock decides: ranks with clocks of their own would each save, one step after the other.
        if let (Some(_), Some(period), true) = (&dir, options.save, peers.is_chief()) {
            hooks.push(Box::new(SaveCheckpoints::new(period)));
        }
        let events = options.summaries.as_deref().filter(|_| peers.is_chief()).map(EventWriter::create);
        // Only the chief has it: its failure is told, not returned, because the other ranks are on their way to the boundary.
        let (events, fail) = match events.transpose() {
            Ok(events) => (events, None),
            Err(why) => (None, Some(no_events(&why))),
        };
        let mut wish = StepWish { fail, ..StepWish::default() };
        let mut todo = Vec::new();
        for hook in &mut hooks {
            let by = hook.name();
            todo.extend(wish.take(by, hook.begin(step)));
        }
        let stopped = boundary.cross(step, wish, None)?.stopped;
        if let Some(writer) = &mut writer {
            writer.begun();
        }
        let mut session = Session {
            program,
            executor,
            store,
            peers,
            boundary,
            writer,
            hooks,
            events,
            checkpoint_dir: dir,
            begin: Instant::now(),
            step,
            origin,
            asked: None,
            stopped,
            fault: None,
            is_failed: false,
            is_closed: false,
        };
        session.act(todo);
        Ok(session)
    }

    /// Steps of the whole training so far.
    pub fn global_step(&self) -> u64 {
        self.step
    }

    /// Where the values came from.
    pub fn origin(&self) -> &StateOrigin {
        &self.origin
    }

    /// Whether all ranks have stopped; the same on all of them (BOUND-1).
    pub fn should_stop(&self) -> bool {
        self.stopped.is_some() || self.is_closed
    }

    /// Why, by whom and when.
    pub fn stopped(&self) -> Option<&Stopped> {
        self.stopped.as_ref()
    }

    /// All ranks stop after the next step of this rank, or after this one.
    pub fn request_stop(&mut self, why: impl Into<String>) {
        self.asked.get_or_insert(Reason { by: "the program".into(), why: why.into() });
    }

    /// The values, to look at them between steps.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// One step. Hooks see every fetch that is one number, under its name.
    pub fn run(
        &mut self,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
    ) -> Result<Vec<Fetched>, SessionError> {
        if self.should_stop() {
            return Err(SessionError::Ended);
        }
        let out = self.run_step(feeds, fetch);
        // A step that runs after one that did not shows that the caller has mended it.
        self.is_failed = out.is_err();
        out
    }

    fn run_step(
        &mut self,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
    ) -> Result<Vec<Fetched>, SessionError> {
        let next = self.step + 1;
        let before: Vec<HookAction> = self.hooks.iter_mut().flat_map(|hook| hook.before(next)).collect();
        self.act(before);
        let out = self.executor.run(&mut self.store, feeds, fetch).map_err(SessionError::Run)?;
        self.step = next;
        let names = fetch.iter().map(|fetch| fetch.name);
        let values: Vec<(String, f64)> =
            names.zip(&out).filter_map(|(name, out)| Some((name.to_string(), number(out)?))).collect();
        let info = StepInfo { step: next, now: self.begin.elapsed(), values: &values };
        let mut wish = StepWish { stop: self.asked.take(), ..StepWish::default() };
        let mut todo = Vec::new();
        for hook in &mut self.hooks {
            let by = hook.name();
            todo.extend(wish.take(by, hook.after(&info)));
        }
        self.act(todo);
        wish.fail = wish.fail.or(self.fault.take());
        let verdict = self.boundary.cross(next, wish, self.writer.as_mut());
        let verdict = verdict.inspect_err(|_| self.is_closed = true)?;
        if verdict.saves {
            self.save().inspect_err(|_| self.is_closed = true)?;
        }
        self.stopped = verdict.stopped;
        Ok(out)
    }

    fn save(&mut self) -> Result<(), SessionError> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        // Every rank is here: all of them save after the same step.
        self.executor.gather(&mut self.store).map_err(SessionError::Run)?;
        let (seed, run) = self.store.randomness();
        let world = self.peers.n_ranks;
        let about = About { step: self.step, seed, run, world, ..About::default() };
        writer.save(about, &StorePart::new(&self.program, &mut self.store))
    }

    /// Does what hooks of this rank alone want. What fails waits for the next boundary.
    fn act(&mut self, actions: Vec<HookAction>) {
        for action in actions {
            match action {
                HookAction::Log { line } if self.peers.is_chief() => {
                    tracing::info!(target: "phalanx::session", "{line}");
                }
                HookAction::Summary { tag, value } => {
                    let events = self.events.as_mut();
                    let written = events.map(|events| events.scalar(self.step, &tag, value as f32));
                    if let Some(Err(why)) = written {
                        self.fault.get_or_insert(no_events(&why));
                    }
                }
                HookAction::Profile { on } => self.executor.record(on),
                HookAction::Log { .. }
                | HookAction::Save
                | HookAction::Stop { .. }
                | HookAction::Fail { .. } => {}
            }
        }
    }

    /// Ends the session on all ranks: the last step is saved, and the mark `done` tells evaluators that no more comes. After a failure there is
    /// neither, so that the next start goes on from the last step that was saved.
    pub fn close(mut self) -> Result<(), SessionError> {
        let step = self.step;
        let (mut wish, mut todo) = (StepWish::default(), Vec::new());
        for hook in &mut self.hooks {
            let by = hook.name();
            todo.extend(wish.take(by, hook.end(step)));
        }
        self.act(todo);
        wish.fail = wish.fail.or(self.fault.take());
        let has_failed = self.is_closed || self.is_failed;
        if !has_failed {
            let verdict = self.boundary.cross(step, wish, self.writer.as_mut())?;
            if verdict.saves && self.writer.as_ref().is_some_and(|w| w.newest() != Some(step)) {
                self.save()?;
            }
        }
        match self.writer.as_mut().map_or(Ok(()), Writer::wait) {
            // All ranks have been told why they end.
            Err(error) if has_failed => tracing::warn!(%error, "a session that has failed did not save"),
            waited => waited?,
        }
        let is_finished = !has_failed && self.stopped.as_ref().is_none_or(|stopped| !stopped.is_asked);
        if let Some(dir) = self.checkpoint_dir.as_ref().filter(|_| is_finished && self.peers.is_chief()) {
            mark_done(dir).map_err(SessionError::Checkpoint)?;
        }
        if let Some(events) = &mut self.events {
            events.flush().map_err(SessionError::Events)?;
        }
        Ok(())
    }
}

fn no_events(why: &EventError) -> Reason {
    Reason { by: "the event file".into(), why: why.to_string() }
}

/// A fetched value, if it is one number.
fn number(out: &Fetched) -> Option<f64> {
    let Fetched::One(tensor) = out else {
        return None;
    };
    match tensor.dtype() {
        DType::F32 => {
            tensor.data::<f32>().ok().and_then(|all| <[f32; 1]>::try_from(all).ok()).map(|[v]| f64::from(v))
        }
        DType::F64 => tensor.data::<f64>().ok().and_then(|all| <[f64; 1]>::try_from(all).ok()).map(|[v]| v),
        _ => None,
    }
}
