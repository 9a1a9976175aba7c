//! Optimizers, as Python names them.

use super::form;
use phalanx_graph::{
    Clip, Names, Optimizer, Rule,
    op::{Adadelta, Adamax, DecayedAdagrad, Ftrl, LambDirection},
};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::collections::BTreeMap;

/// What a rule, or a way to clip, is made with, by name.
pub type Numbers = BTreeMap<String, f64>;

/// An optimizer, as Python writes it down. Every number of a rule must be given, and no other.
#[derive(FromPyObject)]
pub struct OptimizerSpec {
    rule: String,
    numbers: Numbers,
    /// A schedule, as programs have it.
    rate: String,
    decay: Option<f64>,
    sign_decay: Option<f64>,
    clip: Option<(String, Numbers)>,
    /// What its own variables are called after.
    label: String,
    /// The name of its rate.
    rate_name: String,
}

impl OptimizerSpec {
    pub fn optimizer(self) -> PyResult<Optimizer> {
        let clip = self.clip.map(|(name, numbers)| clip(&name, numbers)).transpose()?;
        let names = Names { rate: self.rate_name, ..Names::of(&self.label) };
        Ok(Optimizer {
            rule: rule(&self.rule, self.numbers)?,
            rate: form::read("schedule of learning rates", &self.rate)?,
            decay: self.decay,
            sign_decay: self.sign_decay,
            clip,
            names: Some(names),
            is_rate_kept: true,
        })
    }
}

fn rule(name: &str, numbers: Numbers) -> PyResult<Rule> {
    let mut take = Taking { name, numbers };
    let rule = match name {
        "sgd" => Rule::Sgd,
        "momentum" => {
            Rule::Momentum { mu: take.number("momentum")?, nesterov: take.number("use_nesterov")? != 0.0 }
        }
        "adam" => Rule::Adam {
            beta1: take.number("beta1")?,
            beta2: take.number("beta2")?,
            epsilon: take.number("epsilon")?,
        },
        "adamw" => Rule::AdamW {
            beta1: take.number("beta1")?,
            beta2: take.number("beta2")?,
            epsilon: take.number("epsilon")?,
            decay: take.number("weight_decay")?,
        },
        "adagrad" => Rule::AdagradFrom {
            epsilon: take.number("epsilon")?,
            first: take.number("initial_accumulator_value")?,
        },
        "rmsprop" => Rule::RmsPropUnderRoot {
            rho: take.number("rho")?,
            epsilon: take.number("epsilon")?,
            mu: take.number("momentum")?,
        },
        "lars" => Rule::Lars {
            mu: take.number("momentum")?,
            coefficient: take.number("lars_coeff")?,
            decay: take.number("lars_weight_decay")?,
        },
        "adamax" => Rule::Adamax(Adamax {
            beta1: take.number("beta1")?,
            beta2: take.number("beta2")?,
            epsilon: take.number("epsilon")?,
        }),
        "adadelta" => Rule::Adadelta(Adadelta { rho: take.number("rho")?, epsilon: take.number("epsilon")? }),
        "decayed_adagrad" => Rule::DecayedAdagrad(DecayedAdagrad {
            decay: take.number("decay")?,
            epsilon: take.number("epsilon")?,
        }),
        "ftrl" => Rule::Ftrl(Ftrl {
            l1: take.number("l1")?,
            l2: take.number("l2")?,
            power: take.number("lr_power")?,
        }),
        "lamb" => Rule::Lamb(LambDirection {
            beta1: take.number("beta1")?,
            beta2: take.number("beta2")?,
            epsilon: take.number("epsilon")?,
            decay: take.number("lamb_weight_decay")?,
        }),
        _ => return Err(PyValueError::new_err(format!("there is no optimizer {name:?}"))),
    };
    take.end()?;
    Ok(rule)
}

fn clip(name: &str, numbers: Numbers) -> PyResult<Clip> {
    let mut take = Taking { name, numbers };
    let clip = match name {
        "value" => Clip::Value { low: take.number("min")?, high: take.number("max")? },
        "norm" => Clip::Norm(take.number("clip_norm")?),
        "global_norm" => Clip::GlobalNorm(take.number("clip_norm")?),
        _ => return Err(PyValueError::new_err(format!("gradients cannot be clipped by {name:?}"))),
    };
    take.end()?;
    Ok(clip)
}

struct Taking<'a> {
    name: &'a str,
    numbers: Numbers,
}

impl Taking<'_> {
    fn number(&mut self, which: &str) -> PyResult<f64> {
        match self.numbers.remove(which) {
            // A program with anything else could not be written down.
            Some(number) if number.is_finite() => Ok(number),
            Some(number) => {
                let text = format!("{}: {which} must be a finite number, got {number}", self.name);
                Err(PyValueError::new_err(text))
            }
            None => Err(PyValueError::new_err(format!("{} needs {which}", self.name))),
        }
    }

    fn end(self) -> PyResult<()> {
        match self.numbers.keys().next() {
            None => Ok(()),
            Some(extra) => Err(PyValueError::new_err(format!("{} has no {extra}", self.name))),
        }
    }
}
