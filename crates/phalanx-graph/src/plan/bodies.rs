//! Bodies are planned with the operation they belong to: their variables lie in its workspace, and what they capture
//! stays where it is.

use super::{MemoryPlan, Part, Reuse, lay};
use crate::{
    ir::{Op, OpId, VarId},
    kernel::{Inner, MemorySpace, Operand},
    op::Inside,
};
use std::collections::BTreeMap;

/// What is planned of a body.
struct Planning<'a> {
    inside: &'a Inside<'a>,
    ops: Vec<OpId>,
    /// What it gives, and what is put in from outside: that must not be overwritten while anything is moved.
    kept: Vec<VarId>,
    /// Which input of the operation each captured variable is.
    captured: BTreeMap<VarId, usize>,
}

impl<'a> Planning<'a> {
    fn new(inside: &'a Inside<'a>) -> Planning<'a> {
        let body = inside.body;
        let mut planning = Planning {
            inside,
            ops: body.program().ops().map(|(id, _)| id).collect(),
            kept: body.gives().to_vec(),
            captured: BTreeMap::new(),
        };
        for (take, at) in body.takes().zip(&inside.at) {
            match at {
                Some(slot) => drop(planning.captured.insert(take, *slot)),
                None => planning.kept.push(take),
            }
        }
        planning
    }

    fn part<'p>(
        &'p self,
        n_samples: usize,
        reuse: Reuse,
        (place, first): (MemorySpace, usize),
        outside: &'p dyn Fn(VarId) -> Option<(MemorySpace, usize)>,
    ) -> Part<'p> {
        let (ops, kept) = (&self.ops, &self.kept);
        Part { program: self.inside.body.program(), ops, n_samples, kept, reuse, first, place, outside }
    }
}

/// The workspace that the bodies of an operation need; only one of them runs at a time.
pub(super) fn bytes(op: &Op, n_samples: usize, reuse: Reuse) -> usize {
    let mut most = 0;
    for inside in op.kind.operator().bodies() {
        let planning = Planning::new(&inside);
        let place = (MemorySpace::Arena, 0);
        let elsewhere = |id: VarId| planning.captured.contains_key(&id).then_some(place);
        let part = planning.part(n_samples, reuse, place, &elsewhere);
        let outside: Vec<_> = part.program.vars().map(|(id, _)| elsewhere(id)).collect();
        most = most.max(lay(&part, &outside).layout.bytes);
    }
    most
}

/// The bodies of an operation whose workspace begins here.
pub(super) fn planned(op: &Op, inputs: &[Operand], outer: &Part<'_>, begin: usize) -> Vec<Inner> {
    let mut all = Vec::new();
    for inside in op.kind.operator().bodies() {
        let planning = Planning::new(&inside);
        let outside = |id: VarId| {
            let operand = &inputs[*planning.captured.get(&id)?];
            Some((operand.place, operand.offset))
        };
        let part = planning.part(outer.n_samples, outer.reuse, (outer.place, begin), &outside);
        let plan = MemoryPlan::of(&part);
        let pick = |id: VarId| plan.operand(id).cloned().expect("what goes in and out of a body is planned");
        let takes = inside.body.takes().map(pick).collect();
        let gives = inside.body.gives().iter().map(|&id| pick(id)).collect();
        all.push(Inner { steps: plan.steps, takes, gives });
    }
    all
}
