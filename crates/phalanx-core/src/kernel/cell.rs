//! The arithmetic of one element: how it is read, combined and written. Written so that LLVM vectorises it.

use super::{
    Factors,
    level::{Cpu, bf16_widen},
};
use std::marker::PhantomData;

/// An element type together with how it is scaled.
pub(super) trait Cell {
    /// What lies in memory.
    type Raw: Copy;
    /// What is accumulated.
    type Acc: Copy;
    /// Reads a tile and applies the prescale.
    fn load<C: Cpu, const N: usize>(cpu: C, raw: &[Self::Raw; N], factors: &Factors) -> [Self::Acc; N];
    /// What is written.
    type Out: Write<Self::Raw>;
    /// Divides, applies the postscale and rounds, except for what writing rounds.
    fn finish<C: Cpu, const N: usize>(cpu: C, acc: &[Self::Acc; N], factors: &Factors) -> [Self::Out; N];
}

/// Something that can be put into memory of type `Raw`.
pub(super) trait Write<Raw>: Copy {
    /// Writes a tile to every destination, from element `at` on.
    ///
    /// # Safety
    /// `N` elements of each destination from `at` on are valid for writes, of any alignment.
    unsafe fn write<C: Cpu, const N: usize>(cpu: C, tile: &[Self; N], dsts: &[*mut u8], at: usize);
}

impl<T: Copy> Write<T> for T {
    #[inline(always)]
    unsafe fn write<C: Cpu, const N: usize>(_: C, tile: &[T; N], dsts: &[*mut u8], at: usize) {
        for dst in dsts {
            // SAFETY: as the caller promised.
            unsafe { dst.cast::<T>().add(at).cast::<[T; N]>().write_unaligned(*tile) }
        }
    }
}

/// As `f16`. One destination: narrowing on the way to memory is cheaper than narrowing in a register. Several: narrowing once is.
impl Write<u16> for f32 {
    #[inline(always)]
    unsafe fn write<C: Cpu, const N: usize>(cpu: C, tile: &[f32; N], dsts: &[*mut u8], at: usize) {
        if let [dst] = dsts {
            // SAFETY: as the caller promised.
            return unsafe { cpu.narrow(tile, dst.cast::<u16>().add(at)) };
        }
        let halves = cpu.narrowed(tile);
        // SAFETY: as the caller promised.
        unsafe { <u16 as Write<u16>>::write(cpu, &halves, dsts, at) }
    }
}

/// A reduction of two accumulators.
pub(super) trait Join<A> {
    fn join(a: A, b: A) -> A;
}

pub(super) struct Sum;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Product;

macro_rules! join {
    ($($op:ident for $($t:ty),+: |$a:ident, $b:ident| $body:expr;)+) => {
        $($(impl Join<$t> for $op {
            #[inline(always)]
            fn join($a: $t, $b: $t) -> $t {
                $body
            }
        })+)+
    };
}
join! {
    Sum for u8, i8, u16, i16, i32, i64: |a, b| a.wrapping_add(b);
    Product for u8, i8, u16, i16, i32, i64: |a, b| a.wrapping_mul(b);
    Min for u8, i8, u16, i16, i32, i64: |a, b| a.min(b);
    Max for u8, i8, u16, i16, i32, i64: |a, b| a.max(b);
    Sum for f32, f64: |a, b| a + b;
    Product for f32, f64: |a, b| a * b;
    // Each choice keeps its second operand when the comparison fails. Distinct numbers: both choose the same. Zeros:
    // `or` keeps a minus. NaN: `or` of its bits with any others is a NaN. (Two instructions and the `or`.)
    Min for f32: |a, b| f32::from_bits(
        if a < b { a } else { b }.to_bits() | if b < a { b } else { a }.to_bits());
    Min for f64: |a, b| f64::from_bits(
        if a < b { a } else { b }.to_bits() | if b < a { b } else { a }.to_bits());
    Max for f32, f64: |a, b| -<Min as Join<_>>::join(-a, -b);
}

/// One loop per tile keeps every intermediate array in registers.
#[inline(always)]
fn map<A: Copy, B: Copy, const N: usize>(from: &[A; N], zero: B, f: impl Fn(A) -> B) -> [B; N] {
    let mut to = [zero; N];
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = f(from));
    to
}

/// Integers without factors.
pub(super) struct Int<T>(PhantomData<T>);

/// Integers with factors: accumulated in 64 bits, whose low bits are the wrapped result of the narrow type.
pub(super) struct Wide<T>(PhantomData<T>);

