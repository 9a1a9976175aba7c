//! Autodiff as a rewrite: appends to a program the operations that compute gradients.
//! - GRAD-1: every operation that has a gradient rule is checked against finite differences.
//! - GRAD-2: what several operations contribute to one gradient is added up by one `sum`, in program order from the last.
//! - GRAD-3: every parameter's gradient is a variable of its own, written by one operation: its birth.

mod accumulate;
mod body;
mod recompute;

use crate::{
    ir::{GraphError, Op, Program, Role, Sig, Site, VarId, VarKind},
    op::{Assign, LossGrad, OpKind, Sum},
};
use std::collections::BTreeSet;

pub use accumulate::{RUN, accumulate};
pub(crate) use body::backward;
pub use recompute::{append_backward_with, recompute};

/// What one operation's gradient rule works with.
#[derive(Debug)]
pub struct Grad<'a> {
    program: &'a mut Program,
    op: &'a Op,
    dy: Vec<Option<VarId>>,
    wants: Vec<bool>,
    found: Vec<(VarId, VarId)>,
}

impl Grad<'_> {
    /// An input of the operation.
    pub fn x(&self, slot: usize) -> VarId {
        self.op.inputs[slot]
    }

    /// An output of the operation.
    pub fn y(&self, slot: usize) -> VarId {
        self.op.outputs[slot]
    }

    /// The gradient of an output that has one.
    pub fn dy(&self, slot: usize) -> VarId {
        self.dy[slot].expect("rules ask `has_dy` where an output may have none")
    }

    pub fn has_dy(&self, slot: usize) -> bool {
        self.dy[slot].is_some()
    }

    pub fn n_inputs(&self) -> usize {
        self.op.inputs.len()
    }

    /// Whether anybody wants the gradient of this input.
    pub fn wants(&self, slot: usize) -> bool {
        self.wants[slot]
    }

    pub fn sig(&self, var: VarId) -> &Sig {
        self.program.sig(var)
    }

    pub fn emit_all(&mut self, kind: impl Into<OpKind>, inputs: &[VarId]) -> Result<Vec<VarId>, GraphError> {
        let name = format!("{}@GRAD@PART", self.program.var(self.op.outputs[0]).name);
        self.program.append(kind, inputs, &name, Role::Backward, self.op.site.clone())
    }

    /// Adds an operation with one output.
    pub fn emit(&mut self, kind: impl Into<OpKind>, inputs: &[VarId]) -> Result<VarId, GraphError> {
        Ok(self.emit_all(kind, inputs)?[0])
    }

    /// Adds an operation whose output is a contribution to this input's gradient, if anybody wants it.
    pub fn give(
        &mut self,
        slot: usize,
        kind: impl Into<OpKind>,
        inputs: &[VarId],
    ) -> Result<bool, GraphError> {
        if self.wants(slot) {
            let d = self.emit(kind, inputs)?;
            self.pass(slot, d)?;
        }
        Ok(true)
    }

    /// A variable that already is a contribution to this input's gradient.
    pub fn pass(&mut self, slot: usize, d: VarId) -> Result<bool, GraphError> {
        if self.wants.get(slot).copied().unwrap_or(false) {
            self.found.push((self.x(slot), d));
        }
        Ok(true)
    }
}

/// Appends the gradients of a loss to all parameters that are learned, `without` those named. Gives each parameter with its
/// gradient, in the order they were declared.
#[track_caller]
pub fn append_backward(
    program: &mut Program,
    loss: VarId,
    without: &[VarId],
) -> Result<Vec<(VarId, VarId)>, GraphError> {
    let wrt: Vec<VarId> = program.trainable();
    append_gradients(program, loss, &wrt, without)
}

/// The same for any variables.
#[track_caller]
pub fn append_gradients(
    program: &mut Program,
    loss: VarId,
    wrt: &[VarId],
    without: &[VarId],
) -> Result<Vec<(VarId, VarId)>, GraphError> {
    let site = Site::here();
    check(program, loss, &site)?;
    let n_forward = program.ops.len();
    let wanted = wanted(program, wrt, without);
    if !wanted.contains(&loss) {
        return Err(GraphError::NothingToLearn { loss: program.var(loss).name.clone(), site });
    }
    let mut parts: Vec<Vec<VarId>> = vec![Vec::new(); program.vars.len()];
    let start = program.append(LossGrad, &[loss], &grad_name(program, loss), Role::Loss, site)?[0];
    parts[loss.index()].push(start);
    let name = program.var(loss).name.clone();
    walk(program, n_forward, &wanted, &mut parts, &name)?;
    let mut pairs = Vec::new();
    for &var in wrt.iter().filter(|v| !without.contains(v)) {
        if let Some(d) = gathered(program, var, &mut parts)? {
            pairs.push((var, own(program, var, d)?));
        }
    }
    Ok(pairs)
}

