//! One pass over memory, for every element type, operation and instruction set.

use super::{Factors, cell::*, level::*};
use crate::{DType, ReduceOp};

/// Reads every source and writes every destination once.
///
/// # Safety
/// As for `ReduceKernel::apply_raw`; there is at least one source, and the CPU has the level the pass was selected for.
pub(super) type Pass = unsafe fn(&Factors, &[*mut u8], &[*const u8], usize);

/// The pass of a reduction on a level this CPU has.
pub(super) fn select(level: Level, dtype: DType, op: ReduceOp, factors: &Factors) -> Pass {
    match level {
        Level::Portable => pass_of::<Portable>(dtype, op, factors),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => pass_of::<Avx2>(dtype, op, factors),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => pass_of::<Avx512>(dtype, op, factors),
    }
}

/// The accumulators of a tile fill four to eight of the widest registers. Tiles of 32 elements are unrolled before they
/// are vectorised and ran at half the speed, and so are scaled `f16` on AVX2 in tiles of 32 or 64, at a quarter: measure
/// with `examples/kernels.rs` before changing one.
fn pass_of<E: Entry>(dtype: DType, op: ReduceOp, factors: &Factors) -> Pass {
    macro_rules! op {
        ($entry:ty, $cell:ty, $tile:literal) => {
            match op {
                ReduceOp::Sum | ReduceOp::Average => <$entry>::pass::<$cell, Sum, $tile>(),
                ReduceOp::Min => <$entry>::pass::<$cell, Min, $tile>(),
                ReduceOp::Max => <$entry>::pass::<$cell, Max, $tile>(),
                ReduceOp::Product => <$entry>::pass::<$cell, Product, $tile>(),
            }
        };
    }
    // Integers with factors are bound by conversions to `f64`: wider registers gain up to a quarter for bytes,
    // nothing for the rest, and triple this code.
    macro_rules! int {
        ($t:ty, $tile:literal) => {
            if factors.is_plain() { op!(E, Int<$t>, $tile) } else { op!(Portable, Wide<$t>, 8) }
        };
    }
    macro_rules! float {
        ($cell:ident, $tile:literal) => {
            float!($cell, $tile, $tile)
        };
        ($cell:ident, $plain:literal, $scaled:literal) => {
            if factors.is_plain() {
                op!(E, $cell<PLAIN>, $plain)
            } else if factors.is_average() {
                E::pass::<$cell<AVERAGED>, Sum, $plain>()
            } else if factors.divisor.is_power_of_two() {
                op!(E, $cell<SCALED>, $scaled)
            } else {
                E::pass::<$cell<DIVIDED>, Sum, $scaled>()
            }
        };
    }
    match dtype {
        DType::U8 => int!(u8, 256),
        DType::I8 => int!(i8, 256),
        DType::U16 => int!(u16, 128),
        DType::I16 => int!(i16, 128),
        DType::I32 => int!(i32, 64),
        DType::I64 => int!(i64, 64),
        DType::F16 if E::MANY_REGISTERS => float!(F16, 128, 64),
        DType::F16 => float!(F16, 64, 16),
        DType::BF16 if E::MANY_REGISTERS => float!(BF16, 128, 64),
        DType::BF16 => float!(BF16, 64),
        DType::F32 => float!(F32, 64),
        DType::F64 => float!(F64, 64),
        DType::Bool => match op {
            ReduceOp::Sum | ReduceOp::Average | ReduceOp::Max => E::pass::<Truth, Max, 256>(),
            ReduceOp::Min | ReduceOp::Product => E::pass::<Truth, Min, 256>(),
        },
    }
}

/// Compiles the generic pass for one instruction set.
trait Entry {
    /// Whether a tile of 128 `f32` leaves registers to work with.
    const MANY_REGISTERS: bool;
    fn pass<L: Cell, O: Join<L::Acc>, const N: usize>() -> Pass;
}

