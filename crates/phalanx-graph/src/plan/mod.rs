//! Where every variable lies when a given batch is fed: one arena, offsets by liveness.
//! - MEMPLAN-3: two variables of the arena overlap only if one is dead before the other is written, or one takes the
//!   other's place.
//! - MEMPLAN-4: what is fetched lives to the end of the run.
//! - MEMPLAN-5: with or without reuse the same kernels see the same values: results are equal to the bit.

mod bodies;
mod layout;
mod liveness;

use crate::{
    ir::{OpId, Program, VarId},
    kernel::{Operand, Place, Step},
};

/// Whether memory is used again within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Variables that are never alive together share memory.
    pub across: bool,
    /// Outputs take the place of inputs that end there.
    pub in_place: bool,
}

impl Reuse {
    pub const ALL: Reuse = Reuse { across: true, in_place: true };
    pub const NONE: Reuse = Reuse { across: false, in_place: false };
}

/// The memory of one replica for one batch size and one set of fetched variables.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    pub batch: usize,
    /// Size of the arena.
    pub bytes: usize,
    /// Where each variable lies; `None` for what nothing reads or writes.
    operands: Vec<Option<Operand>>,
    steps: Vec<Step>,
}

/// What is to be planned: some operations of a program, for one batch size.
pub(crate) struct Part<'a> {
    pub program: &'a Program,
    /// In the order of the program.
    pub ops: &'a [OpId],
    pub batch: usize,
    /// Variables that live to the end.
    pub kept: &'a [VarId],
    pub reuse: Reuse,
    /// Where the arena's own part begins.
    pub first: usize,
    pub place: Place,
    /// Variables that have their place already, and where.
    pub outside: &'a dyn Fn(VarId) -> Option<(Place, usize)>,
}

struct Laid {
    classes: liveness::Classes,
    scratch: Vec<usize>,
    layout: layout::Layout,
}

/// Sizes and offsets.
fn lay(part: &Part<'_>, outside: &[Option<(Place, usize)>]) -> Laid {
    let classes = liveness::classes(part, outside);
    let scratch = liveness::scratch(part);
    let layout = layout::lay(&classes, &scratch, part.ops.len(), part.reuse);
    Laid { classes, scratch, layout }
}

impl MemoryPlan {
    /// `store` says which buffer of the store each persistent variable has.
    pub fn new(
        program: &Program,
        batch: usize,
        fetched: &[VarId],
        reuse: Reuse,
        store: impl Fn(VarId) -> usize,
    ) -> MemoryPlan {
        let ops: Vec<OpId> = program.ops().map(|(id, _)| id).collect();
        let outside = |id: VarId| program.var(id).is_persistable().then(|| (Place::Store(store(id)), 0));
        let place = Place::Arena;
        MemoryPlan::of(&Part {
            program,
            ops: &ops,
            batch,
            kept: fetched,
            reuse,
            first: 0,
            place,
            outside: &outside,
        })
    }

    /// `bytes` is the end of the part's memory, counted from the arena's beginning.
    pub(crate) fn of(part: &Part<'_>) -> MemoryPlan {
        let Part { program, batch, first, .. } = *part;
        let outside: Vec<_> = program.vars().map(|(id, _)| (part.outside)(id)).collect();
        let Laid { classes, scratch, layout: laid } = lay(part, &outside);
        let operand = |id: VarId| {
            let var = program.var(id);
            let bytes = var.sig.bytes(batch);
            let (place, offset) = match (outside[id.index()], classes.of[id.index()]) {
                (Some(given), _) => given,
                (None, Some(class)) => (part.place, first + laid.classes[class]),
                (None, None) => return None,
            };
            let (dims, dtype, form) = (var.sig.shape.at(batch), var.sig.dtype, var.sig.form);
            Some(Operand { place, offset, bytes, dtype, dims, form })
        };
        let operands: Vec<Option<Operand>> = program.vars().map(|(id, _)| operand(id)).collect();
        let pick = |ids: &[VarId]| -> Vec<Operand> {
            ids.iter()
                .map(|id| operands[id.index()].clone().expect("operands of operations are planned"))
                .collect()
        };
        let steps = part.ops.iter().enumerate().map(|(at, &id)| {
            let (op, begin) = (program.op(id), first + laid.scratch[at]);
            let inputs = pick(&op.inputs);
            let bodies = bodies::planned(op, &inputs, part, begin);
            Step::new(inputs, pick(&op.outputs), part.place, begin..begin + scratch[at]).with_bodies(bodies)
        });
        MemoryPlan { batch, bytes: first + laid.bytes, steps: steps.collect(), operands }
    }

    pub fn operand(&self, var: VarId) -> Option<&Operand> {
        self.operands[var.index()].as_ref()
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}
