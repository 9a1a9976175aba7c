//! Recomputation, which trades time for memory: values between checkpoints are computed again for their gradients instead of kept.
//! - AGAIN-1: gradients are those without checkpoints, to the bit: the same kernels see the same values, random numbers
//!   included, because they depend on where they are drawn and not on when.
//! - AGAIN-2: an operation that writes to the store, or reads what a forward operation writes there, runs once.

use super::append_backward;
use crate::ir::{GraphError, Op, OpId, Program, Role, Site, VarId, VarKind};
use std::collections::BTreeMap;

/// Like `append_backward`, but keeps only the checkpoints (see [`recompute`]).
#[track_caller]
pub fn append_backward_with(
    program: &mut Program,
    loss: VarId,
    without: &[VarId],
    checkpoints: &[VarId],
) -> Result<Vec<(VarId, VarId)>, GraphError> {
    // Before anything is added, so that a wrong checkpoint leaves the program as it was.
    Stretches::new(program, program.ops.len(), checkpoints, &Site::here())?;
    let pairs = append_backward(program, loss, without)?;
    recompute(program, checkpoints)?;
    Ok(pairs)
}

/// Rewrites a program that has its gradients. The checkpoints cut the forward operations into stretches; what is computed
/// within one (the last excepted) is not kept but computed again before the gradients that need it. Gives how many
/// operations are done again.
#[track_caller]
pub fn recompute(program: &mut Program, checkpoints: &[VarId]) -> Result<usize, GraphError> {
    let Some(n_forward) = program.ops.iter().position(|op| op.role == Role::Loss) else { return Ok(0) };
    let stretches = Stretches::new(program, n_forward, checkpoints, &Site::here())?;
    // Behind an update the same operations would see other parameters.
    let last = program.ops.iter().rposition(|op| op.role == Role::Backward).unwrap_or(0);
    if let Some(update) = program.ops[..last].iter().find(|op| op.role == Role::Optimize) {
        let (update, site) = (update.site.clone(), Site::here());
        return Err(GraphError::Again { update, site });
    }
    let rest = program.ops.split_off(n_forward);
    let mut again = Again { program, stretches, of: BTreeMap::new(), n: 0 };
    for mut op in rest {
        if op.role == Role::Backward {
            for id in &mut op.inputs {
                *id = again.var(*id)?;
            }
        }
        again.program.ops.push(op);
    }
    Ok(again.n)
}

/// The forward operations, cut at the checkpoints.
#[derive(Debug)]
struct Stretches {
    /// Who computes each variable that may be computed again.
    writer: BTreeMap<VarId, OpId>,
    /// The stretch of each forward operation.
    of: Vec<usize>,
}

impl Stretches {
    fn new(
        program: &Program,
        n_forward: usize,
        checkpoints: &[VarId],
        site: &Site,
    ) -> Result<Stretches, GraphError> {
        let forward = &program.ops[..n_forward];
        let mut cuts = Vec::new();
        for &id in checkpoints {
            let Some(at) = forward.iter().position(|op| op.outputs.contains(&id)) else {
                let var = program.vars.get(id.index()).map(|v| v.name.clone());
                let var = var.unwrap_or_else(|| format!("number {}", id.index()));
                return Err(GraphError::Checkpoint { var, site: site.clone() });
            };
            cuts.push(at);
        }
        cuts.sort_unstable();
        let of: Vec<usize> = (0..n_forward).map(|at| cuts.partition_point(|&c| c < at)).collect();
        let last = cuts.last().map_or(0, |&c| of[c] + 1);
        let written = |id: &VarId| {
            let is_stored = program.var(*id).is_persistable();
            is_stored && forward.iter().any(|op| op.outputs.contains(id))
        };
        let mut writer = BTreeMap::new();
        for (id, op) in program.ops().take(n_forward).filter(|(id, _)| of[id.index()] < last) {
            // AGAIN-2
            if op.inputs.iter().chain(&op.outputs).any(written) {
                continue;
            }
            let temps = op.outputs.iter().filter(|o| program.var(**o).kind == VarKind::Temp);
            writer.extend(temps.filter(|o| !checkpoints.contains(o)).map(|&o| (o, id)));
        }
        Ok(Stretches { writer, of })
    }
}

/// Adds operations that compute variables again, each once.
struct Again<'a> {
    program: &'a mut Program,
    stretches: Stretches,
    of: BTreeMap<VarId, VarId>,
    n: usize,
}

impl Again<'_> {
    /// What the backward operations read in a variable's place.
    fn var(&mut self, id: VarId) -> Result<VarId, GraphError> {
        let Some(&writer) = self.stretches.writer.get(&id) else { return Ok(id) };
        if !self.of.contains_key(&id) {
            for at in self.needed(writer) {
                self.repeat(at)?;
            }
        }
        Ok(self.of[&id])
    }

    /// The operations of one stretch that must run again before and with this one, in their order.
    fn needed(&self, writer: OpId) -> Vec<OpId> {
        let stretch = |at: OpId| self.stretches.of[at.index()];
        let mut needed = vec![writer];
        let mut seen = 0;
        while seen < needed.len() {
            let op = self.program.op(needed[seen]);
            seen += 1;
            for id in op.inputs.iter().filter(|id| !self.of.contains_key(id)) {
                let Some(&before) = self.stretches.writer.get(id) else { continue };
                // What comes from another stretch is read where it was first computed: it crosses the cut anyway.
                if stretch(before) == stretch(writer) && !needed.contains(&before) {
                    needed.push(before);
                }
            }
        }
        needed.sort_unstable();
        needed
    }

    fn repeat(&mut self, at: OpId) -> Result<(), GraphError> {
        let op = self.program.op(at).clone();
        let same = |id: &VarId| {
            let writer = self.stretches.writer.get(id);
            writer.is_some_and(|w| self.stretches.of[w.index()] == self.stretches.of[at.index()])
        };
        let inputs: Vec<VarId> =
            op.inputs.iter().map(|id| if same(id) { self.of[id] } else { *id }).collect();
        let mut outputs = Vec::with_capacity(op.outputs.len());
        for &id in &op.outputs {
            let var = self.program.var(id).clone();
            let name = self.program.fresh(&format!("{}@AGAIN", var.name));
            let copy = self.program.declare(&name, var.sig, VarKind::Temp, var.site)?;
            self.of.insert(id, copy);
            outputs.push(copy);
        }
        self.n += 1;
        self.program.ops.push(Op { inputs, outputs, role: Role::Backward, ..op });
        Ok(())
    }
}
