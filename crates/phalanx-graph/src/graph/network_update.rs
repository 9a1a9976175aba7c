//! A training program as network and update, for replicas that each run the network alone and the update one at a time.
//! - HALVES-1: the network comes first and the update follows; each half has its operations in the order of the program.

use super::{error::BuildError, parts};
use crate::ir::{Op, Program, VarId};

/// What a program is made of.
#[derive(Clone, Debug)]
pub struct Halves {
    /// The same program, in the order of HALVES-1.
    pub program: Program,
    /// How many operations are the network's: forward and backward.
    pub n_network: usize,
    /// Everything in the store that the network reads or writes.
    pub seen: Vec<VarId>,
    /// What the network writes there: statistics.
    pub statistics: Vec<VarId>,
    /// What the network sees and a step changes. States of the optimizer are not among it.
    pub fresh: Vec<VarId>,
}

impl Halves {
    pub fn new(program: &Program) -> Result<Halves, BuildError> {
        program.verify()?;
        let is_tail = parts::tail(program)?;
        let half = |of: bool| {
            let ops = program.ops.iter().zip(&is_tail).filter(|(_, is)| **is == of);
            ops.map(|(op, _)| op.clone()).collect::<Vec<Op>>()
        };
        let (network, update) = (half(false), half(true));
        let stored = |ops: &[Op], of: fn(&Op) -> &[VarId]| {
            let mut found: Vec<VarId> = ops.iter().flat_map(of).copied().collect();
            found.retain(|&id| program.var(id).is_persistable());
            found.sort();
            found.dedup();
            found
        };
        let statistics = stored(&network, |op| &op.outputs);
        let mut seen = stored(&network, |op| &op.inputs);
        seen.extend(statistics.iter().filter(|id| !seen.contains(id)).copied().collect::<Vec<_>>());
        let n_network = network.len();
        let mut ordered = program.clone();
        ordered.ops = network;
        ordered.ops.extend(update);
        ordered.verify()?;
        let written = stored(&ordered.ops, |op| &op.outputs);
        let fresh = seen.iter().filter(|id| written.contains(id)).copied().collect();
        Ok(Halves { program: ordered, n_network, seen, statistics, fresh })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Act, BATCH, Builder, Dim, Optimizer, Role, Rule,
        layers::BatchNormOptions,
        op::{Func, Unary},
    };
    use phalanx_core::DType;

    #[test]
    fn the_network_comes_first_and_each_half_keeps_its_order() {
        // HALVES-1
        let mut b = Builder::new();
        let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3)]).unwrap();
        let h = b.fc(x, 4, Act::Tanh).unwrap();
        let h = b.batch_norm(h, BatchNormOptions::default()).unwrap();
        let loss = b.mean(h).unwrap();
        let mut program = b.finish().unwrap();
        let n_forward = program.ops.len();
        Optimizer::new(Rule::adam(), 0.1).minimize(&mut program, loss).unwrap();
        let n_written = program.ops.len();
        // Behind the update: what sees nothing of it is the network's, what does is the update's.
        let (w, site) = (program.find("fc.w").unwrap(), program.var(loss).site.clone());
        let scale = Unary(Func::Scale { a: 2.0, b: 0.0 });
        program.append(scale, &[h], "aside", Role::Forward, site.clone()).unwrap();
        program.append(scale, &[w], "after", Role::Forward, site).unwrap();
        let halves = Halves::new(&program).unwrap();
        assert_eq!(halves.program.ops.len(), program.ops.len());
        let is_update = |op: &Op| matches!(op.role, Role::Optimize | Role::LrSched);
        let (network, update) = halves.program.ops.split_at(halves.n_network);
        assert!(network.iter().all(|op| !is_update(op)) && network.len() > n_forward);
        assert_eq!(network.last(), program.ops.get(n_written));
        assert_eq!(update.last(), program.ops.last());
        let order = |ops: &[Op]| -> Vec<usize> {
            ops.iter().map(|op| program.ops.iter().position(|o| o == op).unwrap()).collect()
        };
        assert!(order(network).is_sorted() && order(update).is_sorted());
        let names =
            |ids: &[VarId]| -> Vec<String> { ids.iter().map(|&id| program.var(id).name.clone()).collect() };
        assert_eq!(names(&halves.statistics), ["bn.mean", "bn.var"]);
        assert_eq!(names(&halves.seen), names(&halves.fresh), "everything here is learned");
        let mut seen = names(&halves.seen);
        seen.sort();
        assert_eq!(seen, ["bn.mean", "bn.scale", "bn.shift", "bn.var", "fc.b", "fc.w"]);
    }
}
