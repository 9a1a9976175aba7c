//! Sequences of different lengths: pooled to one row, spread from one row, and as masks.

use super::{
    Operator, check,
    ragged::{Ragged, lengths, sequence},
};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, Real, columns, fast, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SequenceOp {
    Sum,
    Mean,
    Max,
    First,
    Last,
}

/// One row `[n, width]` from each sequence of `[n, time, width]`, given lengths `[n]` if `ragged`. An empty sequence gives
/// zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequencePool {
    pub op: SequenceOp,
    pub ragged: bool,
}

fn pooled(inputs: &[Sig]) -> Result<Sig, Misfit> {
    sequence(inputs, 0)?;
    let dims = inputs[0].shape.dims();
    Ok(Sig::dense(inputs[0].dtype, Shape(vec![dims[0], dims[2]])))
}

impl Operator for SequencePool {
    fn name(&self) -> &'static str {
        "sequence_pool"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1 + usize::from(self.ragged))?;
        let out = pooled(inputs)?;
        if self.ragged {
            lengths(inputs, 1, 0)?;
        }
        Ok(vec![out])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (n, time, width) = (call.dims(0)[0], call.dims(0)[1], call.dims(0)[2]);
        let ragged = Ragged::new(call, self.ragged.then_some(1), n, time)?;
        real!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            out.fill(T::ZERO);
            for s in (0..n).filter(|&s| ragged.len(s) > 0) {
                let rows = &x[s * time * width..][..ragged.len(s) * width];
                let (first, last) = (&rows[..width], &rows[rows.len() - width..]);
                let out = &mut out[s * width..][..width];
                match self.op {
                    SequenceOp::First => out.copy_from_slice(first),
                    SequenceOp::Last => out.copy_from_slice(last),
                    SequenceOp::Max => {
                        out.copy_from_slice(first);
                        for (k, &v) in rows.iter().enumerate().skip(width) {
                            out[k % width] = out[k % width].larger(v);
                        }
                    }
                    SequenceOp::Sum | SequenceOp::Mean => {
                        fast(#[inline(always)] || {
                            columns(rows, ragged.len(s), #[inline(always)] |t| t * width, out);
                        });
                        if self.op == SequenceOp::Mean {
                            let len = T::of(ragged.len(s) as f64);
                            out.iter_mut().for_each(|o| *o /= len);
                        }
                    }
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let mut inputs = vec![grad.x(0), grad.dy(0)];
        if self.ragged {
            inputs.push(grad.x(1));
        }
        grad.give(0, SequencePoolGrad { pool: *self }, &inputs)
    }
}

/// From input, gradient and lengths. Of equal largest elements the first has the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequencePoolGrad {
    pub pool: SequencePool,
}

impl Operator for SequencePoolGrad {
    fn name(&self) -> &'static str {
        "sequence_pool_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2 + usize::from(self.pool.ragged))?;
        let out = pooled(inputs)?;
        check::shaped(inputs, 1, out.dtype, &out.shape)?;
        if self.pool.ragged {
            lengths(inputs, 2, 0)?;
        }
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (n, time, width) = (call.dims(0)[0], call.dims(0)[1], call.dims(0)[2]);
        let ragged = Ragged::new(call, self.pool.ragged.then_some(2), n, time)?;
        real!(call.dtype(0), T => {
            let (x, d, out) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            out.fill(T::ZERO);
            for s in (0..n).filter(|&s| ragged.len(s) > 0) {
                let len = ragged.len(s);
                let rows = s * time * width..(s * time + len) * width;
                let (x, out, d) = (&x[rows.clone()], &mut out[rows], &d[s * width..][..width]);
                match self.pool.op {
                    SequenceOp::First => out[..width].copy_from_slice(d),
                    SequenceOp::Last => out[(len - 1) * width..].copy_from_slice(d),
                    SequenceOp::Max => for (j, &d) in d.iter().enumerate() {
                        let mut best = 0;
                        for t in 1..len {
                            let (now, most) = (x[t * width + j], x[best * width + j]);
                            if now > most || (now.is_nan() && !most.is_nan()) {
                                best = t;
                            }
                        }
                        out[best * width + j] = d;
                    },
                    SequenceOp::Sum | SequenceOp::Mean => {
                        let share = match self.pool.op {
                            SequenceOp::Mean => T::ONE / T::of(len as f64),
                            _ => T::ONE,
                        };
                        for row in out.chunks_exact_mut(width.max(1)) {
                            row.iter_mut().zip(d).for_each(|(o, &d)| *o = d * share);
                        }
                    }
                }
            }
        });
        Ok(())
    }
}

