//! The arithmetic of one element: how it is read, combined and written. Written so that LLVM vectorises it.

use super::{Factors, level::Cpu};
use std::marker::PhantomData;

/// An element type together with how it is scaled.
pub(super) trait Cell {
    /// What lies in memory.
    type Raw: Copy;
    /// What is accumulated.
    type Acc: Copy;
    /// Reads a tile and applies the prescale.
    fn load<C: Cpu, const N: usize>(cpu: C, raw: &[Self::Raw; N], factors: &Factors) -> [Self::Acc; N];
    /// Divides, applies the postscale and rounds.
    fn store<C: Cpu, const N: usize>(cpu: C, acc: &[Self::Acc; N], factors: &Factors) -> [Self::Raw; N];
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
            #[inline(always)]
            fn load<C: Cpu, const N: usize>(_: C, raw: &[$t; N], _: &Factors) -> [$t; N] {
                *raw
            }
            #[inline(always)]
            fn store<C: Cpu, const N: usize>(_: C, acc: &[$t; N], _: &Factors) -> [$t; N] {
                *acc
            }
        }

        impl Cell for Wide<$t> {
            type Raw = $t;
            type Acc = i64;
            #[inline(always)]
            fn load<C: Cpu, const N: usize>(_: C, raw: &[$t; N], factors: &Factors) -> [i64; N] {
                match factors.prescale {
                    1.0 => map(raw, 0, |x| i64::from(x)),
                    pre => map(raw, 0, |x| i64::from((x as f64 * pre) as $t)),
                }
            }
            #[inline(always)]
            fn store<C: Cpu, const N: usize>(_: C, acc: &[i64; N], factors: &Factors) -> [$t; N] {
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
    #[inline(always)]
    fn load<C: Cpu, const N: usize>(_: C, raw: &[u8; N], _: &Factors) -> [u8; N] {
        map(raw, 0, |x| u8::from(x != 0))
    }
    #[inline(always)]
    fn store<C: Cpu, const N: usize>(_: C, acc: &[u8; N], _: &Factors) -> [u8; N] {
        *acc
    }
}

/// How the factors enter a pass over floats.
pub(super) const PLAIN: u8 = 0;
/// Multiplications only: dividing by a power of two and multiplying by its inverse round alike.
pub(super) const SCALED: u8 = 1;
pub(super) const DIVIDED: u8 = 2;

pub(super) struct F16<const MODE: u8>;
pub(super) struct BF16<const MODE: u8>;
pub(super) struct F32<const MODE: u8>;
pub(super) struct F64<const MODE: u8>;

macro_rules! float {
    ($($cell:ident: $raw:ty, $acc:ty, $read:expr, $write:expr;)+) => { $(
        impl<const MODE: u8> Cell for $cell<MODE> {
            type Raw = $raw;
            type Acc = $acc;
            #[inline(always)]
            fn load<C: Cpu, const N: usize>(cpu: C, raw: &[$raw; N], factors: &Factors) -> [$acc; N] {
                let values: [$acc; N] = $read(cpu, raw);
                let pre = factors.prescale as $acc;
                if MODE == PLAIN { values } else { map(&values, 0.0, |x| x * pre) }
            }
            #[inline(always)]
            fn store<C: Cpu, const N: usize>(cpu: C, acc: &[$acc; N], factors: &Factors) -> [$raw; N] {
                let (divisor, post) = (factors.divisor as $acc, factors.postscale as $acc);
                let inverse = 1.0 / divisor;
                let scaled = map(acc, 0.0, |x| match MODE {
                    PLAIN => x,
                    SCALED => x * inverse * post,
                    _ => x / divisor * post,
                });
                // KER-3: which of two NaNs an instruction keeps differs between instruction sets.
                let values = map(&scaled, 0.0, |x| if x.is_nan() { <$acc>::NAN } else { x });
                $write(cpu, &values)
            }
        }
    )+ };
}
float! {
    F16: u16, f32, |cpu: C, raw| cpu.widen(raw), |cpu: C, values| cpu.narrow(values);
    BF16: u16, f32, |_, raw| map(raw, 0.0, |x| f32::from_bits(u32::from(x) << 16)), |_, values| map(values, 0, bf16_bits);
    F32: f32, f32, |_, raw: &[f32; N]| *raw, |_, values: &[f32; N]| *values;
    F64: f64, f64, |_, raw: &[f64; N]| *raw, |_, values: &[f64; N]| *values;
}

/// To nearest even: adds just under half of what is cut off, and the kept last bit to break ties. `f32::NAN` survives,
/// since its mantissa is zero but for the highest bit.
#[inline(always)]
pub(super) fn bf16_bits(single: f32) -> u16 {
    let bits = single.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}
