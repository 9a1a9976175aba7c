//! A program that the ranks of a world train as an [`Allotment`] says: what is reduced, what is on servers, and the loop's own view of it.
//! - PARALLAX-1: every strategy learns the same from the same samples, up to the order of sums.

use super::{
    client::TableClient,
    place::{AllotError, Allotment, AllotmentStrategy, Cluster, Lodging, place},
};
use crate::ranks::Ranks;
use phalanx_collective::engine::Engine;
use phalanx_core::DType;
use phalanx_graph::{
    BuildError, BuildStrategy, Collective, CollectiveError, Feed, Fetch, Fetched, ParallelExecutor, Program,
    RunError, Setup, Store, Tensor,
    exec::{Alone, Data, Offer, Served, first_values},
    graph::{ServedVar, scale_rows},
    op::OpKind,
};
use phalanx_net::World;
use phalanx_ps::{
    Consistency, PsError, RowReduction, Search, SearchRun, Seats, Spread, TableClip, TableCounters,
    TableRule, TableSpec, TableTerms, TableUpdate, Tables, Trial,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc::sync_channel},
    time::Instant,
};

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
    allotment: Allotment,
    client: Option<Arc<TableClient>>,
    ranks: Arc<Ranks>,
    search: Option<SearchRun>,
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

/// The ranks of a world as they train.
fn cluster(world: &World, config: &ParallaxConfig) -> Cluster {
    let seats = Seats::of(world.workers(), world.servers());
    let fullest = seats.offices().iter().map(|(_, workers)| workers.len()).max();
    Cluster {
        hosts: seats.offices().len(),
        workers_per_host: fullest.unwrap_or(1),
        samples_per_worker: config.samples_per_worker,
    }
}

impl ParallaxRun {
    pub fn new(
        program: &Program,
        loss: &str,
        engine: &Arc<Engine>,
        config: &ParallaxConfig,
    ) -> Result<ParallaxRun, ParallaxError> {
        let world = engine.world().clone();
        let Prepared { allotment, specs, terms, search } = prepared(program, &world, config)?;
        let ranks = Arc::new(Ranks::new(engine.clone()));
        let client = match specs.is_empty() {
            true => None,
            false => Some(Arc::new(TableClient::open(&world, specs, terms)?)),
        };
        // Rows are added up by everybody who serves or gathers them; dense gradients are means already.
        let n = if config.sync { engine.size() as usize * config.replicas } else { config.replicas };
        let by = if config.average_sparse { 1.0 } else { n as f64 };
        let program = scale_rows(program, by).map_err(BuildError::from)?;
        let served = allotment.served().map(|var| var.name.clone()).collect();
        let collective: Arc<dyn Collective> = if config.sync { ranks.clone() } else { Arc::new(Alone) };
        let setup = Setup {
            build: BuildStrategy { served, ..config.build.clone() },
            replicas: Some(config.replicas),
            collective,
            served: client.clone().map(|client| client as Arc<dyn Served>),
            ..Setup::default()
        };
        let executor = ParallelExecutor::new(&program, Some(loss), setup)?;
        Ok(ParallaxRun { executor, store: Store::new(config.seed), allotment, client, ranks, search })
    }

    pub fn allotment(&self) -> &Allotment {
        &self.allotment
    }

    /// Where everything is, why, and what each choice costs.
    pub fn explain(&self) -> Result<String, ParallaxError> {
        let mut text = self.allotment.explain();
        if let Some(client) = &self.client {
            text += &client.explain()?;
        }
        Ok(text)
    }

    /// What this host asked its servers for; nothing where no table is on servers.
    pub fn counters(&self) -> Result<TableCounters, ParallaxError> {
        Ok(self.client.as_ref().map(|client| client.counters()).transpose()?.unwrap_or_default())
    }

    /// One step.
    pub fn step(
        &mut self,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
    ) -> Result<Vec<Fetched>, ParallaxError> {
        let begin = Instant::now();
        let fetched = self.executor.run(&mut self.store, feeds, fetch)?;
        self.tune(begin.elapsed().as_secs_f64())?;
        Ok(fetched)
    }

    /// The number of partitions that a search has found, once it has.
    pub fn found_partitions(&self) -> Option<u32> {
        self.search.as_ref().and_then(SearchRun::found)
    }

    /// Cuts tables anew; every worker calls it between the same steps.
    pub fn reshard(&self, partitions: u32) -> Result<(), ParallaxError> {
        match &self.client {
            Some(client) => Ok(client.reshard(partitions)?),
            None => Ok(()),
        }
    }

