//! How replicas and processes add up. What goes between processes is given by the caller, because this crate knows no
//! networks.
//! - SUM-1: an element's sum over replicas always takes the order of [`tree`], whatever is chunked, fused or moved
//!   elsewhere.

use phalanx_core::DType;
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// What processes that train together can do. All of them make the same calls in the same order (SSA-3).
///
/// For the bits of one process with all replicas, `all_reduce` adds up as [`tree`] does, and every process has the same
/// number of replicas, a power of two.
pub trait Collective: Send + Sync + fmt::Debug {
    fn processes(&self) -> usize;

    /// Which of them this is.
    fn index(&self) -> usize;

    /// Adds up f32 or f64 elements over all processes, in place. Everybody gets the same bits.
    fn all_reduce(&self, data: &mut [u8], dtype: DType) -> Result<(), CollectiveError>;

    /// Gives everybody the bytes of one.
    fn broadcast(&self, data: &mut [u8], root: usize) -> Result<(), CollectiveError>;

    /// Everybody's bytes, in the order of processes; they may differ in length.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// This process cannot go on: nobody shall wait for it.
    fn abort(&self, _why: &str) {}
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CollectiveError {
    #[error("process {process} gave up: {why}")]
    Aborted { process: usize, why: String },
    #[error("process {process} has no more batches")]
    Ended { process: usize },
    #[error("waited {waited_ms} ms for process {process}")]
    Silent { process: usize, waited_ms: u64 },
    #[error("process {process} brings {got} bytes to {call}, this one {wanted}")]
    Mismatch { call: &'static str, process: usize, wanted: usize, got: usize },
    /// What the collective of the caller says.
    #[error("{call} failed: {why}")]
    Failed { call: &'static str, why: String },
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

    fn all_reduce(&self, _: &mut [u8], _: DType) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&self, _: &mut [u8], _: usize) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(vec![mine.to_vec()])
    }
}

/// Pairs of `0..n` in the order in which a sum takes them: neighbours first, then at twice the distance, and so on. It is
/// the tree in which `lo..hi` is cut at the largest power of two below its length (SUM-1).
pub fn tree(n: usize) -> impl Iterator<Item = (usize, usize)> {
    let distances = std::iter::successors(Some(1usize), |d| Some(d * 2)).take_while(move |&d| d < n);
    distances.flat_map(move |d| (0..n - d).step_by(2 * d).map(move |i| (i, i + d)))
}

/// Processes that are threads of one: several executors side by side, for tests and for learning.
#[derive(Clone, Debug)]
pub struct Threads {
    board: Arc<Board>,
    index: usize,
    deadline: Duration,
}

#[derive(Debug)]
struct Board {
    state: Mutex<Posted>,
    changed: Condvar,
    n: usize,
}

#[derive(Debug, Default)]
struct Posted {
    /// What each has brought to this round.
    bytes: Vec<Option<Vec<u8>>>,
    /// How many have read this round.
    n_read: usize,
    round: u64,
    aborted: Option<(usize, String)>,
}

impl Threads {
    /// So many of them; a wait for one of them ends at the deadline.
    pub fn new(n: usize, deadline: Duration) -> Vec<Threads> {
        let state = Mutex::new(Posted { bytes: vec![None; n], ..Posted::default() });
        let board = Arc::new(Board { state, changed: Condvar::new(), n });
        (0..n).map(|index| Threads { board: board.clone(), index, deadline }).collect()
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, Posted>,
        begin: Instant,
        done: impl Fn(&Posted) -> bool,
    ) -> Result<MutexGuard<'a, Posted>, CollectiveError> {
        while !done(&state) {
            if let Some((process, why)) = state.aborted.clone() {
                return Err(CollectiveError::Aborted { process, why });
            }
            let waited = begin.elapsed();
            let Some(left) = self.deadline.checked_sub(waited).filter(|left| !left.is_zero()) else {
                let process = state.bytes.iter().position(Option::is_none).unwrap_or(0);
                return Err(CollectiveError::Silent { process, waited_ms: waited.as_millis() as u64 });
            };
            state = self.board.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        Ok(state)
    }

