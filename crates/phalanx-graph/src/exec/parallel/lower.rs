//! From a graph to tasks on memory, for one way to split a batch and one set of fetched variables.
//!
//! Every replica has an arena for the variables of its network. Gradients are in the shared arena, a block for each replica, so
//! that each is computed where it is summed, without packing. The sum is written to the first block.
//! - LOWER-1: every schedule is proved free of races before it runs (MEMPLAN-2).
//! - LOWER-2: gradients of one bucket lie side by side; a replica without samples contributes zeros.

mod exchanging;
mod serving;

use super::{
    memory::{Own, bytes_of, plan_body, plan_tail},
    schedule::{Access, Drafting, Half, Region, Schedule, Task},
    shared::Shared,
    work::{Called, What},
};
use crate::{
    graph::{CHUNK_BYTES, Graph, Held, NodeKind, Summed},
    ir::{Op, OpId, Storage, VarId},
    kernel::{MemorySpace, OpStep, Operand},
    op::OpKind,
    plan::MemoryPlan,
};
use phalanx_core::DType;
use std::ops::Range;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    /// Samples of each replica.
    pub sizes: Vec<usize>,
    /// Samples of all replicas of all processes.
    pub total: usize,
    pub fetched: Vec<VarId>,
}

/// Where a fetched variable is found.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// For each replica that has it.
    pub each: Vec<Option<Operand>>,
    /// Whether all replicas have the same.
    pub same: bool,
}

/// Everything that a run needs to know.
#[derive(Debug)]
pub(super) struct Planned {
    pub signature: Signature,
    /// The network's memory, of each replica that has samples.
    pub bodies: Vec<Option<MemoryPlan>>,
    pub sources: Vec<Source>,
    pub calls: Vec<Called>,
    pub schedule: Schedule,
    /// The task that takes each exchange between processes back.
    pub takes: Vec<u32>,
    /// The tasks that store the answers of each call to servers.
    pub answers: Vec<Vec<u32>>,
    /// The task behind which the update begins.
    pub gate: Option<u32>,
    /// Sizes of the arenas.
    pub arena_bytes: Vec<usize>,
    pub shared_bytes: usize,
}

impl Planned {
    /// A plan that runs nothing.
    pub(super) fn empty(signature: Signature) -> Planned {
        Planned {
            signature,
            bodies: Vec::new(),
            sources: Vec::new(),
            calls: Vec::new(),
            schedule: Schedule::default(),
            takes: Vec::new(),
            answers: Vec::new(),
            gate: None,
            arena_bytes: Vec::new(),
            shared_bytes: 0,
        }
    }
}

/// Which buffer of the store each replica has of each variable.
pub(super) type Places = Vec<Vec<usize>>;

pub(super) fn lower(graph: &Graph, signature: Signature, places: &Places) -> Planned {
    let mut lowering = Lowering::new(graph, signature, places);
    for at in 0..graph.nodes.len() {
        lowering.node(at);
    }
    lowering.finish()
}

