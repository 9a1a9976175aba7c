//! Rows put into a tensor by number.

use super::{Fill, Gather, Operator, check};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, real},
};
use serde::{Deserialize, Serialize};

/// Input, row numbers, rows: the input with the rows in these places. Of several for one place the last stays, or, if they
/// `add`, their sum takes the place of what was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScatterRows {
    pub add: bool,
}

impl Operator for ScatterRows {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let rows = Gather.infer(&inputs[..2])?;
        check::shaped(inputs, 2, rows[0].dtype, &rows[0].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (limit, width) = (call.dims(0)[0], call.dims(0)[1..].iter().product::<usize>());
        let ids = call.input::<i64>(1);
        real!(call.dtype(0), T => {
            let (x, rows, out) = (call.input::<T>(0), call.input::<T>(2), call.output::<T>(0));
            out.copy_from_slice(x);
            let place = |at: usize| {
                let wrong = KernelError::Index { input: 1, at, value: ids[at], limit };
                usize::try_from(ids[at]).ok().filter(|&v| v < limit).ok_or(wrong)
            };
            for at in 0..ids.len() {
                let to = place(at)? * width;
                out[to..to + width].fill(T::ZERO);
            }
            for at in 0..ids.len() {
                let to = place(at)? * width;
                let (to, row) = (&mut out[to..to + width], &rows[at * width..][..width]);
                match self.add {
                    true => to.iter_mut().zip(row).for_each(|(to, &v)| *to += v),
                    false => to.copy_from_slice(row),
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (ids, rows, dy) = (grad.x(1), grad.x(2), grad.dy(0));
        if grad.wants(0) {
            // What was in these places has no effect.
            let Sig { dtype, shape, .. } = grad.sig(rows).clone();
            let zeros = grad.emit(Fill { dtype, shape, value: 0.0 }, &[])?;
            grad.give(0, ScatterRows { add: true }, &[dy, ids, zeros])?;
        }
        grad.give(2, Gather, &[dy, ids])
    }
}
