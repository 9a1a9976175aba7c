//! Records some steps.

use super::{Hook, HookAction, StepInfo};
use std::ops::Range;

/// A range of steps, or one step in every `n`, on some ranks or on all.
#[derive(Clone, Debug)]
pub struct Profiler {
    which: Which,
    is_on: bool,
}

#[derive(Clone, Debug)]
enum Which {
    Range(Range<u64>),
    Every(u64),
}

impl Profiler {
    /// Steps of this range, counted from 1.
    pub fn range(steps: Range<u64>) -> Profiler {
        Profiler { which: Which::Range(steps), is_on: false }
    }

    /// One step in every `n`.
    pub fn every(n: u64) -> Profiler {
        Profiler { which: Which::Every(n.max(1)), is_on: false }
    }

    fn turn(&mut self, on: bool) -> Vec<HookAction> {
        if std::mem::replace(&mut self.is_on, on) == on {
            Vec::new()
        } else {
            vec![HookAction::Profile { on }]
        }
    }
}

impl Hook for Profiler {
    fn name(&self) -> &'static str {
        "ProfilerHook"
    }

    fn before(&mut self, step: u64) -> Vec<HookAction> {
        let on = match &self.which {
            Which::Range(range) => range.contains(&step),
            Which::Every(n) => step.is_multiple_of(*n),
        };
        self.turn(on)
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        let goes_on = match &self.which {
            Which::Range(range) => range.contains(&info.step.saturating_add(1)),
            Which::Every(n) => *n == 1,
        };
        if goes_on { Vec::new() } else { self.turn(false) }
    }

    fn end(&mut self, _step: u64) -> Vec<HookAction> {
        self.turn(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn recorded(mut hook: Profiler, steps: Range<u64>) -> Vec<u64> {
        let (mut is_on, mut seen) = (false, Vec::new());
        let turn = |actions: Vec<HookAction>, is_on: &mut bool| {
            for action in actions {
                let HookAction::Profile { on } = action else { panic!("{action:?}") };
                *is_on = on;
            }
        };
        for step in steps {
            turn(hook.before(step), &mut is_on);
            if is_on {
                seen.push(step);
            }
            turn(hook.after(&StepInfo { step, now: Duration::ZERO, values: &[] }), &mut is_on);
        }
        turn(hook.end(0), &mut is_on);
        assert!(!is_on);
        seen
    }

    #[test]
    fn a_range_and_every_nth_step_are_recorded() {
        assert_eq!(recorded(Profiler::range(3..6), 1..10), [3, 4, 5]);
        assert_eq!(recorded(Profiler::range(8..60), 1..10), [8, 9]);
        assert_eq!(recorded(Profiler::every(4), 1..13), [4, 8, 12]);
        assert_eq!(recorded(Profiler::every(1), 1..4), [1, 2, 3]);
    }
}
