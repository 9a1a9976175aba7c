//! Linear-chain conditional random fields over tags: how unlikely a tagging is, and the likeliest one.
//!
//! The weights are `[tags + 2, tags]`, as in Paddle: row 0 is for beginning with a tag, row 1 for ending with it, and row
//! `2 + i` for going from tag `i` to each tag. Everything is computed in logarithms, so nothing overflows.

use super::{
    Operator, check,
    ragged::{Ragged, lengths, sequence},
};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, Real, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Scores `[n, time, tags]` and weights; gives the number of tags.
fn chain(inputs: &[Sig]) -> Result<usize, Misfit> {
    let (_, tags) = sequence(inputs, 0)?;
    if tags == 0 {
        return Err(Misfit::Rank { slot: 0, wanted: "at least one tag in 3", got: inputs[0].shape.clone() });
    }
    check::shaped(inputs, 1, inputs[0].dtype, &Shape::from([tags + 2, tags]))?;
    Ok(tags)
}

/// The weights by what they are for.
#[derive(Clone, Copy, Debug)]
struct Weights<'a, T> {
    tags: usize,
    all: &'a [T],
}

impl<'a, T: Real> Weights<'a, T> {
    fn begin(&self) -> &'a [T] {
        &self.all[..self.tags]
    }

    fn end(&self) -> &'a [T] {
        &self.all[self.tags..2 * self.tags]
    }

    fn from(&self, tag: usize) -> &'a [T] {
        &self.all[(2 + tag) * self.tags..][..self.tags]
    }
}

/// log(sum(exp(values))), without overflow.
fn log_sum<T: Real>(values: impl Iterator<Item = T> + Clone) -> T {
    let top = values.clone().fold(T::LOWEST, T::larger);
    top + T::of(values.fold(0.0, |sum, v| sum + (v - top).exp().wide())).ln()
}

fn tag(input: usize, at: usize, value: i64, tags: usize) -> Result<usize, KernelError> {
    let bad = KernelError::Index { input, at, value, limit: tags };
    usize::try_from(value).ok().filter(|&t| t < tags).ok_or(bad)
}

/// From scores `[n, time, tags]`, weights, tags `[n, time]` and, if `ragged`, lengths `[n]`: minus the logarithm of each
/// tagging's probability `[n]` and, for the gradient, the forward sums `[n, time, tags]`. An empty sequence costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearChainCrf {
    pub ragged: bool,
}

