//! Ends training after a number of steps.

use super::{Hook, HookAction, StepInfo};

/// Counts steps: those of this session, or those of the whole training.
#[derive(Clone, Debug)]
pub struct StopAtStep {
    limit: Limit,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    Steps(u64),
    Last(u64),
}

impl StopAtStep {
    /// After this many steps of this session.
    pub fn after(n_steps: u64) -> StopAtStep {
        StopAtStep { limit: Limit::Steps(n_steps), last: n_steps }
    }

    /// After the step with this number, wherever the session begins.
    pub fn at(last: u64) -> StopAtStep {
        StopAtStep { limit: Limit::Last(last), last }
    }
}

impl Hook for StopAtStep {
    fn name(&self) -> &'static str {
        "StopAtStepHook"
    }

    fn begin(&mut self, step: u64) -> Vec<HookAction> {
        self.last = match self.limit {
            Limit::Steps(n) => step.saturating_add(n),
            Limit::Last(last) => last,
        };
        if step < self.last {
            return Vec::new();
        }
        let why = format!("the training has {step} steps, and {} are wanted", self.last);
        vec![HookAction::Stop { why }]
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        if info.step < self.last {
            return Vec::new();
        }
        vec![HookAction::Stop { why: format!("step {} was the last one", info.step) }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn stops(hook: &mut StopAtStep, from: u64) -> u64 {
        if !hook.begin(from).is_empty() {
            return from;
        }
        let is_over = |step: &u64| {
            let info = StepInfo { step: *step, now: Duration::ZERO, values: &[] };
            !hook.after(&info).is_empty()
        };
        (from + 1..from + 100).find(is_over).expect("it stops")
    }

    #[test]
    fn steps_of_the_session_and_of_the_training() {
        assert_eq!(stops(&mut StopAtStep::after(5), 0), 5);
        assert_eq!(stops(&mut StopAtStep::after(5), 30), 35);
        assert_eq!(stops(&mut StopAtStep::at(50), 30), 50);
        assert_eq!(stops(&mut StopAtStep::at(20), 30), 30, "a training that is over makes no step");
    }
}