/// Backwards through the first operations of a program, from the gradients that are in `parts`.
fn walk(
    program: &mut Program,
    n_forward: usize,
    wanted: &BTreeSet<VarId>,
    parts: &mut Vec<Vec<VarId>>,
    loss: &str,
) -> Result<(), GraphError> {
    for index in (0..n_forward).rev() {
        let op = program.ops[index].clone();
        let mut dy = Vec::with_capacity(op.outputs.len());
        for &out in &op.outputs {
            // An output that lives in the store carries state to the next run, not to the loss.
            let is_temp = program.var(out).kind == VarKind::Temp;
            dy.push(if is_temp { gathered(program, out, parts)? } else { None });
        }
        if dy.iter().all(Option::is_none) {
            continue;
        }
        let wants: Vec<bool> = op.inputs.iter().map(|id| wanted.contains(id)).collect();
        if !wants.contains(&true) {
            continue;
        }
        let mut grad = Grad { program, op: &op, dy, wants, found: Vec::new() };
        let has_rule = op.kind.operator().grad(&mut grad)?;
        let found = grad.found;
        if !has_rule {
            let through = op.inputs.iter().find(|id| wanted.contains(id)).expect("one is wanted");
            let (var, loss) = (program.var(*through).name.clone(), loss.to_string());
            return Err(GraphError::NoGradient { op: op.name(), site: op.site, var, loss });
        }
        for (of, d) in found {
            parts[of.index()].push(d);
        }
    }
    Ok(())
}

fn check(program: &Program, loss: VarId, site: &Site) -> Result<(), GraphError> {
    if loss.index() >= program.vars.len() {
        return Err(GraphError::Unknown { var: format!("number {}", loss.index()), site: site.clone() });
    }
    if !program.is_scalar(loss) {
        let var = program.var(loss);
        return Err(GraphError::NotScalar {
            var: var.name.clone(),
            site: site.clone(),
            got: var.sig.clone(),
        });
    }
    if program.grad(loss).is_some() {
        return Err(GraphError::BackwardTwice { site: site.clone() });
    }
    Ok(())
}

fn grad_name(program: &Program, var: VarId) -> String {
    format!("{}@GRAD", program.var(var).name)
}

/// Variables through which the loss may depend on what is asked for.
fn wanted(program: &Program, wrt: &[VarId], without: &[VarId]) -> BTreeSet<VarId> {
    let mut wanted: BTreeSet<VarId> = wrt.iter().copied().collect();
    for id in without {
        wanted.remove(id);
    }
    for (_, op) in program.ops() {
        if op.inputs.iter().any(|i| wanted.contains(i)) {
            let temps = op.outputs.iter().filter(|o| program.var(**o).kind == VarKind::Temp);
            wanted.extend(temps.filter(|o| program.sig(**o).dtype.is_float() && !without.contains(o)));
        }
    }
    wanted
}

/// The whole gradient of a variable, once all its readers have contributed (GRAD-2).
fn gathered(
    program: &mut Program,
    var: VarId,
    parts: &mut Vec<Vec<VarId>>,
) -> Result<Option<VarId>, GraphError> {
    if let Some(done) = program.grad(var) {
        return Ok(Some(done));
    }
    parts.resize(program.vars.len(), Vec::new());
    let mut own = std::mem::take(&mut parts[var.index()]);
    let any_dense = own.iter().any(|&p| program.sig(p).is_dense());
    for part in &mut own {
        if any_dense && !program.sig(*part).is_dense() {
            let (name, site) = (grad_name(program, var), program.var(var).site.clone());
            *part = program.append(crate::op::RowsToDense, &[*part], &name, Role::Backward, site)?[0];
        }
    }
    let whole = match own.as_slice() {
        [] => return Ok(None),
        [one] => {
            let is_part = program.var(*one).name.contains("@GRAD@PART");
            let name = grad_name(program, var);
            if is_part && program.find(&name).is_none() {
                program.rename(*one, name);
            }
            *one
        }
        many => {
            let (name, site) = (grad_name(program, var), program.var(var).site.clone());
            program.append(Sum, many, &name, Role::Backward, site)?[0]
        }
    };
    program.grads.insert(var, whole);
    Ok(Some(whole))
}

/// Gives a parameter a gradient of its own where it shares one (GRAD-3).
fn own(program: &mut Program, var: VarId, d: VarId) -> Result<VarId, GraphError> {
    let shared = program.grads.iter().any(|(&of, &g)| g == d && of != var);
    if !shared {
        return Ok(d);
    }
    program.grads.remove(&var);
    let (name, site) = (grad_name(program, var), program.var(var).site.clone());
    let name = program.fresh(&name);
    let copy = program.append(Assign, &[d], &name, Role::Backward, site)?[0];
    program.grads.insert(var, copy);
    Ok(copy)
}
