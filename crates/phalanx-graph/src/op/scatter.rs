//! Rows of a gradient, added up where numbers say. Rows of the table that are used often have wide sums beside them (TOTAL-1),
//! of which there cannot be many.

use crate::kernel::{DEEP, KernelError, Real, fast, widen};

/// Bytes of scratch memory for the rows of a table, the numbers of rows, and the width of rows.
pub(super) fn workspace(height: usize, n: usize, width: usize) -> usize {
    (height + height.min(n / DEEP) * width) * size_of::<u64>()
}

/// The rows of `from` go where `to` says, or nowhere, in their order; rows of `out` that nothing goes to are zero.
pub(super) fn scatter<T: Real>(
    (from, out): (&[T], &mut [T]),
    [height, n, width]: [usize; 3],
    to: impl Fn(usize) -> Result<Option<usize>, KernelError>,
    scratch: &mut [u64],
) -> Result<(), KernelError> {
    let (uses, wide) = scratch.split_at_mut(height);
    uses.fill(0);
    for i in 0..n {
        if let Some(row) = to(i)? {
            uses[row] += 1;
        }
    }
    // From now on: zero for what is used seldom, else its number among the others, from 1, and how often it was used yet.
    let mut often = 0u64;
    for uses in &mut *uses {
        let is_often = *uses > DEEP as u64;
        often += u64::from(is_often);
        *uses = if is_often { often << 32 } else { 0 };
    }
    let wide = &mut bytemuck::cast_slice_mut::<u64, f64>(wide)[..often as usize * width];
    wide.fill(0.0);
    out.fill(T::ZERO);
    let place = |uses: u64| ((uses >> 32) as usize - 1) * width;
    fast(
        #[inline(always)]
        || -> Result<(), KernelError> {
            for i in 0..n {
                let Some(row) = to(i)? else { continue };
                let few = &mut out[row * width..][..width];
                few.iter_mut().zip(&from[i * width..][..width]).for_each(|(o, &v)| *o += v);
                if uses[row] != 0 {
                    uses[row] += 1;
                    if (uses[row] as u32 as usize).is_multiple_of(DEEP) {
                        widen(few, &mut wide[place(uses[row])..][..width]);
                    }
                }
            }
            Ok(())
        },
    )?;
    for (row, &uses) in uses.iter().enumerate().filter(|&(_, &uses)| uses != 0) {
        let (few, all) = (&mut out[row * width..][..width], &mut wide[place(uses)..][..width]);
        widen(few, all);
        few.iter_mut().zip(all).for_each(|(o, s)| *o = T::of(*s));
    }
    Ok(())
}