macro_rules! int {
    ($($t:ident / $quotient:expr),+) => { $(
        impl Cell for Int<$t> {
            type Raw = $t;
            type Acc = $t;
            type Out = $t;
            #[inline(always)]
            fn load<C: Cpu, const N: usize>(_: C, raw: &[$t; N], _: &Factors) -> [$t; N] {
                *raw
            }
            #[inline(always)]
            fn finish<C: Cpu, const N: usize>(_: C, acc: &[$t; N], _: &Factors) -> [$t; N] {
                *acc
            }
        }

        impl Cell for Wide<$t> {
            type Raw = $t;
            type Acc = i64;
            type Out = $t;
            #[inline(always)]
            fn load<C: Cpu, const N: usize>(_: C, raw: &[$t; N], factors: &Factors) -> [i64; N] {
                match factors.prescale {
                    1.0 => map(raw, 0, |x| i64::from(x)),
                    pre => map(raw, 0, |x| i64::from((x as f64 * pre) as $t)),
                }
            }
            #[inline(always)]
            fn finish<C: Cpu, const N: usize>(_: C, acc: &[i64; N], factors: &Factors) -> [$t; N] {
                let quotient: fn(i64, i64) -> i64 = $quotient;
                let whole = match factors.divisor as i64 {
                    1 => map(acc, 0, |x| x as $t),
                    divisor => map(acc, 0, |x| quotient(x, divisor) as $t),
                };
                match factors.postscale {
                    1.0 => whole,
                    post => map(&whole, 0, |x| (x as f64 * post) as $t),
                }
            }
        }
    )+ };
}
/// Exact toward zero while `|sum| < 2^52`, which a million `i32` sources do not reach, and faster than `idiv`.
const NARROW: fn(i64, i64) -> i64 = |sum, divisor| (sum as f64 / divisor as f64) as i64;
int!(u8 / NARROW, i8 / NARROW, u16 / NARROW, i16 / NARROW, i32 / NARROW, i64 / |sum, divisor| sum / divisor);

/// Truth values: any nonzero byte is read as 1. Their Max is "or", their Min is "and".
pub(super) struct Truth;

impl Cell for Truth {
    type Raw = u8;
    type Acc = u8;
    type Out = u8;
    #[inline(always)]
    fn load<C: Cpu, const N: usize>(_: C, raw: &[u8; N], _: &Factors) -> [u8; N] {
        map(raw, 0, |x| u8::from(x != 0))
    }
    #[inline(always)]
    fn finish<C: Cpu, const N: usize>(_: C, acc: &[u8; N], _: &Factors) -> [u8; N] {
        *acc
    }
}

/// How the factors enter a pass over floats.
pub(super) const PLAIN: u8 = 0;
/// Multiplications only: dividing by a power of two and multiplying by its inverse round alike.
pub(super) const SCALED: u8 = 1;
pub(super) const DIVIDED: u8 = 2;
/// Only the division, by a power of two: averages of most worlds.
pub(super) const AVERAGED: u8 = 3;

pub(super) struct F16<const MODE: u8>;
pub(super) struct BF16<const MODE: u8>;
pub(super) struct F32<const MODE: u8>;
pub(super) struct F64<const MODE: u8>;

/// KER-3: which of two NaNs an instruction keeps differs between instruction sets.
macro_rules! one_nan {
    ($t:ty) => {
        |x: $t| if x.is_nan() { <$t>::NAN } else { x }
    };
}

macro_rules! float {
    ($($cell:ident: $raw:ty, $acc:ty, $out:ty, $read:expr, $round:expr;)+) => { $(
        impl<const MODE: u8> Cell for $cell<MODE> {
            type Raw = $raw;
            type Acc = $acc;
            type Out = $out;
            #[inline(always)]
            fn load<C: Cpu, const N: usize>(cpu: C, raw: &[$raw; N], factors: &Factors) -> [$acc; N] {
                let values: [$acc; N] = $read(cpu, raw);
                let pre = factors.prescale as $acc;
                if MODE == PLAIN || MODE == AVERAGED { values } else { map(&values, 0.0, |x| x * pre) }
            }
            #[inline(always)]
            fn finish<C: Cpu, const N: usize>(cpu: C, acc: &[$acc; N], factors: &Factors) -> [$out; N] {
                let (divisor, post) = (factors.divisor as $acc, factors.postscale as $acc);
                let inverse = 1.0 / divisor;
                let scaled = map(acc, 0.0, |x| match MODE {
                    PLAIN => x,
                    AVERAGED => x * inverse,
                    SCALED => x * inverse * post,
                    _ => x / divisor * post,
                });
                $round(cpu, &scaled)
            }
        }
    )+ };
}
float! {
    F16: u16, f32, f32, |cpu: C, raw| cpu.widen(raw), |_, values| half_nan::<MODE, N>(values);
    BF16: u16, f32, u16, |_, raw| bf16_widen(raw), |cpu: C, values| cpu.bf16_narrow(&half_nan::<MODE, N>(values));
    F32: f32, f32, f32, |_, raw: &[f32; N]| *raw, |_, values| map(values, 0.0, one_nan!(f32));
    F64: f64, f64, f64, |_, raw: &[f64; N]| *raw, |_, values| map(values, 0.0, one_nan!(f64));
}

/// `one_nan`, which a plain pass over halves, bound by conversions, can only afford when there is one: it looks for NaN
/// in two registers at a time.
#[inline(always)]
fn half_nan<const MODE: u8, const N: usize>(values: &[f32; N]) -> [f32; N] {
    let (low, high) = values.split_at(N / 2);
    let odd_one = !N.is_multiple_of(2) && values[N - 1].is_nan();
    let any = || low.iter().zip(high).fold(odd_one, |nan, (a, b)| nan | a.is_nan() | b.is_nan());
    if (MODE == PLAIN || MODE == AVERAGED) && !any() { *values } else { map(values, 0.0, one_nan!(f32)) }
}
