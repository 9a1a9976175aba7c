//! Learning rates that follow the number of the step.

use super::{Operator, check};
use crate::{
    ir::{Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// The rate as a function of the step, which counts from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Schedule {
    Constant(f64),
    /// `rate * decay^(step / every)`; in stairs, only whole powers.
    Exponential {
        rate: f64,
        decay: f64,
        every: f64,
        stairs: bool,
    },
    /// `rate / (1 + decay * step / every)`; in stairs, only whole quotients.
    InverseTime {
        rate: f64,
        decay: f64,
        every: f64,
        #[serde(default)]
        stairs: bool,
    },
    /// From `rate` to `end` over this many steps. In cycles, it rises again after them: to where it would be on the way down over all steps
    /// of the cycles begun.
    Polynomial {
        rate: f64,
        end: f64,
        steps: f64,
        power: f64,
        #[serde(default)]
        cycles: bool,
    },
    /// `values[i]` until step `until[i]`; the last value after all of them.
    Piecewise {
        until: Vec<i64>,
        values: Vec<f64>,
    },
    /// Half a cosine from `rate` to 0.
    Cosine {
        rate: f64,
        steps: f64,
    },
    /// `rate * width^-0.5 * min(step^-0.5, step * warmup^-1.5)`, for steps from 1.
    Noam {
        width: f64,
        warmup: f64,
        #[serde(default = "one")]
        rate: f64,
    },
    /// A straight line to `to`, or else to the first rate of what follows; its steps count on.
    Warmup {
        steps: i64,
        from: f64,
        #[serde(default)]
        to: Option<f64>,
        then: Box<Schedule>,
    },
    /// A cosine in stairs of `every` steps that comes down to 0 after `n` of them, and goes up again after that.
    CosineStairs {
        rate: f64,
        every: i64,
        stairs: f64,
    },
}

fn one() -> f64 {
    1.0
}

impl Schedule {
    pub fn at(&self, step: i64) -> f64 {
        let s = step as f64;
        match self {
            Schedule::Constant(rate) => *rate,
            Schedule::Exponential { rate, decay, every, stairs } => {
                let power = if *stairs { (s / every).floor() } else { s / every };
                rate * libm::pow(*decay, power)
            }
            Schedule::InverseTime { rate, decay, every, stairs: true } => {
                rate / (1.0 + decay * (s / every).floor())
            }
            Schedule::InverseTime { rate, decay, every, stairs: false } => rate / (1.0 + decay * s / every),
            Schedule::Polynomial { rate, end, steps, power, cycles } => {
                let steps = if *cycles { steps * (s / steps).ceil().max(1.0) } else { *steps };
                (rate - end) * libm::pow(1.0 - s.min(steps) / steps, *power) + end
            }
            Schedule::Piecewise { until, values } => {
                let stage = until.iter().take_while(|&&u| step >= u).count();
                values.get(stage).or(values.last()).copied().unwrap_or(0.0)
            }
            Schedule::Cosine { rate, steps } => {
                rate * 0.5 * (1.0 + libm::cos(std::f64::consts::PI * s.min(*steps) / steps))
            }
            Schedule::Noam { width, warmup, rate } => {
                let s = s + 1.0;
                rate * libm::pow(*width, -0.5) * libm::pow(s, -0.5).min(s * libm::pow(*warmup, -1.5))
            }
            Schedule::CosineStairs { rate, every, stairs } => {
                let stair = step.div_euclid((*every).max(1)) as f64;
                rate * 0.5 * (1.0 + libm::cos(std::f64::consts::PI * stair / stairs))
            }
            Schedule::Warmup { steps, from, to, then } if step < *steps => {
                let to = to.unwrap_or_else(|| then.at(*steps));
                from + (to - from) * s / *steps as f64
            }
            Schedule::Warmup { then, .. } => then.at(step),
        }
    }
}

/// The rate, from a counter of steps that was raised already: the first step counts 1 and takes the rate of 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    pub schedule: Schedule,
    pub dtype: DType,
}

impl Operator for Rate {
    fn name(&self) -> &'static str {
        "learning_rate"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        check::scalar(inputs, 0, DType::I64)?;
        let out = [Sig::dense(self.dtype, Shape::scalar())];
        check::real(&out, 0)?;
        Ok(out.to_vec())
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let step = call.input::<i64>(0)[0] - 1;
        real!(self.dtype, T => call.output::<T>(0)[0] = T::of(self.schedule.at(step)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_the_rates_of_their_formulas() {
        let piecewise = Schedule::Piecewise { until: vec![2, 4], values: vec![1.0, 0.5, 0.25] };
        assert_eq!([0, 1, 2, 3, 4, 9].map(|s| piecewise.at(s)), [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]);
        let warm = |to| Schedule::Warmup { steps: 4, from: 0.0, to, then: Box::new(Schedule::Constant(1.0)) };
        assert_eq!([0, 1, 2, 4, 5].map(|s| warm(None).at(s)), [0.0, 0.25, 0.5, 1.0, 1.0]);
        assert_eq!([0, 1, 3, 4, 5].map(|s| warm(Some(2.0)).at(s)), [0.0, 0.5, 1.5, 1.0, 1.0]);
        let waves = Schedule::CosineStairs { rate: 1.0, every: 2, stairs: 2.0 };
        let got = [0, 1, 2, 3, 4, 5, 6, 8].map(|s| (waves.at(s) * 1e9).round() / 1e9);
        assert_eq!(got, [1.0, 1.0, 0.5, 0.5, 0.0, 0.0, 0.5, 1.0]);
        let stairs = Schedule::Exponential { rate: 1.0, decay: 0.5, every: 2.0, stairs: true };
        assert_eq!([0, 1, 2, 5].map(|s| stairs.at(s)), [1.0, 1.0, 0.5, 0.25]);
        let line = |cycles| Schedule::Polynomial { rate: 1.0, end: 0.5, steps: 10.0, power: 1.0, cycles };
        assert_eq!([0, 5, 10, 15, 20].map(|s| line(false).at(s)), [1.0, 0.75, 0.5, 0.5, 0.5]);
        assert_eq!([0, 5, 10, 15, 20].map(|s| line(true).at(s)), [1.0, 0.75, 0.5, 0.625, 0.5]);
        let slower = |stairs| Schedule::InverseTime { rate: 1.0, decay: 1.0, every: 2.0, stairs };
        assert_eq!([0, 1, 2, 3, 6].map(|s| slower(true).at(s)), [1.0, 1.0, 0.5, 0.5, 0.25]);
        assert_eq!([0, 2, 6].map(|s| slower(false).at(s)), [1.0, 0.5, 0.25]);
        assert!(Schedule::Cosine { rate: 1.0, steps: 10.0 }.at(10).abs() < 1e-12);
    }
}
