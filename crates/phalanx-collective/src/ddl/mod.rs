//! IBM DDL's functions over the engine: Init, Bcast, AllReduce, AllReduceN, along the tiers that its option string names.
//!
//! Tensors go by name, so ranks may call in any order; what differs between ranks is an error on all of them, not a deadlock.
//!
//! ```
//! use phalanx_collective::ddl::{Ddl, Manner};
//! use phalanx_core::ReduceOp;
//!
//! // A world of one, unless a launcher says otherwise; for 12 ranks on 3 hosts: Ddl::init(Some(4), "-mode n:4x3").
//! let mut ddl = Ddl::init(None, "")?;
//! let mut weights = vec![1.0f32; 8];
//! ddl.bcast("weights", &mut weights)?;
//! ddl.allreduce("gradients", &mut weights, ReduceOp::Average, Manner::default())?;
//! ddl.finalize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod baseline;
pub mod check;
mod options;
mod rebind;
mod report;
mod setup;

pub use baseline::Baseline;
pub use check::{CheckError, Tolerance};
pub use options::{DdlOptions, Mode, ModeLetter, OptionsError};
pub use rebind::{Rebinder, SlowStreak};
use report::BY_MPI;
pub use report::{IterationDumps, TierLine, TierReport, greeting};
use setup::explores;
pub use setup::{DdlWish, settle};

use crate::{
    ArenaVec, Communicator, Error, ExploreError, Meter, bytes,
    engine::{Engine, EngineError, EngineTensor, Request},
    explore::ExploredWays,
    plan::Wiring,
};
use check::{Against, DumpHead, RECORD};
use phalanx_core::{Element, Grid, OpError, Rank, ReduceOp, Transport, Way, topology::TopologyError};
use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

