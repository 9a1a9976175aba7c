//! A program that the ranks of a world train as an [`Allotment`] says: what is reduced, what is on servers, and the loop's own view of it.
//! - PARALLAX-1: every strategy learns the same from the same samples, up to the order of sums.

use super::{
    measure::{exchanged, lost},
    place::{AllotError, Allotment, AllotmentStrategy, FirstRows, Lodging},
    served::{Prepared, ServedProgram, prepared},
};
use crate::ranks::Ranks;
use phalanx_collective::engine::Engine;
use phalanx_core::DType;
use phalanx_graph::{
    BuildError, BuildStrategy, Collective, CollectiveError, Feed, Fetch, Fetched, ParallelExecutor, Program,
    RunError, Setup, Store, Tensor,
    exec::{Alone, Data, Offer},
};
use phalanx_net::World;
use phalanx_ps::{PsError, TableCounters, Tables};
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// How a program is trained.
#[derive(Clone, Debug)]
pub struct ParallaxConfig {
    pub strategy: AllotmentStrategy,
    /// Variables that go somewhere whatever the strategy says.
    pub overrides: BTreeMap<String, Lodging>,
    /// Rows are divided by the number of workers, as dense gradients always are; otherwise they are added up.
    pub average_sparse: bool,
    /// Without it, nobody waits for anybody; everything must be on servers then.
    pub sync: bool,
    /// How many steps workers may be apart, where they do not run in step.
    pub staleness: Option<u64>,
    /// Rows travel between hosts in this type.
    pub wire: Option<DType>,
    /// The partitions of each table; one for each worker if not given.
    pub partitions: Option<u32>,
    /// Looks for the best number of partitions while it trains, from this number on: the steps of a trial that warm up, and
    /// those that count.
    pub search: Option<(u32, u64, u64)>,
    /// The most bytes that a server may hold; otherwise what its machine has free.
    pub server_bytes: Option<u64>,
    /// One of a host's workers collects what all of them want and give; otherwise each asks servers by itself.
    pub local_aggregation: bool,
    /// A row that a worker touches several times in a step travels once; otherwise as often, and servers add it up.
    pub merge_rows: bool,
    /// Replicas in each process.
    pub replicas: usize,
    /// Where first values and random numbers come from.
    pub seed: u64,
    /// For what `explain` says; training does not need it.
    pub samples_per_worker: usize,
    pub build: BuildStrategy,
}

impl Default for ParallaxConfig {
    fn default() -> ParallaxConfig {
        ParallaxConfig {
            strategy: AllotmentStrategy::Hybrid,
            overrides: BTreeMap::new(),
            average_sparse: false,
            sync: true,
            staleness: None,
            wire: None,
            partitions: None,
            search: None,
            server_bytes: None,
            local_aggregation: true,
            merge_rows: true,
            replicas: 1,
            seed: 0,
            samples_per_worker: 1,
            build: BuildStrategy::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ParallaxError {
    #[error(
        "without sync nobody waits for the others, but {vars} would be reduced between them; use AllotmentStrategy::Ps"
    )]
    Unsynced { vars: String },
    #[error(
        "without sync every push is applied by itself, and no gradient of all workers is there to be clipped, but those of {vars} are; leave clipping out, or use sync"
    )]
    Unclipped { vars: String },
    #[error("a staleness of {0} has no meaning with sync; set sync to false")]
    Stale(u64),
    #[error("a search for partitions times all workers together: it needs sync and tables on servers")]
    Search,
    #[error(
        "a search begins with the partitions that it is given: leave `partitions` ({0}) out, or `search`"
    )]
    SearchFrom(u32),
    #[error("`{name}` is neither in the store nor on servers")]
    Unknown { name: String },
    #[error("`{name}` has {got} bytes where {wanted} are needed")]
    Length { name: String, got: usize, wanted: usize },
    #[error(transparent)]
    Place(#[from] AllotError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Tables(#[from] PsError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// Which worker this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSeat {
    pub num_workers: usize,
    pub worker_id: usize,
    pub num_replicas_per_worker: usize,
}

/// A program in training.
#[derive(Debug)]
pub struct ParallaxRun {
    pub executor: ParallelExecutor,
    pub store: Store,
    tables: ServedProgram,
    ranks: Arc<Ranks>,
}

/// Trains a program with the workers of an engine's world: calls `run` on this worker, and closes the tables when it returns.
pub fn parallel_run<T>(
    program: &Program,
    loss: &str,
    engine: &Arc<Engine>,
    config: &ParallaxConfig,
    run: impl FnOnce(&mut ParallaxRun, WorkerSeat) -> T,
) -> Result<T, ParallaxError> {
    let mut training = ParallaxRun::new(program, loss, engine, config)?;
    let seat = WorkerSeat {
        num_workers: engine.size() as usize,
        worker_id: engine.rank().index(),
        num_replicas_per_worker: config.replicas,
    };
    let result = run(&mut training, seat);
    training.close()?;
    Ok(result)
}

