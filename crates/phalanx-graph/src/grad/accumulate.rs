//! Large batches in pieces: gradients of several runs are added up in the store, and the optimizer acts in the last.
//! - ACCUM-1: after `runs` runs with equally large batches, parameters are those of one run with all of them, up to
//!   rounding. Statistics of a batch, like those of `batch_norm`, are still those of each piece.

use crate::{
    ir::{GraphError, Init, Op, Program, Role, Site, VarId, VarKind},
    op::{Accumulate, Every, Increment, OpKind},
    optimizer::STEP,
};
use phalanx_core::DType;
use std::collections::BTreeMap;

/// Counts the runs of a program whose gradients are accumulated, from 1 in the first.
pub const RUN: &str = "@ACCUMULATED@";

/// Makes an optimizer act in every `runs`-th run only, on the mean of the gradients since it last did. The program has its
/// updates already.
#[track_caller]
pub fn accumulate(program: &mut Program, runs: usize) -> Result<(), GraphError> {
    let site = Site::here();
    let fails = |why| GraphError::Accumulate { why, site: site.clone() };
    if !i64::try_from(runs).is_ok_and(|r| r > 0) {
        return Err(fails("gradients are added up over at least one run"));
    }
    if program.vars().any(|(_, var)| var.name.starts_with(RUN)) {
        return Err(fails("its gradients are already accumulated"));
    }
    let is_update = |op: &Op| matches!(op.role, Role::Optimize | Role::LrSched);
    let Some(first) = program.ops.iter().position(is_update) else {
        return Err(fails("it has no updates; call `minimize` first"));
    };
    let Some(suffix) = suffix(program) else {
        return Err(fails("it has several optimizers; merge gradients before a second one is added"));
    };
    let grads = read(program, first);
    for (of, g) in &grads {
        if !program.sig(*g).is_dense() {
            let (what, var) = ("accumulate", program.var(*of).name.clone());
            return Err(GraphError::SparseGradient { what, var, site });
        }
    }
    let runs = runs as i64;
    let mut next = program.clone();
    let updates = next.ops.split_off(first);
    let count = next.scalar_state(&format!("{RUN}{suffix}"), DType::I64, 0.0, site.clone())?;
    next.append_to(Increment { by: 1 }, &[count], &[count], Role::LrSched, site.clone())?;
    let mut place = BTreeMap::new();
    for (of, g) in grads {
        let name = next.fresh(&format!("{}.accumulated{suffix}", next.var(of).name));
        let (sig, kind) = (next.sig(g).clone(), VarKind::State(Init::Constant(0.0)));
        let sum = next.declare(&name, sig, kind, site.clone())?;
        next.append_to(Accumulate { runs }, &[sum, g, count], &[sum], Role::Optimize, site.clone())?;
        place.insert(g, sum);
    }
    for mut op in updates {
        for id in &mut op.inputs {
            *id = place.get(id).copied().unwrap_or(*id);
        }
        next.ops.push(if changes(&next, &op) { every(runs, op, count) } else { op });
    }
    // Finds what updates the store without reading it first, which cannot wait.
    next.verify()?;
    *program = next;
    Ok(())
}

/// What the names of the only optimizer end with: programs that share parameters have each their own sums of gradients.
fn suffix(program: &Program) -> Option<String> {
    let counts = |op: &&Op| op.role == Role::LrSched && matches!(op.kind, OpKind::Increment(_));
    let mut steps = program.ops.iter().filter(counts).map(|op| &program.var(op.outputs[0]).name);
    let suffix = steps.next().and_then(|name| name.strip_prefix(STEP)).unwrap_or_default().to_string();
    steps.next().is_none().then_some(suffix)
}

/// The gradients that updates read, each with a variable it belongs to, in the order they are read.
fn read(program: &Program, first: usize) -> Vec<(VarId, VarId)> {
    let of: BTreeMap<VarId, VarId> = program.grads.iter().map(|&(of, g)| (g, of)).collect();
    let mut found: Vec<(VarId, VarId)> = Vec::new();
    for id in program.ops[first..].iter().flat_map(|op| &op.inputs) {
        if let Some(&of) = of.get(id).filter(|_| found.iter().all(|(_, g)| g != id)) {
            found.push((of, *id));
        }
    }
    found
}

/// Whether an operation changes the store by what is there. A rate that follows from a counter may be computed in every run.
fn changes(program: &Program, op: &Op) -> bool {
    !matches!(op.kind, OpKind::Rate(_)) && op.outputs.iter().any(|&o| program.var(o).is_persistable())
}

fn every(runs: i64, op: Op, count: VarId) -> Op {
    let mut inputs = op.inputs;
    inputs.push(count);
    Op { kind: Every { runs, op: Box::new(op.kind) }.into(), inputs, ..op }
}
