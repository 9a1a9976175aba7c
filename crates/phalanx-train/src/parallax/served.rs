//! The variables of a program that servers have: how they become tables, and their values.

use super::{
    client::TableClient,
    place::{Allotment, Cluster, FirstRows, Lodging, place_with},
    run::{ParallaxConfig, ParallaxError},
};
use phalanx_core::DType;
use phalanx_graph::{
    BuildError, Program, Tensor,
    exec::{Served, first_values},
    graph::{ServedClip, ServedVar, scale_rows},
    op::OpKind,
};
use phalanx_net::World;
use phalanx_ps::{
    Consistency, RowReduction, Search, SearchRun, Seats, Spread, TableClip, TableCounters, TableRule,
    TableSpec, TableTerms, TableUpdate, TablesOffer, Trial,
};
use std::sync::Arc;

/// A program whose variables are placed, and those of them that are on servers.
#[derive(Debug)]
pub struct ServedProgram {
    program: Program,
    allotment: Allotment,
    client: Option<Arc<TableClient>>,
    search: Option<SearchRun>,
}

impl ServedProgram {
    /// Places all variables and opens what is on servers; every worker calls it with the same arguments.
    pub fn open(
        program: &Program,
        world: &Arc<World>,
        config: &ParallaxConfig,
        first: FirstRows,
    ) -> Result<ServedProgram, ParallaxError> {
        let Prepared { allotment, specs, terms, search } = prepared(program, world, config, first)?;
        // Rows are added up by everybody who serves or gathers them; dense gradients are means already.
        let n = if config.sync { world.n_workers() as usize * config.replicas } else { config.replicas };
        let by = if config.average_sparse { 1.0 } else { n as f64 };
        let program = scale_rows(program, by).map_err(BuildError::from)?;
        let specs = match first {
            FirstRows::Seeded => specs,
            FirstRows::Written => {
                let offer = TablesOffer::of(&specs, terms);
                if !specs.is_empty() {
                    offer.send(world)?;
                }
                offer.specs()
            }
        };
        let client = match specs.is_empty() {
            true => None,
            false => Some(Arc::new(TableClient::open(world, specs, terms)?)),
        };
        Ok(ServedProgram { program, allotment, client, search })
    }

    /// The program to train: its rows are scaled as the configuration says.
    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn allotment(&self) -> &Allotment {
        &self.allotment
    }

    /// For `BuildStrategy::served`.
    pub fn names(&self) -> Vec<String> {
        self.allotment.served().map(|var| var.name.clone()).collect()
    }

