//! Sequences of different lengths in one dense tensor `[n, time, ...]`: the lengths say where each one ends.
//! - SEQ-1: padding after the end of a sequence influences no result and no gradient.

use super::check;
use crate::{
    ir::{Misfit, Shape, Sig},
    kernel::{Call, KernelError},
};
use phalanx_core::DType;

/// How long each sequence of a batch is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ragged<'a> {
    lengths: Option<&'a [i64]>,
    n: usize,
    time: usize,
}

impl<'a> Ragged<'a> {
    /// From the input that holds the lengths; without one all sequences are as long as the tensor.
    pub fn new(
        call: &Call<'a>,
        input: Option<usize>,
        n: usize,
        time: usize,
    ) -> Result<Ragged<'a>, KernelError> {
        let lengths = input.map(|i| call.input::<i64>(i));
        for (at, &value) in lengths.unwrap_or_default().iter().enumerate() {
            if !usize::try_from(value).is_ok_and(|v| v <= time) {
                let input = input.expect("lengths come from an input");
                return Err(KernelError::Index { input, at, value, limit: time + 1 });
            }
        }
        Ok(Ragged { lengths, n, time })
    }

    #[inline(always)]
    pub fn len(&self, sample: usize) -> usize {
        self.lengths.map_or(self.time, |l| l[sample] as usize)
    }

    pub fn longest(&self) -> usize {
        (0..self.n).map(|s| self.len(s)).max().unwrap_or(0)
    }

    /// Where a sample is after a number of others of its own, from the front or from its end.
    #[inline(always)]
    pub fn at(&self, sample: usize, nth: usize, reverse: bool) -> Option<usize> {
        let after = self.len(sample).checked_sub(nth + 1)?;
        Some(sample * self.time + if reverse { after } else { nth })
    }

    /// Zeroes what lies behind the ends of the sequences.
    pub fn blank<T: Copy>(&self, rows: &mut [T], zero: T) {
        let width = rows.len() / (self.n * self.time).max(1);
        for sample in 0..self.n {
            rows[(sample * self.time + self.len(sample)) * width..(sample + 1) * self.time * width]
                .fill(zero);
        }
    }
}

/// Lengths are one whole number for each sample.
pub(super) fn lengths(inputs: &[Sig], slot: usize, of: usize) -> Result<(), Misfit> {
    let n = inputs[of].shape.dims()[0];
    check::shaped(inputs, slot, DType::I64, &Shape(vec![n]))
}

/// The sizes of `[n, time, width]`, of which only the first may depend on the batch.
pub(super) fn sequence(inputs: &[Sig], slot: usize) -> Result<(usize, usize), Misfit> {
    check::rank(inputs, slot, 3, "3 ([n, time, width])")?;
    check::real(inputs, slot)?;
    Ok((check::fixed(inputs, slot, 1)?, check::fixed(inputs, slot, 2)?))
}
