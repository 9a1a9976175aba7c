//! The floating-point types kernels compute in, with functions whose bits do not depend on the machine's C library.

use super::gemm::Gemm;
use phalanx_core::kernel::Float;

pub trait Real: Float + Gemm {
    const LOWEST: Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn pow(self, by: Self) -> Self;
    /// `self * by + to`, rounded once. Slow where the CPU cannot fuse.
    fn mul_add(self, by: Self, to: Self) -> Self;
    fn abs(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn is_finite(self) -> bool;

    fn ln_1p(self) -> Self;

    #[inline(always)]
    #[expect(clippy::eq_op, reason = "only NaN is not equal to itself, and this is vector code")]
    fn is_nan(self) -> bool {
        self != self
    }

    /// NaN if either is.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self < other || other.is_nan() { other } else { self }
    }

    /// NaN if either is.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if other < self || other.is_nan() { other } else { self }
    }

    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
}

macro_rules! real {
    ($t:ident, $exp:path, $ln:path, $ln_1p:path, $tanh:path, $erf:path, $pow:path, $sin:path, $cos:path) => {
        impl Real for $t {
            const LOWEST: $t = $t::NEG_INFINITY;
            #[inline(always)]
            fn exp(self) -> $t {
                $exp(self)
            }
            #[inline(always)]
            fn ln(self) -> $t {
                $ln(self)
            }
            #[inline(always)]
            fn ln_1p(self) -> $t {
                $ln_1p(self)
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                $tanh(self)
            }
            #[inline(always)]
            fn erf(self) -> $t {
                $erf(self)
            }
            #[inline(always)]
            fn pow(self, by: $t) -> $t {
                $pow(self, by)
            }
            #[inline(always)]
            fn mul_add(self, by: $t, to: $t) -> $t {
                $t::mul_add(self, by, to)
            }
            #[inline(always)]
            fn abs(self) -> $t {
                $t::abs(self)
            }
            #[inline(always)]
            fn sin(self) -> $t {
                $sin(self)
            }
            #[inline(always)]
            fn cos(self) -> $t {
                $cos(self)
            }
            #[inline(always)]
            fn floor(self) -> $t {
                $t::floor(self)
            }
            #[inline(always)]
            fn ceil(self) -> $t {
                $t::ceil(self)
            }
            #[inline(always)]
            fn round(self) -> $t {
                $t::round_ties_even(self)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                $t::is_finite(self)
            }
        }
    };
}
real!(f32, exp_f32, libm::logf, libm::log1pf, tanh_f32, erf_f32, libm::powf, libm::sinf, libm::cosf);
real!(f64, libm::exp, libm::log, libm::log1p, libm::tanh, libm::erf, libm::pow, libm::sin, libm::cos);

/// e^x within 2 units in the last place, without branches, so that loops over it become vector code. What would be
/// denormal is zero.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    /// Adding it leaves the rounded integer in the low bits of the mantissa.
    const MAGIC: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.336_55, 88.722_84);
    let shifted = clamped * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = clamped - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    // In two factors, because 2^128 alone is no f32.
    let k = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = k >> 1;
    let power = |k: i32| f32::from_bits(((k.wrapping_add(127)) as u32) << 23);
    let y = y * power(half) * power(k.wrapping_sub(half));
    let y = if x > 88.722_84 { f32::INFINITY } else { y };
    if x < -87.336_55 { 0.0 } else { y }
}

#[inline(always)]
fn tanh_f32(x: f32) -> f32 {
    let z = x * x;
    let p = -5.704_988_7e-3;
    let p = p * z + 2.063_908_8e-2;
    let p = p * z - 5.373_971_6e-2;
    let p = p * z + 1.333_144_2e-1;
    let p = p * z - 3.333_328e-1;
    let small = p * z * x + x;
    let large = (1.0 - 2.0 / (exp_f32(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { small } else { large }
}

/// The error function within 1.5e-7 of its value, without branches. Polynomials fitted to `erf(x) / x` below 0.93 and to
/// `-ln(erfc(x))` above; from 4 on it is 1.
#[inline(always)]
fn erf_f32(x: f32) -> f32 {
    let z = x * x;
    let p = -5.976_886e-4;
    let p = p * z + 4.990_978_6e-3;
    let p = p * z - 2.676_556_6e-2;
    let p = p * z + 1.128_180_25e-1;
    let p = p * z - 3.761_249_5e-1;
    let p = p * z + 1.283_791_5e-1;
    let small = p * x + x;
    let t = x.abs().min(4.0);
    let q = 2.127_900_6e-5;
    let q = q * t - 4.365_776_8e-4;
    let q = q * t + 4.181_253_7e-3;
    let q = q * t - 2.514_611e-2;
    let q = q * t + 1.083_211_15e-1;
    let q = q * t + 6.333_098_4e-1;
    let q = q * t + 1.129_533_2;
    let q = q * t - 1.784_560_4e-4;
    let large = (1.0 - exp_f32(-q)).copysign(x);
    // A NaN is not larger than anything, and stays one.
    if x.abs() > 0.93 { large } else { small }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_functions_are_close_to_the_wide_ones_everywhere() {
        let mut x = -100.0f32;
        while x < 100.0 {
            let (e, t, f) = (exp_f32(x), tanh_f32(x), erf_f32(x));
            let (we, wt, wf) = (f64::from(x).exp(), f64::from(x).tanh(), libm::erf(f64::from(x)));
            assert!((f64::from(f) - wf).abs() <= wf.abs() * 1.5e-7, "erf({x}) = {f}, not {wf}");
            if (-87.0..88.7).contains(&x) {
                assert!((f64::from(e) - we).abs() <= we * 3e-7, "exp({x}) = {e}, not {we}");
            }
            assert!((f64::from(t) - wt).abs() <= wt.abs() * 3e-7, "tanh({x}) = {t}, not {wt}");
            x += 0.01;
        }
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert_eq!((exp_f32(0.0), tanh_f32(0.0), erf_f32(0.0)), (1.0, 0.0, 0.0));
        assert_eq!((erf_f32(f32::INFINITY), erf_f32(f32::NEG_INFINITY)), (1.0, -1.0));
        assert!(exp_f32(f32::NAN).is_nan() && tanh_f32(f32::NAN).is_nan() && erf_f32(f32::NAN).is_nan());
    }
}
