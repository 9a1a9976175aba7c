//! MPI beside our own algorithms: when a communicator enters it, and what becomes of ranks that cannot.
//!
//! - ENTER-1: either all ranks enter MPI or none does: what keeps one out is told to all, in the same words, and the world goes on.
//! - ENTER-2: no rank waits in MPI for one that is lost: the wait is given up, and every rank names it.

use crate::{
    communicator::Communicator,
    error::Error,
    plan::Wiring,
    run::{Stop, exchange::WireFault},
};
use phalanx_core::{DType, Rank, ReduceOp};
use phalanx_mpi::{Mpi, MpiError, TierPlace};
use phalanx_net::{
    NetError, World,
    lost::{Doom, Lost},
};
use std::sync::{Arc, OnceLock};

/// Whether this communicator has MPI.
#[derive(Debug, Default)]
pub(crate) struct MpiDoor {
    state: State,
    /// Allreduces go along the tiers with MPI's own functions.
    climbs: bool,
    version: Arc<OnceLock<String>>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Unasked,
    Refused {
        rank: Rank,
        why: String,
    },
    Open(Mpi),
}

impl MpiDoor {
    pub fn climb_no_more(&mut self) {
        self.climbs = false;
    }
}

impl Communicator {
    /// What the MPI library calls itself, once ranks have entered it.
    pub fn mpi_version(&self) -> Arc<OnceLock<String>> {
        self.mpi.version.clone()
    }

    /// Whether the engine's allreduces are MPI's.
    pub fn climbs_by_mpi(&self) -> bool {
        self.mpi.climbs
    }

    /// Enters MPI, unless that was done. Every rank calls it between the same calls (ENTER-1).
    pub fn open_mpi(&mut self) -> Result<(), Error> {
        match &self.mpi.state {
            State::Open(_) => return Ok(()),
            State::Refused { rank, why } => return Err(Error::NoMpi { rank: *rank, why: why.clone() }),
            State::Unasked => {}
        }
        let (world, members) = (self.world.clone(), self.members.clone());
        let timeout = world.config().timeout;
        let patience = move |waited| waited < timeout && lost(&world, &members).is_none();
        let named = self.world.config().mpi_lib.clone();
        let loaded = Mpi::load(named.as_deref(), Arc::new(patience));
        self.refuse_together(loaded.as_ref().err())?;
        let mut mpi = loaded.expect("no rank was refused");
        let begun = mpi.begin(self.me, self.size());
        self.refuse_together(begun.as_ref().err())?;
        let apart = mpi.separate();
        self.refuse_together(apart.as_ref().err())?;
        // A second world of this process finds it there.
        let _ = self.mpi.version.set(mpi.version().to_string());
        self.mpi.state = State::Open(mpi);
        Ok(())
    }

    /// For tests: bits of what this rank sends can be turned with it.
    #[doc(hidden)]
    pub fn wire_fault(&mut self) -> Arc<WireFault> {
        self.fault.get_or_insert_default().clone()
    }

    /// From now on the engine's allreduces go along these tiers with MPI's functions: it agrees on them before it enters MPI. Calls of this
    /// communicator itself are ours as before.
    pub fn climb_by_mpi(&mut self, wiring: &Wiring) -> Result<(), Error> {
        self.open_mpi()?;
        let place = wiring.grid.coordinates(self.me);
        let color = |tier| wiring.grid.group(self.me, tier).into_iter().min().expect("it has this rank").0;
        let tiers = (0..wiring.n_tiers()).map(|tier| TierPlace { color: color(tier), place: place[tier] });
        let tiers: Vec<TierPlace> = tiers.collect();
        self.ask(|mpi| mpi.lay(tiers))?;
        self.mpi.climbs = true;
        Ok(())
    }

    /// Reduces in place with MPI's functions.
    pub(crate) fn allreduce_by_mpi(
        &mut self,
        data: &mut [u8],
        dtype: DType,
        op: ReduceOp,
        along: bool,
    ) -> Result<(), Error> {
        self.open_mpi()?;
        self.last_plan = "mpi";
        if !along {
            return self.ask(|mpi| mpi.allreduce(data, dtype, op));
        }
        let took = self.ask(|mpi| mpi.allreduce_along(data, dtype, op))?;
        if self.meter.is_timing() {
            took.into_iter().enumerate().for_each(|(tier, time)| self.meter.took(tier, time));
        }
        Ok(())
    }

    fn ask<T>(&mut self, job: impl FnOnce(&mut Mpi) -> Result<T, MpiError>) -> Result<T, Error> {
        let State::Open(mpi) = &mut self.mpi.state else { unreachable!("open_mpi() comes first") };
        job(mpi).map_err(|why| {
            let error = match lost(&self.world, &self.members) {
                Some(doom) => NetError::from(doom),
                None => NetError::from(Doom::GaveUp { rank: self.world.rank(), why: why.to_string() }),
            };
            self.stopped(Stop::Net(error))
        })
    }

    /// ENTER-1: the first rank's reason, on all ranks.
    fn refuse_together(&mut self, mine: Option<&MpiError>) -> Result<(), Error> {
        let mine = mine.map(ToString::to_string).unwrap_or_default();
        let n = self.size() as usize;
        let mut lengths = vec![0i64; n];
        self.allgather(&[mine.len() as i64], &mut lengths, &vec![1; n])?;
        let Some(first) = lengths.iter().position(|len| *len > 0) else { return Ok(()) };
        let rank = Rank::at(first);
        let mut text = mine.into_bytes();
        text.resize(lengths[first] as usize, 0);
        self.broadcast(&mut text, rank)?;
        let why = String::from_utf8_lossy(&text).into_owned();
        self.mpi.state = State::Refused { rank, why: why.clone() };
        Err(Error::NoMpi { rank, why })
    }
}

/// What is known against waiting for the others (ENTER-2).
fn lost(world: &World, members: &[Rank]) -> Option<Doom> {
    let casualties = world.casualties();
    if !casualties.any() {
        return None;
    }
    let gone = |rank: &Rank| casualties.cause(*rank).map(|cause| Doom::Lost(Lost { rank: *rank, cause }));
    casualties.doomed().or_else(|| members.iter().filter(|rank| **rank != world.rank()).find_map(gone))
}
