//! The part of a program that computes given results.
//! - PRUNE-1: the results have the same bits as in the whole program.
//! - PRUNE-2: an operation stays if it writes a result, or a variable that a remaining operation reads later. If an update stays, so do
//!   operations that change the states it reads, even later ones, so that the next run finds the same states. No other operation stays.

use super::program::{Op, Program, Role, VarId, VarKind};

impl Program {
    /// Only what the targets need. Feeds, parameters and states that nothing needs any more are gone with the operations
    /// that used them. A target that lives in the store keeps the operations that change it; a target that is computed
    /// before an update does not keep the update.
    pub fn pruned(&self, targets: &[VarId]) -> Program {
        let mut wanted = targets.to_vec();
        loop {
            let kept = self.needed(&wanted);
            let before = wanted.len();
            let updates = kept.iter().filter(|op| matches!(op.role, Role::Optimize | Role::LrSched));
            for &id in updates.flat_map(|op| &op.inputs) {
                // Parameters aside: a norm over all gradients reads them too, and is no reason to learn them.
                let is_state = matches!(self.var(id).kind, VarKind::State(_));
                if is_state && !wanted.contains(&id) {
                    wanted.push(id);
                }
            }
            if wanted.len() == before {
                let mut stays = vec![false; self.vars.len()];
                let touched = kept.iter().flat_map(|op| op.inputs.iter().chain(&op.outputs));
                touched.chain(targets).for_each(|id| stays[id.index()] = true);
                return self.keeping(kept.into_iter().cloned().collect(), &stays);
            }
        }
    }

    /// The operations that write what is wanted, and those that write what these read, in the order of the program.
    fn needed(&self, wanted: &[VarId]) -> Vec<&Op> {
        let mut needed = vec![false; self.vars.len()];
        wanted.iter().for_each(|id| needed[id.index()] = true);
        let mut kept: Vec<&Op> = Vec::new();
        // From the end: what writes a variable after its last reader is of no use to that reader.
        for op in self.ops.iter().rev() {
            if op.outputs.iter().any(|out| needed[out.index()]) {
                op.inputs.iter().for_each(|input| needed[input.index()] = true);
                kept.push(op);
            }
        }
        kept.reverse();
        kept
    }
}
