//! The MPI library of the launcher, loaded at run time. It decides which library that is and how our types and reductions become MPI's; it does
//! not know who the ranks are, nor in which order they call: its caller agrees on that before MPI is entered.
//!
//! - MPI-1: one thread makes all calls, so a call that MPI never returns from holds up nothing but that thread.
//! - MPI-2: MPI is finalised only if it was begun here, and refused where its ranks are not ours.
//! - MPI-3: a result is what the same reduction of `phalanx-core` gives, up to the order of additions: averages of integers do not wrap on the
//!   way, `f16` and `bf16`, which MPI does not have, travel as `f32`, and `bool` as 0 and 1.

mod find;
mod library;
mod travel;

use library::Library;
use phalanx_core::{DType, OpError, Rank, ReduceOp};
use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel, sync_channel},
    },
    time::{Duration, Instant},
};
use travel::Travel;

/// How often a waiting caller asks whether waiting still makes sense.
const LOOK: Duration = Duration::from_millis(20);
/// How long the end of MPI is waited for: ranks that are gone never come.
const LAST: Duration = Duration::from_secs(5);

/// Why MPI cannot be used, or has failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MpiError {
    #[error(
        "no MPI started this process: start it with mpirun of Open MPI or mpiexec of MPICH, or name the library in PHALANX_MPI_LIB"
    )]
    NoLauncher,
    #[error("{library} cannot be loaded: {why}. Install it, or name another one in PHALANX_MPI_LIB")]
    Unloadable { library: String, why: String },
    #[error(
        "{library} is not an MPI library: it has no {missing}. Name libmpi.so.40 of Open MPI or libmpich.so.12 of MPICH in PHALANX_MPI_LIB"
    )]
    NotMpi { library: String, missing: String },
    #[error(
        "{library} is neither Open MPI nor MPICH ({version}): name one of these in PHALANX_MPI_LIB, and start the ranks with its mpirun"
    )]
    OtherAbi { library: String, version: String },
    #[error(
        "MPI has other ranks: this process is rank {mpi_rank} of {mpi_size} there, but rank {rank} of {size} here; start all ranks with one mpirun of {library}"
    )]
    OtherWorld { library: String, mpi_rank: u32, mpi_size: u32, rank: Rank, size: u32 },
    #[error(
        "MPI of this process was initialised for one thread at a time: initialise it with MPI_THREAD_MULTIPLE, or leave that to Phalanx"
    )]
    OneThread,
    #[error("MPI of this process has been finalised, and cannot start again: keep it until the process ends")]
    Over,
    #[error("{call} failed: {why}")]
    Failed { call: &'static str, why: String },
    #[error("{doing} was given up after {waited_s:.1} s, and MPI is not used any more")]
    GivenUp { doing: &'static str, waited_s: f64 },
    #[error("the thread that calls MPI has ended; this is a bug of Phalanx, please report it")]
    Gone,
    #[error(transparent)]
    Op(#[from] OpError),
}

type Job = Box<dyn FnOnce(&mut Library) + Send>;

/// Says whether to go on waiting for MPI, given how long that has taken.
pub type GoOn = Arc<dyn Fn(Duration) -> bool + Send + Sync>;

/// This rank's place along one tier: ranks of one colour form a group, ordered by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierPlace {
    pub color: u32,
    pub place: u32,
}

/// A loaded MPI library.
pub struct Mpi {
    jobs: Option<Sender<Job>>,
    library: String,
    version: String,
    size: u32,
    patience: GoOn,
    /// A call did not come back.
    is_stuck: bool,
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpi").field("library", &self.library).finish_non_exhaustive()
    }
}

impl Mpi {
    /// Loads the library that is named here, or that this process has loaded, or that belongs to the launcher. Nothing is initialised yet.
    pub fn load(named: Option<&str>, patience: GoOn) -> Result<Mpi, MpiError> {
        let candidates = find::candidates(named, &find::maps(), |name| std::env::var_os(name).is_some())?;
        let (jobs, orders) = channel::<Job>();
        let (tell, told) = sync_channel(1);
        let work = move || match library::open(&candidates) {
            Ok(mut library) => {
                let _ = tell.send(Ok((library.name().to_string(), library.version().to_string())));
                orders.into_iter().for_each(|job: Job| job(&mut library));
            }
            Err(why) => drop(tell.send(Err(why))),
        };
        let thread = std::thread::Builder::new().name("phalanx-mpi".into()).spawn(work);
        thread.map_err(|e| MpiError::Failed { call: "starting a thread for MPI", why: e.to_string() })?;
        let (library, version) = wait(&told, &patience, "loading MPI")??;
        Ok(Mpi { jobs: Some(jobs), library, version, size: 0, patience, is_stuck: false })
    }

