//! What a session is made with.

use super::{Hook, Period, ShardWriters};
use crate::Ranks;
use phalanx_checkpoint::{Keep, Strictness};
use phalanx_graph::Setup;
use std::{path::PathBuf, sync::Arc, time::Duration};

/// Ten minutes, as TensorFlow's sessions have it.
const SAVE_EVERY: Duration = Duration::from_secs(600);
const KEEP_LAST: usize = 5;

/// What a session is made with; begin with [`SessionOptions::new`].
pub struct SessionOptions {
    pub(super) ranks: Option<Arc<Ranks>>,
    pub(super) number: u64,
    pub(super) setup: Setup,
    pub(super) seed: u64,
    pub(super) checkpoint_dir: Option<PathBuf>,
    pub(super) save: Option<Period>,
    pub(super) keep: Keep,
    pub(super) shards: ShardWriters,
    pub(super) strictness: Strictness,
    pub(super) summaries: Option<PathBuf>,
    pub(super) hooks: Vec<Box<dyn Hook>>,
    pub(super) chief_only_hooks: Vec<Box<dyn Hook>>,
    pub(super) listens: bool,
}

impl std::fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.hooks.iter().map(|hook| hook.name()).collect();
        let mut fields = f.debug_struct("SessionOptions");
        fields.field("checkpoint_dir", &self.checkpoint_dir).field("hooks", &names).finish_non_exhaustive()
    }
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions::new()
    }
}

impl SessionOptions {
    /// Ranks from the environment, no checkpoints, no hooks; SIGTERM stops the session after its step.
    pub fn new() -> SessionOptions {
        SessionOptions {
            ranks: None,
            number: 0,
            setup: Setup::default(),
            seed: 1,
            checkpoint_dir: None,
            save: Some(Period::Time(SAVE_EVERY)),
            keep: Keep { last: KEEP_LAST, every: None },
            shards: ShardWriters::Each,
            strictness: Strictness::Exact,
            summaries: None,
            hooks: Vec::new(),
            chief_only_hooks: Vec::new(),
            listens: true,
        }
    }

    /// Ranks that other sessions and executors use as well.
    pub fn ranks(self, ranks: Arc<Ranks>) -> SessionOptions {
        SessionOptions { ranks: Some(ranks), ..self }
    }

    /// Tells this session from others of the same ranks that are open at the same time; ranks number theirs alike.
    pub fn number(self, number: u64) -> SessionOptions {
        SessionOptions { number, ..self }
    }

    /// Replicas, strategies and passes of the executor. Its `collective` is the session's own.
    pub fn setup(self, setup: Setup) -> SessionOptions {
        SessionOptions { setup, ..self }
    }

    /// Everything random comes from it, unless a checkpoint says otherwise.
    pub fn seed(self, seed: u64) -> SessionOptions {
        SessionOptions { seed, ..self }
    }

    /// The directory to resume from and to save to, every ten minutes unless [`SessionOptions::save`] says otherwise.
    pub fn checkpoints(self, dir: impl Into<PathBuf>) -> SessionOptions {
        SessionOptions { checkpoint_dir: Some(dir.into()), ..self }
    }

    /// How often to save; `None`: only where hooks and SIGTERM want it.
    pub fn save(self, period: Option<Period>) -> SessionOptions {
        SessionOptions { save: period, ..self }
    }

    /// Which checkpoints stay.
    pub fn keep(self, keep: Keep) -> SessionOptions {
        SessionOptions { keep, ..self }
    }

    /// Who writes shards: where hosts have no common directory, [`ShardWriters::chief`] sends them to rank 0. The same on all ranks.
    pub fn shards(self, shards: ShardWriters) -> SessionOptions {
        SessionOptions { shards, ..self }
    }

    /// What happens to tensors that only the checkpoint or only the program has.
    pub fn strictness(self, strictness: Strictness) -> SessionOptions {
        SessionOptions { strictness, ..self }
    }

    /// The directory for event files, written by the chief.
    pub fn summaries(self, dir: impl Into<PathBuf>) -> SessionOptions {
        SessionOptions { summaries: Some(dir.into()), ..self }
    }

    /// Asked after every step on every rank, in this order (HOOK-1).
    pub fn hook(mut self, hook: impl Hook + 'static) -> SessionOptions {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Asked on the chief only, after the others.
    pub fn chief_only_hook(mut self, hook: impl Hook + 'static) -> SessionOptions {
        self.chief_only_hooks.push(Box::new(hook));
        self
    }

    /// Leaves SIGTERM as it is.
    pub fn ignore_signals(self) -> SessionOptions {
        SessionOptions { listens: false, ..self }
    }
}
