//! How replicas and processes add up. What goes between processes is given by the caller, because this crate knows no
//! networks.
//! - SUM-1: an element's sum over replicas always takes the order of [`tree`], whatever is chunked, fused or moved
//!   elsewhere.

use phalanx_core::DType;
use std::fmt;

/// Processes that train together. The caller of [`Collective::start`] never waits for a network.
///
/// For the bits of one process with all replicas, sums are added up as [`tree`] does, and every process has the same
/// number of replicas, a power of two.
pub trait Collective: Send + Sync + fmt::Debug {
    fn processes(&self) -> usize;

    /// Which of them this is.
    fn index(&self) -> usize;

    /// A name for one executor, in which names of its exchanges begin. Executors ask for it in their first run. It is
    /// the same on all processes that first run their executors of one label in the same order, and no two executors of
    /// a process have the same.
    fn enroll(&self, label: &str) -> String;

    /// Takes a name back, because its executor did not begin with the same one of the other processes.
    fn withdraw(&self, label: &str, name: &str) {
        let _ = (label, name);
    }

    /// How many executors of one program this process has made before; `program` is a number for it.
    fn made_before(&self, program: u64) -> u64 {
        let _ = program;
        0
    }

    /// Whether [`Offer::Parts`] is taken, with the bits that [`Offer::Sum`] has. Otherwise whole sums are offered in its place.
    fn sums_parts(&self) -> bool {
        false
    }

    /// Brings something to the exchange of this name, and returns at once. An exchange is over when all processes have
    /// brought something. Then `done` is called, once, by any thread, perhaps before this returns. It is called with an
    /// error if the exchange fails; with [`CollectiveError::Misfit`], on all processes, if offers do not fit together.
    fn start(&self, name: &str, offer: Offer, done: Done);

    /// The same for what comes again in every run. The results may take this memory, whatever is in it; behind them `done` may get the lists
    /// that were brought, so that nobody needs new memory the next time.
    fn start_again(&self, name: &str, offer: Offer, memory: Vec<Data>, done: Done) {
        drop(memory);
        self.start(name, offer, done);
    }
}

/// What a process brings to an exchange.
#[derive(Debug)]
pub enum Offer {
    /// Every process gets the sums of f32 or f64 elements, the same bits.
    Sum(Data),
    /// The same sums, but each process gets its part of them: `counts` says how many elements each has, in the order of the
    /// processes.
    Parts { data: Data, counts: Vec<usize> },
    /// Every process gets the elements of all processes, one process behind the other; of each list on its own.
    Join(Vec<Data>),
    /// Every process gets what the process `root` brings.
    Broadcast { data: Data, root: usize },
    /// This process does not go on. It fits no other offer.
    Nothing,
}

/// Told what came of an exchange.
pub type Done = Box<dyn FnOnce(Result<Vec<Data>, CollectiveError>) + Send>;

/// Elements on their way between processes.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    U8(Vec<u8>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Data {
    pub fn dtype(&self) -> DType {
        match self {
            Data::U8(_) => DType::U8,
            Data::I64(_) => DType::I64,
            Data::F32(_) => DType::F32,
            Data::F64(_) => DType::F64,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Data::U8(all) => all,
            Data::I64(all) => bytemuck::cast_slice(all),
            Data::F32(all) => bytemuck::cast_slice(all),
            Data::F64(all) => bytemuck::cast_slice(all),
        }
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CollectiveError {
    #[error("process {process} gave up: {why}")]
    Aborted { process: usize, why: String },
    #[error("process {process} has no more batches")]
    Ended { process: usize },
    #[error("process {process} trains another program than process 0, or prepares while process 0 runs")]
    Different { process: usize },
    #[error(
        "process {process} runs executor {number} of this program, process 0 runs executor {first}, counted in the \
         order in which they were made: run executors of equal programs in the same order in all processes"
    )]
    Order { process: usize, number: u64, first: u64 },
    #[error(
        "`{var}` differs between process 0 and process {process}: it was written between runs, or is fed. Write or \
         feed the same value in all processes"
    )]
    Values { process: usize, var: String },
    #[error("processes have tensors that do not fit together: {why}")]
    Misfit { why: String },
    /// What the collective of the caller says.
    #[error("{call} failed: {why}")]
    Failed { call: String, why: String },
}

/// One process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Collective for Alone {
    fn processes(&self) -> usize {
        1
    }

    fn index(&self) -> usize {
        0
    }

    fn enroll(&self, label: &str) -> String {
        label.to_string()
    }

    fn start(&self, _: &str, offer: Offer, done: Done) {
        done(Ok(match offer {
            Offer::Sum(data) | Offer::Parts { data, .. } | Offer::Broadcast { data, .. } => vec![data],
            Offer::Join(lists) => lists,
            Offer::Nothing => Vec::new(),
        }));
    }
}

/// Pairs of `0..n` in the order in which a sum takes them: neighbours first, then at twice the distance, and so on. It is
/// the tree in which `lo..hi` is cut at the largest power of two below its length (SUM-1).
pub fn tree(n: usize) -> impl Iterator<Item = (usize, usize)> {
    let distances = std::iter::successors(Some(1usize), |d| Some(d * 2)).take_while(move |&d| d < n);
    distances.flat_map(move |d| (0..n - d).step_by(2 * d).map(move |i| (i, i + d)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_the_one_that_splits_at_powers_of_two() {
        // SUM-1: as expressions.
        fn split(lo: usize, hi: usize) -> String {
            if hi - lo == 1 {
                return lo.to_string();
            }
            let p = (hi - lo).div_ceil(2).next_power_of_two();
            format!("({}+{})", split(lo, lo + p), split(lo + p, hi))
        }
        for n in 1..40 {
            let mut terms: Vec<String> = (0..n).map(|i| i.to_string()).collect();
            for (to, from) in tree(n) {
                terms[to] = format!("({}+{})", terms[to], terms[from]);
            }
            assert_eq!(terms[0], split(0, n), "{n}");
        }
        assert_eq!(tree(0).count() + tree(1).count(), 0);
    }
}
