//! Where in a program the gradients of a loss belong (GRAD-5).
//!
//! A gradient is that of the parameters with which its loss was computed. Where an update has changed them since, the
//! gradient is computed before that update.

use crate::ir::{GraphError, Op, Program, Role, Site, VarId};
use std::collections::BTreeSet;

/// The place in the list of operations from which the gradients of a loss run: mostly the end.
pub(super) fn of(
    program: &Program,
    loss: VarId,
    wanted: &BTreeSet<VarId>,
    site: &Site,
) -> Result<usize, GraphError> {
    let mut needed = vec![false; program.vars.len()];
    needed[loss.index()] = true;
    let (mut first, mut last) = (program.ops.len(), 0);
    let mut blame = None;
    for (id, op) in program.ops().collect::<Vec<_>>().into_iter().rev() {
        if is_update(op) || !op.outputs.iter().any(|out| needed[out.index()]) {
            continue;
        }
        last = last.max(id.index() + 1);
        op.inputs.iter().for_each(|input| needed[input.index()] = true);
        if !op.outputs.iter().any(|out| wanted.contains(out)) {
            continue;
        }
        for &var in op.inputs.iter().filter(|v| program.var(**v).is_persistable()) {
            if let Some(at) = changed(program, id.index(), var).filter(|at| *at < first) {
                (first, blame) = (at, Some(var));
            }
        }
    }
    match blame {
        None => Ok(program.ops.len()),
        Some(_) if first >= last => Ok(group(program, first)),
        Some(var) => {
            let (var, loss) = (program.var(var).name.clone(), program.var(loss).name.clone());
            let update = program.ops[first].site.clone();
            Err(GraphError::Stale { loss, var, update, site: site.clone() })
        }
    }
}

/// The first update after operation `read` that changes a variable.
fn changed(program: &Program, read: usize, var: VarId) -> Option<usize> {
    let changes = |op: &Op| op.role == Role::Optimize && op.outputs.contains(&var);
    program.ops[read..].iter().position(changes).map(|at| read + at)
}

fn is_update(op: &Op) -> bool {
    matches!(op.role, Role::Optimize | Role::LrSched)
}

/// Where the updates begin among which this one is.
fn group(program: &Program, at: usize) -> usize {
    program.ops[..at].iter().rposition(|op| !is_update(op)).map_or(0, |before| before + 1)
}
