//! The processes that train a program together, as ranks of a world.
//! - RANKS-1: a rank whose step failed dooms the world, so that nobody waits for it.

use phalanx_collective::{Communicator, Error, Scale};
use phalanx_core::{DType, Rank, ReduceOp};
use phalanx_graph::{Collective, CollectiveError};
use phalanx_net::{World, lost::Doom};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ranks of a communicator. With two of them sums have the bits that one process with all replicas would get; with
/// more they have the order of the communicator's plan, which is the same in every run.
#[derive(Debug)]
pub struct Ranks {
    index: usize,
    n: usize,
    /// Apart from the communicator: whoever gives up must not wait for a call that waits for others.
    world: Arc<World>,
    /// A lock because workers of one process share it; the executor makes one call after the other.
    communicator: Mutex<Communicator>,
}

impl Ranks {
    pub fn new(communicator: Communicator) -> Ranks {
        let (index, n) = (communicator.rank().index(), communicator.size() as usize);
        Ranks { index, n, world: communicator.world_arc(), communicator: Mutex::new(communicator) }
    }

    fn lock(&self) -> MutexGuard<'_, Communicator> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The communicator again, once no executor uses it.
    pub fn into_inner(self) -> Communicator {
        self.communicator.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(call: &'static str) -> impl Fn(Error) -> CollectiveError {
    move |why| CollectiveError::Failed { call, why: why.to_string() }
}

impl Collective for Ranks {
    fn processes(&self) -> usize {
        self.n
    }

    fn index(&self) -> usize {
        self.index
    }

    fn all_reduce(&self, data: &mut [u8], dtype: DType) -> Result<(), CollectiveError> {
        let sum = self.lock().allreduce_bytes(data, dtype, ReduceOp::Sum, Scale::default());
        sum.map_err(failed("the sum of gradients"))
    }

    fn broadcast(&self, data: &mut [u8], root: usize) -> Result<(), CollectiveError> {
        self.lock().broadcast(data, Rank(root as u32)).map_err(failed("the broadcast of parameters"))
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let mut comm = self.lock();
        let failed = failed("the exchange between processes");
        let ones = vec![1u64; self.n];
        let mut lengths = vec![0i64; self.n];
        comm.allgather(&[mine.len() as i64], &mut lengths, &ones).map_err(&failed)?;
        let lengths: Vec<u64> = lengths.iter().map(|&n| n as u64).collect();
        let mut all = vec![0u8; lengths.iter().sum::<u64>() as usize];
        comm.allgather(mine, &mut all, &lengths).map_err(&failed)?;
        let mut rest = all.as_slice();
        Ok(lengths
            .iter()
            .map(|&n| {
                let (own, after) = rest.split_at(n as usize);
                rest = after;
                own.to_vec()
            })
            .collect())
    }

    /// RANKS-1.
    fn abort(&self, why: &str) {
        if self.n > 1 {
            let rank = self.world.rank();
            self.world.doom(Doom::GaveUp { rank, why: why.to_string() });
        }
    }
}
