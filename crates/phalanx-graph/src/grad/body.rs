//! Gradients within a body: it computes forward and backward in one program, from gradients that it takes.
//! - GRAD-4: gradients of a body are dense, and zeros where nothing depends on the variable.

use super::{Found, grad_name, walk, wanted};
use crate::{
    ir::{Body, GraphError, Program, Role, VarId, VarKind},
    op::{Assign, Fill, RowsToDense},
};

/// A body that takes what this one does and after it a gradient for each value `of` those it gives; it gives the
/// gradients of the values `wrt` that it takes. Both count from 0. Nothing goes back from a gradient that is not `live`: it
/// is zero, and zero times infinity would not be.
pub(crate) fn backward(
    body: &Body,
    of: &[usize],
    live: impl Fn(usize) -> bool,
    wrt: &[usize],
) -> Result<Body, GraphError> {
    let mut program = body.program().clone();
    let takes: Vec<VarId> = body.takes().collect();
    let wrt: Vec<VarId> = wrt.iter().map(|&i| takes[i]).collect();
    let n_forward = program.ops.len();
    let wanted = wanted(&program, &wrt, &[]);
    let mut seeds = Vec::with_capacity(of.len());
    for &i in of {
        let id = body.gives()[i];
        let name = program.fresh(&format!("{}@GIVEN", grad_name(&program, id)));
        let (sig, site) = (program.sig(id).clone(), program.var(id).site.clone());
        let seed = program.declare(&name, sig, VarKind::Feed, site)?;
        if live(i) {
            seeds.push((id, seed));
        }
    }
    let mut found = Found::default();
    seeds.into_iter().for_each(|(id, seed)| found.push(id, seed));
    walk(&mut program, n_forward, &wanted, &mut found, "what the body gives")?;
    let mut gives: Vec<VarId> = Vec::with_capacity(wrt.len());
    for &id in &wrt {
        let whole = found.whole(&mut program, id)?;
        let d = own(&mut program, id, whole, &gives)?;
        gives.push(d);
    }
    program.grads.extend(found.whole);
    Ok(Body::new(program, gives))
}

/// A dense gradient that the body computes and that no other value has (GRAD-4).
fn own(
    program: &mut Program,
    of: VarId,
    found: Option<VarId>,
    others: &[VarId],
) -> Result<VarId, GraphError> {
    let (name, site) = (program.fresh(&grad_name(program, of)), program.var(of).site.clone());
    let Some(d) = found else {
        let sig = program.sig(of).clone();
        let zeros = Fill { dtype: sig.dtype, shape: sig.shape, value: 0.0 };
        return Ok(program.append(zeros, &[], &name, Role::Backward, site)?[0]);
    };
    if !program.sig(d).is_dense() {
        return Ok(program.append(RowsToDense, &[d], &name, Role::Backward, site)?[0]);
    }
    if program.var(d).kind == VarKind::Temp && !others.contains(&d) {
        return Ok(d);
    }
    Ok(program.append(Assign, &[d], &name, Role::Backward, site)?[0])
}
