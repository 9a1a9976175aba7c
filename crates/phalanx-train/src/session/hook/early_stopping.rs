//! Ends training when a value has not become better for a number of looks.

use super::{Hook, HookAction, Period, StepInfo, Timer};

/// Which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

/// Looks at one value, again and again.
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    name: String,
    better: Better,
    /// How much better counts.
    least: f64,
    /// Looks without a better one.
    patience: u64,
    timer: Timer,
    best: Option<f64>,
    n_worse: u64,
}

impl EarlyStopping {
    pub fn new(
        name: impl Into<String>,
        better: Better,
        least: f64,
        patience: u64,
        looks: Period,
    ) -> EarlyStopping {
        let (name, timer) = (name.into(), Timer::new(looks));
        EarlyStopping { name, better, least, patience, timer, best: None, n_worse: 0 }
    }

    fn is_better(&self, value: f64) -> bool {
        let Some(best) = self.best else { return !value.is_nan() };
        match self.better {
            Better::Lower => value < best - self.least,
            Better::Higher => value > best + self.least,
        }
    }
}

impl Hook for EarlyStopping {
    fn name(&self) -> &'static str {
        "EarlyStoppingHook"
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        // A value that is not measured in this step is no look.
        let Some(value) = info.value(&self.name) else { return Vec::new() };
        if !self.timer.is_due(info.step, info.now) {
            return Vec::new();
        }
        if self.is_better(value) {
            (self.best, self.n_worse) = (Some(value), 0);
            return Vec::new();
        }
        self.n_worse += 1;
        if self.n_worse < self.patience {
            return Vec::new();
        }
        let best = self.best.map_or("never a number".to_string(), |best| format!("{best} at best"));
        let why = format!("{} was {best} and has not become better in {} looks", self.name, self.n_worse);
        vec![HookAction::Stop { why }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ends(mut hook: EarlyStopping, values: &[f64]) -> Option<usize> {
        values.iter().enumerate().position(|(i, &value)| {
            let values = [("loss".to_string(), value)];
            let info = StepInfo { step: i as u64 + 1, now: Duration::ZERO, values: &values };
            !hook.after(&info).is_empty()
        })
    }

    #[test]
    fn patience_is_counted_from_the_best_value() {
        let hook = |better, least| EarlyStopping::new("loss", better, least, 2, Period::Steps(1));
        assert_eq!(ends(hook(Better::Lower, 0.0), &[3.0, 2.0, 2.5, 1.0, 1.5, 1.2, 0.0]), Some(5));
        assert_eq!(ends(hook(Better::Higher, 0.0), &[3.0, 4.0, 5.0, 6.0]), None);
        assert_eq!(ends(hook(Better::Lower, 0.5), &[3.0, 2.8, 2.6]), Some(2), "too little is not better");
        assert_eq!(ends(hook(Better::Lower, 0.0), &[f64::NAN, f64::NAN]), Some(1));
    }
}
