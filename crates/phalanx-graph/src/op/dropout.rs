//! Operations with random numbers. These depend only on seed, stream, run and the sample's place in the whole batch.

use super::{Assign, Operator, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Op, Shape, Sig},
    kernel::{Call, Float, KernelError, Stream, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Which axis of a tensor counts samples, and how many places of it each sample has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples(Option<(usize, usize)>);

impl Samples {
    pub fn of(shape: &Shape) -> Samples {
        let batch = |(axis, dim): (usize, &Dim)| match dim {
            Dim::Batch(times) => Some((axis, *times)),
            Dim::Fixed(_) | Dim::BatchPlus(..) => None,
        };
        Samples(shape.dims().iter().enumerate().find_map(batch))
    }

    /// Shows each run of elements, and the place of its first among all elements of all samples: sample after sample,
    /// whatever the layout. Without samples, all replicas have the same places.
    fn runs(self, dims: &[usize], first_sample: usize, mut see: impl FnMut(Range<usize>, u64)) {
        let Some((axis, times)) = self.0 else { return see(0..dims.iter().product(), 0) };
        let (outer, inner) =
            (dims[..axis].iter().product::<usize>(), dims[axis + 1..].iter().product::<usize>());
        let (own, of_sample) = (dims[axis], outer * times * inner);
        if outer == 1 {
            return see(0..own * inner, (first_sample * of_sample) as u64);
        }
        for at in 0..outer * own {
            let (o, a) = (at / own, at % own);
            let place = (first_sample + a / times) * of_sample + (o * times + a % times) * inner;
            see(at * inner..(at + 1) * inner, place as u64);
        }
    }
}

/// Zeroes elements with a probability and scales up the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    pub probability: f64,
    /// Which random numbers it draws; the builder gives each its own.
    pub stream: u32,
    /// Where its input has samples.
    pub samples: Samples,
}

impl Dropout {
    /// Forward and backward alike: the mask is drawn again rather than kept.
    fn drop(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let stream = Stream::new(call.env.seed, u64::from(self.stream), call.env.run);
        let (dims, first) = (call.dims(0), call.env.first_sample);
        let limit = (self.probability * (1u64 << 32) as f64) as u64;
        let up = 1.0 / (1.0 - self.probability);
        real!(call.dtype(0), T => {
            let (out, up) = (call.update::<T>(0, 0), T::of(up));
            self.samples.runs(dims, first, |run, place| {
                for (v, i) in out[run].iter_mut().zip(place..) {
                    let keep = stream.bits(i) >> 32 >= limit;
                    *v = if keep { *v * up } else { T::ZERO };
                }
            });
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
        if !(0.0..=1.0).contains(&self.probability) {
            let got = self.probability.to_string();
            return Err(Misfit::Attribute { name: "probability", wanted: "a number from 0 to 1", got });
        }
        let x = check::real(inputs, 0)?;
        if self.samples != Samples::of(&x.shape) {
            let (wanted, got) = ("where the input has its batch", format!("{:?}", self.samples));
            return Err(Misfit::Attribute { name: "samples", wanted, got });
        }
        Ok(vec![x.clone()])
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
        let (dims, first) = (call.out_dims(0), call.env.first_sample);
        real!(self.dtype, T => {
            let out = call.output::<T>(0);
            Samples::of(&self.shape).runs(dims, first, |run, place| {
                for (v, i) in out[run].iter_mut().zip(place..) {
                    *v = T::of(match self.normal {
                        true => self.a + self.b * stream.normal(i),
                        false => self.a + (self.b - self.a) * stream.uniform(i),
                    });
                }
            });
        });
        Ok(())
    }
}
