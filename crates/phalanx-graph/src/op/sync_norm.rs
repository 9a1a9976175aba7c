//! Batch norm in pieces, between which replicas add up their statistics. `graph::sync_norm` puts them in the place of
//! the whole one; alone, they compute the same.

use super::{
    Operator, check,
    norm::{along, spread},
};
use crate::{
    ir::{Dim, Misfit, Sig},
    kernel::{Call, Float, KernelError, Pair, fast, real, sum},
};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Where the elements of a channel lie in `[n, c, ...]`.
fn runs(dims: &[usize], c: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let (n, channels, inner) = (dims[0], dims[1], dims[2..].iter().product::<usize>());
    (0..n).map(move |i| (i * channels + c) * inner..(i * channels + c + 1) * inner)
}

/// The input, and how many channels it has.
fn channels(inputs: &[Sig]) -> Result<(&Sig, usize), Misfit> {
    let x = check::real(inputs, 0)?;
    if x.shape.rank() < 2 {
        return Err(Misfit::Rank { slot: 0, wanted: "at least 2", got: x.shape.clone() });
    }
    Ok((x, check::fixed(inputs, 0, 1)?))
}

fn vector(x: &Sig, n: usize) -> Sig {
    Sig::dense(x.dtype, [Dim::Fixed(n)])
}

fn wants(inputs: &[Sig], slot: usize, n: usize) -> Result<(), Misfit> {
    let sig = vector(&inputs[0], n);
    check::shaped(inputs, slot, sig.dtype, &sig.shape)
}

macro_rules! named {
    ($name:literal) => {
        fn name(&self) -> &'static str {
            $name
        }
    };
}

/// The sum over all replicas; of one replica, the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncSum;

impl Operator for SyncSum {
    named!("sync_sum");

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => {
            if let Pair::Apart(x, out) = call.pair::<T>(0, 0) {
                out.copy_from_slice(x);
            }
        });
        Ok(())
    }
}

/// The sum of each channel, and last how many elements each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelSum;

impl Operator for ChannelSum {
    named!("channel_sum");

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let (x, n) = channels(inputs)?;
        Ok(vec![vector(x, n + 1)])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        real!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            for (c, out) in out[..dims[1]].iter_mut().enumerate() {
                *out = T::of(runs(dims, c).map(|r| fast(#[inline(always)] || sum(&x[r]))).sum());
            }
            out[dims[1]] = T::of((x.len() / dims[1].max(1)) as f64);
        });
        Ok(())
    }
}

/// From input and all sums: each channel's squares of distances from the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelSquares;

impl Operator for ChannelSquares {
    named!("channel_squares");

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let (x, n) = channels(inputs)?;
        wants(inputs, 1, n + 1)?;
        Ok(vec![vector(x, n)])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        real!(call.dtype(0), T => {
            let (x, sums, out) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            for c in 0..dims[1] {
                let m = sums[c] / sums[dims[1]];
                out[c] = T::of(runs(dims, c).map(|r| spread(&x[r], m)).sum());
            }
        });
        Ok(())
    }
}

/// From mean and variance so far and all sums and squares: both, moved towards those of the batch. It takes no samples, so
/// that a replica without any keeps up with the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncNormStats {
    pub momentum: f64,
}

impl Operator for SyncNormStats {
    named!("sync_batch_norm_stats");

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 4)?;
        let (mean, n) = (check::real(inputs, 0)?.clone(), check::fixed(inputs, 0, 0)?);
        for (slot, n) in [(1, n), (2, n + 1), (3, n)] {
            wants(inputs, slot, n)?;
        }
        Ok(vec![mean.clone(), mean])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => {
            let (sums, squares) = (call.input::<T>(2), call.input::<T>(3));
            let (mean, var) = (call.update::<T>(0, 0), call.update::<T>(1, 1));
            let (count, keep) = (sums[mean.len()], T::of(self.momentum));
            // Of no samples there is nothing to learn.
            let n = if count > T::ZERO { mean.len() } else { 0 };
            for c in 0..n {
                mean[c] = keep * mean[c] + (T::ONE - keep) * (sums[c] / count);
                var[c] = keep * var[c] + (T::ONE - keep) * (squares[c] / count);
            }
        });
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (1, 1)]
    }
}

