//! Writes what was fetched as points of curves.

use super::{Hook, HookAction, Period, StepInfo, Timer};

/// All fetched values, or those of some names.
#[derive(Clone, Debug)]
pub struct Summaries {
    timer: Timer,
    only: Option<Vec<String>>,
}

impl Summaries {
    pub fn new(period: Period) -> Summaries {
        Summaries { timer: Timer::new(period), only: None }
    }

    /// Values of these names only.
    pub fn of(period: Period, names: Vec<String>) -> Summaries {
        Summaries { timer: Timer::new(period), only: Some(names) }
    }
}

impl Hook for Summaries {
    fn name(&self) -> &'static str {
        "SummarySaverHook"
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        if !self.timer.is_due(info.step, info.now) {
            return Vec::new();
        }
        let is_wanted = |name: &String| self.only.as_ref().is_none_or(|only| only.contains(name));
        let point = |(tag, value): &(String, f64)| HookAction::Summary { tag: tag.clone(), value: *value };
        info.values.iter().filter(|(name, _)| is_wanted(name)).map(point).collect()
    }
}
