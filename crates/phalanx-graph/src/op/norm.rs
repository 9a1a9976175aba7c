//! Normalisation over the batch and over features.

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Op, Shape, Sig},
    kernel::{Call, DEEP, Float, KernelError, Real, dot, fast, real, sum, total, widen},
};
use serde::{Deserialize, Serialize};

/// One value for each channel (axis 1).
fn channels(inputs: &[Sig], slots: std::ops::Range<usize>) -> Result<Sig, Misfit> {
    let x = check::real(inputs, 0)?;
    if x.shape.rank() < 2 {
        return Err(Misfit::Rank { slot: 0, wanted: "at least 2", got: x.shape.clone() });
    }
    let each = Sig::dense(x.dtype, Shape(vec![Dim::Fixed(check::fixed(inputs, 0, 1)?)]));
    for slot in slots {
        check::shaped(inputs, slot, x.dtype, &each.shape)?;
    }
    Ok(each)
}

/// Visits the runs of one channel.
fn runs(dims: &[usize], c: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let (n, channels) = (dims[0], dims[1]);
    let inner: usize = dims[2..].iter().product();
    (0..n).map(move |i| (i * channels + c) * inner..(i * channels + c + 1) * inner)
}

/// The sum of the squares of the distances from `m`.
pub(super) fn spread<T: Real>(x: &[T], m: T) -> f64 {
    fast(
        #[inline(always)]
        || {
            total(
                [x],
                #[inline(always)]
                |[x]| (x - m) * (x - m),
            )
        },
    )
}

/// The sum of the distances from `m`, times `d`.
pub(super) fn along<T: Real>(x: &[T], m: T, d: &[T]) -> f64 {
    fast(
        #[inline(always)]
        || {
            total(
                [x, d],
                #[inline(always)]
                |[x, d]| (x - m) * d,
            )
        },
    )
}

/// Input, scale, shift, running mean and variance; gives the output, the running statistics (written in place), and mean and
/// one over the deviation of this batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    pub epsilon: f64,
    /// How much of the running statistics stays.
    pub momentum: f64,
}

