//! The largest or the mean of windows of images.

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Sig},
    kernel::{Call, Float, KernelError, Real, fast, real, sum},
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pool {
    Max,
    /// The mean of what lies inside the image.
    Mean,
}

/// Windows of images `[n, c, h, w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool2d {
    pub op: Pool,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
}

impl Pool2d {
    /// The most common pool: the largest of each two by two, nothing left over.
    fn is_halving(&self, image: [usize; 2]) -> bool {
        let fits = image.iter().all(|n| n.is_multiple_of(2));
        self.op == Pool::Max
            && self.kernel == [2, 2]
            && self.stride == [2, 2]
            && self.padding == [0, 0]
            && fits
    }

    /// Calls `f` with the index of each output element of one plane and the part of the plane that it sees.
    fn windows(&self, image: [usize; 2], out: [usize; 2], mut f: impl FnMut(usize, [usize; 2], [usize; 2])) {
        let range = |o: usize, side: usize| {
            let begin = o * self.stride[side];
            let end = (begin + self.kernel[side]).saturating_sub(self.padding[side]).min(image[side]);
            [begin.saturating_sub(self.padding[side]), end]
        };
        for oy in 0..out[0] {
            for ox in 0..out[1] {
                f(oy * out[1] + ox, range(oy, 0), range(ox, 1));
            }
        }
    }
}

