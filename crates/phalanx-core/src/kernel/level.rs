//! Instruction sets: what the CPU has, and the conversions the compiler does not vectorise by itself.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// How much of the instruction set the passes may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The best level of this CPU. The standard library remembers the answer; this is a few loads.
    pub(super) fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
            {
                return Level::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                return Level::Avx2;
            }
        }
        Level::Portable
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }
}

/// Proof that the CPU has a level: the value exists only in code that runs after `Level::detect` said so.
pub(super) trait Cpu: Copy {
    /// `f16` bits to `f32`. NaN stays NaN with any payload.
    fn widen<const N: usize>(self, from: &[u16; N]) -> [f32; N];
    /// `f32` to `f16` bits, to nearest even. The only NaN it meets is `f32::NAN`.
    fn narrow<const N: usize>(self, from: &[f32; N]) -> [u16; N];
}

#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Cpu for Portable {
    #[inline(always)]
    fn widen<const N: usize>(self, from: &[u16; N]) -> [f32; N] {
        let mut to = [0.0; N];
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = widen_bits(from));
        to
    }

    #[inline(always)]
    fn narrow<const N: usize>(self, from: &[f32; N]) -> [u16; N] {
        let mut to = [0; N];
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = narrow_bits(from));
        to
    }
}

/// Without arithmetic on subnormal numbers, which would be slow.
#[inline(always)]
fn widen_bits(half: u16) -> f32 {
    const ULP: f32 = 1.0 / (1 << 24) as f32;
    let half = u32::from(half);
    let (sign, magnitude) = ((half & 0x8000) << 16, half & 0x7fff);
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let subnormal = (magnitude as f32 * ULP).to_bits();
    let special = (magnitude << 13) | f32::INFINITY.to_bits();
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

#[inline(always)]
fn narrow_bits(single: f32) -> u16 {
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    const OVERFLOW: u32 = (127 + 16) << 23;
    let sign = (single.to_bits() >> 16) & 0x8000;
    let magnitude = single.to_bits() & 0x7fff_ffff;
    // A carry out of the mantissa moves on into the exponent, up to infinity: that is what rounding means.
    let rebiased = magnitude.wrapping_sub((127 - 15) << 23);
    let normal = rebiased.wrapping_add(0xfff + ((rebiased >> 13) & 1)) >> 13;
    // Between 0.5 and 1 an `f32` has exactly the resolution of `f16` subnormals, so the addition rounds to it.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    let number = if magnitude >= OVERFLOW { 0x7c00 } else { finite };
    (sign | if magnitude > f32::INFINITY.to_bits() { 0x7e00 } else { number }) as u16
}

#[cfg(target_arch = "x86_64")]
macro_rules! cpu {
    ($name:ident, $($lanes:literal: $widen:ident($wide:ident) $narrow:ident($half:ident)),+) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name(());

        impl $name {
            /// # Safety
            /// `Level::detect` returned this level or a higher one.
            #[inline(always)]
            pub(super) unsafe fn new() -> $name {
                $name(())
            }
        }

        impl Cpu for $name {
            #[inline(always)]
            fn widen<const N: usize>(self, from: &[u16; N]) -> [f32; N] {
                let (mut to, mut at) = ([0.0f32; N], 0);
                $(while at + $lanes <= N {
                    // SAFETY: `self` proves the instruction; `at..at + lanes` is inside both arrays.
                    unsafe {
                        let half = from.as_ptr().add(at).cast::<$half>().read_unaligned();
                        to.as_mut_ptr().add(at).cast::<$wide>().write_unaligned($widen(half));
                    }
                    at += $lanes;
                })+
                to[at..].iter_mut().zip(&from[at..]).for_each(|(to, &from)| *to = widen_bits(from));
                to
            }

            #[inline(always)]
            fn narrow<const N: usize>(self, from: &[f32; N]) -> [u16; N] {
                let (mut to, mut at) = ([0u16; N], 0);
                $(while at + $lanes <= N {
                    // SAFETY: as in `widen`.
                    unsafe {
                        let single = from.as_ptr().add(at).cast::<$wide>().read_unaligned();
                        let half = $narrow::<_MM_FROUND_TO_NEAREST_INT>(single);
                        to.as_mut_ptr().add(at).cast::<$half>().write_unaligned(half);
                    }
                    at += $lanes;
                })+
                to[at..].iter_mut().zip(&from[at..]).for_each(|(to, &from)| *to = narrow_bits(from));
                to
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
cpu!(Avx2, 8: _mm256_cvtph_ps(__m256) _mm256_cvtps_ph(__m128i));
#[cfg(target_arch = "x86_64")]
cpu!(Avx512, 16: _mm512_cvtph_ps(__m512) _mm512_cvtps_ph(__m256i),
             8: _mm256_cvtph_ps(__m256) _mm256_cvtps_ph(__m128i));