impl ParallaxRun {
    pub fn new(
        program: &Program,
        loss: &str,
        engine: &Arc<Engine>,
        config: &ParallaxConfig,
    ) -> Result<ParallaxRun, ParallaxError> {
        let tables = ServedProgram::open(program, engine.world(), config, FirstRows::Seeded)?;
        let ranks = Arc::new(Ranks::new(engine.clone()));
        let collective: Arc<dyn Collective> = if config.sync { ranks.clone() } else { Arc::new(Alone) };
        let setup = Setup {
            build: BuildStrategy { served: tables.names(), ..config.build.clone() },
            replicas: Some(config.replicas),
            collective,
            served: tables.served(),
            ..Setup::default()
        };
        let executor = ParallelExecutor::new(tables.program(), Some(loss), setup)?;
        Ok(ParallaxRun { executor, store: Store::new(config.seed), tables, ranks })
    }

    pub fn allotment(&self) -> &Allotment {
        self.tables.allotment()
    }

    /// Where everything is, why, and what each choice costs.
    pub fn explain(&self) -> Result<String, ParallaxError> {
        self.tables.explain()
    }

    /// What this host asked its servers for; nothing where no table is on servers.
    pub fn counters(&self) -> Result<TableCounters, ParallaxError> {
        self.tables.counters()
    }

    /// One step.
    pub fn step(
        &mut self,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
    ) -> Result<Vec<Fetched>, ParallaxError> {
        let begin = Instant::now();
        let ran = self.executor.run(&mut self.store, feeds, fetch);
        // A step that fails does so on all workers.
        let fetched = ran.inspect_err(|_| self.tables.crash_trial())?;
        self.tune(begin.elapsed().as_secs_f64())?;
        Ok(fetched)
    }

    /// The number of partitions that a search has found, once it has.
    pub fn found_partitions(&self) -> Option<u32> {
        self.tables.found_partitions()
    }

    /// Cuts tables anew; every worker calls it between the same steps.
    pub fn reshard(&self, partitions: u32) -> Result<(), ParallaxError> {
        self.tables.reshard(partitions)
    }

    fn tune(&mut self, seconds: f64) -> Result<(), ParallaxError> {
        let Some(own) = self.tables.timed(seconds) else { return Ok(()) };
        let offer = Offer::Sum(Data::F64(vec![own]));
        let sums = exchanged(&self.ranks, "parallax: seconds of a trial", offer)?;
        let [Data::F64(seconds)] = &sums[..] else { return Err(lost().into()) };
        let mut wanted = Some(self.tables.end_trial(seconds[0])?);
        while let Some(partitions) = wanted {
            let admitted = self.tables.admits(partitions);
            if let Err(why) = &admitted {
                tracing::info!(partitions, %why, "a number of partitions is not tried");
            }
            let offer = Offer::Sum(Data::F64(vec![f64::from(u8::from(admitted.is_err()))]));
            let sums = exchanged(&self.ranks, "parallax: whether partitions are admitted", offer)?;
            if sums == [Data::F64(vec![0.0])] {
                match self.reshard(partitions) {
                    // A rank that only serves has no room; all workers are told.
                    Err(ParallaxError::Tables(PsError::Uncut(why))) => {
                        tracing::info!(partitions, %why, "a number of partitions is not tried");
                    }
                    done => return done,
                }
            }
            wanted = self.tables.refused_trial();
        }
        Ok(())
    }

    /// How many steps the rule of a variable on servers has counted.
    pub fn age(&self, name: &str) -> Result<u64, ParallaxError> {
        self.tables.age(name)
    }

    /// The rule of a variable on servers has counted this many steps: after its values and states were set to those of a run that is
    /// resumed. Every worker calls it between the same steps.
    pub fn set_age(&mut self, name: &str, age: u64) -> Result<(), ParallaxError> {
        self.tables.set_age(name, age)
    }

    /// The value of a parameter or a state of an update, wherever it is.
    pub fn value(&mut self, name: &str) -> Result<Tensor, ParallaxError> {
        let unknown = || ParallaxError::Unknown { name: name.to_string() };
        match self.tables.value(name)? {
            Some(value) => Ok(value),
            None => self.store.get(name).ok_or_else(unknown),
        }
    }

    /// Replaces a parameter or a state. Every worker calls it with the same value, between the same steps.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<(), ParallaxError> {
        if self.tables.set(name, value)? == Some(false) {
            return Ok(());
        }
        self.executor.prepare(&mut self.store)?;
        Ok(self.store.set(name, value)?)
    }

    /// Every worker closes when it wants nothing more.
    pub fn close(self) -> Result<(), ParallaxError> {
        self.tables.close()
    }
}

/// On a rank that only serves: has its part of the tables until no worker wants anything more. Without tables it returns at once.
pub fn parallel_serve(
    program: &Program,
    world: &Arc<World>,
    config: &ParallaxConfig,
) -> Result<(), ParallaxError> {
    let Prepared { specs, terms, .. } = prepared(program, world, config, FirstRows::Seeded)?;
    if specs.is_empty() {
        return Ok(());
    }
    Ok(Tables::open_as(world, specs, terms)?.serve()?)
}
