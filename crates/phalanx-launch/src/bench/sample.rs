//! Test values of every element type, small enough that sums are exact.

use half::{bf16, f16};
use phalanx_core::Element;

/// An element made from, and compared with, a small whole number.
pub trait Sample: Element + PartialEq + std::fmt::Debug {
    fn of(number: u8) -> Self;
}

macro_rules! sample {
    ($($t:ty),*) => { $(impl Sample for $t { fn of(number: u8) -> $t { number as $t } })* };
}
sample!(u8, i8, u16, i16, i32, i64, f32, f64);

impl Sample for f16 {
    fn of(number: u8) -> f16 {
        f16::from_f32(f32::from(number))
    }
}

impl Sample for bf16 {
    fn of(number: u8) -> bf16 {
        bf16::from_f32(f32::from(number))
    }
}

impl Sample for bool {
    fn of(number: u8) -> bool {
        number != 0
    }
}