#[derive(thiserror::Error)]
pub enum DdlError {
    #[error("{origin}: {why}")]
    Options { origin: &'static str, why: OptionsError },
    #[error(transparent)]
    Shape(#[from] TopologyError),
    #[error(
        "num_gpu is {given}, but the host of rank {rank} has {have} ranks: start as many ranks a host as you pass, or leave it out"
    )]
    WrongLocal { rank: Rank, given: u32, have: u32 },
    #[error("{what} needs MPI: {why}")]
    NoMpi { what: &'static str, why: Arc<Error> },
    #[error("DDL has already been initialized.")]
    AlreadyInitialized,
    #[error("rank {rank} cannot start with its options; its own error says why")]
    OtherRank { rank: Rank },
    #[error("ranks 0 and {rank} were started with different options: all ranks give the same ones")]
    Disagree { rank: Rank },
    #[error(transparent)]
    Explore(#[from] ExploreError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Op(#[from] OpError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    World(#[from] Error),
}

/// As `Display`: a program whose `main` returns this error prints the `Debug` form, and people read it.
impl fmt::Debug for DdlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How an allreduce is done; the same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Manner {
    /// MPI_Allreduce does it, for comparison; an error on all ranks where there is no MPI.
    pub mpi: bool,
    /// Compare the result with a baseline, and fail on all ranks where it is too far off.
    pub check: Option<Tolerance>,
}

/// Gives a communicator the shape that its options ask for. Every rank calls it before its engine starts; options that differ are an error on
/// all of them, and the communicator stays usable.
pub fn wire(communicator: &mut Communicator, told: &DdlWish<'_>) -> Result<(DdlOptions, Wiring), DdlError> {
    let config = communicator.world().config().clone();
    let settled = settle(told, &config, communicator.topology(), communicator.rank());
    let mut hasher = DefaultHasher::new();
    if let Ok((options, wiring)) = &settled {
        (options.dump_iter, options.rebind_iter, explores(options, wiring, &config)).hash(&mut hasher);
        (wiring.grid.tiers().dims(), Way::show(&wiring.ways), options.is_by_mpi()).hash(&mut hasher);
    }
    let mine = [i64::from(settled.is_err()), hasher.finish() as i64];
    let n = communicator.size() as usize;
    let mut all = vec![0i64; 2 * n];
    communicator.allgather(&mine, &mut all, &vec![2; n])?;
    let settled = settled?;
    if let Some(rank) = all.chunks(2).position(|row| row[0] != 0) {
        return Err(DdlError::OtherRank { rank: Rank::at(rank) });
    }
    if let Some(rank) = all.chunks(2).position(|row| row[1] != all[1]) {
        return Err(DdlError::Disagree { rank: Rank::at(rank) });
    }
    let (options, wiring) = &settled;
    communicator.rewire(wiring.clone())?;
    if explores(options, wiring, &config)
        && let Err(why) = communicator.explore(wiring)?
    {
        communicator.unwire();
        return Err(why.into());
    }
    if options.is_by_mpi() {
        let climbs = communicator.climb_by_mpi(wiring);
        if climbs.is_err() {
            communicator.unwire();
        }
        climbs.map_err(|why| match why {
            Error::NoMpi { .. } => DdlError::NoMpi { what: "-mode m", why: Arc::new(why) },
            why => why.into(),
        })?;
    }
    Ok(settled)
}

/// What the tiers of a communicator do after [`wire`]: names of ways, or `mpi`. Where they are explored it changes, and is `exploring` until all sizes
/// that have come are settled, and `several` where these have different ways.
#[derive(Clone, Debug)]
pub enum UsedWays {
    Fixed(Vec<&'static str>),
    Explored(ExploredWays),
}

impl UsedWays {
    pub fn new(communicator: &Communicator, wiring: &Wiring) -> UsedWays {
        if communicator.climbs_by_mpi() {
            return UsedWays::Fixed(vec![BY_MPI; wiring.n_tiers()]);
        }
        if let Some(kept) = communicator.kept() {
            return UsedWays::Explored(kept);
        }
        let has_arena = communicator.world().config().transport == Transport::Auto;
        let used = wiring.used(communicator.topology(), has_arena);
        UsedWays::Fixed(used.into_iter().map(Way::name).collect())
    }

    /// One name for each tier.
    pub fn now(&self) -> Vec<&'static str> {
        match self {
            UsedWays::Fixed(names) => names.clone(),
            UsedWays::Explored(kept) => kept.now(),
        }
    }
}

/// One process has one DDL, as in DDL itself: its second Init is an error. Relaxed would do; it guards nothing else.
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// This process as a learner.
#[derive(Debug)]
pub struct Ddl {
    engine: Option<Engine>,
    options: DdlOptions,
    wiring: Wiring,
    meter: Arc<Meter>,
    iteration_dumps: IterationDumps,
    rebinder: Rebinder,
    local_rank: u32,
    used: UsedWays,
    baseline: Baseline,
    dumps: PathBuf,
    /// Whether it is the one of this process.
    is_the_one: bool,
}

impl Ddl {
    /// Joins the world. `n_local` is the number of ranks that each host should have; `options` DDL's string, as in `-mode n:4x3 -dump_iter 100`.
    /// Without options `DDL_OPTIONS` is read; without a mode there is a single ring.
    pub fn init(n_local: Option<u32>, options: &str) -> Result<Ddl, DdlError> {
        if INITIALIZED.swap(true, Ordering::SeqCst) {
            return Err(DdlError::AlreadyInitialized);
        }
        let from_env = std::env::var("DDL_OPTIONS").ok();
        let told = DdlWish { n_local, options, from_env: from_env.as_deref() };
        let started =
            Communicator::from_env().map_err(DdlError::from).and_then(|comm| Ddl::over(comm, &told));
        match started {
            Ok(mut ddl) => {
                ddl.is_the_one = true;
                Ok(ddl)
            }
            Err(why) => {
                INITIALIZED.store(false, Ordering::SeqCst);
                Err(why)
            }
        }
    }

    /// The same over a communicator that is there already; a process may have several.
    pub fn over(mut communicator: Communicator, told: &DdlWish<'_>) -> Result<Ddl, DdlError> {
        let (options, wiring) = wire(&mut communicator, told)?;
        let used = UsedWays::new(&communicator, &wiring);
        let place = (communicator.rank(), communicator.topology().n_hosts());
        if let Some(text) = greeting(&options, &wiring, &used.now(), place) {
            phalanx_net::voice::warn(&text);
        }
        let baseline = Baseline::new(communicator.mpi_version(), options.is_by_mpi());
        let (meter, local_rank) = (communicator.meter(), communicator.local_rank());
        meter.take_times(options.dump_iter > 0);
        let iteration_dumps = IterationDumps::new(options.dump_iter);
        let rebinder = Rebinder::new(options.rebind_iter);
        let engine = Some(Engine::start(communicator)?);
        let (dumps, is_the_one) = (PathBuf::new(), false);
        Ok(Ddl {
            engine,
            options,
            wiring,
            meter,
            iteration_dumps,
            rebinder,
            local_rank,
            used,
            baseline,
            dumps,
            is_the_one,
        })
    }

    /// Dumps of a failed `check` go to this folder instead of the working directory.
    pub fn dump_into(&mut self, folder: impl Into<PathBuf>) {
        self.dumps = folder.into();
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it is taken when this ends")
    }

    pub fn rank(&self) -> Rank {
        self.engine().rank()
    }

    pub fn size(&self) -> u32 {
        self.engine().size()
    }

    pub fn local_rank(&self) -> u32 {
        self.local_rank
    }

    /// The device that belongs to this rank: its place on the host.
    pub fn device(&self) -> u32 {
        self.local_rank
    }

    /// Which rank is where.
    pub fn grid(&self) -> &Grid {
        &self.wiring.grid
    }

    pub fn options(&self) -> &DdlOptions {
        &self.options
    }

    /// Zeros that the ranks of this host can reach.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<ArenaVec<T>, DdlError> {
        Ok(ArenaVec::zeros(self.engine().world(), len)?)
    }

    /// Gives every rank the data of rank 0.
    pub fn bcast<T: Element>(&mut self, name: &str, data: &mut [T]) -> Result<(), DdlError> {
        let request = Request::broadcast(EngineTensor::new(data.to_vec()), Rank::ZERO);
        let result = self.engine().submit(request.name(format!("ddl.bcast.{name}")))?.wait()?;
        copy_back(result.tensors, &mut [data]);
        Ok(())
    }

    /// Reduces over all ranks, along the tiers.
    pub fn allreduce<T: Element>(
        &mut self,
        name: &str,
        data: &mut [T],
        op: ReduceOp,
        manner: Manner,
    ) -> Result<(), DdlError> {
        self.reduce(name, &mut [data], op, manner, false)
    }

    /// Reduces several vectors at once: all of them, or none.
    pub fn allreduce_n<T: Element>(
        &mut self,
        name: &str,
        data: &mut [&mut [T]],
        op: ReduceOp,
        manner: Manner,
    ) -> Result<(), DdlError> {
        self.reduce(name, data, op, manner, true)
    }

    fn reduce<T: Element>(
        &mut self,
        name: &str,
        data: &mut [&mut [T]],
        op: ReduceOp,
        manner: Manner,
        grouped: bool,
    ) -> Result<(), DdlError> {
        let inputs: Option<Vec<Vec<T>>> = manner.check.map(|_| data.iter().map(|d| d.to_vec()).collect());
        let mut tensors: Vec<EngineTensor> = data.iter().map(|d| EngineTensor::new(d.to_vec())).collect();
        let request = match tensors.pop() {
            Some(tensor) if !grouped => Request::allreduce(tensor),
            last => Request::grouped_allreduce(tensors.into_iter().chain(last).collect()),
        };
        let mut request = request.name(format!("ddl.allreduce.{name}")).op(op).awaited();
        if manner.mpi {
            request = request.by_mpi();
        }
        if let Some(tolerance) = manner.check {
            request = request.checked(tolerance.rtol, tolerance.atol.unwrap_or(-1.0));
        }
        let began = self.iteration_dumps.begin(name);
        let rebind_began = self.rebinder.begin(name);
        let result =
            self.engine().submit(request)?.wait().map_err(|why| no_mpi("Manner { mpi: true }", why))?;
        self.iteration_dumps.end(began);
        copy_back(result.tensors, data);
        let told = self.rebinder.end(rebind_began);
        if let (Some(tolerance), Some(inputs)) = (manner.check, inputs) {
            let many = inputs.len() > 1;
            for (i, (input, output)) in inputs.into_iter().zip(data.iter()).enumerate() {
                let name = if many { format!("{name}[{i}]") } else { name.to_string() };
                self.compare(&name, input, bytes::of(output), (op, manner.mpi), tolerance)?;
            }
        }
        self.dump_if_due()?;
        if let Some(told) = told {
            let all = self.gather("ddl.rebind".into(), told)?.into_vec::<f64>().expect("words are numbers");
            let me = self.rank();
            if let Some(text) = self.rebinder.check(me, &all) {
                phalanx_net::voice::warn(&text);
            }
        }
        Ok(())
    }

    fn gather<T: Element>(&self, name: String, data: Vec<T>) -> Result<EngineTensor, DdlError> {
        let answer = self.engine().submit(Request::allgather(EngineTensor::new(data)).name(name))?.wait()?;
        Ok(answer.tensor().expect("an allgather gives one tensor"))
    }

    /// JUDGE-2.
    fn compare<T: Element>(
        &mut self,
        name: &str,
        input: Vec<T>,
        result: &[u8],
        (op, by_mpi): (ReduceOp, bool),
        tolerance: Tolerance,
    ) -> Result<(), DdlError> {
        let mut other = None;
        if self.baseline.may_be_mpi() && !by_mpi {
            let request = Request::allreduce(EngineTensor::new(input.clone())).op(op).by_mpi();
            match self.engine().submit(request.name(format!("ddl.mpi.{name}")))?.wait() {
                Ok(answer) => other = Some(answer.tensor().expect("an allreduce gives one tensor")),
                Err(why) => self.baseline.refused(&why).ok_or(why)?,
            }
        }
        let faults = match &other {
            Some(other) => check::judge(T::DTYPE, op, result, Against::Result(other.bytes()), tolerance),
            None => {
                let gathered = self.gather(format!("ddl.check.{name}"), input.clone())?;
                check::judge(T::DTYPE, op, result, Against::Gathered(gathered.bytes()), tolerance)
            }
        };
        let baseline = self.baseline.used(other.is_some());
        let records = self.numbers(format!("ddl.verdict.{name}"), check::record(&faults).to_vec())?;
        debug_assert_eq!(records.len(), RECORD * self.size() as usize);
        let Some(mut error) = check::verdict(name, T::DTYPE, &records, &baseline) else { return Ok(()) };
        let is_bad = !check::is_finite(T::DTYPE, bytes::of(&input), error.index);
        error.nan_from = check::blame(&self.numbers(format!("ddl.blame.{name}"), vec![i64::from(is_bad)])?);
        let head = DumpHead {
            rank: self.rank().0,
            tensor: name,
            dtype: T::DTYPE.name(),
            op: op.name(),
            tiers: &self.wiring.grid.tiers().to_string(),
            ways: &if by_mpi { check::BY_MPI.to_string() } else { self.used.now().join(",") },
            baseline: &baseline,
            rtol: tolerance.rtol,
            error: &error.to_string(),
        };
        check::dump(&self.dumps, &head, &faults);
        Err(error.into())
    }

    /// What every rank says.
    fn numbers(&self, name: String, mine: Vec<i64>) -> Result<Vec<i64>, DdlError> {
        Ok(self.gather(name, mine)?.into_vec::<i64>().expect("these are numbers"))
    }

    /// Bytes, messages and times of each tier so far, on this rank.
    pub fn report(&self) -> TierReport {
        let baseline = self.baseline.last();
        TierReport { baseline, ..TierReport::new(&self.wiring, &self.used.now(), &self.meter.read()) }
    }

    /// Rank 0 says where the time of the last iterations went, and who came last.
    fn dump_if_due(&mut self) -> Result<(), DdlError> {
        let Ddl { iteration_dumps, wiring, used, meter, .. } = self;
        let sent = || TierReport::new(wiring, &used.now(), &meter.read());
        let Some(words) = iteration_dumps.due(sent) else { return Ok(()) };
        let all = self.gather("ddl.dump".into(), words)?.into_vec::<f64>().expect("words are numbers");
        let sent = TierReport::new(&self.wiring, &self.used.now(), &self.meter.read());
        let text = self.iteration_dumps.shown(&all, sent);
        if self.rank() == Rank::ZERO {
            phalanx_net::voice::warn(&text);
        }
        Ok(())
    }

    /// Leaves the world in order.
    pub fn finalize(mut self) -> Result<(), DdlError> {
        if let Some(engine) = self.engine.take() {
            engine.shutdown()?;
        }
        Ok(())
    }
}

impl Drop for Ddl {
    fn drop(&mut self) {
        // The engine first: the next Init joins the world anew.
        drop(self.engine.take());
        if self.is_the_one {
            INITIALIZED.store(false, Ordering::SeqCst);
        }
    }
}

/// What is said where a caller asked for MPI.
fn no_mpi(what: &'static str, why: EngineError) -> DdlError {
    match why {
        EngineError::Failed(error) if matches!(*error, Error::NoMpi { .. }) => {
            DdlError::NoMpi { what, why: error }
        }
        why => why.into(),
    }
}

fn copy_back<T: Element>(tensors: Vec<EngineTensor>, data: &mut [&mut [T]]) {
    for (tensor, into) in tensors.into_iter().zip(data) {
        into.copy_from_slice(tensor.as_slice().expect("it was submitted with this type"));
    }
}
