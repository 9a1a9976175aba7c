//! Tells how many steps a second are made.

use super::{Hook, HookAction, Period, StepInfo, Timer};
use std::time::Duration;

/// A line and a point of a curve, each time it is due.
#[derive(Clone, Debug)]
pub struct StepCounter {
    period: Period,
    timer: Timer,
}

impl StepCounter {
    pub fn new(period: Period) -> StepCounter {
        StepCounter { period, timer: Timer::from(period, 0, Duration::ZERO) }
    }
}

impl Hook for StepCounter {
    fn name(&self) -> &'static str {
        "StepCounterHook"
    }

    fn begin(&mut self, step: u64) -> Vec<HookAction> {
        self.timer = Timer::from(self.period, step, Duration::ZERO);
        Vec::new()
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        let since = self.timer.since(info.step, info.now);
        if !self.timer.is_due(info.step, info.now) {
            return Vec::new();
        }
        let Some((steps, time)) = since.filter(|(_, time)| !time.is_zero()) else { return Vec::new() };
        let value = steps as f64 / time.as_secs_f64();
        let line = format!("step {}: {value:.1} steps/s", info.step);
        vec![HookAction::Summary { tag: "global_step/sec".into(), value }, HookAction::Log { line }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_divided_by_the_time_they_took() {
        let mut hook = StepCounter::new(Period::Steps(10));
        hook.begin(100);
        let info = |step| StepInfo { step, now: Duration::from_secs((step - 100) / 5), values: &[] };
        assert!((101..110).all(|step| hook.after(&info(step)).is_empty()));
        let tag = "global_step/sec".to_string();
        let line = "step 110: 5.0 steps/s".to_string();
        assert_eq!(
            hook.after(&info(110)),
            [HookAction::Summary { tag, value: 5.0 }, HookAction::Log { line }]
        );
    }
}
