//! Measures one line of the table: checks the result once, then times calls until the time is used up.

use super::{
    options::{Buffers, Case},
    sample::Sample,
    traffic::CallTraffic,
};
use phalanx_collective::{ArenaVec, Communicator, Error, plan::step::CollectiveOp};
use phalanx_core::{Rank, ReduceOp};
use std::{
    ops::{Deref, DerefMut},
    time::Instant,
};

const MAX_CALLS: usize = 20_000;

/// When enough has been measured.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub seconds: f64,
    /// All calls of a line; without it the first ones do not count, and at least five do.
    pub calls: Option<u32>,
}

/// The largest whole number that every element type holds.
const EXACT: u64 = 127;

/// Ordinary or arena memory.
enum BenchBuffer<T: Sample> {
    Private(Vec<T>),
    Arena(ArenaVec<T>),
}

impl<T: Sample> BenchBuffer<T> {
    fn new(comm: &Communicator, buffers: Buffers, len: usize) -> Result<BenchBuffer<T>, Error> {
        let mut tensor = match buffers {
            Buffers::Private => BenchBuffer::Private(vec![T::of(0); len]),
            Buffers::Arena => BenchBuffer::Arena(comm.alloc(len)?),
        };
        // Touches every page, so that the first timed call does not pay for it.
        tensor.fill(T::of(0));
        Ok(tensor)
    }
}

impl<T: Sample> Deref for BenchBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            BenchBuffer::Private(t) => t,
            BenchBuffer::Arena(t) => t,
        }
    }
}

impl<T: Sample> DerefMut for BenchBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            BenchBuffer::Private(t) => t,
            BenchBuffer::Arena(t) => t,
        }
    }
}

/// What a case calls: the full vector, one rank's block, and the counts.
struct Bench<T: Sample> {
    case: Case,
    full: BenchBuffer<T>,
    block: BenchBuffer<T>,
    counts: Vec<u64>,
    matrix: Vec<u64>,
}

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    /// Seconds of each call, the slowest rank's, in ascending order.
    pub times: Vec<f64>,
    pub plan: &'static str,
    pub checked: ResultCheck,
    pub traffic: CallTraffic,
}

/// What became of the comparison of the first call's result; a wrong one ends the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultCheck {
    Right,
    /// There is nothing to compare, or it is not exact in every element type.
    NotCompared,
}

impl ResultCheck {
    pub fn name(self) -> &'static str {
        match self {
            ResultCheck::Right => "ok",
            ResultCheck::NotCompared => "none",
        }
    }
}

/// The call whose result is compared.
struct FirstCall {
    took: f64,
    plan: &'static str,
    checked: ResultCheck,
    traffic: CallTraffic,
}

/// What a rank contributes to it.
fn value(rank: usize) -> u8 {
    (rank % 3 + 1) as u8
}

/// Measures one case; `None` where the vector is too short for one element a rank.
pub fn measure<T: Sample>(
    comm: &mut Communicator,
    case: &Case,
    budget: Budget,
) -> Result<Option<Measured>, Error> {
    let n = comm.size() as usize;
    let len = (case.bytes as usize).div_ceil(size_of::<T>());
    let share = len / n;
    let whole = matches!(
        case.op,
        CollectiveOp::Allreduce | CollectiveOp::Broadcast | CollectiveOp::Reduce | CollectiveOp::Barrier
    );
    if !whole && share == 0 {
        return Ok(None);
    }
    let full_len = if whole { len } else { share * n };
    let block_len = match case.op {
        CollectiveOp::Alltoall => full_len,
        _ if whole => 0,
        _ => share,
    };
    let mut bench = Bench::<T> {
        case: *case,
        full: BenchBuffer::<T>::new(comm, case.buffers, full_len)?,
        block: BenchBuffer::<T>::new(comm, case.buffers, block_len)?,
        counts: vec![share as u64; n],
        matrix: vec![share as u64; n * n],
    };
    let first = bench.first(comm)?;
    bench.time(comm, budget, first).map(Some)
}

impl<T: Sample> Bench<T> {
    fn call(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let root = Rank::ZERO;
        match self.case.op {
            CollectiveOp::Allreduce => comm.allreduce(&mut self.full, self.case.reduce),
            CollectiveOp::Broadcast => comm.broadcast(&mut self.full, root),
            CollectiveOp::Reduce => comm.reduce(&mut self.full, self.case.reduce, root),
            CollectiveOp::Allgather => comm.allgather(&self.block, &mut self.full, &self.counts),
            CollectiveOp::ReduceScatter => {
                comm.reduce_scatter(&self.full, &mut self.block, &self.counts, self.case.reduce)
            }
            CollectiveOp::Gather => comm.gather(&self.block, &mut self.full, &self.counts, root),
            CollectiveOp::Scatter => comm.scatter(&self.full, &mut self.block, &self.counts, root),
            CollectiveOp::Alltoall => comm.alltoall(&self.full, &mut self.block, &self.matrix),
            CollectiveOp::Barrier => comm.barrier(),
        }
    }

