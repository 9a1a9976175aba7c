//! Element kernels: what a reduction does to memory, as fast as this CPU can.
//!
//! Knows element types, operations and instruction sets; must not know ranks, plans or who owns the memory.
//! - KER-1: a result depends only on the inputs and their order, to the bit: not on the instruction set, the
//!   alignment, the length, or which source a destination aliases.
//! - KER-2: sources are combined left to right. One pass over two sources is commutative to the bit.
//! - KER-3: every NaN written is the same NaN (quiet, positive, no payload). Min and Max are NaN if any source is.
//! - KER-4: an element is written only after all sources of that element were read.
//! - KER-5: `f16` and `bf16` are accumulated in `f32` and rounded once per pass, to nearest even.
//!
//! Integers wrap. Average of integers up to 32 bits adds in 64 bits within one pass, so it cannot overflow when all
//! contributions arrive together; a plan of several passes stores partial sums in the type itself, and they wrap.

mod cell;
mod float;
mod level;
mod pass;
#[cfg(test)]
mod tests;
pub mod update;

pub use float::{Float, fast};

use crate::{DType, OpError, ReduceOp};
use level::Level;
use pass::Pass;

/// What one reduction computes: op, type and scale factors, checked once.
#[derive(Clone, Copy, Debug)]
pub struct ReduceKernel {
    dtype: DType,
    /// Never Average: that is Sum with a divisor.
    op: ReduceOp,
    factors: Factors,
    /// Follows from the other fields and the CPU; resolved here so that a call on one element stays cheap.
    pass: Pass,
}

/// The numbers of one reduction; all 1 when it is plain.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Factors {
    prescale: f64,
    postscale: f64,
    divisor: u64,
}

impl PartialEq for ReduceKernel {
    fn eq(&self, other: &ReduceKernel) -> bool {
        (self.dtype, self.op, self.factors) == (other.dtype, other.op, other.factors)
    }
}

impl ReduceKernel {
    /// The reduction of `n_ranks` contributions, or why it has no meaning.
    pub fn new(
        dtype: DType,
        op: ReduceOp,
        prescale: f64,
        postscale: f64,
        n_ranks: u32,
    ) -> Result<ReduceKernel, OpError> {
        op.check(dtype, prescale, postscale)?;
        let (op, divisor) = match op {
            ReduceOp::Average => (ReduceOp::Sum, u64::from(n_ranks.max(1))),
            other => (other, 1),
        };
        Ok(ReduceKernel::resolve(Level::detect(), dtype, op, Factors { prescale, postscale, divisor }))
    }

    fn resolve(level: Level, dtype: DType, op: ReduceOp, factors: Factors) -> ReduceKernel {
        ReduceKernel { dtype, op, factors, pass: pass::select(level, dtype, op, &factors) }
    }

    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The same reduction with only the wanted factors: `pre` keeps the prescale, `post` keeps the postscale and
    /// Average's division.
    pub fn only(self, pre: bool, post: bool) -> ReduceKernel {
        let Factors { prescale, postscale, divisor } = self.factors;
        let factors = Factors {
            prescale: if pre { prescale } else { 1.0 },
            postscale: if post { postscale } else { 1.0 },
            divisor: if post { divisor } else { 1 },
        };
        ReduceKernel::resolve(Level::detect(), self.dtype, self.op, factors)
    }

    /// Whether no factor changes anything.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.factors.is_plain()
    }

    /// `dst[i] = post(pre(srcs[0][i]) op pre(srcs[1][i]) op ...)`, left to right.
    ///
    /// # Panics
    /// Unless there is a source, and all lengths are equal and whole elements.
    pub fn apply(&self, dst: &mut [u8], srcs: &[&[u8]]) {
        let size = self.dtype.size();
        assert!(
            dst.len().is_multiple_of(size),
            "{} bytes are not whole elements of {}",
            dst.len(),
            self.dtype
        );
        for (index, src) in srcs.iter().enumerate() {
            assert_eq!(src.len(), dst.len(), "source {index} and the destination differ in length");
        }
        let mut few = [std::ptr::null(); 8];
        let many: Vec<*const u8>;
        let pointers = if let Some(few) = few.get_mut(..srcs.len()) {
            few.iter_mut().zip(srcs).for_each(|(pointer, src)| *pointer = src.as_ptr());
            &*few
        } else {
            many = srcs.iter().map(|src| src.as_ptr()).collect();
            &many
        };
        // SAFETY: all slices hold `dst.len()` bytes, and `dst`, being borrowed mutably, overlaps no source.
        unsafe { self.apply_raw(&[dst.as_mut_ptr()], pointers, dst.len() / size) }
    }

    /// The same on raw memory of any alignment, into several destinations in one pass.
    ///
    /// # Safety
    /// All pointers are valid for `n_elements` elements for the duration of the call. Each destination either equals
    /// a source exactly or overlaps none of them, and destinations do not overlap each other.
    ///
    /// # Panics
    /// Unless there is a source and a destination.
    #[inline]
    pub unsafe fn apply_raw(&self, dsts: &[*mut u8], srcs: &[*const u8], n_elements: usize) {
        assert!(!dsts.is_empty() && !srcs.is_empty(), "a reduction needs a source and a destination");
        // SAFETY: the pass was selected for this CPU and type; there is a source; the rest the caller promised.
        unsafe { (self.pass)(&self.factors, dsts, srcs, n_elements) }
    }
}

impl Factors {
    /// Whether there is nothing but a division by a power of two, which only sums have.
    fn is_average(&self) -> bool {
        (self.prescale, self.postscale) == (1.0, 1.0) && self.divisor > 1 && self.divisor.is_power_of_two()
    }

    fn is_plain(&self) -> bool {
        *self == Factors { prescale: 1.0, postscale: 1.0, divisor: 1 }
    }
}

/// Copies bytes.
///
/// # Safety
/// Both pointers are valid for `n_bytes`, and the two ranges do not overlap.
#[inline]
pub unsafe fn copy_raw(dst: *mut u8, src: *const u8, n_bytes: usize) {
    // SAFETY: as the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, n_bytes) }
}

/// The instruction set the kernels use on this machine: `avx512`, `avx2` or `portable`.
pub fn level() -> &'static str {
    Level::detect().name()
}
