//! What is known of a variable before anything runs: element type, shape, form.

use super::shape::Shape;
use phalanx_core::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Buffers begin at multiples of this, and so do the values of sparse rows.
pub const ALIGN: usize = 64;

/// The most values that one operation gives.
pub const MAX_OUTPUTS: usize = 1023;

/// How a variable's elements lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Storage {
    /// All elements, row by row.
    Dense,
    /// Some rows of a taller tensor: first the row numbers as i64 (-1: an empty place), then the values. The
    /// shape is that of the values.
    Rows { height: usize },
}

/// Element type, shape and form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sig {
    pub dtype: DType,
    pub shape: Shape,
    pub form: Storage,
}

impl Sig {
    pub fn dense(dtype: DType, shape: impl Into<Shape>) -> Sig {
        Sig { dtype, shape: shape.into(), form: Storage::Dense }
    }

    pub fn is_dense(&self) -> bool {
        self.form == Storage::Dense
    }

    /// Bytes in memory when this many samples are fed. The verifier has seen that this can be counted.
    pub fn bytes(&self, n_samples: usize) -> usize {
        let volume = self.shape.volume().map_or(0, |v| v.at(n_samples));
        let values = volume * self.dtype.size();
        match self.form {
            Storage::Dense => values,
            Storage::Rows { .. } => self.rows_bytes(n_samples) + values,
        }
    }

    /// Where the values of sparse rows begin.
    pub fn rows_bytes(&self, n_samples: usize) -> usize {
        let n_rows = self.shape.dims().first().map_or(0, |d| d.at(n_samples));
        (n_rows * size_of::<i64>()).next_multiple_of(ALIGN)
    }
}

impl fmt::Display for Sig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)?;
        match self.form {
            Storage::Dense => Ok(()),
            Storage::Rows { height } => write!(f, " of {height} rows"),
        }
    }
}
