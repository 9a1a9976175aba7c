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
}

/// The batch itself.
pub const BATCH: Dim = Dim::Batch(1);

impl Dim {
    /// Its size when this many samples are fed.
    pub fn at(self, n_samples: usize) -> usize {
        match self {
            Dim::Fixed(n) => n,
            Dim::Batch(times) => times * n_samples,
        }
    }

    pub fn fixed(self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(n),
            Dim::Batch(_) => None,
        }
    }

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
            (Dim::Batch(_), Dim::Batch(_)) => None,
        }
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
        self.0.iter().any(|d| d.is_batch())
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
    }
}
