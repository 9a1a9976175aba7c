//! Autodiff as a rewrite: appends to a program the operations that compute gradients.
//! - GRAD-1: every operation that has a gradient rule is checked against finite differences.
//! - GRAD-2: the contributions of several operations to one gradient are added up by one `sum`, in program order from the last.
//! - GRAD-3: every parameter's gradient is a variable of its own, written by one operation: its birth.
//! - GRAD-5: each loss has gradients of its own, from the parameters with which it was computed.

mod accumulate;
mod body;
mod moment;
mod recompute;

use crate::{
    ir::{GraphError, Op, Program, Role, Sig, Site, VarId, VarKind},
    op::{Assign, LossGrad, OpKind, Sum},
};
use std::collections::{BTreeMap, BTreeSet};

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

/// Which parameters a loss is differentiated for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chosen<'a> {
    /// These; or all that are learned.
    pub only: Option<&'a [VarId]>,
    /// No gradient goes to these variables or through them.
    pub without: &'a [VarId],
}

/// Appends the gradients of a loss to all parameters that are learned, `without` those named. Gives each parameter with its
/// gradient, in the order they were declared.
#[track_caller]
pub fn append_backward(
    program: &mut Program,
    loss: VarId,
    without: &[VarId],
) -> Result<Vec<(VarId, VarId)>, GraphError> {
    append_backward_of(program, loss, Chosen { only: None, without })
}

/// The same for the parameters that were chosen. What is fed and does not stop gradients gets one, too.
#[track_caller]
pub fn append_backward_of(
    program: &mut Program,
    loss: VarId,
    chosen: Chosen<'_>,
) -> Result<Vec<(VarId, VarId)>, GraphError> {
    let learned = match chosen.only {
        Some(only) => only.to_vec(),
        None => program.trainable(),
    };
    let fed = program.vars().filter(|(_, v)| v.kind == VarKind::Feed && v.stops == Some(false));
    let mut wrt = learned.clone();
    wrt.extend(fed.map(|(id, _)| id));
    let mut pairs = append_gradients(program, loss, &wrt, chosen.without)?;
    pairs.retain(|(of, _)| learned.contains(of));
    Ok(pairs)
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
    let wrt: Vec<VarId> = wrt.iter().copied().filter(|v| !without.contains(v)).collect();
    not_twice(program, loss, &wrt, &site)?;
    let moment = moment::of(program, loss, &wanted, &site)?;
    let mut found = Found::default();
    let name = free_name(program, loss);
    let start = program.append(LossGrad, &[loss], &name, Role::Loss, site)?[0];
    found.push(loss, start);
    let name = program.var(loss).name.clone();
    walk(program, n_forward, &wanted, &mut found, &name)?;
    let mut pairs = Vec::new();
    for &var in &wrt {
        if let Some(d) = found.whole(program, var)? {
            pairs.push((var, found.own(program, var, d)?));
        }
    }
    program.grads.extend(found.whole);
    // GRAD-5
    let n_new = program.ops.len() - n_forward;
    program.ops[moment..].rotate_right(n_new);
    Ok(pairs)
}

