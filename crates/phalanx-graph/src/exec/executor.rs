//! One replica, one operation after the other.
//! - EXEC-1: feeds and fetches are checked before any operation runs.
//! - EXEC-2: a run whose batch and fetches were seen before allocates nothing.
//! - EXEC-3: after a failed run the executor and the store can be used as before.

use super::{error::RunError, store::Store, tensor::Tensor};
use crate::{
    ir::{Dim, GraphError, Op, OpId, Program, Var, VarId, VarKind},
    kernel::{Arena, Call, Env, Memory, Operand, Place},
    plan::{MemoryPlan, Reuse},
};
use phalanx_core::DType;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub reuse: Reuse,
    /// Looks for NaN and infinity after every operation.
    pub check_finite: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { reuse: Reuse::ALL, check_finite: false }
    }
}

/// A program, checked and ready to run. Plans are made once for each batch size and set of fetches.
#[derive(Debug)]
pub struct Executor {
    program: Program,
    options: Options,
    feeds: Vec<VarId>,
    plans: Vec<Planned>,
    arena: Arena,
    /// Which of its variables it writes.
    written: Vec<bool>,
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
        Ok(Executor { program, options, feeds, plans: Vec::new(), arena: Arena::new(0), written, seen: None })
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
        let batch = self.check(feeds, fetch, out)?;
        let index = self.plan(store, batch, fetch)?;
        let planned = &self.plans[index];
        for &(name, value) in feeds {
            let id = self.program.find(name).expect("checked");
            let operand = planned.plan.operand(id).expect("feeds are planned");
            self.arena.as_slice::<u8>()[operand.range()].copy_from_slice(value.bytes());
        }
        let env = Env { seed: store.seed, run: store.runs, first_sample: 0, loss_scale: 1.0 };
        let mut memory = Memory::new(&mut self.arena, store.buffers_mut());
        for (id, op) in self.program.ops() {
            step(&self.program, op, id, &planned.plan, &mut memory, env)?;
            if self.options.check_finite {
                finite(&self.program, op, &planned.plan, &mut self.arena, store)?;
                memory = Memory::new(&mut self.arena, store.buffers_mut());
            }
        }
        store.runs += 1;
        for (&id, to) in planned.fetched.iter().zip(out) {
            let operand = planned.plan.operand(id).expect("planned with the fetches");
            to.reform(operand.dtype, &operand.dims);
            to.bytes_mut().copy_from_slice(bytes(operand, &mut self.arena, store));
        }
        Ok(())
    }

    /// Everything that can be wrong with what is fed and fetched (EXEC-1); gives the batch.
    fn check(&self, feeds: &[(&str, &Tensor)], fetch: &[&str], out: &[Tensor]) -> Result<usize, RunError> {
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
        let mut batch: Option<(&str, usize)> = None;
        for (i, &(name, value)) in feeds.iter().enumerate() {
            let id = self.program.find(name).filter(|id| self.feeds.contains(id));
            let Some(id) = id else { return Err(RunError::UnknownFeed { var: name.to_string() }) };
            if feeds[..i].iter().any(|(other, _)| *other == name) {
                return Err(RunError::FedTwice { var: name.to_string() });
            }
            let Some(samples) = self.fits(id, value)? else { continue };
            match batch {
                Some((a, a_samples)) if a_samples != samples => {
                    let (a, b) = (a.to_string(), name.to_string());
                    return Err(RunError::Samples { a, a_samples, b, b_samples: samples });
                }
                _ => batch = Some((name, samples)),
            }
        }
        for &id in &self.feeds {
            let var = self.program.var(id);
            if !feeds.iter().any(|(name, _)| *name == var.name) {
                let (wanted, site) = (var.sig.clone(), var.site.clone());
                return Err(RunError::Missing { var: var.name.clone(), wanted, site });
            }
        }
        Ok(batch.map_or(1, |(_, n)| n))
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

    /// The plan for this batch and these fetches, made now if it is new.
    fn plan(&mut self, store: &mut Store, batch: usize, fetch: &[&str]) -> Result<usize, RunError> {
        let named = |p: &Planned| {
            p.plan.batch == batch
                && p.fetched.len() == fetch.len()
                && p.fetched.iter().zip(fetch).all(|(&id, name)| self.program.find(name) == Some(id))
        };
        let mut known = self.plans.iter().position(named);
        if !store.is_state(&self.seen) {
            store.admit(&self.program)?;
            self.claim(store)?;
            self.plans.clear();
            (self.seen, known) = (Some(store.state()), None);
        }
        self.initialised(store)?;
        if let Some(known) = known {
            return Ok(known);
        }
        let program = &self.program;
        let fetched: Vec<VarId> = fetch.iter().filter_map(|name| program.find(name)).collect();
        let mut places = vec![0; program.vars.len()];
        for (id, var) in program.vars().filter(|(_, v)| v.is_persistable()) {
            places[id.index()] = store.view(store.find(&var.name).expect("admitted"));
        }
        let at = |id: VarId| places[id.index()];
        let plan = MemoryPlan::new(program, batch, &fetched, self.options.reuse, at);
        if let Some(lost) = fetched.iter().find(|id| plan.operand(**id).is_none()) {
            return Err(RunError::Unplanned { var: program.var(*lost).name.clone() });
        }
        if plan.bytes > self.arena.len() {
            let what = "what a run computes".to_string();
            let missing = RunError::Memory { what, bytes: plan.bytes };
            self.arena = Arena::try_new(plan.bytes).ok_or(missing)?;
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
    memory: &mut Memory<'_>,
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
        Ok(why) => RunError::Failed { op, site, inputs, why },
        Err(why) => RunError::Panicked { op, site, inputs, why },
    })
}

fn bytes<'a>(operand: &Operand, arena: &'a mut Arena, store: &'a mut Store) -> &'a [u8] {
    match operand.place {
        Place::Arena => &arena.as_slice::<u8>()[operand.range()],
        Place::Shared => unreachable!("one replica shares with nobody"),
        Place::Store(at) => &store.buffers_mut()[at].as_slice::<u8>()[operand.range()],
    }
}

fn finite(
    program: &Program,
    op: &Op,
    plan: &MemoryPlan,
    arena: &mut Arena,
    store: &mut Store,
) -> Result<(), RunError> {
    for &id in &op.outputs {
        let Some(operand) = plan.operand(id).filter(|_| program.sig(id).is_dense()) else { continue };
        let bytes = bytes(operand, arena, store);
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