    fn tune(&mut self, seconds: f64) -> Result<(), ParallaxError> {
        let Some(search) = &mut self.search else { return Ok(()) };
        let Some(own) = search.step(seconds) else { return Ok(()) };
        let (told, all) = sync_channel(1);
        let done = Box::new(move |back| {
            // Who waits below has not gone.
            let _ = told.send(back);
        });
        self.ranks.start("parallax: seconds of a trial", Offer::Sum(Data::F64(vec![own])), done);
        let lost = || CollectiveError::Failed { call: "a trial".into(), why: "the engine has ended".into() };
        let sums = all.recv().unwrap_or_else(|_| Err(lost()))?;
        let [Data::F64(seconds)] = &sums[..] else { return Err(lost().into()) };
        let partitions = search.end(Trial::Took(seconds[0]));
        self.reshard(partitions)
    }

    /// How many steps the rule of a variable on servers has counted.
    pub fn age(&self, name: &str) -> Result<u64, ParallaxError> {
        let unknown = || ParallaxError::Unknown { name: name.to_string() };
        Ok(self.client.as_ref().ok_or_else(unknown)?.age(name)?)
    }

    /// The rule of a variable on servers has counted this many steps: after its values and states were set to those of a run that is
    /// resumed. Every worker calls it between the same steps.
    pub fn set_age(&mut self, name: &str, age: u64) -> Result<(), ParallaxError> {
        let unknown = || ParallaxError::Unknown { name: name.to_string() };
        Ok(self.client.as_ref().ok_or_else(unknown)?.set_age(name, age)?)
    }

    /// The value of a parameter or a state of an update, wherever it is.
    pub fn value(&mut self, name: &str) -> Result<Tensor, ParallaxError> {
        let found = self.allotment.served().find_map(|var| {
            let parts = std::iter::once(&var.name).chain(&var.states);
            let part = parts.into_iter().position(|part| part == name)?;
            Some((var.clone(), part as u8))
        });
        let (Some((var, part)), Some(client)) = (found, &self.client) else {
            let unknown = || ParallaxError::Unknown { name: name.to_string() };
            return self.store.get(name).ok_or_else(unknown);
        };
        let bytes = client.read(&var.name, part)?;
        let own = &bytes[..var.volume() * var.dtype.size()];
        let tensor = match var.dtype {
            DType::F64 => Tensor::new(&var.dims, &numbers::<f64>(own)),
            _ => Tensor::new(&var.dims, &numbers::<f32>(own)),
        };
        Ok(tensor.expect("there are as many elements as its dimensions say"))
    }

    /// Replaces a parameter or a state. Every worker calls it with the same value, between the same steps.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<(), ParallaxError> {
        let found = self.allotment.served().find_map(|var| {
            let parts = std::iter::once(&var.name).chain(&var.states);
            Some((var.clone(), parts.into_iter().position(|part| part == name)? as u8))
        });
        if let (Some((var, part)), Some(client)) = (&found, &self.client) {
            let room = var.height * var.width * var.dtype.size();
            let wanted = var.volume() * var.dtype.size();
            if value.bytes().len() != wanted {
                let (name, got) = (name.to_string(), value.bytes().len());
                return Err(ParallaxError::Length { name, got, wanted });
            }
            let mut rows = value.bytes().to_vec();
            rows.resize(room, 0);
            client.write(&var.name, *part, rows)?;
            if var.sparse || *part > 0 {
                return Ok(());
            }
        }
        self.executor.prepare(&mut self.store)?;
        Ok(self.store.set(name, value)?)
    }

    /// Every worker closes when it wants nothing more.
    pub fn close(self) -> Result<(), ParallaxError> {
        match &self.client {
            Some(client) => Ok(client.close()?),
            None => Ok(()),
        }
    }
}

/// Bytes that lie anywhere, as numbers.
fn numbers<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    let mut all = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut all).copy_from_slice(bytes);
    all
}

/// On a rank that only serves: has its part of the tables until no worker wants anything more. Without tables it returns at once.
pub fn parallel_serve(
    program: &Program,
    world: &Arc<World>,
    config: &ParallaxConfig,
) -> Result<(), ParallaxError> {
    let Prepared { specs, terms, .. } = prepared(program, world, config)?;
    if specs.is_empty() {
        return Ok(());
    }
    Ok(Tables::open_as(world, specs, terms)?.serve()?)
}

