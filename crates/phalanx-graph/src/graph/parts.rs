//! Which operations are the network's and which are the update's, and what the replicas have of each variable.

use super::{
    aside::beside,
    error::BuildError,
    owners::{Owners, Update},
    strategy::Effective,
};
use crate::{
    ir::{Dim, OpId, Program, Role, VarId, VarKind},
    op::OpKind,
};

/// How a variable of the store is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nobody writes it: one buffer for all.
    Read,
    /// The update writes it once for all replicas of the process.
    Once,
    /// Each replica has its own, all alike: the update writes them all.
    Alike,
    /// Each replica writes its own, and they go different ways.
    Apart,
    /// This process, which is another one, has it.
    Elsewhere(usize),
}

/// A sum over all replicas: of a gradient, or of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Summed {
    /// What each replica contributes.
    pub local: VarId,
    /// What all of them see; the same variable for gradients.
    pub whole: VarId,
}

/// What was found out about a program.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Operations of forward and backward.
    pub body: Vec<OpId>,
    /// Operations that update what is learned, after all gradients are there.
    pub tail: Vec<OpId>,
    pub(crate) is_tail: Vec<bool>,
    /// For each variable, whether the update writes it.
    by_tail: Vec<bool>,
    /// For each variable of the store.
    pub held: Vec<Option<Held>>,
    /// Gradients, in the order of their births, and statistics.
    pub summed: Vec<Summed>,
    /// Gradients that are rows: put one after another, not added.
    pub gathered: Vec<VarId>,
    /// Rows that go to servers as they are, of each replica.
    pub pushed: Vec<VarId>,
    /// Dense gradients that go to servers: they are summed here, and exchanged there.
    pub(crate) sent: Vec<VarId>,
    /// Whether the update runs once for all replicas of the process, not in each of them.
    pub once: bool,
    /// Which process updates what.
    pub owners: Owners,
}

impl Parts {
    pub fn new(program: &Program, settings: &Effective) -> Result<Parts, BuildError> {
        let is_tail = tail(program)?;
        let pick = |is: bool| -> Vec<OpId> {
            program.ops().map(|(id, _)| id).filter(|id| is_tail[id.index()] == is).collect()
        };
        let (body, tail) = (pick(false), pick(true));
        let writers = writers(program, &is_tail);
        // What both write goes a different way in each replica, and so does its update.
        let both = writers.iter().zip(&program.vars).find(|(w, v)| **w == (true, true) && v.is_persistable());
        if let Some((_, var)) = both.filter(|_| settings.shares_parameters()) {
            return Err(BuildError::TwoWriters { var: var.name.clone() });
        }
        let once = settings.is_reduced() && settings.replicas > 1 && both.is_none();
        let held = held(program, &writers, &body, &tail, settings, once);
        let by_tail = writers.iter().map(|w| w.1).collect();
        let (summed, gathered) = (Vec::new(), Vec::new());
        let pushes = program.ops.iter().filter(|op| matches!(op.kind, OpKind::PushRows(_)));
        let (sent, pushed) = pushes.map(|op| op.inputs[0]).partition(|&g| program.sig(g).is_dense());
        let owners = Owners::default();
        let mut parts =
            Parts { body, tail, is_tail, by_tail, held, summed, gathered, pushed, sent, once, owners };
        if settings.is_reduced() {
            parts.reduce(program);
            parts.own(program, settings);
            parts.rows_follow_batch(program, &settings.build.served)?;
            parts.reads_of_tail(program)?;
        }
        Ok(parts)
    }

    /// Gradients of parameters, and statistics that are shared (SUM-1 wants them in an order that all processes have).
    fn reduce(&mut self, program: &Program) {
        let learned = learned(program);
        for &id in &self.body {
            let op = program.op(id);
            if matches!(op.kind, OpKind::SyncSum(_)) {
                self.summed.push(Summed { local: op.inputs[0], whole: op.outputs[0] });
                continue;
            }
            for &out in op.outputs.iter().filter(|out| learned.contains(out)) {
                match program.sig(out).is_dense() {
                    true => self.summed.push(Summed { local: out, whole: out }),
                    false => self.gathered.push(out),
                }
            }
        }
    }

    /// Finds owners; this process does not hold what others own.
    fn own(&mut self, program: &Program, settings: &Effective) {
        if !settings.has_owners() {
            return;
        }
        let mut is_seen = vec![false; program.vars.len()];
        for op in self.body.iter().map(|&op| program.op(op)) {
            op.inputs.iter().chain(&op.outputs).for_each(|var| is_seen[var.index()] = true);
        }
        let dense = self.summed.iter().filter(|s| s.local == s.whole && !self.sent.contains(&s.whole));
        let summed: Vec<VarId> = dense.map(|s| s.whole).collect();
        let fused = settings.build.fuse_all_reduce_ops;
        self.owners = Owners::new(&Update {
            program,
            tail: &self.tail,
            summed: &summed,
            is_seen: &is_seen,
            processes: settings.processes,
            bucket_bytes: if fused { settings.build.bucket_bytes } else { 0 },
        });
        for (id, _) in program.vars() {
            let owner = self.owners.of_var(id).filter(|&owner| owner != settings.process);
            if let (Some(owner), held @ Some(_)) = (owner, &mut self.held[id.index()]) {
                *held = Some(Held::Elsewhere(owner));
            }
        }
    }

    /// The owners of all these sums, if each has one.
    pub(crate) fn owners_of(&self, vars: &[Summed]) -> Option<Vec<usize>> {
        vars.iter().map(|s| self.owners.of_var(s.whole)).collect()
    }

