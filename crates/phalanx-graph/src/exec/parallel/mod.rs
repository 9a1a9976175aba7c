//! Many replicas of a program, run by a few workers.
//!
//! - PARA-1: parameters and losses are the same bits for AllReduce and Reduce, fused or not, sequential or not, and for any
//!   number of threads.
//! - PARA-2: a run that fails in the network, or between processes, has changed no parameter and no state of the
//!   optimizer; statistics that the network itself writes (batch norm) may have moved on. A run whose update fails
//!   (`check_nan_inf`) may have changed a part, alike in all replicas. The executor can be used again. So may a run that
//!   fails while owners send parameters (Reduce across processes): before the next run, processes agree again.
//! - PARA-3: a run whose shares and fetches were seen before allocates nothing, apart from what
//!   goes to other processes.
//! - PARA-4: everything that is wrong with feeds and fetches is said before anything runs or changes.

mod accord;
mod agreeing;
mod asking;
mod binding;
mod collective;
mod desk;
mod feed;
mod fetch;
mod lower;
mod memory;
mod outside;
mod pool;
mod ready;
mod schedule;
mod served;
mod setup;
mod shared;
mod sync;
mod trace;
mod travel;
mod work;

pub use accord::Refusal;
pub use collective::{Alone, Collective, CollectiveError, Data, Done, Offer, tree};
pub use feed::Feed;
pub use fetch::{Fetch, Fetched, Merge};
pub use served::{LocalServed, PushedRows, Served};
pub use setup::Setup;

use super::{RunError, Store, Tensor};
use crate::{
    graph::{BuildError, Effective, GradientScale, Graph, Held, ReduceStrategy},
    ir::{Op, Program, Role, VarId, VarKind},
    kernel::{Env, MemorySpace, Operand, RawMemory},
};
use accord::{Accord, Standing};
use agreeing::{desks, digest_of, digest_of_program, exchanges};
use asking::{Asked, Known};
use binding::Binding;
use fetch::Merging;
use lower::{Planned, Signature, lower};
use phalanx_core::DType;
use pool::{Pool, Run};
use std::{sync::Arc, time::Instant};
use trace::Slots;

/// What a dry run has seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DryRun {
    /// Tasks of one run.
    pub n_tasks: usize,
    /// Tasks that were visited in all runs.
    pub n_visited: usize,
    pub ns_per_task: f64,
}

/// A program on several replicas.
#[derive(Debug)]
pub struct ParallelExecutor {
    graph: Graph,
    loss: Option<VarId>,
    feeds: Vec<VarId>,
    learns: bool,
    pool: Pool,
    run: Arc<Run>,
    /// The most recently used last.
    plans: Vec<Arc<Planned>>,
    binding: Binding,
    runs_since_drop: usize,
    seed: Option<u64>,
    asked: Asked,
    known: Vec<Known>,
    /// What is exchanged with other processes, as a number that is the same on all of them.
    digest: u64,
}

/// Plans that are kept: one for each way to split a batch and each set of fetches.
const MOST_PLANS: usize = 16;

impl ParallelExecutor {
    /// `loss` names what was minimized; without it the program must not have gradients.
    pub fn new(program: &Program, loss: Option<&str>, setup: Setup) -> Result<ParallelExecutor, BuildError> {
        let settings = setup.settings(loss.is_some())?;
        if settings.build.async_mode {
            return Err(BuildError::Asynchronous);
        }
        let name = loss;
        let loss = check_loss(program, loss)?;
        if let (Some(var), None) = (settings.build.served.first(), &setup.served) {
            return Err(BuildError::NoServers { var: var.clone() });
        }
        let n = program.ops.iter().filter(|op| op.role == Role::Loss).count();
        if n > 1 && settings.build.gradient_scale == GradientScale::Customized {
            return Err(BuildError::ScaledLosses { n });
        }
        let mut graph = Graph::new(program.clone(), settings)?;
        let mut n_dumped = 0;
        setup.passes.apply(&mut graph, |pass, graph| {
            n_dumped += 1;
            dump(graph, n_dumped, pass)
        })?;
        let program = Arc::new(graph.program.clone());
        // Passes may have numbered variables anew.
        let loss = loss.and(name).and_then(|name| program.find(name));
        let feeds = program.vars().filter(|(_, v)| v.kind == VarKind::Feed).map(|(id, _)| id).collect();
        let n = graph.settings.replicas;
        let threads = graph.settings.threads;
        let pool =
            Pool::new(threads).map_err(|why| BuildError::Threads { n: threads - 1, why: why.to_string() })?;
        let nothing = Signature { sizes: Vec::new(), total: 0, fetched: Vec::new() };
        let empty = Arc::new(Planned::empty(nothing));
        let n_exchanges = exchanges(&graph).len();
        let label = loss.map_or("", |loss| &program.var(loss).name);
        let number =
            setup.number.unwrap_or_else(|| setup.collective.made_before(digest_of_program(&graph)) + 1);
        let accord = Accord::new(setup.collective, label, number, n_exchanges);
        let counts = (n_exchanges, desks(&graph));
        let mut run = Run::new(program.clone(), accord, setup.served, counts, empty, threads);
        run.arenas = (0..n).map(|_| RawMemory::new(0)).collect();
        run.check_finite = graph.settings.build.check_nan_inf;
        let learns = !graph.parts.tail.is_empty() || program.ops.iter().any(|op| op.role == Role::Loss);
        Ok(ParallelExecutor {
            binding: Binding::new(&graph),
            known: Known::all(&graph),
            digest: digest_of(&graph),
            graph,
            loss,
            feeds,
            learns,
            pool,
            run: Arc::new(run),
            plans: Vec::new(),
            runs_since_drop: 0,
            seed: setup.seed,
            asked: Asked::default(),
        })
    }

