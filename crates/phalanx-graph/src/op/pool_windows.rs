//! Pools whose windows `Pool2d` does not have: as many as are asked for, or some that reach beyond the padded image.

use super::{Operator, Pool, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, Real, real},
};
use serde::{Deserialize, Serialize};

/// Where the windows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowRule {
    /// This many along each side, as equal as possible; they may overlap by one.
    Adaptive { out: [usize; 2] },
    /// By steps. With `ceil` the last one may reach beyond the padding. Padding counts in means if it is `counted`.
    Steps { kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2], ceil: bool, counted: bool },
}

/// Windows of images `[n, c, h, w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWindows {
    pub op: Pool,
    pub rule: WindowRule,
}

/// A part of one side that lies in the image, and by how many a mean divides.
#[derive(Clone, Copy)]
struct Part {
    begin: usize,
    end: usize,
    count: usize,
}

impl WindowRule {
    fn size(&self, n: usize, side: usize) -> Option<usize> {
        match *self {
            WindowRule::Adaptive { out } => (out[side] > 0 && n > 0).then_some(out[side]),
            WindowRule::Steps { kernel, stride, padding, ceil, .. } => {
                let (k, s, p) = (kernel[side], stride[side], padding[side]);
                if n == 0 || k == 0 || s == 0 || p >= k || p > 1 << 20 {
                    return None;
                }
                let room = (n + 2 * p).checked_sub(k)?;
                if !ceil {
                    return Some(room / s + 1);
                }
                let out = room.div_ceil(s) + 1;
                // A window that would begin behind the image is left out.
                Some(if (out - 1) * s >= n + p { out - 1 } else { out })
            }
        }
    }

    fn part(&self, o: usize, n: usize, side: usize) -> Part {
        match *self {
            WindowRule::Adaptive { out } => {
                let (begin, end) = (o * n / out[side], ((o + 1) * n).div_ceil(out[side]));
                Part { begin, end, count: end - begin }
            }
            WindowRule::Steps { kernel, stride, padding, counted, .. } => {
                let (first, p) = (o * stride[side], padding[side]);
                let last = (first + kernel[side]).min(n + 2 * p);
                let (begin, end) = (first.saturating_sub(p), last.saturating_sub(p).min(n));
                Part { begin, end, count: if counted { last - first } else { end - begin } }
            }
        }
    }
}

impl PoolWindows {
    /// Calls `f` with the index of each output element of one plane, the places that it sees, and by how many a mean divides.
    fn each(
        &self,
        d: &[usize],
        o: &[usize],
        mut f: impl FnMut(usize, &mut dyn Iterator<Item = usize>, usize),
    ) {
        for oy in 0..o[2] {
            let y = self.rule.part(oy, d[2], 0);
            for ox in 0..o[3] {
                let x = self.rule.part(ox, d[3], 1);
                let mut places = (y.begin..y.end).flat_map(|r| r * d[3] + x.begin..r * d[3] + x.end);
                f(oy * o[3] + ox, &mut places, y.count * x.count);
            }
        }
    }
}

impl Operator for PoolWindows {
    fn name(&self) -> &'static str {
        match self.op {
            Pool::Max => "max_pool_windows",
            Pool::Mean => "mean_pool_windows",
        }
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::real(inputs, 0)?;
        check::rank(inputs, 0, 4, "4 ([n, c, h, w])")?;
        let mut out = x.clone();
        for side in 0..2 {
            let n = check::fixed(inputs, 0, 2 + side)?;
            let wrong = || Misfit::Attribute {
                name: "windows",
                wanted: "windows that always meet the image",
                got: format!("{:?} on {n}", self.rule),
            };
            out.shape.0[2 + side] = Dim::Fixed(self.rule.size(n, side).ok_or_else(wrong)?);
        }
        Ok(vec![out])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (d, o) = (call.dims(0), call.out_dims(0));
        real!(call.dtype(0), T => {
            let (x, y) = (call.input::<T>(0), call.output::<T>(0));
            for (x, y) in x.chunks_exact(d[2] * d[3]).zip(y.chunks_exact_mut(o[2] * o[3])) {
                self.each(d, o, |at, places, count| {
                    y[at] = match self.op {
                        Pool::Max => places.fold(T::LOWEST, |m, p| m.larger(x[p])),
                        Pool::Mean => T::of(places.map(|p| x[p].wide()).sum::<f64>() / count as f64),
                    };
                });
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, PoolWindowsGrad { pool: *self }, &[grad.x(0), grad.y(0), grad.dy(0)])
    }
}

/// From input, output and its gradient; a maximum gives it to the first that reached it, or to the first NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWindowsGrad {
    pub pool: PoolWindows,
}

impl Operator for PoolWindowsGrad {
    fn name(&self) -> &'static str {
        "pool_windows_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let out = self.pool.infer(&inputs[..1])?;
        check::shaped(inputs, 1, out[0].dtype, &out[0].shape)?;
        check::like(inputs, 2, 1)?;
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (d, o) = (call.dims(0), call.dims(1));
        let (plane, out_plane) = (d[2] * d[3], o[2] * o[3]);
        real!(call.dtype(0), T => {
            let (x, y, dy) = (call.input::<T>(0), call.input::<T>(1), call.input::<T>(2));
            let dx = call.output::<T>(0);
            dx.fill(T::ZERO);
            for i in 0..d[0] * d[1] {
                let (x, dx) = (&x[i * plane..(i + 1) * plane], &mut dx[i * plane..(i + 1) * plane]);
                let (y, dy) = (&y[i * out_plane..(i + 1) * out_plane], &dy[i * out_plane..(i + 1) * out_plane]);
                self.pool.each(d, o, |at, mut places, count| match self.pool.op {
                    Pool::Max => {
                        let is = |p: &usize| x[*p] == y[at] || x[*p].is_nan();
                        if let Some(p) = Iterator::find(&mut places, is) {
                            dx[p] += dy[at];
                        }
                    }
                    Pool::Mean => {
                        let share = dy[at] / T::of(count as f64);
                        places.for_each(|p| dx[p] += share);
                    }
                });
            }
        });
        Ok(())
    }
}