    /// Rows of several replicas together are those of their samples together.
    fn rows_follow_batch(&self, program: &Program, served: &[String]) -> Result<(), BuildError> {
        // Tables that will be served leave the program: their rows may be as many as they like.
        let leaves = |g: VarId| {
            program.grads.iter().any(|&(of, its)| its == g && served.contains(&program.var(of).name))
        };
        for &g in self.gathered.iter().filter(|&&g| !leaves(g)) {
            let var = program.var(g);
            let rows = var.sig.shape.dims().first().copied().unwrap_or(Dim::Fixed(1));
            if !rows.is_batch() {
                return Err(BuildError::FixedRows { var: var.name.clone(), rows, site: var.site.clone() });
            }
        }
        Ok(())
    }

    fn reads_of_tail(&self, program: &Program) -> Result<(), BuildError> {
        let mut known = vec![false; program.vars.len()];
        self.summed.iter().for_each(|s| known[s.whole.index()] = true);
        self.gathered.iter().chain(&self.pushed).for_each(|g| known[g.index()] = true);
        for &id in &self.tail {
            let op = program.op(id);
            for &var in &op.inputs {
                // What the network's replicas have each for themselves would make them update differently.
                let differs = match self.held[var.index()] {
                    Some(held) => held == Held::Apart && !self.written_by_tail(var),
                    None => !known[var.index()],
                };
                if differs {
                    let (name, var) = (op.name(), program.var(var).name.clone());
                    return Err(BuildError::Unreduced { op: name, site: op.site.clone(), var });
                }
            }
            op.outputs.iter().for_each(|out| known[out.index()] = true);
        }
        Ok(())
    }

    pub(crate) fn written_by_tail(&self, var: VarId) -> bool {
        self.by_tail[var.index()]
    }

    /// What all replicas see of a variable that they have summed or gathered.
    pub(crate) fn is_whole(&self, var: VarId) -> bool {
        self.summed.iter().any(|s| s.whole == var) || self.gathered.contains(&var)
    }
}

/// The gradients of parameters, of all losses.
fn learned(program: &Program) -> Vec<VarId> {
    let of_parameters = |(of, _): &&(VarId, VarId)| matches!(program.var(*of).kind, VarKind::Parameter(_));
    program.grads.iter().filter(of_parameters).map(|&(_, g)| g).collect()
}

/// Updates, and what reads their results. Everything else, wherever it stands, is the network's.
pub(super) fn tail(program: &Program) -> Result<Vec<bool>, BuildError> {
    let is_tail = marked(program, &[])?;
    if !is_tail.contains(&true) {
        return Ok(is_tail);
    }
    let beside = beside(program, &is_tail);
    if beside.is_empty() { Ok(is_tail) } else { marked(program, &beside) }
}

/// The same, where some operations are known to go with the update.
fn marked(program: &Program, beside: &[OpId]) -> Result<Vec<bool>, BuildError> {
    let mut is_tail = vec![false; program.ops.len()];
    if !program.ops.iter().any(|op| op.role == Role::Loss) {
        return Ok(is_tail);
    }
    let learned = learned(program);
    let mut fresh: Vec<Option<OpId>> = vec![None; program.vars.len()];
    for (id, op) in program.ops() {
        let read = op.inputs.iter().find_map(|var| fresh[var.index()]);
        // What a script makes of gradients for an update, it makes of their sums.
        let remakes = || op.role == Role::Forward && op.inputs.iter().any(|var| learned.contains(var));
        let updates = matches!(op.role, Role::Optimize | Role::LrSched);
        if let Some(update) = read.filter(|_| matches!(op.role, Role::Loss | Role::Backward)) {
            let (update, op) = (program.op(update).site.clone(), op.name());
            return Err(BuildError::EarlyUpdate { op, site: program.op(id).site.clone(), update });
        }
        if updates || read.is_some() || remakes() || beside.contains(&id) {
            is_tail[id.index()] = true;
            op.outputs.iter().for_each(|out| fresh[out.index()] = read.or(Some(id)));
        }
    }
    Ok(is_tail)
}

/// Whether the network, and whether the update, writes each variable.
fn writers(program: &Program, is_tail: &[bool]) -> Vec<(bool, bool)> {
    let mut writers = vec![(false, false); program.vars.len()];
    for (id, op) in program.ops() {
        for out in &op.outputs {
            let writer = &mut writers[out.index()];
            if is_tail[id.index()] { writer.1 = true } else { writer.0 = true }
        }
    }
    writers
}

fn held(
    program: &Program,
    writers: &[(bool, bool)],
    body: &[OpId],
    tail: &[OpId],
    settings: &Effective,
    once: bool,
) -> Vec<Option<Held>> {
    let mut is_read = vec![false; program.vars.len()];
    body.iter().flat_map(|&op| &program.op(op).inputs).for_each(|var| is_read[var.index()] = true);
    // Of a table only some rows are updated: copies of it would cost more than the update.
    let mut is_table = vec![false; program.vars.len()];
    for op in tail.iter().map(|&op| program.op(op)) {
        if op.inputs.iter().any(|&var| !program.sig(var).is_dense()) {
            op.outputs.iter().for_each(|out| is_table[out.index()] = true);
        }
    }
    let mut held = Vec::with_capacity(writers.len());
    for (id, var) in program.vars() {
        let at = id.index();
        held.push(match writers[at] {
            _ if !var.is_persistable() => None,
            (false, false) => Some(Held::Read),
            (true, _) => Some(Held::Apart),
            (false, true) if once => {
                let copies = is_read[at] && !is_table[at] && !settings.shares_parameters();
                Some(if copies { Held::Alike } else { Held::Once })
            }
            (false, true) if settings.is_reduced() || settings.replicas == 1 => Some(Held::Alike),
            (false, true) => Some(Held::Apart),
        });
    }
    held
}
