//! Matrix products.

use super::{Operator, Reshape, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Shape, Sig, VarId},
    kernel::{Call, Gemm, KernelError, Mat, Size, real},
};
use serde::{Deserialize, Serialize};

/// `a * b` over the last two dimensions. The dimensions before are the same in both, or `b` has only two and is used for
/// all of `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatMul {
    pub trans_a: bool,
    pub trans_b: bool,
}

fn sides(shape: &Shape, transposed: bool) -> (Dim, Dim) {
    let d = shape.dims();
    let (rows, cols) = (d[d.len() - 2], d[d.len() - 1]);
    if transposed { (cols, rows) } else { (rows, cols) }
}

impl MatMul {
    /// The size of one product, and how many there are.
    fn size(&self, a: &[usize], b: &[usize]) -> (Size, usize) {
        let sides = |d: &[usize], transposed| {
            let (rows, cols) = (d[d.len() - 2], d[d.len() - 1]);
            if transposed { (cols, rows) } else { (rows, cols) }
        };
        let ((m, k), (_, n)) = (sides(a, self.trans_a), sides(b, self.trans_b));
        let count = a[..a.len() - 2].iter().product();
        // One matrix on the right serves all on the left: they are one tall matrix.
        let one = b.len() == 2 && !self.trans_a;
        if one { (Size { m: m * count, n, k }, 1) } else { (Size { m, n, k }, count) }
    }
}

impl Operator for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let (a, b) = (check::real(inputs, 0)?, check::real(inputs, 1)?);
        for (slot, sig) in [a, b].into_iter().enumerate() {
            if sig.shape.rank() < 2 {
                return Err(Misfit::Rank { slot, wanted: "at least 2", got: sig.shape.clone() });
            }
        }
        if a.dtype != b.dtype {
            return Err(Misfit::DType { slot: 1, wanted: a.dtype.name(), got: b.dtype });
        }
        let (m, k) = sides(&a.shape, self.trans_a);
        let (k_b, n) = sides(&b.shape, self.trans_b);
        let outer = &a.shape.dims()[..a.shape.rank() - 2];
        let outer_b = &b.shape.dims()[..b.shape.rank() - 2];
        let shared = outer_b.is_empty() && (outer.is_empty() || !self.trans_a);
        if k != k_b || !(shared || outer == outer_b) {
            return Err(Misfit::Pair { a: a.shape.clone(), b: b.shape.clone() });
        }
        let mut dims = outer.to_vec();
        dims.extend([m, n]);
        Ok(vec![Sig::dense(a.dtype, dims)])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let (size, _) = self.size(dims[0], dims[1]);
        element * if element == size_of::<f32>() { f32::scratch(size) } else { f64::scratch(size) }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (a_dims, b_dims) = (call.dims(0), call.dims(1));
        let (a_width, b_width) = (a_dims[a_dims.len() - 1], b_dims[b_dims.len() - 1]);
        let (Size { m, n, k }, count) = self.size(a_dims, b_dims);
        real!(call.dtype(0), T => {
            let (a, b, c) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            let scratch = call.workspace::<T>();
            for i in 0..count {
                let a = Mat::new(&a[i * m * k..(i + 1) * m * k], a_width).t_if(self.trans_a);
                let b = Mat::new(&b[i * k * n..(i + 1) * k * n], b_width).t_if(self.trans_b);
                T::gemm(Size { m, n, k }, a, b, &mut c[i * m * n..(i + 1) * m * n], false, scratch);
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (a, b, dy) = (grad.x(0), grad.x(1), grad.dy(0));
        let times = |trans_a, trans_b| MatMul { trans_a, trans_b };
        match (self.trans_a, self.trans_b) {
            (false, tb) => grad.give(0, times(false, !tb), &[dy, b])?,
            (true, tb) => grad.give(0, times(tb, true), &[b, dy])?,
        };
        if !grad.wants(1) {
            return Ok(true);
        }
        let one = grad.sig(b).shape.rank() == 2 && grad.sig(a).shape.rank() > 2;
        let (a, dy) = if one { (tall(grad, a)?, tall(grad, dy)?) } else { (a, dy) };
        match (self.trans_a, self.trans_b) {
            (ta, false) => grad.give(1, times(!ta, false), &[a, dy]),
            (ta, true) => grad.give(1, times(true, ta), &[dy, a]),
        }
    }
}

/// All matrices of a tensor as one, below each other.
fn tall(grad: &mut Grad<'_>, x: VarId) -> Result<VarId, GraphError> {
    let dims = grad.sig(x).shape.dims().to_vec();
    let (last, outer) = dims.split_last().expect("has more than two dimensions");
    let rows = Shape(outer.to_vec()).volume().expect("the verifier counted it");
    grad.emit(Reshape { shape: Shape(vec![rows, *last]) }, &[x])
}
