//! The memory plan for a given batch: one arena, with offsets by liveness.
//! - MEMPLAN-3: two variables of the arena overlap only if one is dead before the other is written, or one takes the
//!   other's place.
//! - MEMPLAN-4: fetched variables are kept to the end of the run.
//! - MEMPLAN-5: with or without reuse the same kernels see the same values: results are equal to the bit.

mod bodies;
mod layout;
mod liveness;

use crate::{
    ir::{OpId, Program, VarId},
    kernel::{MemorySpace, OpStep, Operand},
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
    pub n_samples: usize,
    /// Size of the arena.
    pub bytes: usize,
    /// Where each variable lies; `None` for what nothing reads or writes.
    operands: Vec<Option<Operand>>,
    steps: Vec<OpStep>,
}

/// What is to be planned: some operations of a program, for one batch size.
pub(crate) struct Part<'a> {
    pub program: &'a Program,
    /// In the order of the program.
    pub ops: &'a [OpId],
    pub n_samples: usize,
    /// Variables that live to the end.
    pub kept: &'a [VarId],
    pub reuse: Reuse,
    /// Where the arena's own part begins.
    pub first: usize,
    pub place: MemorySpace,
    /// Variables that have their place already, and where.
    pub outside: &'a dyn Fn(VarId) -> Option<(MemorySpace, usize)>,
}

struct Laid {
    classes: liveness::Classes,
    scratch: Vec<usize>,
    layout: layout::Layout,
}

/// Sizes and offsets.
fn lay(part: &Part<'_>, outside: &[Option<(MemorySpace, usize)>]) -> Laid {
    let classes = liveness::classes(part, outside);
    let scratch = liveness::scratch(part);
    let layout = layout::lay(&classes, &scratch, part.ops.len(), part.reuse);
    Laid { classes, scratch, layout }
}

impl MemoryPlan {
    /// `store` says which buffer of the store each persistent variable has.
    pub fn new(
        program: &Program,
        n_samples: usize,
        fetched: &[VarId],
        reuse: Reuse,
        store: impl Fn(VarId) -> usize,
    ) -> MemoryPlan {
        let ops: Vec<OpId> = program.ops().map(|(id, _)| id).collect();
        let outside =
            |id: VarId| program.var(id).is_persistable().then(|| (MemorySpace::Store(store(id)), 0));
        let place = MemorySpace::Arena;
        MemoryPlan::of(&Part {
            program,
            ops: &ops,
            n_samples,
            kept: fetched,
            reuse,
            first: 0,
            place,
            outside: &outside,
        })
    }

