//! Gradients that are summed over several runs, and updates that happen only in every k-th run.

use super::{OpKind, Operator, check, layout::by_width};
use crate::{
    ir::{Misfit, Sig, nested},
    kernel::{Call, Float, KernelError, fast, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Does what `op` does when the counter, its last input, is a multiple of `runs`; else its outputs stay what the inputs
/// they take the place of are. Only for operations each of whose outputs takes an input's place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Every {
    pub runs: i64,
    #[serde(deserialize_with = "nested")]
    pub op: Box<OpKind>,
}

impl Operator for Every {
    fn name(&self) -> &'static str {
        self.op.operator().name()
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        positive(self.runs)?;
        let Some((_, own)) = inputs.split_last() else { return Err(Misfit::Count { wanted: 1, got: 0 }) };
        let outputs = self.op.operator().infer(own)?;
        check::scalar(inputs, own.len(), DType::I64)?;
        let shares = self.op.operator().shares();
        let stays = |(o, out): (usize, &Sig)| {
            shares.iter().any(|&(i, to)| to == o && own.get(i) == Some(out)) && out.is_dense()
        };
        // Operations that take any number of inputs would count the counter among them.
        let counts = matches!(&*self.op, OpKind::Sum(_) | OpKind::Every(_));
        if counts || !outputs.iter().enumerate().all(stays) {
            let wanted = "an operation that updates all its outputs in place";
            return Err(Misfit::Attribute { name: "op", wanted, got: self.op.operator().name().into() });
        }
        Ok(outputs)
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        dims.split_last().map_or(0, |(_, own)| self.op.operator().workspace(own, element))
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let count = call.input::<i64>(call.n_inputs() - 1)[0];
        if count % self.runs == 0 {
            return self.op.operator().run(call);
        }
        for &(input, output) in self.op.operator().shares() {
            by_width!(call.out_dtype(output), T => {
                call.update::<T>(input, output);
            });
        }
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        self.op.operator().shares()
    }

    fn is_elementwise(&self) -> bool {
        self.op.operator().is_elementwise()
    }
}

/// From a sum, a gradient and a counter that was raised already: the sum with `1 / runs` of the gradient added to it; it
/// begins anew after a fixed number of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accumulate {
    pub runs: i64,
}

impl Operator for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        positive(self.runs)?;
        check::like(inputs, 1, 0)?;
        check::scalar(inputs, 2, DType::I64)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let begins = call.input::<i64>(2)[0].wrapping_sub(1) % self.runs == 0;
        real!(call.dtype(0), T => {
            let (g, share) = (call.input::<T>(1), T::of(1.0 / self.runs as f64));
            let sum = call.update::<T>(0, 0);
            fast(#[inline(always)] || match begins {
                true => sum.iter_mut().zip(g).for_each(|(s, &g)| *s = g * share),
                false => sum.iter_mut().zip(g).for_each(|(s, &g)| *s += g * share),
            });
        });
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

fn positive(runs: i64) -> Result<(), Misfit> {
    let wanted = "at least 1";
    if runs > 0 { Ok(()) } else { Err(Misfit::Attribute { name: "runs", wanted, got: runs.to_string() }) }
}