    /// The graph after all passes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The strategies as they hold.
    pub fn effective(&self) -> &Effective {
        &self.graph.settings
    }

    pub fn replicas(&self) -> usize {
        self.graph.settings.replicas
    }

    /// Bytes of memory that runs use beside the store, now.
    pub fn arena_bytes(&self) -> usize {
        self.run.arenas.iter().map(RawMemory::len).sum::<usize>() + self.run.shared.len()
    }

    /// Gives the memory of temporaries back; the next run takes it anew.
    pub fn drop_scopes(&mut self) {
        let run = self.run_mut();
        run.arenas.iter_mut().for_each(|a| *a = RawMemory::new(0));
        run.shared = RawMemory::new(0);
        self.runs_since_drop = 0;
    }

    /// Begins or ends the recording of when tasks run.
    pub fn record(&mut self, on: bool) {
        let n = self.run.plan.schedule.tasks.len();
        self.run_mut().trace = on.then(|| Slots::new(n));
    }

    /// The last run, for `chrome://tracing`, if it was recorded.
    pub fn trace(&self) -> Option<String> {
        Some(self.run.trace.as_ref()?.to_json(&self.graph, &self.run.plan))
    }

    fn run_mut(&mut self) -> &mut Run {
        Arc::get_mut(&mut self.run).expect("POOL-1: workers let go of runs")
    }

    /// Runs the program and gives what is fetched, in that order.
    pub fn run(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
    ) -> Result<Vec<Fetched>, RunError> {
        let mut out = Vec::new();
        self.run_into(store, feeds, fetch, &mut out)?;
        Ok(out)
    }

    /// The same into what an earlier run gave, whose memory is used again (PARA-3).
    pub fn run_into(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
        out: &mut Vec<Fetched>,
    ) -> Result<(), RunError> {
        let mut asked = std::mem::take(&mut self.asked);
        let ended = match self.agreed(store, feeds, fetch, &mut asked) {
            Ok(()) => self.perform(store, feeds, fetch, &asked, out).map_err(|error| self.give_up(error)),
            refused => refused,
        };
        self.asked = asked;
        ended
    }

    /// Checks what is fed and fetched, and agrees with the other processes to go.
    fn agreed(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
        asked: &mut Asked,
    ) -> Result<(), RunError> {
        let checked = self.check(store, feeds, fetch, asked);
        let standing = self.standing(store, asked);
        if self.run.accord.is_alone() {
            checked?;
            return self.count(asked, &[standing]);
        }
        if let Err(error) = checked {
            return self.refused(error);
        }
        let standing = Standing { written: self.written(store, feeds), ..standing };
        let all = self.agree(store, &standing, feeds)?;
        self.count(asked, &all)
    }

    /// Everything that this process alone can see to be wrong (PARA-4).
    fn check(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
        asked: &mut Asked,
    ) -> Result<(), RunError> {
        self.check_fetches(fetch, asked)?;
        match self.graph.settings.exec.dry_run {
            true => self.one_sample_each(asked),
            false => self.check_feeds(feeds, asked)?,
        }
        self.check_merges(fetch, asked)?;
        self.bind(store)
    }

