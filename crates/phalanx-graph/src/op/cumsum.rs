//! Running sums along an axis.

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Sig},
    kernel::{Call, KernelError, Real, real},
};
use serde::{Deserialize, Serialize};

/// The sum of everything up to each element: with it or, if `exclusive`, without; from the end if `reverse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CumSum {
    pub axis: usize,
    pub exclusive: bool,
    pub reverse: bool,
}

impl Operator for CumSum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::real(inputs, 0)?;
        check::axis(self.axis, x.shape.rank(), "axis")?;
        // Replicas have parts of the batch, and a sum over the batch would end with each part.
        check::fixed(inputs, 0, self.axis)?;
        Ok(vec![x.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (outer, n, inner) = check::around(call.dims(0), self.axis);
        real!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            for line in 0..outer * inner {
                let begin = line / inner.max(1) * n * inner + line % inner.max(1);
                self.line(n, |i| begin + i * inner, x, out);
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, CumSum { reverse: !self.reverse, ..*self }, &[grad.dy(0)])
    }
}

impl CumSum {
    fn line<T: Real>(&self, n: usize, place: impl Fn(usize) -> usize, x: &[T], out: &mut [T]) {
        let mut total = 0.0;
        for i in 0..n {
            let at = place(if self.reverse { n - 1 - i } else { i });
            let before = total;
            total += x[at].wide();
            out[at] = T::of(if self.exclusive { before } else { total });
        }
    }
}