    /// `bytes` is the end of the part's memory, counted from the arena's beginning.
    pub(crate) fn of(part: &Part<'_>) -> MemoryPlan {
        let Part { program, n_samples, first, .. } = *part;
        let outside: Vec<_> = program.vars().map(|(id, _)| (part.outside)(id)).collect();
        let Laid { classes, scratch, layout: laid } = lay(part, &outside);
        let operand = |id: VarId| {
            let var = program.var(id);
            let bytes = var.sig.bytes(n_samples);
            let (place, offset) = match (outside[id.index()], classes.of[id.index()]) {
                (Some(given), _) => given,
                (None, Some(class)) => (part.place, first + laid.classes[class]),
                (None, None) => return None,
            };
            let (dims, dtype, form) = (var.sig.shape.at(n_samples), var.sig.dtype, var.sig.form);
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
            OpStep::new(inputs, pick(&op.outputs), part.place, begin..begin + scratch[at]).with_bodies(bodies)
        });
        MemoryPlan { n_samples, bytes: first + laid.bytes, steps: steps.collect(), operands }
    }

    pub fn operand(&self, var: VarId) -> Option<&Operand> {
        self.operands[var.index()].as_ref()
    }

    pub fn steps(&self) -> &[OpStep] {
        &self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::{liveness::Class, *};
    use crate::{
        ir::{BATCH, Dim},
        kernel::Stream,
        layers::Builder,
        op::Func,
    };
    use phalanx_core::DType;

    fn part<'a>(program: &'a Program, ops: &'a [OpId], kept: &'a [VarId], reuse: Reuse) -> Part<'a> {
        let (place, outside) = (MemorySpace::Arena, &|_| None);
        Part { program, ops, n_samples: 3, kept, reuse, first: 0, place, outside }
    }

    #[test]
    fn a_buffer_lives_from_its_birth_to_its_last_reader() {
        let mut b = Builder::new();
        let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(16)]).unwrap();
        let a = b.map(Func::Exp, x).unwrap(); // operation 0
        let c = b.map(Func::Exp, x).unwrap(); // 1: the last that reads x
        let d = b.map(Func::Exp, a).unwrap(); // 2: the last that reads a
        let e = b.add(c, d).unwrap(); // 3
        let f = b.map(Func::Exp, e).unwrap(); // 4, read by nobody
        let program = b.finish().unwrap();
        let ops: Vec<OpId> = program.ops().map(|(id, _)| id).collect();
        let outside = vec![None; program.vars.len()];
        let lives = |kept: &[VarId], reuse: Reuse, var: VarId| {
            let classes = liveness::classes(&part(&program, &ops, kept, reuse), &outside);
            let Class { first, last, .. } = classes.all[classes.of[var.index()].unwrap()];
            (first, last)
        };
        let apart = Reuse { across: true, in_place: false };
        assert_eq!(
            [x, a, c, d, e, f].map(|v| lives(&[], apart, v)),
            [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 4)]
        );
        assert_eq!(lives(&[a], apart, a), (0, 5), "MEMPLAN-4: what is fetched lives to the end");
        // In place, one buffer goes from hand to hand.
        assert_eq!(lives(&[], Reuse::ALL, x), lives(&[], Reuse::ALL, c));
        assert_eq!(lives(&[], Reuse::ALL, a), lives(&[], Reuse::ALL, d));
    }

    /// A program of random operations on vectors, the last of which reads everything that nobody has read.
    fn random(seed: u64) -> Program {
        let dice = Stream::new(seed, 0, 0);
        let mut b = Builder::new();
        let mut all = vec![b.feed("x", DType::F32, [BATCH, Dim::Fixed(4)]).unwrap()];
        for i in 0..20u64 {
            let pick = |k: u64| all[(dice.bits(i * 10 + k) % all.len() as u64) as usize];
            let made = match dice.bits(i * 10 + 2) % 4 {
                0 => b.map(Func::Relu, pick(0)),
                1 => b.map(Func::Exp, pick(0)),
                2 => b.add(pick(0), pick(1)),
                _ => b
                    .concat(&[pick(0), pick(1)], 1)
                    .and_then(|y| b.reduce(crate::op::Reduction::Sum, y, &[1], true))
                    .and_then(|y| b.expand(y, [BATCH, Dim::Fixed(4)])),
            };
            all.push(made.unwrap());
        }
        b.finish().unwrap()
    }

    #[test]
    fn variables_overlap_only_in_turn() {
        for seed in 0..60 {
            let program = random(seed);
            let ops: Vec<OpId> = program.ops().map(|(id, _)| id).collect();
            let kept: Vec<VarId> =
                program.vars().map(|(id, _)| id).filter(|id| id.index() % 7 == 3).collect();
            for reuse in
                [Reuse::ALL, Reuse { across: true, in_place: false }, Reuse { across: false, in_place: true }]
            {
                let plan = MemoryPlan::of(&part(&program, &ops, &kept, reuse));
                // Worked out anew, from the program alone.
                let born = |v: VarId| {
                    program.ops.iter().position(|op| op.outputs.contains(&v)).map_or(-1, |at| at as i64)
                };
                let dead = |v: VarId| match kept.contains(&v) {
                    true => i64::MAX,
                    false => program
                        .ops
                        .iter()
                        .rposition(|op| op.inputs.contains(&v))
                        .map_or(born(v), |at| at as i64),
                };
                for (a, _) in program.vars() {
                    for (b, _) in program.vars().filter(|(b, _)| b.index() > a.index()) {
                        let (Some(x), Some(y)) = (plan.operand(a), plan.operand(b)) else { continue };
                        let in_turn = dead(a) < born(b) || dead(b) < born(a);
                        let takes_over = dead(a) == born(b) && x.range() == y.range();
                        assert!(
                            !x.overlaps(y) || in_turn || takes_over,
                            "MEMPLAN-3, seed {seed}: {a:?} and {b:?}"
                        );
                    }
                }
            }
        }
    }
}
