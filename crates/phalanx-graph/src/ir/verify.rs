//! Proves that a program means something. Everything here can be caused by the user or by bytes from outside.

use super::{
    error::{GraphError, Misfit},
    program::{Op, Program, Site, VarId, VarKind},
    shape::{Dim, MAX_RANK},
    sig::{MAX_OUTPUTS, Sig},
};
use crate::op::OpKind;

pub(super) fn verify(program: &Program) -> Result<(), GraphError> {
    for (_, var) in program.vars() {
        countable(&var.name, &var.sig, &var.site)?;
        if var.is_persistable() && var.sig.shape.has_batch() {
            let (var, site, shape) = (var.name.clone(), var.site.clone(), var.sig.shape.clone());
            return Err(GraphError::BatchInStore { var, site, shape });
        }
    }
    let mut writer: Vec<Option<&Op>> = vec![None; program.vars.len()];
    for (_, op) in program.ops() {
        fits(program, op)?;
        for &id in &op.inputs {
            let var = program.var(id);
            if var.kind == VarKind::Temp && writer[id.index()].is_none() {
                let (op, site) = (op.name(), op.site.clone());
                return Err(GraphError::Unwritten { op, site, var: var.name.clone() });
            }
        }
        for &id in &op.outputs {
            written(program, op, id, writer[id.index()])?;
            writer[id.index()] = Some(op);
        }
    }
    for &(of, grad) in &program.grads {
        for id in [of, grad] {
            if id.index() >= program.vars.len() {
                return Err(GraphError::Unknown {
                    var: format!("number {}", id.index()),
                    site: Site::here(),
                });
            }
        }
    }
    Ok(())
}

fn written(program: &Program, op: &Op, id: VarId, first: Option<&Op>) -> Result<(), GraphError> {
    let var = program.var(id);
    match (&var.kind, first) {
        (VarKind::Feed, _) => {
            Err(GraphError::FeedWritten { op: op.name(), site: op.site.clone(), var: var.name.clone() })
        }
        (VarKind::Temp, Some(first)) => Err(GraphError::Rewritten {
            op: op.name(),
            site: op.site.clone(),
            var: var.name.clone(),
            first: first.name(),
            first_site: first.site.clone(),
        }),
        _ => Ok(()),
    }
}

/// Whether its elements can be counted whatever the batch.
pub(super) fn countable(name: &str, sig: &Sig, site: &Site) -> Result<(), GraphError> {
    /// No tensor has more bytes for one sample than this: beyond it, arithmetic on sizes could overflow.
    const MOST: usize = 1 << 44;
    let volume = sig.shape.volume().map(|v| v.at(1).saturating_mul(sig.dtype.size()));
    let is_mixed =
        sig.shape.dims().iter().skip(usize::from(!sig.is_dense())).any(|d| matches!(d, Dim::BatchPlus(..)));
    if sig.shape.rank() > MAX_RANK || volume.is_none_or(|v| v > MOST) || is_mixed {
        let (var, site, shape) = (name.to_string(), site.clone(), sig.shape.clone());
        return Err(GraphError::Uncountable { var, site, shape });
    }
    Ok(())
}

/// What the operation gives for these inputs.
pub(super) fn inferred(
    program: &Program,
    kind: &OpKind,
    inputs: &[VarId],
    site: &Site,
) -> Result<Vec<Sig>, GraphError> {
    let operator = kind.operator();
    if let Some(bad) = inputs.iter().find(|id| id.index() >= program.vars.len()) {
        let (index, n_vars) = (bad.index(), program.vars.len());
        return Err(GraphError::Dangling { op: operator.name(), site: site.clone(), index, n_vars });
    }
    let sigs: Vec<Sig> = inputs.iter().map(|&id| program.sig(id).clone()).collect();
    let few = |sigs: Vec<Sig>| match sigs.len() {
        got if got > MAX_OUTPUTS => Err(Misfit::Many { most: MAX_OUTPUTS, got }),
        _ => Ok(sigs),
    };
    operator.infer(&sigs).and_then(few).map_err(|why| {
        let named: Vec<String> =
            inputs.iter().map(|&id| format!("{}: {}", program.var(id).name, program.sig(id))).collect();
        GraphError::Misfit { op: operator.name(), site: site.clone(), inputs: named.join(", "), why }
    })
}

/// Whether the operation's outputs are what it gives (GRAPH-3).
pub(super) fn fits(program: &Program, op: &Op) -> Result<(), GraphError> {
    let sigs = inferred(program, &op.kind, &op.inputs, &op.site)?;
    if sigs.len() != op.outputs.len() {
        let (wanted, got) = (op.outputs.len(), sigs.len());
        return Err(GraphError::Outputs { op: op.name(), site: op.site.clone(), wanted, got });
    }
    for (&id, got) in op.outputs.iter().zip(sigs) {
        if id.index() >= program.vars.len() {
            let (index, n_vars) = (id.index(), program.vars.len());
            return Err(GraphError::Dangling { op: op.name(), site: op.site.clone(), index, n_vars });
        }
        let var = program.var(id);
        if var.sig != got {
            let (name, wanted, got) = (var.name.clone(), Box::new(var.sig.clone()), Box::new(got));
            return Err(GraphError::Output { op: op.name(), site: op.site.clone(), var: name, wanted, got });
        }
    }
    Ok(())
}
