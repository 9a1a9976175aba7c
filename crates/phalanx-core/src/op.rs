//! What a reduction computes, and for which element types it is defined.

use crate::DType;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How the elements of all ranks become one.
///
/// For `bool`, Sum and Max are "any", Product and Min are "all". Average of integers divides the
/// exact (wrapping) sum and rounds toward zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum ReduceOp {
    Sum = 0,
    Average = 1,
    Min = 2,
    Max = 3,
    Product = 4,
}

/// A reduction that has no meaning.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    #[error("{op} of {dtype} is not defined; use {instead}")]
    NoMeaning { op: ReduceOp, dtype: DType, instead: &'static str },
    #[error("cannot scale {dtype} by {factor}: only numbers can be scaled")]
    NoScale { dtype: DType, factor: f64 },
    #[error("scale factor {0} is not a finite number")]
    BadScale(f64),
    #[error("unknown reduction {0:?}; known: sum average min max product")]
    Unknown(String),
}

impl ReduceOp {
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Average => "average",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
        }
    }

    /// Whether this reduction of this type, scaled by these factors, has a meaning.
    pub fn check(self, dtype: DType, prescale: f64, postscale: f64) -> Result<(), OpError> {
        if dtype == DType::Bool && self == ReduceOp::Average {
            return Err(OpError::NoMeaning { op: self, dtype, instead: "max for any, min for all" });
        }
        for factor in [prescale, postscale] {
            if !factor.is_finite() {
                return Err(OpError::BadScale(factor));
            }
            if dtype == DType::Bool && factor != 1.0 {
                return Err(OpError::NoScale { dtype, factor });
            }
        }
        Ok(())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = OpError;

    fn from_str(name: &str) -> Result<ReduceOp, OpError> {
        ReduceOp::ALL.into_iter().find(|o| o.name() == name).ok_or_else(|| OpError::Unknown(name.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_of_bool_is_refused_with_an_alternative() {
        let error = ReduceOp::Average.check(DType::Bool, 1.0, 1.0).unwrap_err();
        assert_eq!(error.to_string(), "average of bool is not defined; use max for any, min for all");
    }

    #[test]
    fn scales_must_be_finite_and_bools_unscaled() {
        assert_eq!(
            ReduceOp::Sum.check(DType::F32, f64::INFINITY, 1.0),
            Err(OpError::BadScale(f64::INFINITY))
        );
        assert!(ReduceOp::Sum.check(DType::Bool, 1.0, 2.0).is_err());
        assert_eq!(ReduceOp::Sum.check(DType::I32, 0.5, 2.0), Ok(()));
    }
}