impl Operator for Pool2d {
    fn name(&self) -> &'static str {
        match self.op {
            Pool::Max => "max_pool2d",
            Pool::Mean => "mean_pool2d",
        }
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::real(inputs, 0)?;
        check::rank(inputs, 0, 4, "4 ([n, c, h, w])")?;
        let mut out = x.clone();
        for side in 0..2 {
            let n = check::fixed(inputs, 0, 2 + side)?;
            let (k, s, p) = (self.kernel[side], self.stride[side], self.padding[side]);
            if k == 0 || s == 0 || p >= k || n + 2 * p < k {
                let got = format!("{self:?} on {n}");
                return Err(Misfit::Attribute {
                    name: "kernel",
                    wanted: "a window that always meets the image",
                    got,
                });
            }
            out.shape.0[2 + side] = Dim::Fixed((n + 2 * p - k) / s + 1);
        }
        Ok(vec![out])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (d, o) = (call.dims(0), call.out_dims(0));
        let (image, out) = ([d[2], d[3]], [o[2], o[3]]);
        real!(call.dtype(0), T => {
            let (x, y) = (call.input::<T>(0), call.output::<T>(0));
            if self.is_halving(image) {
                halve(x, y, d[3]);
                return Ok(());
            }
            for (x, y) in x.chunks_exact(d[2] * d[3]).zip(y.chunks_exact_mut(o[2] * o[3])) {
                self.windows(image, out, |at, [y0, y1], [x0, x1]| {
                    let lines = (y0..y1).map(|r| &x[r * d[3] + x0..r * d[3] + x1]);
                    y[at] = match self.op {
                        Pool::Max => lines.flatten().fold(T::LOWEST, |m, &v| m.larger(v)),
                        Pool::Mean => {
                            let total = match x1 - x0 < 16 {
                                true => lines.flatten().fold(0.0, |s, &v| s + v.wide()),
                                false => lines.map(|line| fast(#[inline(always)] || sum(line))).sum(),
                            };
                            T::of(total / ((y1 - y0) * (x1 - x0)) as f64)
                        }
                    };
                });
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, Pool2dGrad { pool: *self }, &[grad.x(0), grad.y(0), grad.dy(0)])
    }
}

/// The largest of each two by two, for planes of even sides.
fn halve<T: Real>(x: &[T], y: &mut [T], width: usize) {
    fast(
        #[inline(always)]
        || {
            for (rows, y) in x.chunks_exact(2 * width).zip(y.chunks_exact_mut(width / 2)) {
                let (upper, lower) = rows.split_at(width);
                let pairs = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
                for (y, (&[a, b], &[c, d])) in y.iter_mut().zip(pairs) {
                    *y = a.larger(b).larger(c).larger(d);
                }
            }
        },
    );
}

/// The gradient for the first of each two by two that is the largest, zero for the others.
fn halve_grad<T: Real>([x, y, dy]: [&[T]; 3], dx: &mut [T], width: usize) {
    let outs = y.chunks_exact(width / 2).zip(dy.chunks_exact(width / 2));
    let rows = x.chunks_exact(2 * width).zip(dx.chunks_exact_mut(2 * width));
    fast(
        #[inline(always)]
        || {
            for ((x, dx), (y, dy)) in rows.zip(outs) {
                let ((upper, lower), (up, low)) = (x.split_at(width), dx.split_at_mut(width));
                let pairs = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
                let to = up.as_chunks_mut::<2>().0.iter_mut().zip(low.as_chunks_mut::<2>().0);
                for (((&[a, b], &[c, d]), (up, low)), (&y, &g)) in pairs.zip(to).zip(y.iter().zip(dy)) {
                    // Where one is NaN the largest is, too.
                    let is = [a, b, c, d].map(
                        #[inline(always)]
                        |v| (v == y) | v.is_nan(),
                    );
                    let pick = |i: bool| if i { g } else { T::ZERO };
                    *up = [pick(is[0]), pick(is[1] & !is[0])];
                    *low = [pick(is[2] & !is[0] & !is[1]), pick(is[3] & !is[0] & !is[1] & !is[2])];
                }
            }
        },
    );
}

/// From input, output and its gradient; a maximum gives it to the first that reached it, or to the first NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool2dGrad {
    pub pool: Pool2d,
}

impl Operator for Pool2dGrad {
    fn name(&self) -> &'static str {
        "pool2d_grad"
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
        let (image, out) = ([d[2], d[3]], [o[2], o[3]]);
        real!(call.dtype(0), T => {
            let (x, y, dy) = (call.input::<T>(0), call.input::<T>(1), call.input::<T>(2));
            let dx = call.output::<T>(0);
            if self.pool.is_halving(image) {
                halve_grad([x, y, dy], dx, d[3]);
                return Ok(());
            }
            dx.fill(T::ZERO);
            let (plane, out_plane) = (d[2] * d[3], o[2] * o[3]);
            for i in 0..d[0] * d[1] {
                let (x, dx) = (&x[i * plane..(i + 1) * plane], &mut dx[i * plane..(i + 1) * plane]);
                let (y, dy) = (&y[i * out_plane..(i + 1) * out_plane], &dy[i * out_plane..(i + 1) * out_plane]);
                self.pool.windows(image, out, |at, [y0, y1], [x0, x1]| {
                    let mut places = (y0..y1).flat_map(|r| r * d[3] + x0..r * d[3] + x1);
                    match self.pool.op {
                        Pool::Max => {
                            let is = |p: &usize| x[*p] == y[at] || x[*p].is_nan();
                            if let Some(p) = places.find(is) {
                                dx[p] += dy[at];
                            }
                        }
                        Pool::Mean => {
                            let share = dy[at] / T::of(((y1 - y0) * (x1 - x0)) as f64);
                            places.for_each(|p| dx[p] += share);
                        }
                    }
                });
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equals_gets_the_gradient_and_nan_counts_as_the_largest() {
        let x = [1.0, 3.0, 5.0, 5.0, 3.0, 2.0, 5.0, f32::NAN, 0.0, 0.0, -1.0, -2.0, 0.0, 0.0, -4.0, -1.5];
        let mut y = [0.0; 4];
        halve(&x, &mut y, 4);
        assert!(y[1].is_nan());
        assert_eq!([y[0], y[2], y[3]], [3.0, 0.0, -1.0]);
        let mut dx = [f32::NAN; 16];
        halve_grad([&x, &y, &[1.0, 2.0, 3.0, 4.0]], &mut dx, 4);
        let wanted = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(dx, wanted);
    }
}