impl Operator for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5)?;
        let each = channels(inputs, 1..5)?;
        Ok(vec![inputs[0].clone(), each.clone(), each.clone(), each.clone(), each])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        real!(call.dtype(0), T => {
            let (x, scale, shift) = (call.input::<T>(0), call.input::<T>(1), call.input::<T>(2));
            let y = call.output::<T>(0);
            let (mean, var) = (call.update::<T>(3, 1), call.update::<T>(4, 2));
            let (batch_mean, batch_inv) = (call.output::<T>(3), call.output::<T>(4));
            let count = (x.len() / dims[1].max(1)) as f64;
            let keep = T::of(self.momentum);
            for c in 0..dims[1] {
                let m = T::of(runs(dims, c).map(|r| fast(#[inline(always)] || sum(&x[r]))).sum::<f64>() / count);
                let v = T::of(runs(dims, c).map(|r| spread(&x[r], m)).sum::<f64>() / count);
                let inv = T::ONE / (v + T::of(self.epsilon)).sqrt();
                mean[c] = keep * mean[c] + (T::ONE - keep) * m;
                var[c] = keep * var[c] + (T::ONE - keep) * v;
                (batch_mean[c], batch_inv[c]) = (m, inv);
                let (a, b) = (scale[c] * inv, shift[c]);
                for r in runs(dims, c) {
                    let all = y[r.clone()].iter_mut().zip(&x[r]);
                    fast(#[inline(always)] || all.for_each(#[inline(always)] |(y, &x)| *y = (x - m) * a + b));
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        if (1..5).any(|o| grad.has_dy(o)) {
            return Ok(false);
        }
        let inputs = [grad.x(0), grad.x(1), grad.y(3), grad.y(4), grad.dy(0)];
        let all = grad.emit_all(BatchNormGrad, &inputs)?;
        for (slot, d) in all.into_iter().enumerate() {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(3, 1), (4, 2)]
    }

    fn for_test(&self, op: &Op) -> Option<Op> {
        let fixed = BatchNormFixed { epsilon: self.epsilon };
        Some(Op { kind: fixed.into(), outputs: op.outputs[..1].to_vec(), ..op.clone() })
    }
}

/// Input, scale, shift, mean and variance as learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormFixed {
    pub epsilon: f64,
}

impl Operator for BatchNormFixed {
    fn name(&self) -> &'static str {
        "batch_norm_fixed"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5)?;
        channels(inputs, 1..5)?;
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        real!(call.dtype(0), T => {
            let [scale, shift, mean, var] = [1, 2, 3, 4].map(|i| call.input::<T>(i));
            let y = call.update::<T>(0, 0);
            for c in 0..dims[1] {
                let a = scale[c] / (var[c] + T::of(self.epsilon)).sqrt();
                let (m, b) = (mean[c], shift[c]);
                for r in runs(dims, c) {
                    let y = &mut y[r];
                    fast(#[inline(always)] || y.iter_mut().for_each(#[inline(always)] |y| *y = (*y - m) * a + b));
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let given = [grad.x(0), grad.x(1), grad.x(3), grad.x(4), grad.dy(0)];
        let made = grad.emit_all(BatchNormFixedGrad { epsilon: self.epsilon }, &given)?;
        for (slot, d) in made.into_iter().enumerate() {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

/// From input, scale, mean and variance as learned, gradient: those of input, scale and shift.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormFixedGrad {
    pub epsilon: f64,
}

impl Operator for BatchNormFixedGrad {
    fn name(&self) -> &'static str {
        "batch_norm_fixed_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5)?;
        let each = channels(inputs, 1..4)?;
        check::like(inputs, 4, 0)?;
        Ok(vec![inputs[0].clone(), each.clone(), each])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        real!(call.dtype(0), T => {
            let [x, scale, mean, var, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<T>(i));
            let (dx, dscale, dshift) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            for c in 0..dims[1] {
                let i = T::ONE / (var[c] + T::of(self.epsilon)).sqrt();
                dshift[c] = T::of(runs(dims, c).map(|r| fast(#[inline(always)] || sum(&dy[r]))).sum());
                dscale[c] = T::of(runs(dims, c).map(|r| along(&x[r.clone()], mean[c], &dy[r])).sum()) * i;
                let a = scale[c] * i;
                for r in runs(dims, c) {
                    let all = dx[r.clone()].iter_mut().zip(&dy[r]);
                    fast(#[inline(always)] || all.for_each(#[inline(always)] |(o, &d)| *o = a * d));
                }
            }
        });
        Ok(())
    }
}

/// From input, scale, batch mean, one over deviation, gradient: those of input, scale and shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchNormGrad;

impl Operator for BatchNormGrad {
    fn name(&self) -> &'static str {
        "batch_norm_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5)?;
        let each = channels(inputs, 1..4)?;
        check::like(inputs, 4, 0)?;
        Ok(vec![inputs[0].clone(), each.clone(), each])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        real!(call.dtype(0), T => {
            let [x, scale, mean, inv, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<T>(i));
            let (dx, dscale, dshift) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            let count = T::of((x.len() / dims[1].max(1)) as f64);
            for c in 0..dims[1] {
                let (m, i) = (mean[c], inv[c]);
                let level = T::of(runs(dims, c).map(|r| fast(#[inline(always)] || sum(&dy[r]))).sum());
                let slant = T::of(runs(dims, c).map(|r| along(&x[r.clone()], m, &dy[r])).sum()) * i;
                (dscale[c], dshift[c]) = (slant, level);
                let (a, mean_level, mean_slant) = (scale[c] * i, level / count, i * slant / count);
                for r in runs(dims, c) {
                    let all = dx[r.clone()].iter_mut().zip(&x[r.clone()]).zip(&dy[r]);
                    fast(#[inline(always)] || all.for_each(#[inline(always)] |((o, &x), &d)| {
                        *o = a * (d - mean_level - (x - m) * mean_slant);
                    }));
                }
            }
        });
        Ok(())
    }
}

/// Input, scale, shift: normalises everything from `axis` on; gives also mean and one over the deviation of each row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    pub axis: usize,
    pub epsilon: f64,
}

fn features(inputs: &[Sig], axis: usize, slots: std::ops::Range<usize>) -> Result<[Sig; 2], Misfit> {
    let x = check::real(inputs, 0)?;
    check::axis(axis, x.shape.rank(), "axis")?;
    let (outer, inner) = x.shape.dims().split_at(axis);
    let each = Sig::dense(x.dtype, inner.to_vec());
    for slot in slots {
        check::shaped(inputs, slot, x.dtype, &each.shape)?;
    }
    Ok([Sig::dense(x.dtype, outer.to_vec()), each])
}

impl Operator for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let [rows, _] = features(inputs, self.axis, 1..3)?;
        Ok(vec![inputs[0].clone(), rows.clone(), rows])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n: usize = call.dims(0)[self.axis..].iter().product();
        real!(call.dtype(0), T => {
            let [x, scale, shift] = [0, 1, 2].map(|i| call.input::<T>(i));
            let (y, mean, inv) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            let count = n as f64;
            let epsilon = T::of(self.epsilon);
            fast(#[inline(always)] || {
                for (row, (x, y)) in x.chunks_exact(n.max(1)).zip(y.chunks_exact_mut(n.max(1))).enumerate() {
                    let m = T::of(sum(x) / count);
                    let v = T::of(total([x], #[inline(always)] |[x]| (x - m) * (x - m)) / count);
                    let i = T::ONE / (v + epsilon).sqrt();
                    (mean[row], inv[row]) = (m, i);
                    for (((y, &x), &scale), &shift) in y.iter_mut().zip(x).zip(scale).zip(shift) {
                        *y = (x - m) * i * scale + shift;
                    }
                }
            });
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        if grad.has_dy(1) || grad.has_dy(2) {
            return Ok(false);
        }
        let inputs = [grad.x(0), grad.x(1), grad.y(1), grad.y(2), grad.dy(0)];
        let all = grad.emit_all(LayerNormGrad { axis: self.axis }, &inputs)?;
        for (slot, d) in all.into_iter().enumerate() {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }
}

/// From input, scale, mean, one over deviation, gradient: those of input, scale and shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerNormGrad {
    pub axis: usize,
}

impl Operator for LayerNormGrad {
    fn name(&self) -> &'static str {
        "layer_norm_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5)?;
        let [rows, each] = features(inputs, self.axis, 1..2)?;
        check::shaped(inputs, 2, rows.dtype, &rows.shape)?;
        check::shaped(inputs, 3, rows.dtype, &rows.shape)?;
        check::like(inputs, 4, 0)?;
        Ok(vec![inputs[0].clone(), each.clone(), each])
    }

    fn workspace(&self, dims: &[&[usize]], _element: usize) -> usize {
        2 * dims[0][self.axis..].iter().product::<usize>() * size_of::<f64>()
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n: usize = call.dims(0)[self.axis..].iter().product();
        let wide: &mut [f64] = call.workspace();
        wide.fill(0.0);
        real!(call.dtype(0), T => {
            let [x, scale, mean, inv, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<T>(i));
            let (dx, dscale, dshift) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            // As in TOTAL-1: what a few rows add up to in f32 goes into sums in f64.
            let (wide_scale, wide_shift) = wide.split_at_mut(n);
            dscale.fill(T::ZERO);
            dshift.fill(T::ZERO);
            let count = n as f64;
            let width = n.max(1);
            let scale = &scale[..n];
            let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
            fast(#[inline(always)] || for (row, ((x, d), o)) in rows.enumerate() {
                let (m, i) = (mean[row], inv[row]);
                let level = T::of(dot(d, scale) / count);
                let slant = T::of(total([d, scale, x], #[inline(always)] |[d, scale, x]| d * scale * ((x - m) * i)) / count);
                let sums = dscale.iter_mut().zip(dshift.iter_mut());
                for (((x, d), o), ((&scale, dscale), dshift)) in x.iter().zip(d).zip(o).zip(scale.iter().zip(sums).map(#[inline(always)] |(s, (a, b))| ((s, a), b))) {
                    let normal = (*x - m) * i;
                    *dscale += *d * normal;
                    *dshift += *d;
                    *o = i * (*d * scale - level - normal * slant);
                }
                if row % DEEP == DEEP - 1 {
                    widen(dscale, wide_scale);
                    widen(dshift, wide_shift);
                }
            });
            widen(dscale, wide_scale);
            widen(dshift, wide_shift);
            dscale.iter_mut().zip(wide_scale).for_each(|(d, w)| *d = T::of(*w));
            dshift.iter_mut().zip(wide_shift).for_each(|(d, w)| *d = T::of(*w));
        });
        Ok(())
    }
}
