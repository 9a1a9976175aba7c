//! Who updates what, where several processes train with Reduce.
//!
//! Every parameter with a dense gradient belongs to one process, its owner. The owner alone has the states of its update and
//! runs it; then it sends the parameter to all. A table whose gradients are rows is updated by all processes alike: sending the
//! whole table would cost more than its few rows do.
//! - OWN-1: owners follow from the program and the number of processes alone, so all processes find the same ones.
//! - OWN-2: the bytes of the fullest owner are at most an equal share and one parameter with its states.
//! - OWN-3: an operation of the update runs where everything is that it reads. What operations need from several owners is sent
//!   to all before.

use crate::ir::{OpId, Program, VarId, VarKind};
use phalanx_core::DType;
use std::collections::{BTreeMap, BTreeSet};

/// What owners send to all processes at once: variables of one element type, those of process 0 first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The operation of the update that comes next; `None` at its end.
    pub before: Option<OpId>,
    pub vars: Vec<(VarId, usize)>,
}

/// The owners of a program. Without any, all processes do the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// For each operation, the process that alone runs it.
    ops: Vec<Option<usize>>,
    /// For each variable, the process that alone has it.
    vars: Vec<Option<usize>>,
    pub(crate) sharings: Vec<Sharing>,
}

/// What must be known of a program to find its owners.
pub(super) struct Update<'a> {
    pub program: &'a Program,
    pub tail: &'a [OpId],
    /// Dense gradients that are summed over all processes.
    pub summed: &'a [VarId],
    /// For each variable, whether the network reads or writes it.
    pub is_seen: &'a [bool],
    pub processes: usize,
    /// How many bytes are sent at once.
    pub bucket_bytes: usize,
}

impl Owners {
    pub(super) fn new(update: &Update<'_>) -> Owners {
        let placed = update.placed();
        let owner_of = update.assign(&placed);
        let at = |of: &Option<VarId>| of.and_then(|p| owner_of.get(&p).copied());
        let mut owners = Owners {
            ops: placed.ops.iter().map(at).collect(),
            vars: placed.vars.iter().map(at).collect(),
            sharings: Vec::new(),
        };
        owners.sharings = update.sharings(&owners);
        owners
    }

    /// The process that alone runs an operation.
    pub fn of_op(&self, op: OpId) -> Option<usize> {
        self.ops.get(op.index()).copied().flatten()
    }

    /// The process that alone has a gradient, a state, or what an update computes on its way.
    pub fn of_var(&self, var: VarId) -> Option<usize> {
        self.vars.get(var.index()).copied().flatten()
    }
}

/// The parameter to whose update each operation and each variable belongs, if it is one.
struct Placed {
    ops: Vec<Option<VarId>>,
    vars: Vec<Option<VarId>>,
}

