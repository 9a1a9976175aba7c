//! What a script computes for the update beside the network: a rate from the number of the step, for example.
//! - ASIDE-1: an operation goes with the update if the update needs it, and neither the batch, nor random numbers, nor anything
//!   that the network computes goes into it, and the network does not see its results. So all replicas have one value of it.

use crate::{
    ir::{Op, OpId, Program, Role, VarKind},
    op::OpKind,
};
use std::collections::BTreeSet;

/// The operations that go with the update, of those that are the network's as far as is known.
pub(super) fn beside(program: &Program, is_tail: &[bool]) -> Vec<OpId> {
    let mut network = Network::of(program);
    let mut is_beside: Vec<bool> = Vec::with_capacity(program.ops.len());
    for (id, op) in program.ops() {
        is_beside.push(!is_tail[id.index()] && could_be(program, op));
        if !is_tail[id.index()] && !is_beside[id.index()] {
            network.take(op);
        }
    }
    // What touches the network is the network's; and what touches that is, and so on.
    let mut is_done = false;
    while !is_done {
        is_done = true;
        let forth = 0..program.ops.len();
        for at in forth.clone().chain(forth.rev()) {
            if is_beside[at] && network.touches(&program.ops[at]) {
                (is_beside[at], is_done) = (false, false);
                network.take(&program.ops[at]);
            }
        }
    }
    // Of the rest, what the update needs, again and again: what overwrites a needed variable may stand behind its reader.
    let mut is_needed = vec![false; program.vars.len()];
    let mut needed = BTreeSet::new();
    let mut n_before = None;
    while n_before != Some(needed.len()) {
        n_before = Some(needed.len());
        for (at, op) in program.ops.iter().enumerate().rev() {
            let is_wanted = is_beside[at] && op.outputs.iter().any(|out| is_needed[out.index()]);
            if is_tail[at] || is_wanted {
                op.inputs.iter().for_each(|var| is_needed[var.index()] = true);
            }
            if is_wanted {
                needed.insert(OpId(at as u32));
            }
        }
    }
    needed.into_iter().collect()
}

fn could_be(program: &Program, op: &Op) -> bool {
    let is_random = matches!(op.kind, OpKind::Random(_) | OpKind::Dropout(_));
    let has_bodies = !op.kind.operator().bodies().is_empty();
    let counts = op.outputs.iter().any(|&out| program.sig(out).shape.has_batch());
    op.role == Role::Forward && !is_random && !has_bodies && !counts
}

/// What the network reads and writes.
struct Network {
    reads: Vec<bool>,
    writes: Vec<bool>,
}

impl Network {
    /// Feeds are its own.
    fn of(program: &Program) -> Network {
        let writes = program.vars.iter().map(|var| var.kind == VarKind::Feed).collect();
        Network { reads: vec![false; program.vars.len()], writes }
    }

    fn take(&mut self, op: &Op) {
        op.inputs.iter().for_each(|var| self.reads[var.index()] = true);
        op.outputs.iter().for_each(|var| self.writes[var.index()] = true);
    }

    fn touches(&self, op: &Op) -> bool {
        op.inputs.iter().any(|var| self.writes[var.index()])
            || op.outputs.iter().any(|var| self.writes[var.index()] || self.reads[var.index()])
    }
}
