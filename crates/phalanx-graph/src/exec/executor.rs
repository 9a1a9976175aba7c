//! The executor for one replica, one operation after the other.
//! - EXEC-1: feeds and fetches are checked before any operation runs.
//! - EXEC-2: a run whose batch and fetches were seen before allocates nothing.
//! - EXEC-3: after a failed run the executor and the store can be used as before.

use super::{error::RunError, store::Store, tensor::Tensor};
use crate::{
    ir::{Dim, GraphError, Op, OpId, Program, Role, Var, VarId, VarKind},
    kernel::{Call, Env, MemorySpace, MemoryView, Operand, RawMemory},
    plan::{MemoryPlan, Reuse},
};
use phalanx_core::DType;
use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub reuse: Reuse,
    /// Looks for NaN and infinity after every operation.
    pub check_finite: bool,
    /// Where random numbers of the runs come from, instead of the store's seed.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options { reuse: Reuse::ALL, check_finite: false, seed: None }
    }
}

/// A program, checked and ready to run. Plans are made once for each batch size and set of fetches.
#[derive(Debug)]
pub struct Executor {
    program: Program,
    options: Options,
    feeds: Vec<VarId>,
    plans: Vec<Planned>,
    arena: RawMemory,
    /// Which of its variables it writes.
    written: Vec<bool>,
    /// Whether any of them is in the store.
    changes_store: bool,
    /// Whether it has gradients.
    learns: bool,
    /// The buffer of the store that each of its variables has, if it lives there.
    places: Vec<usize>,
    /// The store's state when the plans were made.
    seen: Option<(Arc<()>, u64)>,
}

#[derive(Debug)]
struct Planned {
    fetched: Vec<VarId>,
    plan: MemoryPlan,
}

