//! Exchanges between processes as tasks: one that brings something, and one that stores what came back.

use super::{Called, Lowering, What, whole};
use crate::{
    exec::parallel::travel::{Route, Spots},
    graph::Summed,
    ir::{MAX_OUTPUTS, VarId},
    kernel::{MemorySpace, Operand},
};

/// Where something goes in memory, and where in what comes back it begins: in all of it, and in this process's part of it.
struct Spot {
    to: Operand,
    whole: usize,
    part: usize,
}

impl Lowering<'_> {
    /// The sum of a bucket: all of it for all processes, or for each what it owns.
    pub(super) fn exchange(&mut self, node: usize, vars: &[Summed], after: &[u32]) {
        let (begin, end) = self.extent(vars);
        let all = self.flat(vars[0].whole, 0, begin..end);
        let Some(owners) = self.graph.parts.owners_of(vars) else {
            let spot = Spot { to: all.clone(), whole: 0, part: 0 };
            return self.travel(node, (Route::Sum, vec![all]), vec![spot], after);
        };
        let settings = &self.graph.settings;
        let mut counts = vec![0; settings.processes];
        let (mut from, mut spots) = (vec![all], Vec::new());
        // A bucket stays as it lies with AllReduce: where parts are not summed by themselves, its sums have the same bits.
        for (process, count) in counts.iter_mut().enumerate() {
            for (s, _) in vars.iter().zip(&owners).filter(|(_, owner)| **owner == process) {
                let (offset, sig) = (self.shared.offset(*s), self.graph.program.sig(s.whole));
                let own = self.flat(s.whole, offset, 0..sig.bytes(0));
                if process == settings.process {
                    let whole = (offset - begin) / sig.dtype.size();
                    spots.push(Spot { to: own.clone(), whole, part: *count });
                }
                *count += own.volume();
                from.push(own);
            }
        }
        self.travel(node, (Route::Parts(counts.into()), from), spots, after);
    }

    /// What each owner has, for all processes.
    pub(super) fn share(&mut self, node: usize, vars: &[(VarId, usize)], after: &[u32]) {
        let dtype = self.graph.program.sig(vars[0].0).dtype;
        let (mut from, mut spots, mut at) = (Vec::new(), Vec::new(), 0);
        for &(var, owner) in vars {
            let operand = self.of_tail(var);
            let n = operand.volume();
            match owner == self.graph.settings.process {
                true => from.push(operand),
                false => spots.push(Spot { to: operand, whole: at, part: at }),
            }
            at += n;
        }
        self.travel(node, (Route::Share(dtype), from), spots, after);
    }

    /// What the update calls by this name, as it lies in memory.
    fn of_tail(&self, var: VarId) -> Operand {
        let sig = self.graph.program.sig(var);
        let (place, offset) = match self.graph.parts.held[var.index()] {
            Some(_) => (MemorySpace::Store(self.places[0][var.index()]), 0),
            None => (MemorySpace::Shared, self.shared.in_tail(var).expect("what is sent has its place")),
        };
        let (bytes, dims) = (sig.bytes(0), sig.shape.at(0));
        Operand { place, offset, bytes, dtype: sig.dtype, dims, form: sig.form }
    }

    /// Two tasks, because nobody waits for what happens between them.
    fn travel(&mut self, node: usize, (route, from): (Route, Vec<Operand>), to: Vec<Spot>, after: &[u32]) {
        let (exchange, home) = (self.takes.len(), self.n_threads - 1);
        let bring = Called { what: What::Bring(exchange, route), step: whole(from, vec![]) };
        let begun = self.draft.len() as u32;
        self.task(node, 0, home, vec![bring], after);
        self.takes.push(self.draft.len() as u32);
        let n = to.len().div_ceil(MAX_OUTPUTS).max(1);
        let mut to = to.into_iter();
        let mut takes = Vec::with_capacity(n);
        for call in 1..=n {
            let some: Vec<Spot> = to.by_ref().take(MAX_OUTPUTS).collect();
            let (all, part) = (some.iter().map(|s| s.whole), some.iter().map(|s| s.part));
            let spots = Spots { whole: all.collect(), part: part.collect(), is_last: call == n };
            let outputs = some.into_iter().map(|s| s.to).collect();
            takes.push(Called { what: What::Take(exchange, spots), step: whole(vec![], outputs) });
        }
        self.task(node, 0, home, takes, &[begun]);
    }

    pub(super) fn gather(&mut self, node: usize, var: VarId, after: &[u32]) {
        let sig = self.graph.program.sig(var);
        let (_, each, all) = self.shared.rows.iter().find(|(v, ..)| *v == var).expect("it has its place");
        let rows = |offset: usize, n_samples: usize| Operand {
            place: MemorySpace::Shared,
            offset,
            bytes: sig.bytes(n_samples),
            dtype: sig.dtype,
            dims: sig.shape.at(n_samples),
            form: sig.form,
        };
        let inputs = each.iter().zip(&self.signature.sizes).map(|(&at, &n)| rows(at, n)).collect();
        let all = rows(*all, self.signature.total);
        if self.graph.settings.processes > 1 {
            let spot = Spot { to: all, whole: 0, part: 0 };
            return self.travel(node, (Route::Rows, inputs), vec![spot], after);
        }
        self.task(node, 0, 0, vec![Called { what: What::Gather, step: whole(inputs, vec![all]) }], after);
    }
}
