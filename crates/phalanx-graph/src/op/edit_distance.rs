//! How many changes make one sequence of numbers another one.

use super::{Operator, check};
use crate::{
    ir::{Dim, Misfit, Shape, Sig},
    kernel::{Call, KernelError},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Sequences `[n, a]` and `[n, b]` and the lengths `[n]` of both: insertions, deletions and replacements that make the first
/// the second, `[n, 1]`; if `normalized`, divided by the length of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditDistance {
    pub normalized: bool,
}

impl Operator for EditDistance {
    fn name(&self) -> &'static str {
        "edit_distance"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 4)?;
        for slot in 0..2 {
            check::index(inputs, slot)?;
            check::rank(inputs, slot, 2, "2 ([n, time])")?;
            check::fixed(inputs, slot, 1)?;
        }
        let n = inputs[0].shape.dims()[0];
        for slot in 1..4 {
            check::index(inputs, slot)?;
            if inputs[slot].shape.dims().first() != Some(&n) || (slot > 1 && inputs[slot].shape.rank() != 1) {
                return Err(Misfit::Pair { a: inputs[0].shape.clone(), b: inputs[slot].shape.clone() });
            }
        }
        Ok(vec![Sig::dense(DType::F32, Shape(vec![n, Dim::Fixed(1)]))])
    }

    fn workspace(&self, dims: &[&[usize]], _element: usize) -> usize {
        (dims[1][1] + 1) * size_of::<u64>()
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (times, n) = ([call.dims(0)[1], call.dims(1)[1]], call.dims(0)[0]);
        let [a, b, a_len, b_len] = [0, 1, 2, 3].map(|slot| call.input::<i64>(slot));
        let (out, row) = (call.output::<f32>(0), call.workspace::<u64>());
        for i in 0..n {
            let length = |slot: usize, lengths: &[i64]| {
                let limit = times[slot] + 1;
                let wrong = KernelError::Index { input: slot + 2, at: i, value: lengths[i], limit };
                usize::try_from(lengths[i]).ok().filter(|&v| v < limit).ok_or(wrong)
            };
            let (from, to) = (length(0, a_len)?, length(1, b_len)?);
            let (a, b) = (&a[i * times[0]..][..from], &b[i * times[1]..][..to]);
            let changes = distance(a, b, &mut row[..=to]) as f32;
            // Nothing becomes something by as many insertions; divided by no length it would have no value.
            out[i] = if self.normalized && to > 0 { changes / to as f32 } else { changes };
        }
        Ok(())
    }
}

fn distance(a: &[i64], b: &[i64], row: &mut [u64]) -> u64 {
    row.iter_mut().enumerate().for_each(|(j, v)| *v = j as u64);
    for (i, x) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i as u64 + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = corner + u64::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn changes_are_counted() {
        let count = |a: &[i64], b: &[i64]| distance(a, b, &mut vec![9; b.len() + 1]);
        assert_eq!(count(&[1, 2, 3], &[1, 2, 3]), 0);
        assert_eq!(count(&[1, 2, 3], &[2, 3]), 1);
        assert_eq!(count(&[11, 9, 20, 20, 5, 14], &[19, 9, 20, 20, 9, 14, 7]), 3); // kitten, sitting
        assert_eq!(count(&[], &[4, 5]), 2);
        assert_eq!(count(&[4, 5], &[]), 2);
    }
}
