//! What is done beside the steps of a session: a hook looks at each step and answers with actions; it never acts itself.
//!
//! Hooks are pure: time and values are given to them. So each can be tested without ranks, and Python uses the same ones.
//! - HOOK-1: every rank asks its hooks after every step, in the order in which they were given.

mod early_stopping;
mod logging;
mod nan;
mod profiler;
mod save;
mod step_counter;
mod stop_at_step;
mod stop_at_time;
mod summary;
mod timer;

pub use early_stopping::{Better, EarlyStopping};
pub use logging::Logging;
pub use nan::NanLoss;
pub use profiler::Profiler;
pub use save::SaveCheckpoints;
pub use step_counter::StepCounter;
pub use stop_at_step::StopAtStep;
pub use stop_at_time::StopAtTime;
pub use summary::Summaries;
pub use timer::{Period, Timer};

use std::time::Duration;

/// A step that has just ended on this rank.
#[derive(Clone, Copy, Debug)]
pub struct StepInfo<'a> {
    /// Steps of the whole training, this one included.
    pub step: u64,
    /// Since the session began; never goes back.
    pub now: Duration,
    /// What was fetched, by name: one number each.
    pub values: &'a [(String, f64)],
}

impl StepInfo<'_> {
    /// A fetched value.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }
}

/// What a hook wants to happen.
#[derive(Clone, Debug, PartialEq)]
pub enum HookAction {
    /// Training ends for all ranks after this step.
    Stop { why: String },
    /// Training ends for all ranks after this step, and is an error.
    Fail { why: String },
    /// All ranks save a checkpoint of this step.
    Save,
    /// A point of a curve.
    Summary { tag: String, value: f64 },
    /// A line for people to read.
    Log { line: String },
    /// The recording of the next steps begins, or ends.
    Profile { on: bool },
}

/// Looks at the steps of a session.
pub trait Hook: Send {
    /// For messages.
    fn name(&self) -> &'static str;

    /// The session begins, or goes on, after this many steps.
    fn begin(&mut self, _step: u64) -> Vec<HookAction> {
        Vec::new()
    }

    /// A step with this number is about to run.
    fn before(&mut self, _step: u64) -> Vec<HookAction> {
        Vec::new()
    }

    /// A step has ended.
    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction>;

    /// The session ends after this many steps.
    fn end(&mut self, _step: u64) -> Vec<HookAction> {
        Vec::new()
    }
}
