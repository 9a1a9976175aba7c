//! Shapes with a symbolic batch dimension.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The most dimensions a tensor can have: kernels keep strides on the stack.
pub const MAX_RANK: usize = 8;

/// One dimension: a number, or a multiple of the batch that is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Dim {
    Fixed(usize),
    /// This many times the batch: a `[n_samples, 8, 16]` flattened to two dimensions is `[8 * n_samples, 16]`.
    Batch(usize),
    /// This many times the batch, and a fixed number more: rows of a gradient to which samples and candidates that all samples share have
    /// contributed. Nothing else has such a dimension.
    BatchPlus(usize, usize),
}

/// The batch itself.
pub const BATCH: Dim = Dim::Batch(1);

impl Dim {
    /// Its size when this many samples are fed.
    pub fn at(self, n_samples: usize) -> usize {
        match self {
            Dim::Fixed(n) => n,
            Dim::Batch(times) => times * n_samples,
            Dim::BatchPlus(times, more) => (times * n_samples).saturating_add(more),
        }
    }

    pub fn fixed(self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(n),
            Dim::Batch(_) | Dim::BatchPlus(..) => None,
        }
    }

    /// Whether it is a multiple of the batch.
    pub fn is_batch(self) -> bool {
        matches!(self, Dim::Batch(_))
    }

    /// The product, unless it would need the square of the batch or overflow.
    pub fn times(self, other: Dim) -> Option<Dim> {
        match (self, other) {
            (Dim::Fixed(a), Dim::Fixed(b)) => a.checked_mul(b).map(Dim::Fixed),
            (Dim::Batch(a), Dim::Fixed(b)) | (Dim::Fixed(a), Dim::Batch(b)) => {
                a.checked_mul(b).map(Dim::Batch)
            }
            (Dim::BatchPlus(a, more), Dim::Fixed(b)) | (Dim::Fixed(b), Dim::BatchPlus(a, more)) => {
                Some(Dim::BatchPlus(a.checked_mul(b)?, more.checked_mul(b)?))
            }
            _ => None,
        }
    }

    /// The sum, unless it overflows.
    pub fn plus(self, other: Dim) -> Option<Dim> {
        let parts = |dim| match dim {
            Dim::Fixed(n) => (0, n),
            Dim::Batch(times) => (times, 0),
            Dim::BatchPlus(times, more) => (times, more),
        };
        let ((a, more), (b, other)) = (parts(self), parts(other));
        Some(match (a.checked_add(b)?, more.checked_add(other)?) {
            (0, n) => Dim::Fixed(n),
            (times, 0) => Dim::Batch(times),
            (times, more) => Dim::BatchPlus(times, more),
        })
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::Fixed(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Batch(1) => f.write_str("batch"),
            Dim::Batch(times) => write!(f, "{times}*batch"),
            Dim::BatchPlus(times, more) => write!(f, "{}+{more}", Dim::Batch(*times)),
        }
    }
}

/// The dimensions of a tensor, the last one varying fastest in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    pub fn scalar() -> Shape {
        Shape(Vec::new())
    }

    pub fn rank(&self) -> usize {
        self.0.len()
    }

    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// Number of elements; `None` if that needs the square of the batch, or is beyond counting.
    pub fn volume(&self) -> Option<Dim> {
        self.0.iter().try_fold(Dim::Fixed(1), |all, &d| all.times(d))
    }

    /// Its dimensions when this many samples are fed.
    pub fn at(&self, n_samples: usize) -> Vec<usize> {
        self.0.iter().map(|d| d.at(n_samples)).collect()
    }

    pub fn has_batch(&self) -> bool {
        self.0.iter().any(|d| d.fixed().is_none())
    }
}

impl From<Vec<Dim>> for Shape {
    fn from(dims: Vec<Dim>) -> Shape {
        Shape(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(dims.iter().map(|&n| Dim::Fixed(n)).collect())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape::from(&dims[..])
    }
}

impl<const N: usize> From<[Dim; N]> for Shape {
    fn from(dims: [Dim; N]) -> Shape {
        Shape(dims.to_vec())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_carry_the_batch_once() {
        let shape = Shape::from([BATCH, Dim::Fixed(3), Dim::Fixed(4)]);
        assert_eq!(shape.volume(), Some(Dim::Batch(12)));
        assert_eq!(shape.at(5), [5, 3, 4]);
        assert_eq!(Shape::from([BATCH, BATCH]).volume(), None);
        assert_eq!(Shape::from([usize::MAX, 2]).volume(), None);
        assert_eq!(shape.to_string(), "[batch, 3, 4]");
        assert_eq!(Shape::from([Dim::Batch(7)]).to_string(), "[7*batch]");
        let rows = Dim::Batch(3).plus(Dim::Fixed(5)).and_then(|d| d.plus(BATCH)).unwrap();
        assert_eq!((rows, rows.at(2)), (Dim::BatchPlus(4, 5), 13));
        let shape = Shape::from([rows, Dim::Fixed(2)]);
        assert_eq!(shape.volume().map(|v| v.at(2)), Some(26));
        assert_eq!(shape.to_string(), "[4*batch+5, 2]");
        assert!(shape.has_batch() && !rows.is_batch() && rows.times(BATCH).is_none());
        assert_eq!(BATCH.plus(Dim::Fixed(0)), Some(BATCH));
        assert_eq!(Dim::Fixed(usize::MAX).plus(Dim::Fixed(1)), None);
    }
}
