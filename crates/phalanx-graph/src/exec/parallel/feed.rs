//! Feeds: how they are split, and how they are copied into the replicas' memory.
//! - FEED-1: shares of a batch that is split differ by one sample at most, the larger ones first.
//! - FEED-2: everything that can be wrong with feeds is found before anything runs or changes.

use crate::{
    exec::{RunError, Tensor},
    ir::{Dim, Program, VarId},
};

/// How a variable is given to the replicas.
#[derive(Clone, Copy, Debug)]
pub enum Feed<'a> {
    /// One tensor with all samples; each replica gets its share. What does not depend on the batch is replicated.
    Split(&'a Tensor),
    /// A tensor for each replica; one without samples leaves its replica idle.
    PerReplica(&'a [&'a Tensor]),
    /// Every replica gets all of it.
    Replicate(&'a Tensor),
}

/// The samples that each replica gets of a batch (FEED-1).
pub(super) fn share(samples: usize, n: usize, replica: usize) -> usize {
    samples / n + usize::from(replica < samples % n)
}

/// Which axis counts samples, and how many rows of it a sample has.
fn batch_axis(program: &Program, var: VarId) -> Option<(usize, usize)> {
    program.sig(var).shape.dims().iter().enumerate().find_map(|(axis, d)| match d {
        Dim::Batch(times) => Some((axis, *times)),
        Dim::Fixed(_) | Dim::BatchPlus(..) => None,
    })
}

/// How many samples a tensor has for this variable; `None` if that does not matter.
pub(super) fn samples(program: &Program, id: VarId, value: &Tensor) -> Result<Option<usize>, RunError> {
    let var = program.var(id);
    let dims = var.sig.shape.dims();
    let mut samples = None;
    let mut fits = value.dtype() == var.sig.dtype && value.dims().len() == dims.len();
    for (wanted, &got) in dims.iter().zip(value.dims()) {
        match *wanted {
            Dim::Fixed(n) => fits &= n == got,
            Dim::Batch(times) => {
                fits &= times > 0 && got % times == 0;
                samples = Some(got / times.max(1));
            }
            Dim::BatchPlus(..) => fits = false,
        }
    }
    if fits {
        return Ok(samples);
    }
    let (wanted, site) = (var.sig.clone(), var.site.clone());
    let (got_dtype, got) = (value.dtype(), value.dims().to_vec());
    Err(RunError::FeedMisfit { var: var.name.clone(), wanted, site, got_dtype, got })
}

impl Feed<'_> {
    /// Writes the samples of each replica into `sizes`; false if they do not depend on it.
    pub(super) fn sizes(&self, program: &Program, id: VarId, sizes: &mut [usize]) -> Result<bool, RunError> {
        let n = sizes.len();
        match self {
            Feed::Split(value) => {
                let Some(all) = samples(program, id, value)? else { return Ok(false) };
                sizes.iter_mut().enumerate().for_each(|(r, size)| *size = share(all, n, r));
            }
            Feed::Replicate(value) => {
                let Some(all) = samples(program, id, value)? else { return Ok(false) };
                sizes.fill(all);
            }
            Feed::PerReplica(values) => {
                if values.len() != n {
                    let var = program.var(id).name.clone();
                    return Err(RunError::FeedReplicas { var, wanted: n, got: values.len() });
                }
                let mut counts = false;
                for (size, value) in sizes.iter_mut().zip(*values) {
                    if let Some(own) = samples(program, id, value)? {
                        *size = own;
                        counts = true;
                    }
                }
                return Ok(counts);
            }
        }
        Ok(true)
    }

    /// The samples of a batch that is split, as it was fed.
    pub(super) fn whole(&self, program: &Program, id: VarId) -> Option<usize> {
        match self {
            Feed::Split(value) => samples(program, id, value).ok().flatten(),
            Feed::PerReplica(_) | Feed::Replicate(_) => None,
        }
    }

    /// Copies a replica's share; `first` is where it begins among all samples that are split.
    pub(super) fn copy(&self, program: &Program, id: VarId, replica: usize, first: usize, out: &mut [u8]) {
        let whole = match self {
            Feed::Split(value) => value,
            Feed::Replicate(value) => return out.copy_from_slice(value.bytes()),
            Feed::PerReplica(values) => return out.copy_from_slice(values[replica].bytes()),
        };
        let Some((axis, times)) = batch_axis(program, id) else {
            return out.copy_from_slice(whole.bytes());
        };
        let dims = whole.dims();
        let outer: usize = dims[..axis].iter().product();
        let inner = dims[axis + 1..].iter().product::<usize>() * whole.dtype().size();
        let (row, at) = (dims[axis] * inner, first * times * inner);
        let own = out.len() / outer.max(1);
        for (i, to) in out.chunks_exact_mut(own.max(1)).enumerate() {
            to.copy_from_slice(&whole.bytes()[i * row + at..][..own]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_differ_by_one_at_most_and_add_up() {
        // FEED-1
        for n in 1..9 {
            for samples in 0..40 {
                let all: Vec<usize> = (0..n).map(|r| share(samples, n, r)).collect();
                assert_eq!(all.iter().sum::<usize>(), samples);
                assert!(all.is_sorted_by(|a, b| a >= b) && all[0] - all[n - 1] <= 1, "{all:?}");
            }
        }
    }
}
