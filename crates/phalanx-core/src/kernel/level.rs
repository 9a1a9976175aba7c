//! Instruction sets: what the CPU has, and the conversions the compiler does not vectorise by itself.

#[cfg(target_arch = "x86_64")]
use std::arch::{asm, x86_64::*};

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
    /// Writes `f32` as `f16` bits, to nearest even. The only NaN it meets is `f32::NAN`.
    ///
    /// # Safety
    /// `to` is valid for writes of `N` elements, of any alignment.
    unsafe fn narrow<const N: usize>(self, from: &[f32; N], to: *mut u16);
    /// The same bits, in registers.
    fn narrowed<const N: usize>(self, from: &[f32; N]) -> [u16; N];
    /// `f32` to `bf16` bits, to nearest even, from the order in which `bf16_widen` left them. Meets no NaN but
    /// `f32::NAN`.
    fn bf16_narrow<const N: usize>(self, from: &[f32; N]) -> [u16; N];
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
    unsafe fn narrow<const N: usize>(self, from: &[f32; N], to: *mut u16) {
        // SAFETY: as the caller promised.
        unsafe { to.cast::<[u16; N]>().write_unaligned(self.narrowed(from)) }
    }

    #[inline(always)]
    fn narrowed<const N: usize>(self, from: &[f32; N]) -> [u16; N] {
        let mut bits = [0; N];
        bits.iter_mut().zip(from).for_each(|(to, &from)| *to = narrow_bits(from));
        bits
    }

    #[inline(always)]
    fn bf16_narrow<const N: usize>(self, from: &[f32; N]) -> [u16; N] {
        bf16_narrow(self, from)
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

/// Reads pairs of `bf16` as words: all the even elements, then all the odd ones. Unlike the order in memory, this one
/// takes no shuffle, and what is between reading and writing does not mind. A single element may be left at the end of
/// the even ones.
#[inline(always)]
pub(super) fn bf16_widen<const N: usize>(from: &[u16; N]) -> [f32; N] {
    let mut to = [0.0; N];
    let (even, odd) = to.split_at_mut(N.div_ceil(2));
    for (i, (even, odd)) in even.iter_mut().zip(odd).enumerate() {
        // SAFETY: word `i` is the elements `2 * i` and `2 * i + 1`, and there are as many odd elements as words.
        let word = u32::from_le(unsafe { from.as_ptr().cast::<u32>().add(i).read_unaligned() });
        *even = f32::from_bits(word << 16);
        *odd = f32::from_bits(word & 0xffff_0000);
    }
    if !N.is_multiple_of(2) {
        to[N / 2] = f32::from_bits(u32::from(from[N - 1]) << 16);
    }
    to
}

#[inline(always)]
fn bf16_narrow<const N: usize>(_: impl Cpu, from: &[f32; N]) -> [u16; N] {
    // Adds just under half of what is cut off, and the kept last bit to break ties. `f32::NAN` survives, since its
    // mantissa is zero but for the highest bit.
    let round = |single: f32| single.to_bits() + 0x7fff + ((single.to_bits() >> 16) & 1);
    let mut to = [0; N];
    let (even, odd) = from.split_at(N.div_ceil(2));
    for (i, (&even, &odd)) in even.iter().zip(odd).enumerate() {
        let word = round(even) >> 16 | round(odd) & 0xffff_0000;
        // SAFETY: as in `bf16_widen`.
        unsafe { to.as_mut_ptr().cast::<u32>().add(i).write_unaligned(word.to_le()) };
    }
    if !N.is_multiple_of(2) {
        to[N - 1] = (round(from[N / 2]) >> 16) as u16;
    }
    to
}

#[cfg(target_arch = "x86_64")]
macro_rules! cpu {
    ($name:ident, $bf16_narrow:ident, $($lanes:literal $half:ident $wide:ident: $widen:path, $narrow:path, $narrowed:path);+) => {
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
            unsafe fn narrow<const N: usize>(self, from: &[f32; N], to: *mut u16) {
                let mut at = 0;
                $(while at + $lanes <= N {
                    // SAFETY: `self` proves the instruction; `at..at + lanes` is inside both arrays.
                    unsafe { $narrow(from.as_ptr().add(at).cast::<$wide>().read_unaligned(), to.add(at)) };
                    at += $lanes;
                })+
                for i in at..N {
                    // SAFETY: as the caller promised.
                    unsafe { to.add(i).write_unaligned(narrow_bits(from[i])) };
                }
            }

            #[inline(always)]
            fn narrowed<const N: usize>(self, from: &[f32; N]) -> [u16; N] {
                let (mut to, mut at) = ([0; N], 0);
                $(while at + $lanes <= N {
                    // SAFETY: `self` proves the instruction; `at..at + lanes` is inside both arrays.
                    unsafe {
                        let wide = from.as_ptr().add(at).cast::<$wide>().read_unaligned();
                        to.as_mut_ptr().add(at).cast::<$half>().write_unaligned($narrowed(wide));
                    }
                    at += $lanes;
                })+
                to[at..].iter_mut().zip(&from[at..]).for_each(|(to, &from)| *to = narrow_bits(from));
                to
            }

            #[inline(always)]
            fn bf16_narrow<const N: usize>(self, from: &[f32; N]) -> [u16; N] {
                $bf16_narrow(self, from)
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
cpu!(Avx2, bf16_narrow, 8 __m128i __m256: _mm256_cvtph_ps, narrow_8, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>);
// Widening does not round. But only with the current direction will the compiler let it read from memory by itself.
#[cfg(target_arch = "x86_64")]
cpu!(Avx512, bf16_narrow_512,
     16 __m256i __m512: _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>, narrow_16,
     _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>;
     8 __m128i __m256: _mm256_cvtph_ps, narrow_8, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>);

/// Writes halves. With a memory operand the instruction takes half the execution slots of the one with a register,
/// which the compiler would choose as soon as there may be two destinations; hence assembly.
///
/// # Safety
/// `to` is valid for 16 elements.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn narrow_16(from: __m512, to: *mut u16) {
    // SAFETY: as the caller promised.
    unsafe { asm!("vcvtps2ph [{}], {}, 0", in(reg) to, in(zmm_reg) from, options(nostack, preserves_flags)) }
}

/// # Safety
/// `to` is valid for 8 elements.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
#[inline]
unsafe fn narrow_8(from: __m256, to: *mut u16) {
    // SAFETY: as the caller promised.
    unsafe { asm!("vcvtps2ph [{}], {}, 0", in(reg) to, in(ymm_reg) from, options(nostack, preserves_flags)) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn bf16_narrow_512<const N: usize>(cpu: Avx512, from: &[f32; N]) -> [u16; N] {
    if !N.is_multiple_of(32) {
        return bf16_narrow(cpu, from);
    }
    let mut to = [0; N];
    for at in (0..N / 2).step_by(16) {
        // SAFETY: `cpu` proves the instructions; there are 16 even and 16 odd elements from `at` on.
        unsafe {
            let even = from.as_ptr().add(at).cast::<__m512i>().read_unaligned();
            let odd = from.as_ptr().add(N / 2 + at).cast::<__m512i>().read_unaligned();
            to.as_mut_ptr().add(2 * at).cast::<__m512i>().write_unaligned(bf16_narrow_32(even, odd));
        }
    }
    to
}

/// The rounding of `bf16_narrow` on words of 16 bits: those kept grow by one if those cut off, with the kept last bit to
/// break ties, are more than half. The ternary operations keep the compiler from making slow shuffles of them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn bf16_narrow_32(even: __m512i, odd: __m512i) -> __m512i {
    // Per bit: the second operand where the first is one, else the third.
    const CHOOSE: i32 = 0xca;
    // The first, and the bits that the other two have in common.
    const OR_AND: i32 = 0xf8;
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let kept = _mm512_ternarylogic_epi32::<CHOOSE>(high, odd, _mm512_srli_epi32::<16>(even));
    let cut = _mm512_ternarylogic_epi32::<CHOOSE>(high, _mm512_slli_epi32::<16>(odd), even);
    let sticky = _mm512_ternarylogic_epi32::<OR_AND>(cut, kept, _mm512_set1_epi16(1));
    let up = _mm512_cmpgt_epu16_mask(sticky, _mm512_set1_epi16(i16::MIN));
    _mm512_mask_adds_epu16(kept, up, kept, _mm512_set1_epi16(1))
}