impl Executor {
    pub fn new(program: Program, options: Options) -> Result<Executor, GraphError> {
        program.verify()?;
        let feeds = program.vars().filter(|(_, v)| v.kind == VarKind::Feed).map(|(id, _)| id).collect();
        let mut written = vec![false; program.vars.len()];
        program.ops.iter().flat_map(|op| &op.outputs).for_each(|id| written[id.index()] = true);
        let changes_store = program.vars().any(|(id, var)| var.is_persistable() && written[id.index()]);
        let (plans, places, arena) = (Vec::new(), Vec::new(), RawMemory::new(0));
        let learns = program.ops.iter().any(|op| op.role == Role::Loss);
        Ok(Executor {
            program,
            options,
            feeds,
            plans,
            arena,
            written,
            changes_store,
            learns,
            places,
            seen: None,
        })
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Puts the program's parameters and states into the store, as `run` would.
    pub fn prepare(&self, store: &mut Store) -> Result<(), RunError> {
        store.admit(&self.program)
    }

    /// Bytes of memory that runs use beside the store, so far.
    pub fn arena_bytes(&self) -> usize {
        self.arena.len()
    }

    /// Runs all operations and gives the fetched variables, in the order they are named.
    pub fn run(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, &Tensor)],
        fetch: &[&str],
    ) -> Result<Vec<Tensor>, RunError> {
        let mut out = vec![Tensor::zeros(DType::F32, &[0]); fetch.len()];
        self.run_into(store, feeds, fetch, &mut out)?;
        Ok(out)
    }

    /// The same into tensors from an earlier run, whose memory is used again (EXEC-2).
    pub fn run_into(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, &Tensor)],
        fetch: &[&str],
        out: &mut [Tensor],
    ) -> Result<(), RunError> {
        let feeds = feeds.iter().copied();
        let n_samples = self.check(feeds.clone(), fetch, out)?;
        self.settle(store)?;
        let index = self.plan(n_samples, fetch)?;
        self.feed(index, feeds);
        let (seed, check_finite) = (self.options.seed.unwrap_or(store.seed), self.options.check_finite);
        let run = store.runs;
        if self.changes_store {
            store.run_alone();
        }
        let env = Env { seed, run, first_sample: 0, loss_scale: 1.0, check_finite };
        self.steps(index, 0..self.program.ops.len(), store.buffers_mut(), env)?;
        store.runs += 1;
        self.fetch(index, store.buffers_mut(), out);
        Ok(())
    }

    /// Puts what is fed into the arena.
    pub(in crate::exec) fn feed<'f>(
        &mut self,
        index: usize,
        feeds: impl Iterator<Item = (&'f str, &'f Tensor)>,
    ) {
        for (name, value) in feeds {
            let id = self.program.find(name).expect("checked");
            let operand = self.plans[index].plan.operand(id).expect("feeds are planned");
            self.arena.as_slice::<u8>()[operand.range()].copy_from_slice(value.bytes());
        }
    }

    /// Runs these of its operations, on buffers that lie as the store's do.
    pub(in crate::exec) fn steps(
        &mut self,
        index: usize,
        which: Range<usize>,
        buffers: &mut [RawMemory],
        env: Env,
    ) -> Result<(), RunError> {
        let (program, plan) = (&self.program, &self.plans[index].plan);
        let mut memory = MemoryView::new(&mut self.arena, buffers);
        for (id, op) in program.ops().skip(which.start).take(which.len()) {
            step(program, op, id, plan, &mut memory, env)?;
            if self.options.check_finite {
                finite(program, op, plan, &mut self.arena, buffers)?;
                memory = MemoryView::new(&mut self.arena, buffers);
            }
        }
        Ok(())
    }

    pub(in crate::exec) fn fetch(&mut self, index: usize, buffers: &mut [RawMemory], out: &mut [Tensor]) {
        let planned = &self.plans[index];
        for (&id, to) in planned.fetched.iter().zip(out) {
            let operand = planned.plan.operand(id).expect("planned with the fetches");
            to.reform(operand.dtype, &operand.dims);
            to.bytes_mut().copy_from_slice(bytes(operand, &mut self.arena, buffers));
        }
    }

    /// Everything that can be wrong with what is fed and fetched (EXEC-1); gives the batch.
    pub(in crate::exec) fn check<'f>(
        &self,
        feeds: impl Iterator<Item = (&'f str, &'f Tensor)> + Clone,
        fetch: &[&str],
        out: &[Tensor],
    ) -> Result<usize, RunError> {
        if out.len() != fetch.len() {
            return Err(RunError::Places { wanted: fetch.len(), n: out.len() });
        }
        for name in fetch {
            let Some(id) = self.program.find(name) else {
                return Err(RunError::UnknownFetch { var: name.to_string() });
            };
            if !self.program.sig(id).is_dense() {
                return Err(RunError::SparseFetch { var: name.to_string() });
            }
        }
        let mut counted: Option<(&str, usize)> = None;
        for (i, (name, value)) in feeds.clone().enumerate() {
            let id = self.program.find(name).filter(|id| self.feeds.contains(id));
            let Some(id) = id else { return Err(RunError::UnknownFeed { var: name.to_string() }) };
            if feeds.clone().take(i).any(|(other, _)| other == name) {
                return Err(RunError::FedTwice { var: name.to_string() });
            }
            let Some(samples) = self.fits(id, value)? else { continue };
            match counted {
                Some((a, a_samples)) if a_samples != samples => {
                    let (a, b) = (a.to_string(), name.to_string());
                    return Err(RunError::Samples { a, a_samples, b, b_samples: samples });
                }
                _ => counted = Some((name, samples)),
            }
        }
        for &id in &self.feeds {
            let var = self.program.var(id);
            if !feeds.clone().any(|(name, _)| name == var.name) {
                let (wanted, site) = (var.sig.clone(), var.site.clone());
                return Err(RunError::Missing { var: var.name.clone(), wanted, site });
            }
        }
        match counted.map_or(1, |(_, n)| n) {
            0 if self.learns => Err(RunError::NoSamples),
            n => Ok(n),
        }
    }

    /// How many samples a value has for this feed, if that depends on the batch.
    fn fits(&self, id: VarId, value: &Tensor) -> Result<Option<usize>, RunError> {
        let var = self.program.var(id);
        let dims = var.sig.shape.dims();
        let misfit = || RunError::FeedMisfit {
            var: var.name.clone(),
            wanted: var.sig.clone(),
            site: var.site.clone(),
            got_dtype: value.dtype(),
            got: value.dims().to_vec(),
        };
        if value.dtype() != var.sig.dtype || value.dims().len() != dims.len() {
            return Err(misfit());
        }
        let mut samples = None;
        for (wanted, &got) in dims.iter().zip(value.dims()) {
            match *wanted {
                Dim::Fixed(n) if n == got => {}
                Dim::Batch(times) if times > 0 && got % times == 0 => samples = Some(got / times),
                _ => return Err(misfit()),
            }
        }
        Ok(samples)
    }

    /// Finds its variables in the store, where they must have values. Plans for other buffers are void.
    pub(in crate::exec) fn settle(&mut self, store: &mut Store) -> Result<(), RunError> {
        if store.is_state(&self.seen) {
            return self.initialised(store);
        }
        store.admit(&self.program)?;
        self.claim(store)?;
        self.plans.clear();
        self.places.resize(self.program.vars.len(), 0);
        for (id, var) in self.program.vars().filter(|(_, v)| v.is_persistable()) {
            self.places[id.index()] = store.view(store.find(&var.name).expect("admitted"));
        }
        self.seen = Some(store.state());
        self.initialised(store)
    }

    /// The buffer of the store that a variable has, as of the last time it settled.
    pub(in crate::exec) fn place(&self, var: VarId) -> usize {
        self.places[var.index()]
    }

    /// The plan for this batch and these fetches, made now if it is new.
    pub(in crate::exec) fn plan(&mut self, n_samples: usize, fetch: &[&str]) -> Result<usize, RunError> {
        let named = |p: &Planned| {
            p.plan.n_samples == n_samples
                && p.fetched.len() == fetch.len()
                && p.fetched.iter().zip(fetch).all(|(&id, name)| self.program.find(name) == Some(id))
        };
        if let Some(known) = self.plans.iter().position(named) {
            return Ok(known);
        }
        let program = &self.program;
        let fetched: Vec<VarId> = fetch.iter().filter_map(|name| program.find(name)).collect();
        let at = |id: VarId| self.places[id.index()];
        let plan = MemoryPlan::new(program, n_samples, &fetched, self.options.reuse, at);
        if let Some(lost) = fetched.iter().find(|id| plan.operand(**id).is_none()) {
            return Err(RunError::Unplanned { var: program.var(*lost).name.clone() });
        }
        if plan.bytes > self.arena.len() {
            let what = "the variables of a run".to_string();
            let missing = RunError::Memory { what, bytes: plan.bytes };
            self.arena = RawMemory::try_new(plan.bytes).ok_or(missing)?;
        }
        self.plans.push(Planned { fetched, plan });
        Ok(self.plans.len() - 1)
    }

    /// One buffer for each variable that it writes.
    fn claim(&self, store: &mut Store) -> Result<(), RunError> {
        let ours = |(id, v): &(VarId, &Var)| v.is_persistable() && self.written[id.index()];
        for (_, var) in self.program.vars().filter(ours) {
            store.claim(store.find(&var.name).expect("admitted"), 1, false)?;
        }
        Ok(())
    }

    /// Everything has a value, and what replicas have apart is merged.
    fn initialised(&self, store: &mut Store) -> Result<(), RunError> {
        for (_, var) in self.program.vars().filter(|(_, v)| v.is_persistable()) {
            let entry = store.find(&var.name).expect("admitted");
            if store.is_apart(entry) {
                store.view(entry);
            }
            if !store.is_set(entry) {
                let (wanted, site) = (var.sig.clone(), var.site.clone());
                return Err(RunError::Uninitialised { var: var.name.clone(), wanted, site });
            }
        }
        Ok(())
    }
}