impl Operator for LinearChainCrf {
    fn name(&self) -> &'static str {
        "linear_chain_crf"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3 + usize::from(self.ragged))?;
        chain(inputs)?;
        let x = &inputs[0];
        check::shaped(inputs, 2, DType::I64, &Shape(x.shape.dims()[..2].to_vec()))?;
        if self.ragged {
            lengths(inputs, 3, 0)?;
        }
        Ok(vec![Sig::dense(x.dtype, Shape(vec![x.shape.dims()[0]])), x.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (n, time, tags) = (call.dims(0)[0], call.dims(0)[1], call.dims(0)[2]);
        let ragged = Ragged::new(call, self.ragged.then_some(3), n, time)?;
        let labels = call.input::<i64>(2);
        real!(call.dtype(0), T => {
            let (x, w) = (call.input::<T>(0), Weights { tags, all: call.input::<T>(1) });
            let (cost, sums) = (call.output::<T>(0), call.output::<T>(1));
            ragged.blank(sums, T::ZERO);
            for (s, cost) in cost.iter_mut().enumerate() {
                let (from, rows) = (s * time, s * time..s * time + ragged.len(s));
                let mut score = 0.0;
                for row in rows.clone() {
                    let now = tag(2, row, labels[row], tags)?;
                    let go = if row == from { w.begin() } else { w.from(labels[row - 1] as usize) };
                    score += x[row * tags + now].wide() + go[now].wide();
                }
                for row in rows.clone() {
                    let (past, now) = sums.split_at_mut(row * tags);
                    for (j, to) in now[..tags].iter_mut().enumerate() {
                        *to = x[row * tags + j] + match row == from {
                            true => w.begin()[j],
                            false => log_sum((0..tags).map(|i| past[(row - 1) * tags + i] + w.from(i)[j])),
                        };
                    }
                }
                *cost = match rows.is_empty() {
                    true => T::ZERO,
                    false => {
                        let last = rows.end - 1;
                        score += w.end()[labels[last] as usize].wide();
                        let all = log_sum((0..tags).map(|j| sums[last * tags + j] + w.end()[j]));
                        T::of(all.wide() - score)
                    }
                };
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        // The sums are for the gradient only; nothing can be learned through them.
        if grad.has_dy(1) {
            return Ok(false);
        }
        let mut inputs = vec![grad.x(0), grad.x(1), grad.x(2), grad.y(1), grad.dy(0)];
        if self.ragged {
            inputs.push(grad.x(3));
        }
        let found = grad.emit_all(LinearChainCrfGrad { ragged: self.ragged }, &inputs)?;
        grad.pass(0, found[0])?;
        grad.pass(1, found[1])
    }
}

/// From scores, weights, tags, forward sums, gradient and lengths: gradients of scores and weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearChainCrfGrad {
    pub ragged: bool,
}

impl Operator for LinearChainCrfGrad {
    fn name(&self) -> &'static str {
        "linear_chain_crf_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5 + usize::from(self.ragged))?;
        chain(inputs)?;
        let x = &inputs[0];
        check::shaped(inputs, 2, DType::I64, &Shape(x.shape.dims()[..2].to_vec()))?;
        check::like(inputs, 3, 0)?;
        check::shaped(inputs, 4, x.dtype, &Shape(vec![x.shape.dims()[0]]))?;
        if self.ragged {
            lengths(inputs, 5, 0)?;
        }
        Ok(vec![x.clone(), inputs[1].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        2 * dims[0][2] * element.max(size_of::<f64>()) + (2 + dims[0][2]) * dims[0][2] * size_of::<f64>()
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (n, time, tags) = (call.dims(0)[0], call.dims(0)[1], call.dims(0)[2]);
        let ragged = Ragged::new(call, self.ragged.then_some(5), n, time)?;
        let labels = call.input::<i64>(2);
        real!(call.dtype(0), T => {
            let (x, w) = (call.input::<T>(0), Weights { tags, all: call.input::<T>(1) });
            let (sums, d) = (call.input::<T>(3), call.input::<T>(4));
            let (dx, dw) = (call.output::<T>(0), call.output::<T>(1));
            let (wide, rest) = call.workspace::<f64>().split_at_mut(dw.len());
            let (after, next) = bytemuck::cast_slice_mut::<f64, T>(rest).split_at_mut(tags);
            ragged.blank(dx, T::ZERO);
            wide.fill(0.0);
            for s in (0..n).filter(|&s| ragged.len(s) > 0) {
                let (first, last) = (s * time, s * time + ragged.len(s) - 1);
                let all = log_sum((0..tags).map(|j| sums[last * tags + j] + w.end()[j]));
                after.copy_from_slice(w.end());
                for row in (first..=last).rev() {
                    let (sums_now, x_now) = (&sums[row * tags..][..tags], &x[row * tags..][..tags]);
                    let now = tag(2, row, labels[row], tags)?;
                    for j in 0..tags {
                        let chance = (sums_now[j] + after[j] - all).exp();
                        let share = d[s] * if j == now { chance - T::ONE } else { chance };
                        dx[row * tags + j] = share;
                        if row == last {
                            wide[tags + j] += share.wide();
                        }
                        if row == first {
                            wide[j] += share.wide();
                        }
                    }
                    if row == first {
                        break;
                    }
                    let past = tag(2, row - 1, labels[row - 1], tags)?;
                    for i in 0..tags {
                        let (sum, go) = (sums[(row - 1) * tags + i], w.from(i));
                        for j in 0..tags {
                            let chance = (sum + go[j] + x_now[j] + after[j] - all).exp();
                            let share = if (i, j) == (past, now) { chance - T::ONE } else { chance };
                            wide[(2 + i) * tags + j] += (d[s] * share).wide();
                        }
                        next[i] = log_sum((0..tags).map(|j| go[j] + x_now[j] + after[j]));
                    }
                    after.copy_from_slice(&next[..tags]);
                }
            }
            dw.iter_mut().zip(wide).for_each(|(d, w)| *d = T::of(*w));
        });
        Ok(())
    }
}

/// From scores, weights and, if `ragged`, lengths: the likeliest tags `[n, time]`, 0 behind the ends. Of equals the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrfDecoding {
    pub ragged: bool,
}

impl Operator for CrfDecoding {
    fn name(&self) -> &'static str {
        "crf_decoding"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2 + usize::from(self.ragged))?;
        chain(inputs)?;
        if self.ragged {
            lengths(inputs, 2, 0)?;
        }
        Ok(vec![Sig::dense(DType::I64, Shape(inputs[0].shape.dims()[..2].to_vec()))])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        dims[0][1] * dims[0][2] * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (n, time, tags) = (call.dims(0)[0], call.dims(0)[1], call.dims(0)[2]);
        let ragged = Ragged::new(call, self.ragged.then_some(2), n, time)?;
        let path = call.output::<i64>(0);
        ragged.blank(path, 0);
        real!(call.dtype(0), T => {
            let (x, w) = (call.input::<T>(0), Weights { tags, all: call.input::<T>(1) });
            let best = call.workspace::<T>();
            for s in (0..n).filter(|&s| ragged.len(s) > 0) {
                let (x, len) = (&x[s * time * tags..][..time * tags], ragged.len(s));
                for j in 0..tags {
                    best[j] = x[j] + w.begin()[j];
                }
                for t in 1..len {
                    let (past, now) = best.split_at_mut(t * tags);
                    for j in 0..tags {
                        let come = |i: usize| past[(t - 1) * tags + i] + w.from(i)[j];
                        now[j] = x[t * tags + j] + come(highest(tags, come));
                    }
                }
                // Where each tag came from is found again on the way back, so that only scores are kept.
                let mut now = highest(tags, |j| best[(len - 1) * tags + j] + w.end()[j]);
                for t in (0..len).rev() {
                    path[s * time + t] = now as i64;
                    if t > 0 {
                        now = highest(tags, |i| best[(t - 1) * tags + i] + w.from(i)[now]);
                    }
                }
            }
        });
        Ok(())
    }
}

/// Which has the highest score; of equals the first.
fn highest<T: Real>(n: usize, score: impl Fn(usize) -> T) -> usize {
    let (mut best, mut top) = (0, score(0));
    for i in 1..n {
        let v = score(i);
        if v > top {
            (best, top) = (i, v);
        }
    }
    best
}
