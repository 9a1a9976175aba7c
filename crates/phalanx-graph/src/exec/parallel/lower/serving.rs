//! Calls to servers as tasks: some that ask, and some that store the answers.
//! - SERVING-1: the update calls servers one call after the other, in the order of the program, whatever threads are idle. Processes that
//!   call in different orders would wait for each other: what comes back of a dense parameter, and squares, need the pushes of all.

use super::{Called, Lowering, What, whole};
use crate::{
    ir::{Op, OpId, Storage, VarId},
    kernel::{MemorySpace, Operand},
    op::OpKind,
};

impl Lowering<'_> {
    /// Each copy that has samples asks, and gets its part of the answer.
    pub(super) fn pull(&mut self, node: usize, op: OpId, copies: &[usize], after: &[u32]) {
        let desk = self.answers.len();
        let busy: Vec<usize> = copies.iter().copied().filter(|&copy| self.bodies[copy].is_some()).collect();
        let n = self.graph.settings.replicas;
        let begun = self.draft.len() as u32;
        for answers in [false, true] {
            for (slot, &copy) in busy.iter().enumerate() {
                let body = self.bodies[copy].as_ref().expect("it is busy");
                let step = &body.steps()[self.body_at[copy][op.index()]];
                let called = match answers {
                    false => Called {
                        what: What::Ask(op, desk, slot),
                        step: whole(step.inputs().to_vec(), vec![]),
                    },
                    true => Called { what: What::Answer(op, desk, slot), step: step.clone() },
                };
                self.task(node, copy, copy % n, vec![called], after);
            }
        }
        let asked = begun + busy.len() as u32;
        self.answers.push((asked..self.draft.len() as u32).collect());
    }

    /// The gradients of all replicas together, and the rate. What comes back goes to every copy of the parameter.
    pub(super) fn push(&mut self, node: usize, op: OpId, after: &[u32]) {
        let graph = self.graph;
        let Op { kind, inputs, outputs, .. } = graph.program.op(op);
        if matches!(kind, OpKind::PushRows(push) if push.waits) && self.is_idle() {
            return;
        }
        let g = inputs[0];
        let sig = graph.program.sig(g);
        let mut from: Vec<Operand> = match sig.form {
            Storage::Dense => {
                let bytes = 0..sig.bytes(0);
                let of_body = || self.bodies[0].as_ref().and_then(|body| body.operand(g).cloned());
                let summed = self.shared.in_tail(g).map(|at| self.flat(g, at, bytes));
                summed.or_else(of_body).into_iter().collect()
            }
            Storage::Rows { .. } => {
                let (_, each) = self.shared.pushed.iter().find(|(v, _)| *v == g).expect("it has its place");
                let busy = each.iter().zip(&self.signature.sizes).filter(|(_, n)| **n > 0);
                let rows = |(&offset, &n): (&usize, &usize)| Operand {
                    place: MemorySpace::Shared,
                    offset,
                    bytes: sig.bytes(n),
                    dtype: sig.dtype,
                    dims: sig.shape.at(n),
                    form: sig.form,
                };
                busy.map(rows).collect()
            }
        };
        from.push(self.stored(inputs[1], 0));
        let to = self.copies(outputs);
        self.call(node, op, from, to, after);
    }

    /// What servers are asked in the middle of an update, and tell all replicas.
    pub(super) fn serve(&mut self, node: usize, op: OpId, after: &[u32]) {
        if self.is_idle() {
            return;
        }
        let at = self.tail_at[op.index()];
        let Op { kind, outputs, .. } = self.graph.program.op(op);
        match kind {
            OpKind::ServedSquares(_) => self.squares(node, op, at, after),
            _ => {
                let (from, to) = (self.tails[0].steps()[at].inputs().to_vec(), self.copies(outputs));
                self.call(node, op, from, to, after);
            }
        }
    }

    /// Each replica that computes the update by itself asks, the last one for all, and has the answer in its own memory.
    fn squares(&mut self, node: usize, op: OpId, at: usize, after: &[u32]) {
        let (desk, home) = (self.answers.len(), self.n_threads - 1);
        let begun = self.draft.len() as u32;
        for slot in 0..self.tails.len() {
            let asked = self.last_call.replace(self.draft.len() as u32);
            let after: Vec<u32> = after.iter().copied().chain(asked).collect();
            let ask = Called { what: What::Ask(op, desk, slot), step: whole(vec![], vec![]) };
            self.task(node, slot, home, vec![ask], &after);
        }
        let asks: Vec<u32> = (begun..self.draft.len() as u32).collect();
        let answered = self.draft.len() as u32;
        for slot in 0..self.tails.len() {
            let to = self.tails[slot].steps()[at].outputs().to_vec();
            let answer = Called { what: What::Answer(op, desk, slot), step: whole(vec![], to) };
            self.task(node, slot, home, vec![answer], &asks);
        }
        self.answers.push((answered..self.draft.len() as u32).collect());
    }

    /// Where nothing is reduced, a replica without samples has learned nothing: no gradient of it waits.
    fn is_idle(&self) -> bool {
        !self.graph.settings.is_reduced() && self.bodies[0].is_none()
    }

    fn stored(&self, var: VarId, replica: usize) -> Operand {
        let (sig, place) =
            (self.graph.program.sig(var), MemorySpace::Store(self.places[replica][var.index()]));
        let (bytes, dims) = (sig.bytes(0), sig.shape.at(0));
        Operand { place, offset: 0, bytes, dtype: sig.dtype, dims, form: sig.form }
    }

    /// The parameters of all replicas, each buffer once.
    fn copies(&self, vars: &[VarId]) -> Vec<Operand> {
        let mut to: Vec<Operand> = Vec::new();
        for copy in vars.iter().flat_map(|&p| (0..self.graph.settings.replicas).map(move |r| (p, r))) {
            let operand = self.stored(copy.0, copy.1);
            if !to.contains(&operand) {
                to.push(operand);
            }
        }
        to
    }

    /// One task that asks, behind the call before, and one that stores the answer.
    fn call(&mut self, node: usize, op: OpId, from: Vec<Operand>, to: Vec<Operand>, after: &[u32]) {
        let (desk, home) = (self.answers.len(), self.n_threads - 1);
        let begun = self.draft.len() as u32;
        let after: Vec<u32> = after.iter().copied().chain(self.last_call.replace(begun)).collect();
        let ask = Called { what: What::Ask(op, desk, 0), step: whole(from, vec![]) };
        self.task(node, 0, home, vec![ask], &after);
        self.answers.push(vec![self.draft.len() as u32]);
        let answer = Called { what: What::Answer(op, desk, 0), step: whole(vec![], to) };
        self.task(node, 0, home, vec![answer], &[begun]);
    }
}