/// Backwards through the first operations of a program, from the gradients that were found.
fn walk(
    program: &mut Program,
    n_forward: usize,
    wanted: &BTreeSet<VarId>,
    found: &mut Found,
    loss: &str,
) -> Result<(), GraphError> {
    for index in (0..n_forward).rev() {
        let op = program.ops[index].clone();
        let mut dy = Vec::with_capacity(op.outputs.len());
        for &out in &op.outputs {
            // An output that lives in the store carries state to the next run, not to the loss.
            let is_temp = program.var(out).kind == VarKind::Temp;
            dy.push(if is_temp { found.whole(program, out)? } else { None });
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
        let given = grad.found;
        if !has_rule {
            let through = op.inputs.iter().find(|id| wanted.contains(id)).expect("one is wanted");
            let (var, loss) = (program.var(*through).name.clone(), loss.to_string());
            return Err(GraphError::NoGradient { op: op.name(), site: op.site, var, loss });
        }
        given.into_iter().for_each(|(of, d)| found.push(of, d));
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
    Ok(())
}

/// A loss may be differentiated again for other parameters. For the same ones it would be learned from twice.
fn not_twice(program: &Program, loss: VarId, wrt: &[VarId], site: &Site) -> Result<(), GraphError> {
    let mut follows = vec![false; program.vars.len()];
    for (_, op) in program.ops() {
        let begins = op.role == Role::Loss && op.inputs[0] == loss;
        let goes_on = op.role == Role::Backward && op.inputs.iter().any(|id| follows[id.index()]);
        if begins || goes_on {
            op.outputs.iter().for_each(|out| follows[out.index()] = true);
        }
    }
    let is_parameter = |of: &VarId| matches!(program.var(*of).kind, VarKind::Parameter(_));
    let twice = |(of, g): &&(VarId, VarId)| wrt.contains(of) && is_parameter(of) && follows[g.index()];
    match program.grads.iter().find(twice) {
        Some((of, _)) => {
            let (loss, var) = (program.var(loss).name.clone(), program.var(*of).name.clone());
            Err(GraphError::BackwardTwice { loss, var, site: site.clone() })
        }
        None => Ok(()),
    }
}

fn grad_name(program: &Program, var: VarId) -> String {
    format!("{}@GRAD", program.var(var).name)
}

/// The name of a gradient; of a second loss, with a number.
fn free_name(program: &Program, var: VarId) -> String {
    let first = grad_name(program, var);
    if program.find(&first).is_none() {
        return first;
    }
    let numbered = (1..).map(|i| format!("{first}.{i}"));
    numbered.into_iter().find(|n| program.find(n).is_none()).expect("names never run out")
}

/// Variables through which the loss may depend on what is asked for.
fn wanted(program: &Program, wrt: &[VarId], without: &[VarId]) -> BTreeSet<VarId> {
    let ends = |id: &VarId| without.contains(id) || program.var(*id).stops == Some(true);
    let mut wanted: BTreeSet<VarId> = wrt.iter().copied().filter(|id| !ends(id)).collect();
    for (_, op) in program.ops() {
        if op.inputs.iter().any(|i| wanted.contains(i)) {
            let temps = op.outputs.iter().filter(|o| program.var(**o).kind == VarKind::Temp);
            wanted.extend(temps.filter(|o| program.sig(**o).dtype.is_float() && !ends(o)));
        }
    }
    wanted
}

/// Gradients of one loss, as far as they are known.
#[derive(Debug, Default)]
struct Found {
    parts: BTreeMap<VarId, Vec<VarId>>,
    whole: BTreeMap<VarId, VarId>,
}

impl Found {
    fn push(&mut self, of: VarId, part: VarId) {
        self.parts.entry(of).or_default().push(part);
    }

    /// The whole gradient of a variable, once all its readers have contributed (GRAD-2).
    fn whole(&mut self, program: &mut Program, var: VarId) -> Result<Option<VarId>, GraphError> {
        if let Some(&done) = self.whole.get(&var) {
            return Ok(Some(done));
        }
        let mut own = self.parts.remove(&var).unwrap_or_default();
        let any_dense = own.iter().any(|&p| program.sig(p).is_dense());
        let (name, site) = (free_name(program, var), program.var(var).site.clone());
        for part in &mut own {
            if any_dense && !program.sig(*part).is_dense() {
                let dense = crate::op::RowsToDense;
                *part = program.append(dense, &[*part], &name, Role::Backward, site.clone())?[0];
            }
        }
        let whole = match own.as_slice() {
            [] => return Ok(None),
            [one] => {
                if program.var(*one).name.contains("@GRAD@PART") {
                    program.rename(*one, name);
                }
                *one
            }
            many => program.append(Sum, many, &name, Role::Backward, site)?[0],
        };
        self.whole.insert(var, whole);
        Ok(Some(whole))
    }

    /// Gives a parameter a gradient of its own where it shares one (GRAD-3).
    fn own(&mut self, program: &mut Program, var: VarId, d: VarId) -> Result<VarId, GraphError> {
        let shared = self.whole.iter().any(|(&of, &g)| g == d && of != var);
        if !shared {
            return Ok(d);
        }
        let (name, site) = (free_name(program, var), program.var(var).site.clone());
        let copy = program.append(Assign, &[d], &name, Role::Backward, site)?[0];
        self.whole.insert(var, copy);
        Ok(copy)
    }
}
