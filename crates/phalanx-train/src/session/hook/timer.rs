//! When something that repeats is due: after a number of steps, or of seconds.

use std::time::Duration;

/// How often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Period {
    Steps(u64),
    Time(Duration),
}

/// Remembers when it was due last. The first step is always due.
#[derive(Clone, Debug)]
pub struct Timer {
    period: Period,
    last: Option<(u64, Duration)>,
}

impl Timer {
    pub fn new(period: Period) -> Timer {
        Timer { period, last: None }
    }

    /// One that is due for the first time a whole period from now.
    pub fn from(period: Period, step: u64, now: Duration) -> Timer {
        Timer { period, last: Some((step, now)) }
    }

    /// Whether it is due; if so, it is due again a period later.
    pub fn is_due(&mut self, step: u64, now: Duration) -> bool {
        let is_due = match (self.last, self.period) {
            (None, _) => true,
            (Some((last, _)), Period::Steps(n)) => step >= last.saturating_add(n.max(1)),
            (Some((_, last)), Period::Time(period)) => now >= last.saturating_add(period),
        };
        if is_due {
            self.last = Some((step, now));
        }
        is_due
    }

    /// Steps and time since it was due last.
    pub fn since(&self, step: u64, now: Duration) -> Option<(u64, Duration)> {
        let (last, at) = self.last?;
        Some((step.saturating_sub(last), now.saturating_sub(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_from_the_first() {
        let mut timer = Timer::new(Period::Steps(3));
        let due: Vec<u64> = (1..=10).filter(|&step| timer.is_due(step, Duration::ZERO)).collect();
        assert_eq!(due, [1, 4, 7, 10]);
    }

    #[test]
    fn time_is_counted_from_the_last_time() {
        let mut timer = Timer::from(Period::Time(Duration::from_secs(10)), 0, Duration::ZERO);
        let due: Vec<u64> =
            (1..=30).filter(|&step| timer.is_due(step, Duration::from_secs(step * 3))).collect();
        assert_eq!(due, [4, 8, 12, 16, 20, 24, 28]);
    }
}
