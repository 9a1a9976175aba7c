//! What draws random numbers. They depend on seed, stream, run and the sample's place in the whole batch only.

use super::{Assign, Operator, check};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Op, Shape, Sig},
    kernel::{Call, KernelError, Real, Stream, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Zeroes elements with a probability and scales up the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    pub probability: f64,
    /// Which random numbers it draws; the builder gives each its own.
    pub stream: u32,
}

impl Dropout {
    /// Forward and backward alike: the mask is drawn again rather than kept.
    fn drop(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let stream = Stream::new(call.env.seed, u64::from(self.stream), call.env.run);
        let dims = call.dims(0);
        let first = call.env.first_sample * dims.iter().skip(1).product::<usize>();
        let limit = (self.probability * (1u64 << 32) as f64) as u64;
        let up = 1.0 / (1.0 - self.probability);
        real!(call.dtype(0), T => {
            let (out, up) = (call.update::<T>(0, 0), T::of(up));
            for (i, v) in out.iter_mut().enumerate() {
                let keep = stream.bits((first + i) as u64) >> 32 >= limit;
                *v = if keep { *v * up } else { T::ZERO };
            }
        });
        Ok(())
    }
}

impl Operator for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        if !(0.0..1.0).contains(&self.probability) {
            let got = self.probability.to_string();
            return Err(Misfit::Attribute { name: "probability", wanted: "at least 0 and less than 1", got });
        }
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        self.drop(call)
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, DropoutGrad(*self), &[grad.dy(0)])
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn for_test(&self, op: &Op) -> Option<Op> {
        Some(Op { kind: Assign.into(), ..op.clone() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DropoutGrad(pub Dropout);

impl Operator for DropoutGrad {
    fn name(&self) -> &'static str {
        "dropout_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        self.0.infer(inputs)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        self.0.drop(call)
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

/// Random numbers: normal, or uniform in [low, high).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Random {
    pub dtype: DType,
    pub shape: Shape,
    pub normal: bool,
    /// Lowest, or mean.
    pub a: f64,
    /// Highest, or deviation.
    pub b: f64,
    pub stream: u32,
}

impl Operator for Random {
    fn name(&self) -> &'static str {
        if self.normal { "gaussian" } else { "uniform" }
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 0)?;
        let out = [Sig::dense(self.dtype, self.shape.clone())];
        check::real(&out, 0)?;
        Ok(out.to_vec())
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let stream = Stream::new(call.env.seed, u64::from(self.stream), call.env.run);
        let first = match self.shape.has_batch() {
            true => call.env.first_sample * call.out_dims(0).iter().skip(1).product::<usize>(),
            false => 0,
        };
        real!(self.dtype, T => {
            for (i, v) in call.output::<T>(0).iter_mut().enumerate() {
                let i = (first + i) as u64;
                *v = T::of(match self.normal {
                    true => self.a + self.b * stream.normal(i),
                    false => self.a + (self.b - self.a) * stream.uniform(i),
                });
            }
        });
        Ok(())
    }
}
