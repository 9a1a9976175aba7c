//! Rows by number, and numbers as rows.

use super::{Operator, check, scatter};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Slices of the first axis by number. Its gradient is dense; tables that are learned want `Embedding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gather;

fn place(at: usize, value: i64, limit: usize) -> Result<usize, KernelError> {
    usize::try_from(value).ok().filter(|&v| v < limit).ok_or(KernelError::Index {
        input: 1,
        at,
        value,
        limit,
    })
}

impl Operator for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let (x, ids) = (check::real(inputs, 0)?, check::index(inputs, 1)?);
        if x.shape.rank() == 0 {
            return Err(Misfit::Rank { slot: 0, wanted: "at least 1", got: x.shape.clone() });
        }
        check::rank(inputs, 1, 1, "1")?;
        let mut out = x.clone();
        out.shape.0[0] = ids.shape.dims()[0];
        Ok(vec![out])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let limit = call.dims(0)[0];
        let width = call.dims(0)[1..].iter().product::<usize>();
        let ids = call.input::<i64>(1);
        real!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            for (at, (&id, out)) in ids.iter().zip(out.chunks_exact_mut(width.max(1))).enumerate() {
                out.copy_from_slice(&x[place(at, id, limit)? * width..][..width]);
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, GatherGrad, &[grad.x(0), grad.x(1), grad.dy(0)])
    }
}

/// From input, numbers and gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatherGrad;

impl Operator for GatherGrad {
    fn name(&self) -> &'static str {
        "gather_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let out = Gather.infer(&inputs[..2])?;
        check::shaped(inputs, 2, out[0].dtype, &out[0].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], _element: usize) -> usize {
        scatter::workspace(dims[0][0], dims[1].iter().product(), dims[0][1..].iter().product())
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let limit = call.dims(0)[0];
        let width = call.dims(0)[1..].iter().product::<usize>();
        let ids = call.input::<i64>(1);
        let scratch = call.workspace();
        real!(call.dtype(0), T => {
            let (d, out) = (call.input::<T>(2), call.output::<T>(0));
            let to = |at: usize| place(at, ids[at], limit).map(Some);
            scatter::scatter((d, out), [limit, ids.len(), width], to, scratch)?;
        });
        Ok(())
    }
}

/// A row with a one in the place of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneHot {
    pub depth: usize,
    pub dtype: DType,
}

impl Operator for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let mut dims = check::index(inputs, 0)?.shape.dims().to_vec();
        dims.push(Dim::Fixed(self.depth));
        let out = [Sig::dense(self.dtype, dims)];
        check::real(&out, 0)?;
        Ok(out.to_vec())
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let ids = call.input::<i64>(0);
        real!(self.dtype, T => {
            let out = call.output::<T>(0);
            out.fill(T::ZERO);
            for (at, &value) in ids.iter().enumerate() {
                let limit = self.depth;
                let bad = KernelError::Index { input: 0, at, value, limit };
                let hot = usize::try_from(value).ok().filter(|&v| v < limit).ok_or(bad)?;
                out[at * limit + hot] = T::ONE;
            }
        });
        Ok(())
    }
}
