//! Moves the tensors of agreed batches: straight from their owners' memory where they are large, packed together where they are small.
//!
//! - CARRY-1: every rank makes the same calls on its communicator for a batch, in the same order: what to do follows from what was agreed and from
//!   the topology alone, never from where a rank's memory lies. A rank that has joined makes them, too, with zeros or nothing.

mod adasum;
mod compress;
mod gather;
mod mpi;
mod reduce;
mod scatter;
mod swap;

use super::{
    handle::Outcome,
    negotiate::message::Agreed,
    spec::{Form, Kind},
    tensor::EngineTensor,
};
use crate::{buffer::ArenaVec, communicator::Communicator, error::Error};
use phalanx_core::DType;
use std::sync::Arc;

/// Where one tensor comes from and where the result goes.
#[derive(Debug)]
pub enum InOut {
    InPlace(EngineTensor),
    Apart { input: EngineTensor, output: EngineTensor },
}

impl InOut {
    pub fn input(&self) -> &EngineTensor {
        match self {
            InOut::InPlace(tensor) | InOut::Apart { input: tensor, .. } => tensor,
        }
    }

    /// The tensor that holds the result.
    pub fn into_output(self) -> EngineTensor {
        match self {
            InOut::InPlace(tensor) | InOut::Apart { output: tensor, .. } => tensor,
        }
    }

    fn output_mut(&mut self) -> &mut EngineTensor {
        match self {
            InOut::InPlace(tensor) | InOut::Apart { output: tensor, .. } => tensor,
        }
    }
}

/// One operation of a batch on this rank.
#[derive(Debug)]
pub struct Load {
    pub agreed: Arc<Agreed>,
    /// `None` on a rank that has joined.
    pub places: Option<Vec<InOut>>,
    /// Results that are new tensors.
    pub made: Vec<EngineTensor>,
    /// Memory for them; `None` if nobody wants the inputs back.
    pub memory: Option<Vec<EngineTensor>>,
    pub received: Vec<u64>,
}

impl Load {
    /// Of a rank that has joined, until it has places.
    pub fn new(agreed: Arc<Agreed>) -> Load {
        Load { agreed, places: None, made: Vec::new(), memory: None, received: Vec::new() }
    }

    /// A new tensor for a result that will fill it.
    fn make(&mut self, dtype: DType, shape: Vec<u64>) {
        let form = Form { dtype, shape };
        let fits = |old: &EngineTensor| old.dtype() == dtype && old.form().n_bytes() == form.n_bytes();
        let take = |memory: &mut Vec<EngineTensor>| {
            memory.iter().position(fits).map(|place| memory.swap_remove(place))
        };
        let old = self.memory.as_mut().and_then(take);
        let made = match old {
            Some(old) => old.reshaped(form.shape),
            None => EngineTensor::zeros(dtype, form.shape),
        };
        self.made.push(made);
    }

    /// What the operation gives back.
    pub fn outcome(self) -> Outcome {
        let Load { places, made, memory, received, .. } = self;
        let places = places.into_iter().flatten().map(InOut::into_output);
        let (tensors, given) = match (made.is_empty(), memory) {
            (true, _) => (places.collect(), Vec::new()),
            (false, Some(_)) => (made, places.collect()),
            (false, None) => (made, Vec::new()),
        };
        Outcome { tensors, given, received, ..Outcome::default() }
    }
}

/// What moving needs besides the communicator.
#[derive(Debug)]
pub struct Carrier {
    /// Tensors from this size are not packed.
    direct_bytes: usize,
    fusion: Option<ArenaVec<u8>>,
    /// Where contributions of a rank that has joined, and others' results nobody here wants, lie.
    spare: Vec<u8>,
    pub packed_bytes: u64,
}

/// Ranks of one host: a call costs a microsecond, a copy more than that from here on.
const DIRECT_LOCAL: usize = 64 << 10;
/// Across hosts a call costs a round trip.
const DIRECT_REMOTE: usize = 1 << 20;

impl Carrier {
    pub fn new(communicator: &Communicator) -> Carrier {
        let one_host = communicator.topology().n_hosts() == 1;
        let direct_bytes = if one_host { DIRECT_LOCAL } else { DIRECT_REMOTE };
        Carrier { direct_bytes, fusion: None, spare: Vec::new(), packed_bytes: 0 }
    }

    /// Runs one batch.
    pub fn carry(&mut self, comm: &mut Communicator, loads: &mut [Load]) -> Result<(), Error> {
        let Some(first) = loads.first() else { return Ok(()) };
        match first.agreed.spec.kind {
            Kind::Allreduce => self.allreduce(comm, loads),
            Kind::Allgather => self.allgather(comm, loads),
            Kind::Broadcast => self.broadcast(comm, loads),
            Kind::Reducescatter => self.reducescatter(comm, loads),
            Kind::Alltoall => loads.iter_mut().try_for_each(|load| swap::alltoall(comm, load)),
            // Agreement was all there was to do.
            Kind::Barrier | Kind::AddSet | Kind::RemoveSet => Ok(()),
        }
    }

    /// The buffer in which small tensors travel together, at least this long. Born in the arena where ranks share one.
    fn fusion(&mut self, comm: &Communicator, n_bytes: usize) -> Result<&mut ArenaVec<u8>, Error> {
        if self.fusion.as_ref().is_none_or(|f| f.len() < n_bytes) {
            // The old one first: there may not be room for both.
            self.fusion = None;
            self.fusion = Some(comm.alloc(n_bytes.next_power_of_two().max(64 << 10))?);
        }
        self.packed_bytes += n_bytes as u64;
        Ok(self.fusion.as_mut().expect("it was just made"))
    }

    fn spare(&mut self, n_bytes: usize) -> &mut [u8] {
        self.spare.clear();
        self.spare.resize(n_bytes, 0);
        &mut self.spare
    }
}

/// Packed tensors begin at multiples of this, so that every element type is aligned.
const ALIGN: usize = 64;

fn aligned(n_bytes: usize) -> usize {
    n_bytes.next_multiple_of(ALIGN)
}
