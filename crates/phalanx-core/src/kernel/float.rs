//! The floating-point types in which parameters are kept and updated.

use crate::DType;
use bytemuck::Pod;
use std::{
    fmt::Debug,
    ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign},
};

/// `f32` or `f64`.
pub trait Float:
    Pod
    + Debug
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + Send
    + Sync
{
    const DTYPE: DType;
    const ZERO: Self;
    const ONE: Self;
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    fn sqrt(self) -> Self;
}

macro_rules! float {
    ($t:ident, $dtype:ident) => {
        impl Float for $t {
            const DTYPE: DType = DType::$dtype;
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            #[inline(always)]
            fn of(value: f64) -> $t {
                value as $t
            }
            #[inline(always)]
            fn wide(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                $t::sqrt(self)
            }
        }
    };
}
float!(f32, F32);
float!(f64, F64);

/// Runs a loop with the widest vector unit of the machine. Bits do not depend on it: a product is fused with a sum only
/// where the loop says so.
#[inline(always)]
pub fn fast<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