macro_rules! entry {
    ($cpu:ident, $new:expr, $many_registers:literal $(, $features:literal)?) => {
        impl Entry for $cpu {
            const MANY_REGISTERS: bool = $many_registers;

            fn pass<L: Cell, O: Join<L::Acc>, const N: usize>() -> Pass {
                $(#[target_feature(enable = $features)])?
                unsafe fn entry<L: Cell, O: Join<L::Acc>, const N: usize>(
                    factors: &Factors,
                    dsts: &[*mut u8],
                    srcs: &[*const u8],
                    n_elements: usize,
                ) {
                    // SAFETY: the caller promised that the CPU has the level, and all that `pass` asks for.
                    unsafe { pass::<$cpu, L, O, N>($new, factors, dsts, srcs, n_elements) }
                }
                entry::<L, O, N>
            }
        }
    };
}
entry!(Portable, Portable, false);
#[cfg(target_arch = "x86_64")]
entry!(Avx2, Avx2::new(), false, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
entry!(Avx512, Avx512::new(), true, "avx512f,avx512bw,avx512vl,avx512dq");

/// Main tiles, then small tiles, then single elements. A loop of its own for each common number of sources and
/// destinations was measured: in cache `f16` gains a tenth, `f32` loses a twentieth, and the code doubles.
///
/// # Safety
/// As for `ReduceKernel::apply_raw`, and there is at least one source.
#[inline(always)]
unsafe fn pass<C: Cpu, L: Cell, O: Join<L::Acc>, const N: usize>(
    cpu: C,
    factors: &Factors,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    n_elements: usize,
) {
    // A copy that no store through a destination can be thought to change.
    let factors = *factors;
    // SAFETY: the three ranges of tiles lie in `0..n_elements`; the rest the caller promised.
    unsafe {
        let mut at = 0;
        if n_elements >= 8 {
            at = tiles::<C, L, O, N>(cpu, factors, dsts, srcs, at, n_elements);
            at = tiles::<C, L, O, 8>(cpu, factors, dsts, srcs, at, n_elements);
        }
        tiles::<C, L, O, 1>(cpu, factors, dsts, srcs, at, n_elements);
    }
}

/// Whole tiles of `N` elements from element `at` on; returns where the last one ended.
///
/// # Safety
/// As for `ReduceKernel::apply_raw`, and there is at least one source.
#[inline(always)]
unsafe fn tiles<C: Cpu, L: Cell, O: Join<L::Acc>, const N: usize>(
    cpu: C,
    factors: Factors,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    mut at: usize,
    n_elements: usize,
) -> usize {
    while n_elements - at >= N {
        for &src in srcs {
            prefetch::<{ AHEAD }>(src.cast::<L::Raw>().wrapping_add(at).cast(), size_of::<[L::Raw; N]>());
        }
        let load = |src: *const u8| {
            // SAFETY: `at + N <= n_elements`, for which the caller promised validity.
            let raw = unsafe { src.cast::<L::Raw>().add(at).cast::<[L::Raw; N]>().read_unaligned() };
            L::load(cpu, &raw, &factors)
        };
        let mut acc = load(srcs[0]);
        for &src in &srcs[1..] {
            acc.iter_mut().zip(&load(src)).for_each(|(a, &b)| *a = O::join(*a, b));
        }
        let out = L::finish(cpu, &acc, &factors);
        // SAFETY: as for the sources; a source that a destination equals was read above (KER-4).
        unsafe { L::Out::write(cpu, &out, dsts, at) };
        at += N;
    }
    at
}

/// How far before its use a source is asked for, in bytes. The hardware's own prefetching stops at every page.
const AHEAD: usize = 1024;

/// Asks for the lines that a later tile will read. Asking for memory that does not exist does nothing.
#[inline(always)]
fn prefetch<const DISTANCE: usize>(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint; it reads nothing that the program can see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(DISTANCE + line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}