    /// Posts bytes, waits for everybody's, and gives them to `see`.
    fn round(&self, mine: &[u8], mut see: impl FnMut(&[Vec<u8>])) -> Result<(), CollectiveError> {
        let begin = Instant::now();
        let lock = self.board.state.lock().unwrap_or_else(|e| e.into_inner());
        let mut state = self.wait(lock, begin, |s| s.bytes[self.index].is_none())?;
        let round = state.round;
        state.bytes[self.index] = Some(mine.to_vec());
        self.board.changed.notify_all();
        let mut state = self.wait(state, begin, |s| s.bytes.iter().all(Option::is_some))?;
        let all: Vec<Vec<u8>> = state.bytes.iter().flatten().cloned().collect();
        state.n_read += 1;
        if state.n_read == self.board.n {
            state.n_read = 0;
            state.round += 1;
            state.bytes.iter_mut().for_each(|b| *b = None);
            self.board.changed.notify_all();
        }
        // Nobody begins the next round before all have read this one.
        drop(self.wait(state, begin, |s| s.round > round)?);
        see(&all);
        Ok(())
    }

    fn same_length(&self, call: &'static str, all: &[Vec<u8>], wanted: usize) -> Result<(), CollectiveError> {
        match all.iter().position(|b| b.len() != wanted) {
            None => Ok(()),
            Some(process) => {
                Err(CollectiveError::Mismatch { call, process, wanted, got: all[process].len() })
            }
        }
    }
}

impl Collective for Threads {
    fn processes(&self) -> usize {
        self.board.n
    }

    fn index(&self) -> usize {
        self.index
    }

    fn all_reduce(&self, data: &mut [u8], dtype: DType) -> Result<(), CollectiveError> {
        let mut checked = Ok(());
        let mut total = Vec::new();
        self.round(data, |all| {
            checked = self.same_length("all_reduce", all, data.len());
            if checked.is_ok() {
                total = match dtype {
                    DType::F64 => added::<f64>(all),
                    _ => added::<f32>(all),
                };
            }
        })?;
        checked?;
        data.copy_from_slice(&total);
        Ok(())
    }

    fn broadcast(&self, data: &mut [u8], root: usize) -> Result<(), CollectiveError> {
        let mut of_root = Vec::new();
        self.round(data, |all| of_root = all[root].clone())?;
        self.same_length("broadcast", std::slice::from_ref(&of_root), data.len())?;
        data.copy_from_slice(&of_root);
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let mut everybody = Vec::new();
        self.round(mine, |all| everybody = all.to_vec())?;
        Ok(everybody)
    }

    fn abort(&self, why: &str) {
        let mut state = self.board.state.lock().unwrap_or_else(|e| e.into_inner());
        state.aborted.get_or_insert((self.index, why.to_string()));
        self.board.changed.notify_all();
    }
}

fn added<T: crate::kernel::Real>(all: &[Vec<u8>]) -> Vec<u8> {
    let mut all: Vec<Vec<T>> = all
        .iter()
        .map(|b| b.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
        .collect();
    for (to, from) in tree(all.len()) {
        let (left, right) = all.split_at_mut(from);
        left[to].iter_mut().zip(&right[0]).for_each(|(a, &b)| *a += b);
    }
    bytemuck::cast_slice(&all[0]).to_vec()
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

    #[test]
    fn threads_agree_on_sums_and_see_who_gave_up() {
        let two = Threads::new(2, Duration::from_secs(20));
        let sums: Vec<Vec<f32>> = std::thread::scope(|s| {
            let run = |t: &Threads| {
                let mut data = [t.index() as f32 + 1.0, 0.5];
                for _ in 0..100 {
                    t.all_reduce(bytemuck::cast_slice_mut(&mut data), DType::F32).unwrap();
                    data.iter_mut().for_each(|v| *v *= 0.5);
                }
                data.to_vec()
            };
            let both: Vec<_> = two.iter().map(|t| s.spawn(move || run(t))).collect();
            both.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(sums, [[1.5, 0.5], [1.5, 0.5]]);
        two[1].abort("out of disk");
        let error = two[0].all_gather(&[1]).unwrap_err();
        assert_eq!(error, CollectiveError::Aborted { process: 1, why: "out of disk".into() });
        let late = Threads::new(2, Duration::from_millis(20));
        assert!(matches!(late[0].all_gather(&[]), Err(CollectiveError::Silent { process: 1, .. })));
    }
}