/// Each row of `[n, width]` over all of its sequence: `[n, time, width]`, zero behind the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceExpand {
    pub time: usize,
    pub ragged: bool,
}

impl Operator for SequenceExpand {
    fn name(&self) -> &'static str {
        "sequence_expand"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1 + usize::from(self.ragged))?;
        let x = check::real(inputs, 0)?;
        check::rank(inputs, 0, 2, "2 ([n, width])")?;
        let width = check::fixed(inputs, 0, 1)?;
        if self.ragged {
            lengths(inputs, 1, 0)?;
        }
        Ok(vec![Sig::dense(x.dtype, Shape(vec![x.shape.dims()[0], self.time.into(), width.into()]))])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (n, width) = (call.dims(0)[0], call.dims(0)[1]);
        let ragged = Ragged::new(call, self.ragged.then_some(1), n, self.time)?;
        real!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            ragged.blank(out, T::ZERO);
            for s in 0..n {
                let rows = &mut out[s * self.time * width..][..ragged.len(s) * width];
                for row in rows.chunks_exact_mut(width.max(1)) {
                    row.copy_from_slice(&x[s * width..][..width]);
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let mut inputs = vec![grad.dy(0)];
        if self.ragged {
            inputs.push(grad.x(1));
        }
        grad.give(0, SequencePool { op: SequenceOp::Sum, ragged: self.ragged }, &inputs)
    }
}

/// From lengths `[n]`: ones before and zeros behind the ends, `[n, time]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceMask {
    pub time: usize,
    pub dtype: DType,
}

impl Operator for SequenceMask {
    fn name(&self) -> &'static str {
        "sequence_mask"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let n = check::index(inputs, 0)?;
        check::rank(inputs, 0, 1, "1 ([n])")?;
        let out = [Sig::dense(self.dtype, Shape(vec![n.shape.dims()[0], self.time.into()]))];
        check::real(&out, 0)?;
        Ok(out.to_vec())
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let ragged = Ragged::new(call, Some(0), call.dims(0)[0], self.time)?;
        real!(self.dtype, T => {
            let out = call.output::<T>(0);
            out.fill(T::ONE);
            ragged.blank(out, T::ZERO);
        });
        Ok(())
    }
}

/// Far below any score, yet finite: a row of nothing else still has a softmax.
pub(crate) const MASKED: f64 = -1e9;

/// Puts `value` in the place of scores `[n, heads, t, s]` that do not count: those for what lies behind the ends, if lengths
/// `[n]` of what is attended to are given, and those for what comes later, if `causal`. It replaces and does not add: whatever
/// lies behind an end, it must not show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaskScores {
    pub causal: bool,
    pub ragged: bool,
    pub value: f64,
}

impl Operator for MaskScores {
    fn name(&self) -> &'static str {
        "mask_scores"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1 + usize::from(self.ragged))?;
        let x = check::real(inputs, 0)?;
        check::rank(inputs, 0, 4, "4 ([n, heads, t, s])")?;
        for axis in 1..4 {
            check::fixed(inputs, 0, axis)?;
        }
        let dims = x.shape.dims();
        if self.causal && dims[2] != dims[3] {
            return Err(Misfit::Dim { slot: 0, axis: 3, wanted: dims[2], got: dims[3] });
        }
        if self.ragged {
            lengths(inputs, 1, 0)?;
        }
        Ok(vec![x.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let &[n, heads, t, s] = call.dims(0) else { unreachable!("infer saw four dimensions") };
        let ragged = Ragged::new(call, self.ragged.then_some(1), n, s)?;
        real!(call.dtype(0), T => {
            let value = T::of(self.value);
            for (i, row) in call.update::<T>(0, 0).chunks_exact_mut(s.max(1)).enumerate() {
                let end = ragged.len(i / (heads * t));
                let end = if self.causal { end.min(i % t + 1) } else { end };
                row[end..].fill(value);
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let mut inputs = vec![grad.dy(0)];
        if self.ragged {
            inputs.push(grad.x(1));
        }
        grad.give(0, MaskScores { value: 0.0, ..*self }, &inputs)
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}
