//! Memory for time: what lies between checkpoints is not kept for the backward part but computed again there.
//! - AGAIN-1: kernels and random numbers are functions of their inputs, the run and the place in the batch, so what is
//!   computed again has the same bits, and so has everything that is learned.

use crate::ir::{GraphError, Op, OpId, Program, Role, Site, VarId, VarKind};

/// Rewrites a program that has its gradients already: backward operations that read a variable of the network which is no
/// checkpoint read a second version of it, computed from the checkpoints just before. What comes after the last checkpoint
/// is kept, because backward begins with it; so is what an operation gives that also changes a state (batch norm).
/// Gives how many operations are done again.
#[track_caller]
pub fn recompute(program: &mut Program, checkpoints: &[VarId]) -> Result<usize, GraphError> {
    let site = Site::here();
    if let Some(bad) = checkpoints.iter().find(|c| c.index() >= program.vars.len()) {
        return Err(GraphError::Unknown { var: format!("number {}", bad.index()), site });
    }
    let Some(loss) = program.ops.iter().position(|op| op.role == Role::Loss) else { return Ok(0) };
    let mut producer: Vec<Option<OpId>> = vec![None; program.vars.len()];
    for (id, op) in program.ops().filter(|(id, _)| id.index() < loss) {
        op.outputs.iter().for_each(|out| producer[out.index()] = Some(id));
    }
    let last = checkpoints.iter().filter_map(|c| producer[c.index()]).max();
    let Some(last) = last else { return Ok(0) };
    let is_pure = |op: &Op| op.outputs.iter().all(|&out| program.var(out).kind == VarKind::Temp);
    let again: Vec<Option<OpId>> = producer
        .iter()
        .enumerate()
        .map(|(var, op)| {
            let is_kept = checkpoints.iter().any(|c| c.index() == var);
            op.filter(|&op| !is_kept && op <= last && is_pure(program.op(op)))
        })
        .collect();
    let ops = std::mem::take(&mut program.ops);
    let mut writing = Writing { program, old: &ops, again, second: Vec::new(), new: Vec::new(), n: 0 };
    writing.second = vec![None; writing.again.len()];
    for op in &ops {
        let mut op = op.clone();
        if op.role == Role::Backward {
            for input in &mut op.inputs {
                *input = writing.second(*input)?;
            }
        }
        writing.new.push(op);
    }
    let (new, n) = (writing.new, writing.n);
    program.ops = new;
    program.verify()?;
    Ok(n)
}

struct Writing<'a> {
    program: &'a mut Program,
    old: &'a [Op],
    /// Which operation is to be done again for each variable.
    again: Vec<Option<OpId>>,
    /// The second version of each variable that has one by now.
    second: Vec<Option<VarId>>,
    new: Vec<Op>,
    n: usize,
}

impl Writing<'_> {
    /// What a backward operation reads in the place of a variable. Works on a list instead of calling itself: networks
    /// are deep.
    fn second(&mut self, var: VarId) -> Result<VarId, GraphError> {
        let old = self.old;
        let mut todo = vec![var];
        while let Some(&next) = todo.last() {
            let wanted = |v: VarId| self.again.get(v.index()).copied().flatten();
            let Some(id) = wanted(next).filter(|_| self.second[next.index()].is_none()) else {
                todo.pop();
                continue;
            };
            let op = &old[id.index()];
            let before = todo.len();
            let missing = |v: &&VarId| wanted(**v).is_some() && self.second[v.index()].is_none();
            todo.extend(op.inputs.iter().filter(missing));
            if todo.len() == before {
                self.again_op(op)?;
            }
        }
        Ok(self.known(var))
    }

    fn known(&self, var: VarId) -> VarId {
        self.second.get(var.index()).copied().flatten().unwrap_or(var)
    }

    fn again_op(&mut self, op: &Op) -> Result<(), GraphError> {
        let inputs = op.inputs.iter().map(|&v| self.known(v)).collect();
        let mut outputs = Vec::with_capacity(op.outputs.len());
        for &out in &op.outputs {
            let name = self.program.fresh(&format!("{}@AGAIN", self.program.var(out).name));
            let sig = self.program.sig(out).clone();
            let new = self.program.declare(&name, sig, VarKind::Temp, op.site.clone())?;
            self.second[out.index()] = Some(new);
            outputs.push(new);
        }
        self.n += 1;
        self.new.push(Op { inputs, outputs, role: Role::Backward, ..op.clone() });
        Ok(())
    }
}