    /// The rest, after all processes have agreed to go.
    fn perform(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, Feed<'_>)],
        fetch: &[Fetch<'_>],
        asked: &Asked,
        out: &mut Vec<Fetched>,
    ) -> Result<(), RunError> {
        self.run_mut().places.begin();
        self.binding.check(&self.graph, store)?;
        if self.graph.settings.has_owners() {
            self.binding.leave(store);
        }
        if self.changes_alone() {
            store.run_alone();
        }
        let plan = self.plan(asked)?;
        self.run_mut().dry = self.graph.settings.exec.dry_run;
        let n_passes = self.graph.settings.exec.num_iteration_per_run;
        for pass in 1..=n_passes {
            self.run_mut().accord.begin_pass(n_passes - pass);
            if self.run.dry {
                self.pool.run(&mut self.run, store.lend())?;
                continue;
            }
            self.feed(store, feeds, &plan, asked)?;
            if self.graph.settings.has_owners() {
                // Processes have compared what is fed. From here on owners alone have their states.
                self.binding.saw_writes(store);
            }
            let ended = self.pool.run(&mut self.run, store.lend());
            if ended.as_ref().is_err_and(|error| !matches!(error, RunError::Broken { .. })) {
                self.binding.level(store);
            }
            ended?;
            store.runs += 1;
        }
        self.fetch(store, fetch, &plan, asked, out);
        self.count_run();
        Ok(())
    }

    fn count_run(&mut self) {
        self.runs_since_drop += 1;
        let most = self.graph.settings.exec.num_iteration_per_drop_scope;
        if most > 0 && self.runs_since_drop >= most {
            self.drop_scopes();
        }
    }

    /// Visits all tasks without running any kernel, on one sample for each replica.
    pub fn dry_run(&mut self, store: &mut Store, n_runs: usize) -> Result<DryRun, RunError> {
        let mut asked = Asked::default();
        self.one_sample_each(&mut asked);
        self.prepare(store)?;
        self.plan(&asked)?;
        self.run_mut().dry = true;
        let (begin, mut n_visited) = (Instant::now(), 0);
        for _ in 0..n_runs {
            self.pool.run(&mut self.run, store.lend())?;
            n_visited += *self.run_mut().n_visited.get_mut();
        }
        let ns = begin.elapsed().as_nanos() as f64;
        self.run_mut().dry = false;
        let n_tasks = self.run.plan.schedule.tasks.len();
        Ok(DryRun { n_tasks, n_visited, ns_per_task: ns / n_visited.max(1) as f64 })
    }

    fn plan(&mut self, asked: &Asked) -> Result<Arc<Planned>, RunError> {
        let is_it = |p: &Arc<Planned>| {
            let s = &p.signature;
            s.sizes == asked.sizes && s.total == asked.total && s.fetched == asked.fetched
        };
        let plan = match self.plans.iter().position(is_it) {
            Some(at) => self.plans.remove(at),
            None => {
                if self.plans.len() >= MOST_PLANS {
                    self.plans.remove(0);
                }
                let (sizes, fetched) = (asked.sizes.clone(), asked.fetched.clone());
                let signature = Signature { sizes, total: asked.total, fetched };
                Arc::new(lower(&self.graph, signature, self.binding.places()))
            }
        };
        self.plans.push(plan.clone());
        let run = self.run_mut();
        for (arena, &bytes) in run.arenas.iter_mut().zip(&plan.arena_bytes) {
            grow(arena, bytes, "the variables of a replica")?;
        }
        grow(&mut run.shared, plan.shared_bytes, "gradients")?;
        if !Arc::ptr_eq(&run.plan, &plan) {
            run.take_plan(plan.clone());
        }
        Ok(plan)
    }

    /// Puts feeds into the replicas' memory, and says what each replica is told beside.
    fn feed(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, Feed<'_>)],
        plan: &Planned,
        asked: &Asked,
    ) -> Result<(), RunError> {
        for (name, feed) in feeds {
            if self.is_scale(name) {
                continue;
            }
            let id = self.graph.program.find(name).expect("checked");
            if self.graph.program.var(id).is_persistable() {
                let (Feed::Split(value) | Feed::Replicate(value)) = feed else { continue };
                // What another process owns is fed there as well, and here nobody needs it.
                if !matches!(self.graph.parts.held[id.index()], Some(Held::Elsewhere(_))) {
                    store.set(name, value)?;
                }
                continue;
            }
            let run = Arc::get_mut(&mut self.run).expect("POOL-1: workers let go of runs");
            let mut first = 0;
            for (replica, body) in plan.bodies.iter().enumerate() {
                if let Some(operand) = body.as_ref().and_then(|b| b.operand(id)) {
                    let n = run.arenas.len();
                    let out = &mut run.arenas[replica % n].as_slice::<u8>()[operand.range()];
                    feed.copy(&self.graph.program, id, replica, first, out);
                }
                first += asked.sizes[replica];
            }
        }
        let settings = &self.graph.settings;
        // Of those that learn together, who has no samples has no part in the mean.
        let n = match settings.build.reduce_strategy {
            ReduceStrategy::NoReduce => settings.copies() * settings.processes,
            _ => asked.busy.max(1),
        };
        let scale = |r: usize| match settings.build.gradient_scale {
            GradientScale::CoeffNumDevice => 1.0 / n as f64,
            GradientScale::One => 1.0,
            GradientScale::Customized => asked.scales.get(r).copied().unwrap_or(1.0),
            // Who learns alone has all the samples there are.
            GradientScale::BySamples if settings.build.reduce_strategy == ReduceStrategy::NoReduce => 1.0,
            GradientScale::BySamples => asked.sizes[r] as f64 / asked.total.max(1) as f64,
        };
        let run = Arc::get_mut(&mut self.run).expect("POOL-1: workers let go of runs");
        run.envs.clear();
        let mut first_sample = asked.first;
        for (r, &size) in asked.sizes.iter().enumerate() {
            let (seed, run_number) = (self.seed.unwrap_or(store.seed), store.runs);
            let (loss_scale, check_finite) = (scale(r), run.check_finite);
            run.envs.push(Env { seed, run: run_number, first_sample, loss_scale, check_finite });
            first_sample += size;
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        store: &mut Store,
        fetch: &[Fetch<'_>],
        plan: &Planned,
        asked: &Asked,
        out: &mut Vec<Fetched>,
    ) {
        out.truncate(fetch.len());
        out.resize_with(fetch.len(), || Fetched::One(Tensor::zeros(DType::U8, &[0])));
        for (i, out) in out.iter_mut().enumerate() {
            let sig = self.graph.program.sig(asked.fetched[i]);
            let (merge, sizes) = (fetch[i].merge, &asked.sizes);
            let merging = Merging { sig, source: &plan.sources[i], merge, sizes };
            let run = Arc::get_mut(&mut self.run).expect("POOL-1: workers let go of runs");
            merging.put(
                &mut |replica: usize, operand: &Operand, see: &mut dyn FnMut(&[u8])| {
                    let arena = match operand.place {
                        MemorySpace::Arena => {
                            let n = run.arenas.len();
                            &mut run.arenas[replica % n]
                        }
                        MemorySpace::Shared => &mut run.shared,
                        MemorySpace::Store(at) => &mut store.buffers_mut()[at],
                    };
                    see(&arena.as_slice::<u8>()[operand.range()]);
                },
                out,
            );
        }
    }
}

fn grow(arena: &mut RawMemory, bytes: usize, what: &str) -> Result<(), RunError> {
    if arena.len() < bytes {
        let missing = RunError::Memory { what: what.to_string(), bytes };
        // What is too small goes first: both together may be too much.
        *arena = RawMemory::new(0);
        *arena = RawMemory::try_new(bytes).ok_or(missing)?;
    }
    Ok(())
}

pub(in crate::exec) fn check_loss(
    program: &Program,
    loss: Option<&str>,
) -> Result<Option<VarId>, BuildError> {
    let begun: Vec<&Op> = program.ops.iter().filter(|op| op.role == Role::Loss).collect();
    let Some(name) = loss else {
        return match begun.first() {
            Some(op) => Err(BuildError::LossNotNamed { of: program.var(op.inputs[0]).name.clone() }),
            None => Ok(None),
        };
    };
    let Some(id) = program.find(name) else {
        return Err(BuildError::UnknownLoss { loss: name.to_string() });
    };
    let var = program.var(id);
    if !program.is_scalar(id) {
        let (loss, got, site) = (name.to_string(), var.sig.to_string(), var.site.clone());
        return Err(BuildError::LossNotScalar { loss, got, site });
    }
    match begun.first() {
        Some(op) if begun.iter().all(|op| op.inputs[0] != id) => {
            let mut of: Vec<String> = Vec::new();
            for op in &begun {
                let name = program.var(op.inputs[0]).name.clone();
                if !of.contains(&name) {
                    of.push(name);
                }
            }
            let (loss, of, site) = (name.to_string(), of.join("` and `"), op.site.clone());
            Err(BuildError::OtherLoss { loss, of, site })
        }
        _ => Ok(Some(id)),
    }
}

fn dump(graph: &Graph, number: usize, pass: &str) -> Result<(), BuildError> {
    let Some(path) = &graph.settings.build.debug_graphviz_path else { return Ok(()) };
    let path = format!("{}_{number}_{pass}.dot", path.display());
    std::fs::write(&path, graph.to_dot()).map_err(|why| BuildError::Dump { path, why: why.to_string() })
}
