//! Metrics. Only the values of the top k have a gradient.

use super::{Operator, check, sort};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Shape, Sig},
    kernel::{Call, KernelError, Real, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Whether one score comes before another: NaN before all numbers, as in PyTorch.
pub(super) fn is_above<T: Real>(a: T, b: T) -> bool {
    a > b || (a.is_nan() && !b.is_nan())
}

/// The k largest of the last axis and where they were; of equals the first comes first, and NaN before all numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopK {
    pub k: usize,
}

impl Operator for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::real(inputs, 0)?;
        let Some(last) = x.shape.rank().checked_sub(1) else {
            return Err(Misfit::Rank { slot: 0, wanted: "at least 1", got: x.shape.clone() });
        };
        if self.k == 0 || self.k > check::fixed(inputs, 0, last)? {
            return Err(Misfit::Attribute {
                name: "k",
                wanted: "1 to the last dimension",
                got: self.k.to_string(),
            });
        }
        let mut shape = x.shape.clone();
        shape.0[last] = Dim::Fixed(self.k);
        Ok(vec![Sig::dense(x.dtype, shape.clone()), Sig::dense(DType::I64, shape)])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0)[call.dims(0).len() - 1];
        real!(call.dtype(0), T => {
            let (x, top, at) = (call.input::<T>(0), call.output::<T>(0), call.output::<i64>(1));
            for ((row, top), at) in x.chunks_exact(n).zip(top.chunks_exact_mut(self.k)).zip(at.chunks_exact_mut(self.k)) {
                for found in 0..self.k {
                    let free = |i: usize, at: &[i64]| !at[..found].contains(&(i as i64));
                    let mut best = None;
                    for (i, &v) in row.iter().enumerate() {
                        if free(i, at) && best.is_none_or(|(_, b)| is_above(v, b)) {
                            best = Some((i, v));
                        }
                    }
                    let (i, v) = best.expect("k is at most the length of the row");
                    (top[found], at[found]) = (v, i as i64);
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        sort::put_back(grad)
    }
}

/// Where the largest of the last axis is, or its first NaN. Among no samples it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgMax;

impl Operator for ArgMax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::real(inputs, 0)?;
        match x.shape.dims().split_last() {
            Some((last, outer)) if *last != Dim::Fixed(0) => {
                Ok(vec![Sig::dense(DType::I64, Shape(outer.to_vec()))])
            }
            _ => Err(Misfit::Rank {
                slot: 0,
                wanted: "at least 1, with elements along the last",
                got: x.shape.clone(),
            }),
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = call.dims(0)[call.dims(0).len() - 1];
        real!(call.dtype(0), T => {
            let (x, at) = (call.input::<T>(0), call.output::<i64>(0));
            at.fill(0);
            for (row, at) in x.chunks_exact(n.max(1)).zip(at) {
                let mut best = 0;
                for i in 1..n {
                    if is_above(row[i], row[best]) {
                        best = i;
                    }
                }
                *at = best as i64;
            }
        });
        Ok(())
    }
}

/// Which part of the labels is among the k candidates: `[n, k]` and `[n]` or `[n, 1]`. With the candidates' scores `[n, k]`
/// one whose score is NaN is never right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accuracy;

impl Operator for Accuracy {
    fn name(&self) -> &'static str {
        "accuracy"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        if inputs.len() != 3 {
            check::count(inputs, 2)?;
        }
        let (top, labels) = (check::index(inputs, 0)?, check::index(inputs, 1)?);
        if inputs.len() == 3 {
            check::shaped(inputs, 2, check::real(inputs, 2)?.dtype, &top.shape)?;
        }
        check::rank(inputs, 0, 2, "2 ([n, k])")?;
        if labels.shape.volume() != Some(top.shape.dims()[0]) {
            return Err(Misfit::Pair { a: top.shape.clone(), b: labels.shape.clone() });
        }
        Ok(vec![Sig::dense(DType::F32, Shape::scalar())])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let k = call.dims(0)[1];
        let (top, labels, out) = (call.input::<i64>(0), call.input::<i64>(1), call.output::<f32>(0));
        let right = |is_number: &dyn Fn(usize) -> bool| {
            let hit = |i: usize| top[i * k..(i + 1) * k].iter().position(|t| *t == labels[i]);
            (0..labels.len()).filter(|&i| hit(i).is_some_and(|at| is_number(i * k + at))).count()
        };
        let right = match call.n_inputs() {
            2 => right(&|_| true),
            _ => real!(call.dtype(2), T => right(&|at| !call.input::<T>(2)[at].is_nan())),
        };
        out[0] = right as f32 / labels.len().max(1) as f32;
        Ok(())
    }
}