struct Lowering<'a> {
    graph: &'a Graph,
    signature: Signature,
    shared: Shared,
    bodies: Vec<Option<MemoryPlan>>,
    /// Where each operation stands in the plan of its replica.
    body_at: Vec<Vec<usize>>,
    tails: Vec<MemoryPlan>,
    tail_at: Vec<usize>,
    places: &'a Places,
    calls: Vec<Called>,
    draft: Drafting,
    takes: Vec<u32>,
    answers: Vec<Vec<u32>>,
    gate: Option<u32>,
    /// The task of the update that called servers last (SERVING-1).
    last_call: Option<u32>,
    /// The tasks of each node.
    tasks_of: Vec<Vec<u32>>,
    n_threads: usize,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, signature: Signature, places: &'a Places) -> Lowering<'a> {
        let mut shared = Shared::new(graph, &signature);
        let n = signature.sizes.len();
        let replicas = graph.settings.replicas;
        let (mut bodies, mut body_at) = (Vec::new(), Vec::new());
        let own = Own::new(graph, &signature);
        for replica in 0..n {
            let ops = ops_of(graph, Some(replica), false);
            body_at.push(positions(graph, &ops));
            let body = (signature.sizes[replica] > 0)
                .then(|| plan_body(graph, &signature, &shared, &own, places, replica, &ops));
            bodies.push(body);
        }
        let by_all = graph.parts.once;
        let tail_ops = ops_of(graph, if by_all { None } else { Some(0) }, true);
        let mut tails = Vec::new();
        for (replica, body) in bodies.iter().enumerate().take(if by_all { 1 } else { replicas }) {
            // Where nothing is reduced, a replica without samples has nothing to update from.
            let is_idle = !graph.settings.is_reduced() && body.is_none();
            let ops = if is_idle { &[][..] } else { &tail_ops };
            let first = bytes_of(&bodies, replica, replicas);
            let tail = plan_tail(graph, &signature, &shared, places, replica, ops, (body, first));
            if by_all {
                shared.bytes = shared.bytes.max(tail.bytes);
            }
            tails.push(tail);
        }
        Lowering {
            tail_at: positions(graph, &tail_ops),
            n_threads: graph.settings.threads,
            graph,
            signature,
            shared,
            bodies,
            body_at,
            tails,
            places,
            calls: Vec::new(),
            draft: Drafting::default(),
            takes: Vec::new(),
            answers: Vec::new(),
            gate: None,
            last_call: None,
            tasks_of: Vec::new(),
        }
    }

    fn node(&mut self, at: usize) {
        let graph = self.graph;
        let node = &graph.nodes[at];
        let before = self.draft.len() as u32;
        let after: Vec<u32> = node.after.iter().flat_map(|&n| self.tasks_of[n].clone()).collect();
        match &node.kind {
            NodeKind::Compute { replica, ops } if graph.is_tail(ops) => {
                self.update(at, *replica, ops, &after);
            }
            NodeKind::Compute { replica, ops } => self.compute(at, replica.unwrap_or(0), ops, &after),
            NodeKind::Sum { vars } => self.sum(at, vars, &after),
            NodeKind::Exchange { vars } => self.exchange(at, vars, &after),
            NodeKind::Gather { var } => self.gather(at, *var, &after),
            NodeKind::Share { vars } => self.share(at, vars, &after),
            NodeKind::Pull { op, copies } => self.pull(at, *op, copies, &after),
            NodeKind::Push { op } => self.push(at, *op, &after),
            NodeKind::Serve { op } => self.serve(at, *op, &after),
            NodeKind::Gate => {
                let task = Task { replica: 0, calls: 0..0, home: 0, cost: 0, node: at, half: Half::None };
                self.gate = Some(self.draft.gate(task));
            }
        }
        self.tasks_of.push((before..self.draft.len() as u32).collect());
    }

    /// One task that makes these calls.
    fn task(&mut self, node: usize, replica: usize, home: usize, calls: Vec<Called>, after: &[u32]) {
        let begin = self.calls.len();
        let mut accesses = Vec::new();
        let mut cost = 0;
        for called in &calls {
            let step = &called.step;
            let mut note = |operand: &Operand, write: bool| {
                cost += operand.bytes as u64;
                accesses.push(Access {
                    region: region(operand.place, replica % self.graph.settings.replicas),
                    bytes: operand.range(),
                    write,
                });
            };
            step.inputs().iter().for_each(|o| note(o, false));
            step.outputs().iter().chain([step.scratch()]).for_each(|o| note(o, true));
        }
        let half = match calls.first().map(|called| &called.what) {
            Some(What::Bring(exchange, _)) => Half::Bring(*exchange),
            Some(What::Take(exchange, _)) => Half::Take(*exchange),
            Some(What::Ask(_, desk, _)) => Half::Ask(*desk),
            Some(What::Answer(..)) => Half::Answer,
            _ => Half::None,
        };
        self.calls.extend(calls);
        let (calls, home) = (begin..self.calls.len(), home % self.n_threads);
        self.draft.add(Task { replica, calls, home, cost, node, half }, accesses, after);
    }

    fn compute(&mut self, node: usize, replica: usize, ops: &[OpId], after: &[u32]) {
        let Some(body) = &self.bodies[replica] else { return self.nothing(node, replica, ops, after) };
        let call = |&op: &OpId| {
            let step = body.steps()[self.body_at[replica][op.index()]].clone();
            Called { what: What::Op(op), step }
        };
        let calls = ops.iter().map(call).collect();
        self.task(node, replica, replica % self.graph.settings.replicas, calls, after);
    }

    /// What a replica without samples contributes to sums (LOWER-2).
    fn nothing(&mut self, node: usize, replica: usize, ops: &[OpId], after: &[u32]) {
        let outputs = ops.iter().flat_map(|&op| &self.graph.program.op(op).outputs);
        let born = |out: &&VarId| self.shared.offsets.iter().any(|(s, _)| s.local == **out);
        let mut zeros = Vec::new();
        for &out in outputs.filter(born) {
            let offset = self.shared.in_body(out, replica).expect("it is summed");
            let operand = self.flat(out, offset, 0..self.graph.program.sig(out).bytes(0));
            zeros.push(Called { what: What::Zero, step: whole(vec![], vec![operand]) });
        }
        let follows = |op: &&OpId| matches!(self.graph.program.op(**op).kind, OpKind::SyncNormStats(_));
        zeros.extend(ops.iter().filter(follows).map(|&op| self.statistics(op, replica)));
        if !zeros.is_empty() {
            self.task(node, replica, replica, zeros, after);
        }
    }

    /// Statistics that all replicas have alike, moved on by sums that the others made.
    fn statistics(&self, op: OpId, replica: usize) -> Called {
        let program = &self.graph.program;
        let operand = |&var: &VarId| {
            let sig = program.sig(var);
            let (place, offset) = match self.graph.parts.held[var.index()] {
                Some(_) => {
                    (MemorySpace::Store(self.places[replica % self.graph.settings.replicas][var.index()]), 0)
                }
                None => (MemorySpace::Shared, self.shared.in_tail(var).expect("it is summed")),
            };
            let (bytes, dims) = (sig.bytes(0), sig.shape.at(0));
            Operand { place, offset, bytes, dtype: sig.dtype, dims, form: sig.form }
        };
        let of = |vars: &[VarId]| vars.iter().map(operand).collect();
        let Op { inputs, outputs, .. } = program.op(op);
        Called { what: What::Op(op), step: whole(of(inputs), of(outputs)) }
    }

    /// Bytes of a summed variable as a vector in the shared arena.
    fn flat(&self, var: VarId, offset: usize, bytes: Range<usize>) -> Operand {
        let dtype = self.graph.program.sig(var).dtype;
        let dims = vec![bytes.len() / dtype.size()];
        let (offset, bytes) = (offset + bytes.start, bytes.len());
        Operand { place: MemorySpace::Shared, offset, bytes, dtype, dims, form: Storage::Dense }
    }

    /// From where to where in a block the variables of a bucket lie.
    fn extent(&self, vars: &[Summed]) -> (usize, usize) {
        let begin = vars.iter().map(|&s| self.shared.offset(s)).min().unwrap_or(0);
        let end = |s: &Summed| self.shared.offset(*s) + self.graph.program.sig(s.whole).bytes(0);
        (begin, vars.iter().map(end).max().unwrap_or(0))
    }

    fn sum(&mut self, node: usize, vars: &[Summed], after: &[u32]) {
        let n = self.signature.sizes.len();
        if n == 1 {
            return;
        }
        let (begin, end) = self.extent(vars);
        for (i, from) in (begin..end).step_by(CHUNK_BYTES).enumerate() {
            let bytes = from..end.min(from + CHUNK_BYTES);
            let block = |r: usize| self.flat(vars[0].whole, r * self.shared.block, bytes.clone());
            let blocks: Vec<Operand> = (0..n).map(block).collect();
            let called = Called { what: What::Sum, step: whole(blocks.clone(), blocks) };
            self.task(node, 0, i, vec![called], after);
        }
    }

    fn update(&mut self, node: usize, replica: Option<usize>, ops: &[OpId], after: &[u32]) {
        let r = replica.unwrap_or(0);
        // Where nothing is reduced, a replica without samples has learned nothing.
        if !self.graph.settings.is_reduced() && self.bodies[r].is_none() {
            return;
        }
        let step = |op: OpId| self.tails[r].steps()[self.tail_at[op.index()]].clone();
        let calls: Vec<Called> =
            ops.iter().map(|&op| Called { what: What::Op(op), step: step(op) }).collect();
        match calls.as_slice() {
            [Called { what, step }] if self.is_elementwise(ops[0], step) => {
                let (what, step) = (what.clone(), step.clone());
                let n = step.outputs()[0].volume();
                let size = (CHUNK_BYTES / step.outputs()[0].dtype.size()).max(1);
                for (i, from) in (0..n).step_by(size).enumerate() {
                    let range = from..n.min(from + size);
                    let home = replica.map_or(i, |r| r + i);
                    let mut calls =
                        vec![Called { what: what.clone(), step: narrowed(&step, n, range.clone()) }];
                    self.spread(ops[0], Some((range, n)), &mut calls);
                    self.task(node, r, home, calls, after);
                }
            }
            _ => {
                let mut all = Vec::with_capacity(calls.len());
                for (call, &op) in calls.into_iter().zip(ops) {
                    all.push(call);
                    self.spread(op, None, &mut all);
                }
                self.task(node, r, r, all, after);
            }
        }
    }

    /// What an update that runs once has written goes to all replicas that have a copy: a part of its elements, or all.
    fn spread(&self, op: OpId, part: Option<(Range<usize>, usize)>, calls: &mut Vec<Called>) {
        let n = self.graph.settings.replicas;
        for &var in &self.graph.program.op(op).outputs {
            if !self.graph.parts.once || self.graph.parts.held[var.index()] != Some(Held::Alike) {
                continue;
            }
            let bytes = self.graph.program.sig(var).bytes(0);
            let range = part.as_ref().map_or(0..bytes, |(range, n)| {
                let size = bytes / n;
                range.start * size..range.end * size
            });
            let copy = |r: usize| {
                let place = MemorySpace::Store(self.places[r][var.index()]);
                let (offset, bytes) = (range.start, range.len());
                Operand { place, offset, bytes, dtype: DType::U8, dims: vec![bytes], form: Storage::Dense }
            };
            let step = whole(vec![copy(0)], (1..n).map(copy).collect());
            calls.push(Called { what: What::Copy, step });
        }
    }

    /// Whether ranges of it can be done by different workers, and are worth it.
    fn is_elementwise(&self, op: OpId, step: &OpStep) -> bool {
        let Some(first) = step.outputs().first() else { return false };
        let n = first.volume();
        let fits = |o: &Operand| o.form == Storage::Dense && (o.volume() == n || o.volume() == 1);
        self.graph.program.op(op).kind.operator().is_elementwise()
            && first.bytes > CHUNK_BYTES
            && step.inputs().iter().chain(step.outputs()).all(fits)
            && step.outputs().iter().all(|o| o.volume() == n)
    }

    fn finish(self) -> Planned {
        let n = self.graph.settings.replicas;
        let sources = self.signature.fetched.iter().map(|&var| self.source(var)).collect();
        let by_all = self.graph.parts.once;
        let arena = |replica: usize| {
            let tail = self.tails.get(replica).filter(|_| !by_all).map_or(0, |t| t.bytes);
            bytes_of(&self.bodies, replica, n).max(tail)
        };
        let arena_bytes = (0..n).map(arena).collect();
        let (schedule, proving) = self.draft.finish();
        let unordered = proving.unordered();
        assert_eq!(unordered, None, "LOWER-1: edges follow from what tasks touch, so no two tasks race");
        Planned {
            signature: self.signature,
            bodies: self.bodies,
            sources,
            calls: self.calls,
            schedule,
            takes: self.takes,
            answers: self.answers,
            gate: self.gate,
            arena_bytes,
            shared_bytes: self.shared.bytes,
        }
    }

    fn source(&self, var: VarId) -> Source {
        let n = self.graph.settings.replicas;
        let (program, parts) = (&self.graph.program, &self.graph.parts);
        let same = self.graph.is_alike(var);
        if parts.held[var.index()].is_some() {
            let sig = program.sig(var);
            let each = (0..n).map(|r| {
                let place = MemorySpace::Store(self.places[r][var.index()]);
                let (bytes, dims) = (sig.bytes(0), sig.shape.at(0));
                Some(Operand { place, offset: 0, bytes, dtype: sig.dtype, dims, form: sig.form })
            });
            return Source { each: each.collect(), same };
        }
        if parts.is_whole(var) || parts.written_by_tail(var) {
            let of = |r: usize| self.tails.get(if parts.once { 0 } else { r })?.operand(var).cloned();
            let each: Vec<_> = (0..n).map(of).collect();
            if each.iter().any(Option::is_some) {
                return Source { each, same };
            }
        }
        let each = self.bodies.iter().map(|b| b.as_ref()?.operand(var).cloned()).collect();
        Source { each, same }
    }
}