impl Update<'_> {
    /// Whether all processes have it, also if its owner has written it.
    fn is_public(&self, var: VarId) -> bool {
        let is_parameter = matches!(self.program.var(var).kind, VarKind::Parameter(_));
        self.program.var(var).is_persistable() && (is_parameter || self.is_seen[var.index()])
    }

    /// Exchanges carry these types only; what else an owner makes, no other process can have.
    fn travels(&self, var: VarId) -> bool {
        matches!(self.program.sig(var).dtype, DType::F32 | DType::F64)
    }

    fn is_state(&self, var: VarId) -> bool {
        self.program.var(var).is_persistable() && !self.is_public(var)
    }

    /// Tries with an owner for each parameter; those that cannot have one are left to all, and it tries again.
    fn placed(&self) -> Placed {
        let mut common = BTreeSet::new();
        loop {
            let mut states = BTreeMap::new();
            let mut trial = self.trial(&common, &mut states);
            while let Ok((_, false)) = &trial {
                trial = self.trial(&common, &mut states);
            }
            match trial {
                Ok((placed, _)) => return placed,
                Err(more) => common.extend(more),
            }
        }
    }

    /// Goes through the update once. `states` says whose each state is, as far as is known; true if nothing was added to it. Fails
    /// with parameters whose update must be run by all.
    fn trial(
        &self,
        common: &BTreeSet<VarId>,
        states: &mut BTreeMap<VarId, VarId>,
    ) -> Result<(Placed, bool), Vec<VarId>> {
        let n_known = states.len();
        let mut placed =
            Placed { ops: vec![None; self.program.ops.len()], vars: vec![None; self.program.vars.len()] };
        let is_parameter = |p: VarId| matches!(self.program.var(p).kind, VarKind::Parameter(_));
        for &(p, g) in &self.program.grads {
            if is_parameter(p) && self.summed.contains(&g) && !common.contains(&p) {
                placed.vars[g.index()] = Some(p);
            }
        }
        states.iter().for_each(|(state, p)| placed.vars[state.index()] = Some(*p));
        for &id in self.tail {
            let op = self.program.op(id);
            let whose = |var: &VarId| placed.vars[var.index()];
            let all: BTreeSet<VarId> = op.inputs.iter().filter_map(whose).collect();
            let one = all.first().copied().filter(|_| all.len() == 1);
            if all.len() > 1 {
                // A state does not travel; what was computed does.
                let stays = |var: &&VarId| self.is_state(**var) || !self.travels(**var);
                let held = op.inputs.iter().filter(stays).filter_map(whose);
                let held: Vec<VarId> = held.collect();
                if !held.is_empty() {
                    return Err(held);
                }
            }
            placed.ops[id.index()] = one;
            for &out in &op.outputs {
                if self.is_public(out) {
                    if let Some(p) = one.filter(|_| !self.travels(out)) {
                        return Err(vec![p]);
                    }
                    continue;
                }
                if self.is_state(out) {
                    match (states.get(&out).copied(), one) {
                        (Some(before), now) if now != Some(before) => {
                            return Err([Some(before), now].into_iter().flatten().collect());
                        }
                        (None, Some(p)) => {
                            states.insert(out, p);
                        }
                        _ => {}
                    }
                }
                placed.vars[out.index()] = one;
            }
        }
        // A state that an operation of all has written before an owner did is everybody's.
        for &id in self.tail.iter().filter(|id| placed.ops[id.index()].is_none()) {
            let whose: Vec<VarId> =
                self.program.op(id).outputs.iter().filter_map(|out| states.get(out).copied()).collect();
            if !whose.is_empty() {
                return Err(whose);
            }
        }
        Ok((placed, states.len() == n_known))
    }

    /// The largest first, each to the process that has least (OWN-2).
    fn assign(&self, placed: &Placed) -> BTreeMap<VarId, usize> {
        // Parameters with what is written for them, in the order of their updates, which all processes have (OWN-1).
        let mut written: BTreeMap<VarId, BTreeSet<VarId>> = BTreeMap::new();
        let mut order = Vec::new();
        for &id in self.tail {
            let Some(p) = placed.ops[id.index()] else { continue };
            if !written.contains_key(&p) {
                order.push(p);
            }
            let kept = self.program.op(id).outputs.iter().filter(|v| self.program.var(**v).is_persistable());
            written.entry(p).or_default().extend(kept);
        }
        let bytes = |p: &VarId| written[p].iter().map(|&v| self.program.sig(v).bytes(0)).sum::<usize>();
        let mut all: Vec<(usize, VarId)> = order.iter().map(|p| (bytes(p), *p)).collect();
        // Of equal sizes neighbours go to different owners, so that each has a part in what travels together.
        all.sort_by_key(|&(size, _)| std::cmp::Reverse(size));
        let mut loads = vec![0; self.processes];
        let mut owner_of = BTreeMap::new();
        for (size, p) in all {
            let least = (0..self.processes).min_by_key(|&at| (loads[at], at)).unwrap_or(0);
            loads[least] += size;
            owner_of.insert(p, least);
        }
        owner_of
    }

    /// What is sent to all, and when: parameters in buckets behind their updates, the rest right before it is needed.
    fn sharings(&self, owners: &Owners) -> Vec<Sharing> {
        let mut sharings = Vec::new();
        let mut pending: Vec<(VarId, usize)> = Vec::new();
        let mut sent: BTreeSet<VarId> = BTreeSet::new();
        let mut room = self.bucket_bytes;
        let mut is_full = false;
        for &id in self.tail {
            let (op, place) = (self.program.op(id), owners.of_op(id));
            let touches = |var: VarId| op.inputs.contains(&var) || op.outputs.contains(&var);
            let waits = pending.iter().any(|&(var, owner)| place != Some(owner) && touches(var));
            if is_full || waits {
                self.send(Some(id), &mut pending, &mut sharings);
                (room, is_full) = (self.bucket_bytes, false);
            }
            let mut needed: Vec<(VarId, usize)> = Vec::new();
            for &var in op.inputs.iter().filter(|_| place.is_none()) {
                if let Some(owner) = owners.of_var(var).filter(|_| sent.insert(var)) {
                    needed.push((var, owner));
                }
            }
            self.send(Some(id), &mut needed, &mut sharings);
            for &out in op.outputs.iter().filter(|out| self.is_public(**out)) {
                let Some(owner) = place else { continue };
                if !pending.contains(&(out, owner)) {
                    pending.push((out, owner));
                    let bytes = self.program.sig(out).bytes(0);
                    is_full |= bytes >= room;
                    room = room.saturating_sub(bytes);
                }
            }
        }
        self.send(None, &mut pending, &mut sharings);
        sharings
    }

    /// One exchange for each element type.
    fn send(&self, before: Option<OpId>, vars: &mut Vec<(VarId, usize)>, to: &mut Vec<Sharing>) {
        let mut all = std::mem::take(vars);
        all.sort_by_key(|&(_, owner)| owner);
        while let Some(&(first, _)) = all.first() {
            let like = |var: VarId| self.program.sig(var).dtype == self.program.sig(first).dtype;
            let (these, rest) = all.into_iter().partition(|&(var, _)| like(var));
            to.push(Sharing { before, vars: these });
            all = rest;
        }
    }
}
