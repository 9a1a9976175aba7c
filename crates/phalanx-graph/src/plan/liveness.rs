//! From where to where in the order of operations each buffer is needed, and which variables share one.

use super::{Part, bodies};
use crate::{
    ir::{Op, VarId, VarKind},
    kernel::MemorySpace,
};

/// A buffer that one or more variables have in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub bytes: usize,
    /// The first and the last operation that needs it.
    pub first: usize,
    pub last: usize,
}

#[derive(Debug)]
pub(super) struct Classes {
    pub all: Vec<Class>,
    /// The buffer of each variable of the arena.
    pub of: Vec<Option<usize>>,
}

pub(super) fn classes(part: &Part<'_>, outside: &[Option<(MemorySpace, usize)>]) -> Classes {
    let Part { program, n_samples, .. } = *part;
    let n_ops = part.ops.len();
    let last = last_reads(part);
    let mut classes = Classes { all: Vec::new(), of: vec![None; program.vars.len()] };
    // Feeds are copied in before the first operation.
    let is_fed = |id: VarId| program.var(id).kind == VarKind::Feed && outside[id.index()].is_none();
    for (id, var) in program.vars().filter(|(id, _)| is_fed(*id)) {
        let bytes = var.sig.bytes(n_samples);
        classes.of[id.index()] = Some(classes.all.len());
        classes.all.push(Class { bytes, first: 0, last: last[id.index()].unwrap_or(n_ops) });
    }
    for (at, &id) in part.ops.iter().enumerate() {
        let op = program.op(id);
        for (slot, &out) in op.outputs.iter().enumerate() {
            if program.var(out).kind != VarKind::Temp || outside[out.index()].is_some() {
                continue;
            }
            let end = last[out.index()].unwrap_or(at);
            match taken_over(part, op, slot, at, &classes) {
                Some(class) => {
                    classes.of[out.index()] = Some(class);
                    let class = &mut classes.all[class];
                    class.last = class.last.max(end);
                }
                None => {
                    classes.of[out.index()] = Some(classes.all.len());
                    classes.all.push(Class {
                        bytes: program.sig(out).bytes(n_samples),
                        first: at,
                        last: end,
                    });
                }
            }
        }
    }
    classes
}

/// The last operation that reads each variable; what is kept is read at the very end (MEMPLAN-4).
fn last_reads(part: &Part<'_>) -> Vec<Option<usize>> {
    let mut last = vec![None; part.program.vars.len()];
    for (at, &op) in part.ops.iter().enumerate() {
        for id in &part.program.op(op).inputs {
            last[id.index()] = Some(at);
        }
    }
    for id in part.kept {
        last[id.index()] = Some(part.ops.len());
    }
    last
}

/// The buffer of an input whose place this output may take.
fn taken_over(part: &Part<'_>, op: &Op, slot: usize, at: usize, classes: &Classes) -> Option<usize> {
    let Part { program, n_samples, .. } = *part;
    if !part.reuse.in_place {
        return None;
    }
    let operator = op.kind.operator();
    let out = program.sig(op.outputs[slot]);
    for &(input, _) in operator.shares().iter().filter(|&&(_, o)| o == slot) {
        let id = op.inputs[input];
        let same =
            program.sig(id).bytes(n_samples) == out.bytes(n_samples) && program.sig(id).form == out.form;
        // Sparse operands are reached through `rows`, which does not share.
        let once = op.inputs.iter().filter(|i| classes.of[i.index()] == classes.of[id.index()]).count() == 1;
        let Some(class) = classes.of[id.index()].filter(|_| same && once && out.is_dense()) else { continue };
        // The class's end covers every variable that ever had it, so what ends here ends for all of them.
        if classes.all[class].last == at && !written_here(op, slot, class, classes) {
            return Some(class);
        }
    }
    None
}

/// Whether an earlier output of the same operation has taken this buffer.
fn written_here(op: &Op, slot: usize, class: usize, classes: &Classes) -> bool {
    op.outputs[..slot].iter().any(|o| classes.of[o.index()] == Some(class))
}

/// Scratch bytes of each operation.
pub(super) fn scratch(part: &Part<'_>) -> Vec<usize> {
    let Part { program, n_samples, .. } = *part;
    let mut all = Vec::with_capacity(part.ops.len());
    for &id in part.ops {
        let op = program.op(id);
        let dims: Vec<Vec<usize>> = op.inputs.iter().map(|&i| program.sig(i).shape.at(n_samples)).collect();
        let dims: Vec<&[usize]> = dims.iter().map(Vec::as_slice).collect();
        let element = op.inputs.first().map_or(1, |&i| program.sig(i).dtype.size());
        let own = op.kind.operator().workspace(&dims, element);
        all.push(own.max(bodies::bytes(op, n_samples, part.reuse)));
    }
    all
}
