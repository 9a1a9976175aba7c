//! The shared arena: what replicas add up, or put one after another.

use super::lower::Signature;
use crate::{
    graph::{Graph, NodeKind, Summed},
    ir::{ALIGN, VarId},
};

/// Where things lie in the shared arena.
pub(super) struct Shared {
    /// Offsets within a block, by what is summed.
    pub offsets: Vec<(Summed, usize)>,
    pub block: usize,
    /// For each gathered gradient: where each replica's rows lie, and where all of them.
    pub rows: Vec<(VarId, Vec<usize>, usize)>,
    /// For each gradient that goes to servers as rows: where each replica's lie.
    pub pushed: Vec<(VarId, Vec<usize>)>,
    /// What the update computes on its way and sends to other processes.
    passed: Vec<(VarId, usize)>,
    pub bytes: usize,
}

impl Shared {
    pub(super) fn new(graph: &Graph, signature: &Signature) -> Shared {
        let mut shared = Shared {
            offsets: Vec::new(),
            block: 0,
            rows: Vec::new(),
            pushed: Vec::new(),
            passed: Vec::new(),
            bytes: 0,
        };
        for node in &graph.nodes {
            let NodeKind::Sum { vars } = &node.kind else { continue };
            for &s in vars {
                shared.offsets.push((s, shared.block));
                shared.block += graph.program.sig(s.whole).bytes(0).next_multiple_of(ALIGN);
            }
        }
        shared.bytes = shared.block * signature.sizes.len();
        for &var in &graph.parts.gathered {
            let sig = graph.program.sig(var);
            let mut room = |n_samples: usize| {
                let at = shared.bytes;
                shared.bytes += sig.bytes(n_samples).next_multiple_of(ALIGN);
                at
            };
            let each = signature.sizes.iter().map(|&n| room(n)).collect();
            let all = room(signature.total);
            shared.rows.push((var, each, all));
        }
        for &var in &graph.parts.pushed {
            let sig = graph.program.sig(var);
            let mut room = |n_samples: usize| {
                let at = shared.bytes;
                shared.bytes += sig.bytes(n_samples).next_multiple_of(ALIGN);
                at
            };
            let each = signature.sizes.iter().map(|&n| room(n)).collect();
            shared.pushed.push((var, each));
        }
        for node in &graph.nodes {
            let NodeKind::Share { vars } = &node.kind else { continue };
            for &(var, _) in vars {
                let is_temp = graph.parts.held[var.index()].is_none();
                if is_temp && shared.in_tail(var).is_none() {
                    shared.passed.push((var, shared.bytes));
                    shared.bytes += graph.program.sig(var).bytes(0).next_multiple_of(ALIGN);
                }
            }
        }
        shared
    }

    pub(super) fn offset(&self, summed: Summed) -> usize {
        self.offsets.iter().find(|(s, _)| *s == summed).expect("every sum has its place").1
    }

    /// The place of what a replica's network calls by this name, if it lies here.
    pub(super) fn in_body(&self, var: VarId, replica: usize) -> Option<usize> {
        let local = self.offsets.iter().find(|(s, _)| s.local == var);
        let local = local.map(|(_, at)| replica * self.block + at);
        let whole = || self.offsets.iter().find(|(s, _)| s.whole == var).map(|(_, at)| *at);
        let rows = || self.rows.iter().find(|(v, ..)| *v == var).map(|(_, each, _)| each[replica]);
        let pushed = || self.pushed.iter().find(|(v, _)| *v == var).map(|(_, each)| each[replica]);
        local.or_else(whole).or_else(rows).or_else(pushed)
    }

    /// The same for the update.
    pub(super) fn in_tail(&self, var: VarId) -> Option<usize> {
        let whole = self.offsets.iter().find(|(s, _)| s.whole == var).map(|(_, at)| *at);
        let rows = || self.rows.iter().find(|(v, ..)| *v == var).map(|(_, _, all)| *all);
        whole.or_else(rows).or_else(|| self.passed.iter().find(|(v, _)| *v == var).map(|(_, at)| *at))
    }
}