/// What all ranks of a world decide alike.
struct Prepared {
    allotment: Allotment,
    specs: Vec<TableSpec>,
    terms: TableTerms,
    search: Option<SearchRun>,
}

fn prepared(program: &Program, world: &World, config: &ParallaxConfig) -> Result<Prepared, ParallaxError> {
    let allotment = place(program, &config.strategy, &config.overrides, cluster(world, config))?;
    let consistency = match (config.sync, config.staleness) {
        (true, None) => Consistency::Sync,
        (true, Some(k)) => return Err(ParallaxError::Stale(k)),
        (false, Some(k)) => Consistency::Bounded(k),
        (false, None) => Consistency::Async,
    };
    if !config.sync && allotment.reduces() {
        let reduced = allotment.vars.iter().filter(|var| var.at == Lodging::AllReduce);
        let vars = reduced.map(|var| format!("`{}`", var.name)).collect::<Vec<_>>().join(", ");
        return Err(ParallaxError::Unsynced { vars });
    }
    let search = match (config.search, config.partitions) {
        (None, _) => None,
        (Some(_), Some(partitions)) => return Err(ParallaxError::SearchFrom(partitions)),
        (Some(asked), None) => Some(search_of(asked, &allotment, config.sync).ok_or(ParallaxError::Search)?),
    };
    // The first trial is of the tables as they are opened.
    let partitions = config.partitions.or(search.as_ref().map(SearchRun::first));
    let partitions = partitions.unwrap_or_else(|| world.n_workers());
    let spec = |var: &ServedVar| TableSpec {
        raw: !config.merge_rows,
        ..spec_of(var, config.seed, partitions, config.wire)
    };
    let specs = allotment.served().map(spec).collect();
    let terms = TableTerms { consistency, step: 0, collects: config.local_aggregation };
    Ok(Prepared { allotment, specs, terms, search })
}

/// The least partitions, and the steps of a trial, as a search over what is on servers. Tables with fewer rows stay cut as finely as they can
/// be, so that a dense variable of few rows does not end the search of a large table.
fn search_of((least, warm, timed): (u32, u64, u64), allotment: &Allotment, sync: bool) -> Option<SearchRun> {
    let heights = |sparse: bool| {
        let some = allotment.served().filter(move |var| var.sparse == sparse);
        some.map(|var| u32::try_from(var.height).unwrap_or(u32::MAX))
    };
    let most = heights(true).min().or_else(|| heights(false).max()).filter(|_| sync)?;
    let hosts = allotment.cluster.hosts as u32;
    Some(SearchRun::new(Search::new(least.max(hosts), least, most), warm, timed))
}

/// The table that a variable is on servers, with the first values that a store of this seed would give it.
pub fn spec_of(var: &ServedVar, seed: u64, partitions: u32, wire: Option<DType>) -> TableSpec {
    let value = first_values(&var.name, &var.dims, var.init, seed);
    let (width, volume, dtype) = (var.width, var.volume(), var.dtype);
    let first = move |row: u64, bytes: &mut [u8]| {
        let at = |e: usize| row as usize * width + e;
        let value = |e: usize| if at(e) < volume { value(at(e)) } else { 0.0 };
        for (e, out) in bytes.chunks_exact_mut(dtype.size()).enumerate() {
            match dtype {
                DType::F64 => out.copy_from_slice(&value(e).to_le_bytes()),
                _ => out.copy_from_slice(&(value(e) as f32).to_le_bytes()),
            }
        }
    };
    let update = match &var.update {
        OpKind::Momentum(rule) => TableUpdate::Momentum(*rule),
        OpKind::Adagrad(rule) => TableUpdate::Adagrad(*rule),
        OpKind::Adam(rule) => TableUpdate::Adam(*rule),
        OpKind::RmsProp(rule) => TableUpdate::RmsProp(*rule),
        // SERVED-1: nothing else is served.
        _ => TableUpdate::Sgd,
    };
    let clip = var.clip.map_or(TableClip::No, TableClip::Norm);
    TableSpec {
        name: var.name.clone(),
        height: var.height as u64,
        width,
        dtype,
        first: Arc::new(first),
        rule: TableRule { update, first_state: var.first_state, decay: var.decay, clip },
        reduction: RowReduction::Sum,
        wire: wire.filter(|_| dtype == DType::F32),
        partitions: partitions.clamp(1, u32::try_from(var.height).unwrap_or(u32::MAX)),
        spread: Spread::Mod,
        raw: false,
    }
}