fn ops_of(graph: &Graph, replica: Option<usize>, tail: bool) -> Vec<OpId> {
    let mut all = Vec::new();
    for node in &graph.nodes {
        if let NodeKind::Compute { replica: r, ops } = &node.kind
            && *r == replica
            && graph.is_tail(ops) == tail
        {
            all.extend(ops);
        }
        if let NodeKind::Pull { op, copies } = &node.kind
            && !tail
            && replica.is_some_and(|replica| copies.contains(&replica))
        {
            all.push(*op);
        }
        if let NodeKind::Serve { op } = &node.kind
            && tail
        {
            all.push(*op);
        }
    }
    all
}

fn positions(graph: &Graph, ops: &[OpId]) -> Vec<usize> {
    let mut at = vec![usize::MAX; graph.program.ops.len()];
    ops.iter().enumerate().for_each(|(i, op)| at[op.index()] = i);
    at
}

fn region(place: MemorySpace, replica: usize) -> Region {
    match place {
        MemorySpace::Arena => Region::Replica(replica),
        MemorySpace::Shared => Region::Shared,
        MemorySpace::Store(at) => Region::Store(at),
    }
}

/// A step without scratch memory.
fn whole(inputs: Vec<Operand>, outputs: Vec<Operand>) -> OpStep {
    OpStep::new(inputs, outputs, MemorySpace::Shared, 0..0)
}

/// The same step for some of its elements.
fn narrowed(step: &OpStep, n: usize, range: Range<usize>) -> OpStep {
    let narrow = |o: &Operand| {
        if n != 1 && o.volume() == 1 {
            return o.clone();
        }
        let size = o.dtype.size();
        let (offset, bytes) = (o.offset + range.start * size, range.len() * size);
        Operand { offset, bytes, dims: vec![range.len()], ..o.clone() }
    };
    let all = |operands: &[Operand]| operands.iter().map(narrow).collect();
    whole(all(step.inputs()), all(step.outputs()))
}