    /// Calls once with values that tell ranks apart, and compares.
    fn first(&mut self, comm: &mut Communicator) -> Result<FirstCall, Error> {
        let value = value(comm.rank().index());
        self.full.fill(T::of(value));
        self.block.fill(T::of(value));
        comm.barrier()?;
        let (sent, began) = (comm.traffic(), Instant::now());
        self.call(comm)?;
        let (took, plan) = (began.elapsed().as_secs_f64(), comm.last_plan());
        let traffic = CallTraffic::since(comm, &sent)?;
        let checked = self.check(comm);
        self.full.fill(T::of(0));
        self.block.fill(T::of(0));
        Ok(FirstCall { took, plan, checked, traffic })
    }

    /// Compares what the first call gave.
    fn check(&self, comm: &Communicator) -> ResultCheck {
        let (me, n) = (comm.rank().index(), comm.size() as usize);
        let all: Vec<u64> = (0..n).map(|r| u64::from(value(r))).collect();
        let sum: u64 = all.iter().sum();
        let (number, is_exact) = match self.case.reduce {
            ReduceOp::Sum => (sum, sum <= EXACT),
            ReduceOp::Average => (sum / n as u64, n <= 5 && sum.is_multiple_of(n as u64)),
            ReduceOp::Min => (1, true),
            ReduceOp::Max => (all.iter().copied().max().unwrap_or(1), true),
            ReduceOp::Product => {
                let product = all.iter().fold(1, |product: u64, x| product.saturating_mul(*x));
                (product, product <= EXACT)
            }
        };
        let reduced = T::of(number.min(EXACT) as u8);
        let reduces = matches!(
            self.case.op,
            CollectiveOp::Allreduce | CollectiveOp::Reduce | CollectiveOp::ReduceScatter
        );
        if self.case.op == CollectiveOp::Barrier || reduces && !is_exact {
            return ResultCheck::NotCompared;
        }
        let right = match self.case.op {
            CollectiveOp::Allreduce => self.full.iter().all(|x| *x == reduced),
            CollectiveOp::Reduce if me == 0 => self.full.iter().all(|x| *x == reduced),
            CollectiveOp::ReduceScatter => self.block.iter().all(|x| *x == reduced),
            CollectiveOp::Broadcast => self.full.iter().all(|x| *x == T::of(value(0))),
            CollectiveOp::Scatter => self.block.iter().all(|x| *x == T::of(value(0))),
            CollectiveOp::Allgather => in_rank_order(&self.full, n, value),
            CollectiveOp::Gather if me == 0 => in_rank_order(&self.full, n, value),
            CollectiveOp::Alltoall => in_rank_order(&self.block, n, value),
            _ => true,
        };
        assert!(right, "{} of {} bytes gave a wrong result on rank {me}", self.case.op, self.case.bytes);
        ResultCheck::Right
    }

    fn time(&mut self, comm: &mut Communicator, budget: Budget, first: FirstCall) -> Result<Measured, Error> {
        let FirstCall { took, mut plan, checked, traffic } = first;
        let warm = match budget.calls {
            Some(_) => 0,
            None if self.case.bytes >= 16 << 20 => 2,
            None => 20,
        };
        let max_calls = budget.calls.map_or(MAX_CALLS, |n| n as usize);
        let mut times: Vec<f64> = budget.calls.map(|_| took).into_iter().collect();
        let mut start = Instant::now();
        // Agreed on after each of few or large calls, after every sixteenth of many small ones.
        let (least, every) = match budget.calls {
            Some(_) => (0, 1),
            None => (warm + 5, if self.case.bytes >= 1 << 20 { 1 } else { 16 }),
        };
        let mut calls = 0;
        while times.len() < max_calls {
            if calls >= least && calls % every == 0 {
                let spent = start.elapsed().as_secs_f64() + budget.calls.map_or(0.0, |_| took);
                let mut over = [u8::from(spent > budget.seconds)];
                comm.broadcast(&mut over, Rank::ZERO)?;
                if over[0] != 0 {
                    break;
                }
            }
            if self.case.buffers == Buffers::Arena {
                // As a backward pass would: otherwise the result would stay in the caches where it was made, and nothing would move.
                self.full.fill(T::of(0));
            }
            comm.barrier()?;
            if calls == warm {
                start = Instant::now();
            }
            let begin = Instant::now();
            self.call(comm)?;
            let took = begin.elapsed().as_secs_f64();
            plan = comm.last_plan();
            if calls >= warm {
                times.push(took);
            }
            calls += 1;
        }
        let mine = times.clone();
        comm.allreduce_into(&mine, &mut times, ReduceOp::Max, phalanx_collective::Scale::default())?;
        times.sort_by(f64::total_cmp);
        Ok(Measured { times, plan, checked, traffic })
    }
}

fn in_rank_order<T: Sample>(data: &[T], n: usize, value: impl Fn(usize) -> u8) -> bool {
    let share = data.len() / n;
    data.chunks(share.max(1)).enumerate().all(|(r, chunk)| chunk.iter().all(|x| *x == T::of(value(r))))
}
