//! Ends training after a time.

use super::{Hook, HookAction, StepInfo};
use std::time::Duration;

/// Measures from the session's beginning, by a clock that never goes back. Without time left it ends after one step.
#[derive(Clone, Debug)]
pub struct StopAtTime {
    time: Duration,
}

impl StopAtTime {
    pub fn new(time: Duration) -> StopAtTime {
        StopAtTime { time }
    }

    /// Numbers below zero, and those that are none, count as zero.
    pub fn seconds(seconds: f64) -> StopAtTime {
        StopAtTime::new(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
    }
}

impl Hook for StopAtTime {
    fn name(&self) -> &'static str {
        "StopAtTimeHook"
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        if info.now < self.time {
            return Vec::new();
        }
        vec![HookAction::Stop { why: format!("{:.1} s have passed", info.now.as_secs_f64()) }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_less_end_after_one_step() {
        for seconds in [0.0, -3.0, f64::NAN, f64::NEG_INFINITY] {
            let info = StepInfo { step: 1, now: Duration::ZERO, values: &[] };
            assert_eq!(StopAtTime::seconds(seconds).after(&info).len(), 1, "{seconds}");
        }
        let late = StepInfo { step: 9, now: Duration::from_secs(1), values: &[] };
        assert_eq!(StopAtTime::seconds(1.5).after(&late), []);
        assert_eq!(StopAtTime::seconds(f64::INFINITY).after(&late), []);
    }
}