/// From input, scale, shift, all sums and squares: the normalised input, the batch's mean and one over its deviation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncNorm {
    pub epsilon: f64,
}

impl Operator for SyncNorm {
    named!("sync_batch_norm");

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5)?;
        let (x, n) = channels(inputs)?;
        for (slot, n) in [(1, n), (2, n), (3, n + 1), (4, n)] {
            wants(inputs, slot, n)?;
        }
        Ok(vec![x.clone(), vector(x, n), vector(x, n)])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        real!(call.dtype(0), T => {
            let [x, scale, shift, sums, squares] = [0, 1, 2, 3, 4].map(|i| call.input::<T>(i));
            let (y, batch_mean, batch_inv) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            let count = sums[dims[1]];
            for c in 0..dims[1] {
                let (m, v) = (sums[c] / count, squares[c] / count);
                let inv = T::ONE / (v + T::of(self.epsilon)).sqrt();
                (batch_mean[c], batch_inv[c]) = (m, inv);
                let (a, b) = (scale[c] * inv, shift[c]);
                for r in runs(dims, c) {
                    y[r.clone()].iter_mut().zip(&x[r]).for_each(|(y, &x)| *y = (x - m) * a + b);
                }
            }
        });
        Ok(())
    }
}

/// From input, batch mean, one over deviation and gradient: this replica's gradients of scale and shift, and both again
/// for the sum over all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncNormSlopes;

impl Operator for SyncNormSlopes {
    named!("sync_batch_norm_slopes");

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 4)?;
        let (x, n) = channels(inputs)?;
        wants(inputs, 1, n)?;
        wants(inputs, 2, n)?;
        check::like(inputs, 3, 0)?;
        Ok(vec![vector(x, n), vector(x, n), vector(x, 2 * n)])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        let n = dims[1];
        real!(call.dtype(0), T => {
            let [x, mean, inv, dy] = [0, 1, 2, 3].map(|i| call.input::<T>(i));
            let (dscale, dshift, both) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            for c in 0..n {
                let m = mean[c];
                dshift[c] = T::of(runs(dims, c).map(|r| fast(#[inline(always)] || sum(&dy[r]))).sum());
                dscale[c] = T::of(runs(dims, c).map(|r| along(&x[r.clone()], m, &dy[r])).sum()) * inv[c];
                (both[c], both[n + c]) = (dscale[c], dshift[c]);
            }
        });
        Ok(())
    }
}

/// From input, scale, batch mean, one over deviation, gradient, the slopes and the sums of all: the input's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncNormGrad;

impl Operator for SyncNormGrad {
    named!("sync_batch_norm_grad");

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 7)?;
        let (x, n) = channels(inputs)?;
        for (slot, n) in [(1, n), (2, n), (3, n), (5, 2 * n), (6, n + 1)] {
            wants(inputs, slot, n)?;
        }
        check::like(inputs, 4, 0)?;
        Ok(vec![x.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = call.dims(0);
        let n = dims[1];
        real!(call.dtype(0), T => {
            let [x, scale, mean, inv, dy, slopes, sums] = [0, 1, 2, 3, 4, 5, 6].map(|i| call.input::<T>(i));
            let (dx, count) = (call.output::<T>(0), sums[n]);
            for c in 0..n {
                let (m, i, slant, total) = (mean[c], inv[c], slopes[c], slopes[n + c]);
                let a = scale[c] * i;
                for r in runs(dims, c) {
                    for ((o, &x), &d) in dx[r.clone()].iter_mut().zip(&x[r.clone()]).zip(&dy[r]) {
                        *o = a * (d - total / count - (x - m) * i * slant / count);
                    }
                }
            }
        });
        Ok(())
    }
}