    /// For `Setup::served`.
    pub fn served(&self) -> Option<Arc<dyn Served>> {
        self.client.clone().map(|client| client as Arc<dyn Served>)
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

    /// Cuts tables anew; every worker calls it between the same steps.
    pub fn reshard(&self, partitions: u32) -> Result<(), ParallaxError> {
        match &self.client {
            Some(client) => Ok(client.reshard(partitions)?),
            None => Ok(()),
        }
    }

    /// A step of this worker took so long. At the end of a trial its seconds, which all workers bring together for `end_trial`.
    pub fn timed(&mut self, seconds: f64) -> Option<f64> {
        self.search.as_mut().and_then(|search| search.step(seconds))
    }

    /// A step failed, and nobody has learned from it: the trial that it was part of has crashed.
    pub fn crash_trial(&mut self) {
        if let Some(search) = &mut self.search {
            search.crash();
        }
    }

    /// What all workers needed for a trial: into how many partitions the tables should be cut next, if all workers admit that. Seconds that
    /// are not finite are those of a trial that crashed.
    pub fn end_trial(&mut self, seconds: f64) -> Result<u32, ParallaxError> {
        Ok(self.search.as_mut().ok_or(ParallaxError::Search)?.end(Trial::Took(seconds)))
    }

    /// Whether this process could have its part of that number of partitions. Before tables are cut, workers ask each other.
    pub fn admits(&self, partitions: u32) -> Result<(), ParallaxError> {
        match &self.client {
            Some(client) => Ok(client.admits(partitions)?),
            None => Ok(()),
        }
    }

    /// A worker has not admitted what a trial wanted: how many partitions instead, or none if tables stay as they are.
    pub fn refused_trial(&mut self) -> Option<u32> {
        self.search.as_mut()?.refused()
    }

    /// The number of partitions that a search has found, once it has.
    pub fn found_partitions(&self) -> Option<u32> {
        self.search.as_ref().and_then(SearchRun::found)
    }

    /// How many steps the rule of a variable on servers has counted.
    pub fn age(&self, name: &str) -> Result<u64, ParallaxError> {
        Ok(self.client_of(name)?.age(name)?)
    }

    /// The rule of a variable on servers has counted this many steps. Every worker calls it between the same steps.
    pub fn set_age(&self, name: &str, age: u64) -> Result<(), ParallaxError> {
        Ok(self.client_of(name)?.set_age(name, age)?)
    }

    fn client_of(&self, name: &str) -> Result<&TableClient, ParallaxError> {
        let unknown = || ParallaxError::Unknown { name: name.to_string() };
        self.client.as_deref().ok_or_else(unknown)
    }

    /// The variable on servers to which a name belongs, and which part of it that is: the parameter, then its states.
    pub fn part(&self, name: &str) -> Option<(&ServedVar, u8)> {
        self.allotment.served().find_map(|var| {
            let mut parts = std::iter::once(&var.name).chain(&var.states);
            Some((var, parts.position(|part| part == name)? as u8))
        })
    }

    /// The value of a parameter or a state that is on servers; `None` of others.
    pub fn value(&self, name: &str) -> Result<Option<Tensor>, ParallaxError> {
        let (Some((var, part)), Some(client)) = (self.part(name), &self.client) else { return Ok(None) };
        let bytes = client.read(&var.name, part)?;
        let own = &bytes[..var.volume() * var.dtype.size()];
        let tensor = match var.dtype {
            DType::F64 => Tensor::new(&var.dims, &numbers::<f64>(own)),
            _ => Tensor::new(&var.dims, &numbers::<f32>(own)),
        };
        Ok(Some(tensor.expect("there are as many elements as its dimensions say")))
    }

    /// Replaces a parameter or a state on servers; one worker is enough. Says whether workers have a copy of it, too, and nothing of what is
    /// not on servers.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<Option<bool>, ParallaxError> {
        let (Some((var, part)), Some(client)) = (self.part(name), &self.client) else { return Ok(None) };
        let (room, wanted) = (var.height * var.width * var.dtype.size(), var.volume() * var.dtype.size());
        if value.bytes().len() != wanted {
            let (name, got) = (name.to_string(), value.bytes().len());
            return Err(ParallaxError::Length { name, got, wanted });
        }
        let mut rows = value.bytes().to_vec();
        rows.resize(room, 0);
        client.write(&var.name, part, rows)?;
        Ok(Some(!var.sparse && part == 0))
    }

    /// Every worker closes when it wants nothing more.
    pub fn close(&self) -> Result<(), ParallaxError> {
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

/// The ranks of a world as they train.
pub fn cluster_of(world: &World, samples_per_worker: usize) -> Cluster {
    let seats = Seats::of(world.workers(), world.servers());
    let fullest = seats.offices().iter().map(|(_, workers)| workers.len()).max();
    Cluster { hosts: seats.offices().len(), workers_per_host: fullest.unwrap_or(1), samples_per_worker }
}

/// What all ranks of a world decide alike.
pub(super) struct Prepared {
    pub(super) allotment: Allotment,
    pub(super) specs: Vec<TableSpec>,
    pub(super) terms: TableTerms,
    search: Option<SearchRun>,
}

pub(super) fn prepared(
    program: &Program,
    world: &World,
    config: &ParallaxConfig,
    first: FirstRows,
) -> Result<Prepared, ParallaxError> {
    let cluster = cluster_of(world, config.samples_per_worker);
    let allotment = place_with(program, &config.strategy, &config.overrides, cluster, first)?;
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
    let clipped: Vec<_> = allotment.served().filter(|var| var.clip != ServedClip::No).collect();
    if !config.sync && !clipped.is_empty() {
        let vars = clipped.iter().map(|var| format!("`{}`", var.name)).collect::<Vec<_>>().join(", ");
        return Err(ParallaxError::Unclipped { vars });
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
    let terms = TableTerms {
        consistency,
        step: 0,
        collects: config.local_aggregation,
        most_bytes: config.server_bytes,
    };
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
    let clip = match var.clip {
        ServedClip::No => TableClip::No,
        ServedClip::Norm(limit) => TableClip::Norm(limit),
        ServedClip::Factor => TableClip::Given,
    };
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
