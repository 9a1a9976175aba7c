//! Prints fetched values for people to read.

use super::{Hook, HookAction, Period, StepInfo, Timer};

/// One line: the step, then each value by its name.
#[derive(Clone, Debug)]
pub struct Logging {
    timer: Timer,
    only: Option<Vec<String>>,
}

impl Logging {
    pub fn new(period: Period) -> Logging {
        Logging { timer: Timer::new(period), only: None }
    }

    /// Values of these names only.
    pub fn of(period: Period, names: Vec<String>) -> Logging {
        Logging { timer: Timer::new(period), only: Some(names) }
    }
}

impl Hook for Logging {
    fn name(&self) -> &'static str {
        "LoggingTensorHook"
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        if !self.timer.is_due(info.step, info.now) {
            return Vec::new();
        }
        let is_wanted = |name: &str| self.only.as_ref().is_none_or(|only| only.iter().any(|n| n == name));
        let values = info.values.iter().filter(|(name, _)| is_wanted(name));
        let values: Vec<String> = values.map(|(name, value)| format!("{name} = {value:.6}")).collect();
        let line = match values.as_slice() {
            [] => format!("step {}", info.step),
            _ => format!("step {}: {}", info.step, values.join(", ")),
        };
        vec![HookAction::Log { line }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_line_has_the_step_and_the_chosen_values() {
        let values = [("loss".to_string(), 0.25), ("rate".to_string(), 1.0)];
        let info = StepInfo { step: 7, now: Duration::ZERO, values: &values };
        let said = Logging::of(Period::Steps(1), vec!["loss".into()]).after(&info);
        assert_eq!(said, [HookAction::Log { line: "step 7: loss = 0.250000".into() }]);
        assert_eq!(
            Logging::new(Period::Steps(1)).after(&StepInfo { values: &[], ..info }),
            [HookAction::Log { line: "step 7".into() }]
        );
    }
}
