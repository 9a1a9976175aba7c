//! Elements or slices of a tensor by several numbers each.

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, real},
};
use serde::{Deserialize, Serialize};

/// Input, and places in its first axes as the last axis of the second input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatherNd;

/// Calls `f` with the number of each place and where its slice begins; how large slices are is given first.
fn places(
    dims: &[usize],
    at: &[usize],
    ids: &[i64],
    mut f: impl FnMut(usize, usize, usize),
) -> Result<(), KernelError> {
    let k = at[at.len() - 1];
    let width = dims[k..].iter().product::<usize>();
    for i in 0..at[..at.len() - 1].iter().product::<usize>() {
        let mut begin = 0;
        for (axis, &limit) in dims[..k].iter().enumerate() {
            let (at, value) = (i * k + axis, ids[i * k + axis]);
            let wrong = KernelError::Index { input: 1, at, value, limit };
            let place = usize::try_from(value).ok().filter(|&v| v < limit).ok_or(wrong)?;
            begin = begin * limit + place;
        }
        f(width, i, begin * width);
    }
    Ok(())
}

impl Operator for GatherNd {
    fn name(&self) -> &'static str {
        "gather_nd"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let (x, ids) = (check::real(inputs, 0)?, check::index(inputs, 1)?);
        let Some(last) = ids.shape.rank().checked_sub(1) else {
            return Err(Misfit::Rank { slot: 1, wanted: "at least 1", got: ids.shape.clone() });
        };
        let k = check::fixed(inputs, 1, last)?;
        if k > x.shape.rank() {
            return Err(Misfit::Pair { a: x.shape.clone(), b: ids.shape.clone() });
        }
        let dims = ids.shape.dims()[..last].iter().chain(&x.shape.dims()[k..]);
        Ok(vec![Sig::dense(x.dtype, Shape(dims.copied().collect()))])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dims, at, ids) = (call.dims(0), call.dims(1), call.input::<i64>(1));
        real!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            places(dims, at, ids, |width, i, begin| {
                out[i * width..(i + 1) * width].copy_from_slice(&x[begin..begin + width]);
            })
        })
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, GatherNdGrad, &[grad.x(0), grad.x(1), grad.dy(0)])
    }
}

/// From input, places and gradient: those of one place are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatherNdGrad;

impl Operator for GatherNdGrad {
    fn name(&self) -> &'static str {
        "gather_nd_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let out = GatherNd.infer(&inputs[..2])?;
        check::shaped(inputs, 2, out[0].dtype, &out[0].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dims, at, ids) = (call.dims(0), call.dims(1), call.input::<i64>(1));
        real!(call.dtype(0), T => {
            let (d, out) = (call.input::<T>(2), call.output::<T>(0));
            out.fill(T::ZERO);
            places(dims, at, ids, |width, i, begin| {
                let to = out[begin..begin + width].iter_mut();
                to.zip(&d[i * width..(i + 1) * width]).for_each(|(to, &d)| *to += d);
            })
        })
    }
}
