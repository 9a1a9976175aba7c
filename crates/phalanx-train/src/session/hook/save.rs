//! Saves checkpoints, after a number of steps or of seconds, and at the end.

use super::{Hook, HookAction, Period, StepInfo, Timer};
use std::time::Duration;

/// A session that ends is saved, too, unless its last step was saved already.
#[derive(Clone, Debug)]
pub struct SaveCheckpoints {
    period: Period,
    timer: Timer,
    saved: u64,
}

impl SaveCheckpoints {
    pub fn new(period: Period) -> SaveCheckpoints {
        SaveCheckpoints { period, timer: Timer::from(period, 0, Duration::ZERO), saved: 0 }
    }
}

impl Hook for SaveCheckpoints {
    fn name(&self) -> &'static str {
        "CheckpointSaverHook"
    }

    fn begin(&mut self, step: u64) -> Vec<HookAction> {
        self.saved = step;
        self.timer = Timer::from(self.period, step, Duration::ZERO);
        Vec::new()
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        if !self.timer.is_due(info.step, info.now) {
            return Vec::new();
        }
        self.saved = info.step;
        vec![HookAction::Save]
    }

    fn end(&mut self, step: u64) -> Vec<HookAction> {
        if step == self.saved { Vec::new() } else { vec![HookAction::Save] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(hook: &mut SaveCheckpoints, from: u64, to: u64) -> Vec<u64> {
        hook.begin(from);
        let due = |step: &u64| {
            let info = StepInfo { step: *step, now: Duration::from_secs(step - from), values: &[] };
            hook.after(&info) == [HookAction::Save]
        };
        (from + 1..=to).filter(due).collect()
    }

    #[test]
    fn it_saves_a_period_after_the_beginning_and_at_an_end_that_was_not_saved() {
        let mut hook = SaveCheckpoints::new(Period::Steps(10));
        assert_eq!(saved(&mut hook, 5, 30), [15, 25]);
        assert_eq!(hook.end(30), [HookAction::Save]);
        assert_eq!(hook.end(25), []);
        let mut hook = SaveCheckpoints::new(Period::Time(Duration::from_secs(4)));
        assert_eq!(saved(&mut hook, 100, 110), [104, 108]);
    }
}