fn step(
    program: &Program,
    op: &Op,
    id: OpId,
    plan: &MemoryPlan,
    memory: &mut MemoryView<'_>,
    env: Env,
) -> Result<(), RunError> {
    let mut call = Call::new(&plan.steps()[id.index()], memory, env);
    let ended = catch_unwind(AssertUnwindSafe(|| op.kind.operator().run(&mut call)));
    let why = match ended {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(why)) => Ok(why),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
            .unwrap_or_else(|| "without a message".into())),
    };
    let shown = |&id: &VarId| {
        let dims = plan.operand(id).map(|o| o.dims.clone()).unwrap_or_default();
        format!("{}: {}{dims:?}", program.var(id).name, program.sig(id).dtype)
    };
    let inputs = op.inputs.iter().map(shown).collect::<Vec<_>>().join(", ");
    let (op, site) = (op.name(), op.site.clone());
    Err(match why {
        Ok(why) => RunError::of_kernel(op, site, inputs, why),
        Err(why) => RunError::Panicked { op, site, inputs, why },
    })
}

fn bytes<'a>(operand: &Operand, arena: &'a mut RawMemory, buffers: &'a mut [RawMemory]) -> &'a [u8] {
    match operand.place {
        MemorySpace::Arena => &arena.as_slice::<u8>()[operand.range()],
        MemorySpace::Shared => unreachable!("one replica shares with nobody"),
        MemorySpace::Store(at) => &buffers[at].as_slice::<u8>()[operand.range()],
    }
}

fn finite(
    program: &Program,
    op: &Op,
    plan: &MemoryPlan,
    arena: &mut RawMemory,
    buffers: &mut [RawMemory],
) -> Result<(), RunError> {
    for &id in &op.outputs {
        let Some(operand) = plan.operand(id).filter(|_| program.sig(id).is_dense()) else { continue };
        let bytes = bytes(operand, arena, buffers);
        let bad = match operand.dtype {
            DType::F32 => first_bad(bytemuck::cast_slice::<u8, f32>(bytes), f64::from),
            DType::F64 => first_bad(bytemuck::cast_slice::<u8, f64>(bytes), |v| v),
            _ => None,
        };
        if let Some((at, value)) = bad {
            let var = program.var(id).name.clone();
            return Err(RunError::NotFinite { op: op.name(), site: op.site.clone(), var, at, value });
        }
    }
    Ok(())
}

fn first_bad<T: Copy>(all: &[T], wide: impl Fn(T) -> f64) -> Option<(usize, f64)> {
    all.iter().map(|&v| wide(v)).enumerate().find(|(_, v)| !v.is_finite())
}
