//! Layers that select, compare, count or draw random numbers.

use super::{Builder, Made};
use crate::{
    ir::{Shape, VarId},
    op::{ArgMax, Compare, Comparison, Gather, OneHot, Random, Softmax},
};

impl Builder {
    /// Where the largest of the last axis is; of equals the first.
    #[track_caller]
    pub fn argmax(&mut self, x: VarId) -> Made {
        self.op1(ArgMax, &[x])
    }

    /// A row with a one in the place of each number.
    #[track_caller]
    pub fn one_hot(&mut self, ids: VarId, depth: usize) -> Made {
        self.op1(OneHot { depth, dtype: self.dtype }, &[ids])
    }

    /// Compares elements; `y` is stretched over the last dimensions of `x`.
    #[track_caller]
    pub fn compare(&mut self, op: Comparison, x: VarId, y: VarId) -> Made {
        let axis = self.shape(x).rank().saturating_sub(self.shape(y).rank());
        self.op1(Compare { op, axis }, &[x, y])
    }

    #[track_caller]
    pub fn less_than(&mut self, x: VarId, y: VarId) -> Made {
        self.compare(Comparison::Less, x, y)
    }

    /// Slices of the first axis by number.
    #[track_caller]
    pub fn gather(&mut self, x: VarId, ids: VarId) -> Made {
        self.op1(Gather, &[x, ids])
    }

    #[track_caller]
    pub fn log_softmax(&mut self, x: VarId) -> Made {
        self.op1(Softmax { log: true }, &[x])
    }

    /// Random numbers in [low, high), new in every run.
    #[track_caller]
    pub fn uniform(&mut self, shape: impl Into<Shape>, low: f64, high: f64) -> Made {
        let (dtype, stream) = (self.dtype, self.stream());
        self.op1(Random { dtype, shape: shape.into(), normal: false, a: low, b: high, stream }, &[])
    }

    /// Normal random numbers, new in every run.
    #[track_caller]
    pub fn gaussian(&mut self, shape: impl Into<Shape>, mean: f64, std: f64) -> Made {
        let (dtype, stream) = (self.dtype, self.stream());
        self.op1(Random { dtype, shape: shape.into(), normal: true, a: mean, b: std, stream }, &[])
    }
}