    /// What the library calls itself, as one line.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The library, as it was loaded.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Initialises MPI, unless it is. All ranks do so together (MPI-2).
    pub fn begin(&mut self, rank: Rank, size: u32) -> Result<(), MpiError> {
        self.size = size;
        self.ask("MPI_Init", move |library| library.begin(rank, size))
    }

    /// Makes a communicator for our calls. All ranks do so together, after [`begin`](Self::begin) has succeeded on every rank: a rank that was refused
    /// there would leave the others waiting here.
    pub fn separate(&mut self) -> Result<(), MpiError> {
        self.ask("MPI_Comm_dup", Library::separate)
    }

    /// Makes groups of ranks along tiers, for [`allreduce_along`](Self::allreduce_along). All ranks do so together.
    pub fn lay(&mut self, tiers: Vec<TierPlace>) -> Result<(), MpiError> {
        self.ask("MPI_Comm_split", move |library| library.lay(&tiers))
    }

    /// `MPI_Allreduce`, in place.
    pub fn allreduce(&mut self, data: &mut [u8], dtype: DType, op: ReduceOp) -> Result<(), MpiError> {
        let Some((travel, sent)) = outward(data, dtype, op)? else { return Ok(()) };
        let came = self.ask("MPI_Allreduce", move |library| {
            let mut came = vec![0; sent.len()];
            library.allreduce(&sent, &mut came, travel.kind, travel.op)?;
            Ok(came)
        })?;
        travel.homeward(&came, self.size, data);
        Ok(())
    }

    /// `MPI_Reduce_scatter` along each tier going up, `MPI_Allgatherv` coming down, in place. How long each tier took.
    pub fn allreduce_along(
        &mut self,
        data: &mut [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Vec<Duration>, MpiError> {
        let Some((travel, mut sent)) = outward(data, dtype, op)? else { return Ok(Vec::new()) };
        let (came, took) = self.ask("MPI_Reduce_scatter", move |library| {
            let took = library.climb(&mut sent, travel.kind, travel.op)?;
            Ok((sent, took))
        })?;
        travel.homeward(&came, self.size, data);
        Ok(took)
    }

    fn ask<T: Send + 'static>(
        &mut self,
        doing: &'static str,
        job: impl FnOnce(&mut Library) -> Result<T, MpiError> + Send + 'static,
    ) -> Result<T, MpiError> {
        if self.is_stuck {
            return Err(MpiError::GivenUp { doing, waited_s: 0.0 });
        }
        let (tell, told) = sync_channel(1);
        // Who gave up does not listen.
        let job: Job = Box::new(move |library| drop(tell.send(job(library))));
        let jobs = self.jobs.as_ref().expect("it is taken when this ends");
        jobs.send(job).map_err(|_| MpiError::Gone)?;
        let answer = wait(&told, &self.patience, doing);
        self.is_stuck = answer.is_err();
        answer?
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if !self.is_stuck {
            let patience = self.patience.clone();
            self.patience = Arc::new(move |waited| waited < LAST && patience(waited));
            // Where it cannot end in order, the process ends without it.
            let _ = self.ask("MPI_Finalize", Library::end);
        }
        drop(self.jobs.take());
    }
}

/// How a reduction travels, and what is sent; nothing where there is nothing to reduce.
fn outward(data: &[u8], dtype: DType, op: ReduceOp) -> Result<Option<(Travel, Vec<u8>)>, MpiError> {
    op.check(dtype, 1.0, 1.0)?;
    let travel = Travel::of(dtype, op);
    Ok((!data.is_empty()).then(|| (travel, travel.outward(data))))
}

fn wait<T>(told: &std::sync::mpsc::Receiver<T>, patience: &GoOn, doing: &'static str) -> Result<T, MpiError> {
    let began = Instant::now();
    loop {
        match told.recv_timeout(LOOK) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(MpiError::Gone),
            Err(RecvTimeoutError::Timeout) if patience(began.elapsed()) => {}
            Err(RecvTimeoutError::Timeout) => {
                return Err(MpiError::GivenUp { doing, waited_s: began.elapsed().as_secs_f64() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_never_comes_back_is_given_up_and_no_other_is_made() {
        let (jobs, orders) = channel();
        let patience: GoOn = Arc::new(|waited| waited < Duration::from_millis(30));
        let library = String::new();
        let mut mpi =
            Mpi { jobs: Some(jobs), version: library.clone(), library, size: 2, patience, is_stuck: false };
        for _ in 0..2 {
            let refused = mpi.allreduce(&mut [0; 4], DType::I32, ReduceOp::Sum).unwrap_err();
            assert!(matches!(refused, MpiError::GivenUp { doing: "MPI_Allreduce", .. }), "MPI-1: {refused}");
        }
        drop(mpi);
        assert_eq!(orders.into_iter().count(), 1, "MPI-1: nothing is asked of a thread that is held up");
    }
}
