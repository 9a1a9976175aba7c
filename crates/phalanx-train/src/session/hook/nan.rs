//! Ends training when the loss is not a number any more.

use super::{Hook, HookAction, StepInfo};

/// As an error, or as an ordinary end.
#[derive(Clone, Debug)]
pub struct NanLoss {
    loss: String,
    fails: bool,
}

impl NanLoss {
    /// Looks at the value of this name; `fails`: NaN is an error.
    pub fn new(loss: impl Into<String>, fails: bool) -> NanLoss {
        NanLoss { loss: loss.into(), fails }
    }
}

impl Hook for NanLoss {
    fn name(&self) -> &'static str {
        "NanTensorHook"
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        match info.value(&self.loss) {
            Some(value) if value.is_finite() => Vec::new(),
            Some(value) => {
                let why = format!("{} is {value} at step {}", self.loss, info.step);
                vec![if self.fails { HookAction::Fail { why } } else { HookAction::Stop { why } }]
            }
            None => {
                let has: Vec<&str> = info.values.iter().map(|(name, _)| name.as_str()).collect();
                let why =
                    format!("{:?} is not fetched at step {}; fetched are {has:?}", self.loss, info.step);
                vec![HookAction::Fail { why }]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_not_finite_ends_it_and_a_name_that_is_not_fetched_is_told() {
        let after = |name: &str, value: f64, fails| {
            let values = [("loss".to_string(), value)];
            NanLoss::new(name, fails).after(&StepInfo { step: 3, now: Duration::ZERO, values: &values })
        };
        assert_eq!(after("loss", 1.0, true), []);
        assert_eq!(after("loss", f64::NAN, true), [HookAction::Fail { why: "loss is NaN at step 3".into() }]);
        assert_eq!(
            after("loss", f64::INFINITY, false),
            [HookAction::Stop { why: "loss is inf at step 3".into() }]
        );
        assert!(
            matches!(&after("los", 1.0, false)[..], [HookAction::Fail { why }] if why.contains("\"loss\""))
        );
    }
}
