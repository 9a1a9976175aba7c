//! Batch norm with the statistics of all replicas, as a rewrite of the program.

use super::{BuildError, Graph};
use crate::{
    ir::{GraphError, Op, Program, Sig, Site, VarId, VarKind},
    op::{
        ChannelSquares, ChannelSum, OpKind, SyncNorm, SyncNormGrad, SyncNormSlopes, SyncNormStats, SyncSum,
    },
};
use std::collections::BTreeMap;

pub(super) fn apply(graph: &mut Graph) -> Result<(), BuildError> {
    let mut writing = Writing { program: graph.program.clone(), ops: Vec::new(), sums: BTreeMap::new() };
    for op in std::mem::take(&mut writing.program.ops) {
        match &op.kind {
            OpKind::BatchNorm(norm) => {
                let (momentum, epsilon) = (norm.momentum, norm.epsilon);
                writing.forward(op.clone(), SyncNormStats { momentum }, SyncNorm { epsilon })?;
            }
            // Only those whose forward was seen: any other mean is not the batch's.
            OpKind::BatchNormGrad(_) if writing.sums.contains_key(&op.inputs[2]) => writing.backward(op)?,
            _ => writing.ops.push(op),
        }
    }
    let Writing { mut program, ops, .. } = writing;
    program.ops = ops;
    graph.rewrite(program)
}

struct Writing {
    program: Program,
    ops: Vec<Op>,
    /// All sums, by the batch mean that came of them.
    sums: BTreeMap<VarId, VarId>,
}

impl Writing {
    fn op(&mut self, kind: impl Into<OpKind>, inputs: &[VarId], from: &Op) -> Result<Vec<VarId>, BuildError> {
        let kind = kind.into();
        let sigs: Vec<Sig> = inputs.iter().map(|&v| self.program.sig(v).clone()).collect();
        let inferred = kind.operator().infer(&sigs);
        let sigs = inferred.map_err(|why| GraphError::Misfit {
            op: kind.operator().name(),
            site: from.site.clone(),
            inputs: String::new(),
            why,
        })?;
        let mut outputs = Vec::new();
        for sig in sigs {
            outputs.push(self.temp(sig, from.site.clone())?);
        }
        let (role, site) = (from.role, from.site.clone());
        self.ops.push(Op { kind, inputs: inputs.to_vec(), outputs: outputs.clone(), role, site });
        Ok(outputs)
    }

    fn temp(&mut self, sig: Sig, site: Site) -> Result<VarId, BuildError> {
        let name = self.program.fresh("@SYNC@");
        Ok(self.program.declare(&name, sig, VarKind::Temp, site)?)
    }

    fn summed(&mut self, var: VarId, from: &Op) -> Result<VarId, BuildError> {
        Ok(self.op(SyncSum, &[var], from)?[0])
    }

    fn forward(&mut self, op: Op, stats: SyncNormStats, norm: SyncNorm) -> Result<(), BuildError> {
        let [x, scale, shift, mean, var] = op.inputs[..] else { unreachable!("infer saw five inputs") };
        let [y, new_mean, new_var, batch_mean, batch_inv] = op.outputs[..] else {
            unreachable!("infer gave five outputs")
        };
        let sums = self.op(ChannelSum, &[x], &op)?[0];
        let sums = self.summed(sums, &op)?;
        let squares = self.op(ChannelSquares, &[x, sums], &op)?[0];
        let squares = self.summed(squares, &op)?;
        self.sums.insert(batch_mean, sums);
        let (inputs, outputs) = (vec![mean, var, sums, squares], vec![new_mean, new_var]);
        self.ops.push(Op { kind: stats.into(), inputs, outputs, ..op.clone() });
        let (inputs, outputs) = (vec![x, scale, shift, sums, squares], vec![y, batch_mean, batch_inv]);
        self.ops.push(Op { kind: norm.into(), inputs, outputs, ..op });
        Ok(())
    }

    fn backward(&mut self, op: Op) -> Result<(), BuildError> {
        let [x, scale, mean, inv, dy] = op.inputs[..] else { unreachable!("infer saw five inputs") };
        let sums = self.sums[&mean];
        let both = self.temp(two(self.program.sig(scale)), op.site.clone())?;
        let outputs = vec![op.outputs[1], op.outputs[2], both];
        let inputs = vec![x, mean, inv, dy];
        self.ops.push(Op { kind: SyncNormSlopes.into(), inputs, outputs, ..op.clone() });
        let all = self.summed(both, &op)?;
        let inputs = vec![x, scale, mean, inv, dy, all, sums];
        let outputs = vec![op.outputs[0]];
        self.ops.push(Op { kind: SyncNormGrad.into(), inputs, outputs, ..op });
        Ok(())
    }
}

/// A vector twice as long.
fn two(sig: &Sig) -> Sig {
    let n = sig.shape.dims()[0].fixed().unwrap_or(0);
    Sig::dense(sig.dtype, [2 * n])
}
