//! Where every variable lies when a given batch is fed: one arena, offsets by liveness.
//! - MEMPLAN-3: two variables of the arena overlap only if one is dead before the other is written, or one takes the
//!   other's place.
//! - MEMPLAN-4: what is fetched lives to the end of the run.
//! - MEMPLAN-5: with or without reuse the same kernels see the same values: results are equal to the bit.

mod layout;
mod liveness;

use crate::{
    ir::{Program, VarId},
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

impl MemoryPlan {
    /// `store` says which buffer of the store each persistent variable has.
    pub fn new(
        program: &Program,
        batch: usize,
        fetched: &[VarId],
        reuse: Reuse,
        store: impl Fn(VarId) -> usize,
    ) -> MemoryPlan {
        let classes = liveness::classes(program, batch, fetched, reuse);
        let scratch = liveness::scratch(program, batch);
        let laid = layout::lay(&classes, &scratch, program.ops.len(), reuse);
        let operand = |id: VarId| {
            let var = program.var(id);
            let bytes = var.sig.bytes(batch);
            let (place, offset) = match classes.of[id.index()] {
                _ if var.is_persistable() => (Place::Store(store(id)), 0),
                Some(class) => (Place::Arena, laid.classes[class]),
                None => return None,
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
        let steps = program.ops().map(|(id, op)| {
            let at = laid.scratch[id.index()];
            Step::new(pick(&op.inputs), pick(&op.outputs), at..at + scratch[id.index()])
        });
        MemoryPlan { batch, bytes: laid.bytes, steps: steps.collect(), operands }
    }

    pub fn operand(&self, var: VarId) -> Option<&Operand> {
        self.operands[var.index()].as_ref()
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}
