//! The graph: a program as several replicas run it, made by passes that the user can see and change.
//!
//! Nodes stand in an order in which they could run one after another on one thread; that order is what the graph means.
//! What may run at the same time follows from what nodes read and write: every variable of every replica is a buffer,
//! each write makes a new version of it, and two nodes that touch one buffer are ordered unless both only read.
//! - SSA-1: nodes are in an order that respects every true dependency, and every write-after-read and write-after-write
//!   over the buffers of all replicas.
//! - SSA-2: a buffer that lives in one run only is written by one node, and by the exchange that completes it.
//! - SSA-3: all processes exchange the same buckets in the same order.

mod aside;
mod check;
mod dump;
mod error;
mod network_update;
mod owners;
mod parts;
mod pass;
mod passes;
mod serve;
mod strategy;
mod sync_norm;

pub use error::{BuildError, GraphFault};
pub use network_update::Halves;
pub use owners::{Owners, Sharing};
pub use parts::{Held, Parts, Summed};
pub use pass::{Pass, PassList};
pub use serve::{ServedClip, ServedVar, Unserved, scale_rows, servable, serve};
pub use strategy::{
    BuildStrategy, Circumstances, Conflict, Conflicts, Effective, ExecutionStrategy, GradientScale,
    ReduceStrategy, validate,
};

pub(crate) use passes::CHUNK_BYTES;

use crate::{
    ir::{OpId, Program, VarId},
    op::OpKind,
};
use std::collections::BTreeMap;

/// Who has a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    Replica(usize),
    /// All replicas of the process.
    Process,
}

/// A variable of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Buffer {
    pub owner: Owner,
    pub var: VarId,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Operations of the program, one after another; without a replica, once for all of them. Where shares are taken in
    /// pieces, the network's `replica` counts pieces: piece `p` of `n` replicas belongs to replica `p % n`.
    Compute { replica: Option<usize>, ops: Vec<OpId> },
    /// Adds up what the replicas of this process have.
    Sum { vars: Vec<Summed> },
    /// Adds up the sums of all processes.
    Exchange { vars: Vec<Summed> },
    /// Puts the rows of all replicas, and of all processes, one after another.
    Gather { var: VarId },
    /// Gives all processes what its owner has of each of these.
    Share { vars: Vec<(VarId, usize)> },
    /// Fetches rows of a table on servers, for these copies of the network together.
    Pull { op: OpId, copies: Vec<usize> },
    /// Gives the gradients of all replicas to the servers; what comes back is everybody's.
    Push { op: OpId },
    /// Asks servers for what all replicas get alike: the squares of gradients that wait there, or, with the factor that they wait for, the
    /// new parameter.
    Serve { op: OpId },
    /// Nothing after it begins before everything before it has ended well.
    Gate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: NodeKind,
    /// Earlier nodes that it waits for beside those whose buffers it touches.
    pub after: Vec<usize>,
}

impl Node {
    pub fn new(kind: NodeKind) -> Node {
        Node { kind, after: Vec::new() }
    }
}

/// What a node touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    pub reads: Vec<Buffer>,
    pub writes: Vec<Buffer>,
}

/// An edge and why it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edge {
    /// Reads this version of what the other wrote.
    True(Buffer, usize),
    /// Overwrites what the other has read.
    Anti(Buffer, usize),
    /// Overwrites what the other has written.
    Output(Buffer, usize),
    Control,
}

#[derive(Clone, Debug)]
pub struct Graph {
    pub program: Program,
    pub settings: Effective,
    pub parts: Parts,
    pub nodes: Vec<Node>,
    /// Whether sums are there already, so that what reads them can be asked where it comes from.
    pub(crate) has_sums: bool,
}

impl Graph {
    /// The program as one replica would run it; passes do the rest.
    pub fn new(program: Program, settings: Effective) -> Result<Graph, BuildError> {
        program.verify()?;
        if program.ops.is_empty() {
            return Err(BuildError::Empty);
        }
        let parts = Parts::new(&program, &settings)?;
        let mut graph = Graph { program, settings, parts, nodes: Vec::new(), has_sums: false };
        graph.restart();
        Ok(graph)
    }

    /// One node for each operation, for replica 0.
    pub(crate) fn restart(&mut self) {
        let one = |&op: &OpId| Node::new(NodeKind::Compute { replica: Some(0), ops: vec![op] });
        self.nodes = self.parts.body.iter().chain(&self.parts.tail).map(one).collect();
    }

    /// Puts another program in the place of this one.
    pub fn rewrite(&mut self, program: Program) -> Result<(), BuildError> {
        program.verify()?;
        self.parts = Parts::new(&program, &self.settings)?;
        self.program = program;
        self.restart();
        Ok(())
    }

    pub(crate) fn is_tail(&self, ops: &[OpId]) -> bool {
        ops.first().is_some_and(|op| self.parts.is_tail[op.index()])
    }

    /// Whether all replicas have the same of a variable.
    pub fn is_alike(&self, var: VarId) -> bool {
        let parts = &self.parts;
        let updated = || self.settings.is_reduced() && parts.written_by_tail(var);
        match parts.held[var.index()] {
            Some(held) => held != Held::Apart,
            None => parts.is_whole(var) || updated(),
        }
    }

    /// The buffer that an operation of a replica, or of all, means by a variable.
    fn buffer(&self, replica: Option<usize>, op: OpId, var: VarId) -> Buffer {
        let own = replica.map_or(Owner::Process, Owner::Replica);
        // Pieces of one replica's share go through the same states; an update for all replicas begins with the first's.
        let states = Owner::Replica(replica.unwrap_or(0) % self.settings.replicas);
        let owner = match self.parts.held[var.index()] {
            Some(Held::Read | Held::Once | Held::Elsewhere(_)) => Owner::Process,
            Some(Held::Alike | Held::Apart) => states,
            None => {
                let summed = self.parts.summed.iter().find(|s| s.whole == var);
                let by_all = match summed {
                    // A gradient is the replica's own until the update.
                    Some(s) if s.local == s.whole => self.parts.is_tail[op.index()],
                    Some(_) => true,
                    None => self.parts.gathered.contains(&var) && self.parts.is_tail[op.index()],
                };
                if by_all { Owner::Process } else { own }
            }
        };
        Buffer { owner, var }
    }

    /// The buffer that the update means by a variable.
    fn buffer_of_tail(&self, var: VarId) -> Buffer {
        let summed = self.parts.is_whole(var);
        let owner = match self.parts.held[var.index()] {
            Some(Held::Alike | Held::Apart) => Owner::Replica(0),
            None if !summed && !self.parts.once => Owner::Replica(0),
            _ => Owner::Process,
        };
        Buffer { owner, var }
    }

    /// The buffers of what servers tell all replicas.
    fn told(&self, var: VarId, to: &mut Vec<Buffer>) {
        let each = match self.parts.held[var.index()] {
            Some(held) => matches!(held, Held::Alike | Held::Apart),
            None => !self.parts.once,
        };
        let owners = if each { self.settings.replicas } else { 0 };
        to.extend((0..owners).map(|replica| Buffer { owner: Owner::Replica(replica), var }));
        to.extend((!each).then_some(Buffer { owner: Owner::Process, var }));
    }

    pub fn touched(&self, node: &Node) -> Touched {
        let replicas = || (0..self.settings.copies()).map(Owner::Replica);
        let all = |var: VarId| replicas().map(move |owner| Buffer { owner, var });
        let shared = |var: VarId| Buffer { owner: Owner::Process, var };
        let mut touched = Touched::default();
        match &node.kind {
            NodeKind::Compute { replica, ops } => {
                for &id in ops {
                    let op = self.program.op(id);
                    touched.reads.extend(op.inputs.iter().map(|&v| self.buffer(*replica, id, v)));
                    touched.writes.extend(op.outputs.iter().map(|&v| self.buffer(*replica, id, v)));
                    let alike = |v: &&VarId| self.parts.held[v.index()] == Some(Held::Alike);
                    for &var in op.outputs.iter().filter(alike).filter(|_| replica.is_none()) {
                        let others = (1..self.settings.replicas).map(Owner::Replica);
                        touched.writes.extend(others.map(|owner| Buffer { owner, var }));
                    }
                }
                // What one of its operations hands to the next is nobody else's business.
                let writes = touched.writes.clone();
                let own = |b: &Buffer| writes.contains(b) && self.parts.held[b.var.index()].is_none();
                touched.reads.retain(|b| !own(b));
            }
            NodeKind::Sum { vars } => {
                touched.reads.extend(vars.iter().flat_map(|s| all(s.local)));
                touched.writes.extend(vars.iter().map(|s| shared(s.whole)));
            }
            NodeKind::Exchange { vars } => {
                touched.reads.extend(vars.iter().map(|s| shared(s.whole)));
                touched.writes.extend(vars.iter().map(|s| shared(s.whole)));
            }
            NodeKind::Gather { var } => {
                touched.reads.extend(all(*var));
                touched.writes.push(shared(*var));
            }
            NodeKind::Share { vars } => {
                let is_own = |owner: usize| owner == self.settings.process;
                for &(var, owner) in vars {
                    let to = if is_own(owner) { &mut touched.reads } else { &mut touched.writes };
                    to.push(self.buffer_of_tail(var));
                }
            }
            NodeKind::Pull { op: id, copies } => {
                let op = self.program.op(*id);
                let of = |var: VarId| copies.iter().map(move |&copy| self.buffer(Some(copy), *id, var));
                touched.reads.extend(of(op.inputs[0]));
                touched.writes.extend(of(op.outputs[0]));
            }
            NodeKind::Push { op: id } => {
                let op = self.program.op(*id);
                let (g, first) = (op.inputs[0], if self.parts.once { None } else { Some(0) });
                match self.parts.pushed.contains(&g) {
                    true => touched.reads.extend(all(g)),
                    false => touched.reads.push(self.buffer(first, *id, g)),
                }
                touched.reads.push(self.buffer(first, *id, op.inputs[1]));
                op.outputs.iter().for_each(|&var| self.told(var, &mut touched.writes));
            }
            NodeKind::Serve { op: id } => {
                let (op, first) = (self.program.op(*id), if self.parts.once { None } else { Some(0) });
                touched.reads.extend(op.inputs.iter().map(|&var| self.buffer(first, *id, var)));
                op.outputs.iter().for_each(|&var| self.told(var, &mut touched.writes));
            }
            NodeKind::Gate => {}
        }
        touched
    }

    /// Every edge from an earlier node to a later one, by the later one (SSA-1).
    pub fn edges(&self) -> Vec<Vec<(usize, Edge)>> {
        #[derive(Default)]
        struct State {
            version: usize,
            writer: Option<usize>,
            readers: Vec<usize>,
        }
        let mut states: BTreeMap<Buffer, State> = BTreeMap::new();
        let mut edges = Vec::with_capacity(self.nodes.len());
        let mut gate = 0;
        for (at, node) in self.nodes.iter().enumerate() {
            let mut before: Vec<(usize, Edge)> = node.after.iter().map(|&n| (n, Edge::Control)).collect();
            let touched = self.touched(node);
            for buffer in touched.reads {
                let state = states.entry(buffer).or_default();
                before.extend(state.writer.map(|w| (w, Edge::True(buffer, state.version))));
                state.readers.push(at);
            }
            for buffer in touched.writes {
                let state = states.entry(buffer).or_default();
                let version = state.version;
                before.extend(state.readers.iter().map(|&r| (r, Edge::Anti(buffer, version))));
                before.extend(state.writer.map(|w| (w, Edge::Output(buffer, version))));
                *state = State { version: version + 1, writer: Some(at), readers: Vec::new() };
            }
            if node.kind == NodeKind::Gate {
                before.extend((gate..at).map(|n| (n, Edge::Control)));
                gate = at;
            } else if gate > 0 {
                before.push((gate, Edge::Control));
            }
            before.retain(|&(n, _)| n != at);
            before.sort_unstable();
            before.dedup();
            edges.push(before);
        }
        edges
    }

    /// A few words that name a node.
    pub fn title(&self, node: &Node) -> String {
        let name = |var: VarId| self.program.var(var).name.as_str();
        let names = |vars: &[Summed]| vars.iter().map(|s| name(s.whole)).collect::<Vec<_>>().join(" ");
        match &node.kind {
            NodeKind::Compute { replica, ops } => {
                let ops: Vec<&str> = ops.iter().map(|&op| self.program.op(op).name()).collect();
                match replica {
                    Some(replica) => format!("{} @{replica}", ops.join("+")),
                    None => ops.join("+"),
                }
            }
            NodeKind::Sum { vars } => format!("sum {}", names(vars)),
            NodeKind::Exchange { vars } => format!("exchange {}", names(vars)),
            NodeKind::Gather { var } => format!("gather {}", name(*var)),
            NodeKind::Share { vars } => {
                let names: Vec<&str> = vars.iter().map(|(var, _)| name(*var)).collect();
                format!("share {}", names.join(" "))
            }
            NodeKind::Pull { op, .. } | NodeKind::Push { op } | NodeKind::Serve { op } => {
                let op = self.program.op(*op);
                match &op.kind {
                    OpKind::PullRows(pull) => format!("pull {}", pull.table),
                    OpKind::PushRows(push) => format!("push {}", push.table),
                    OpKind::ServedSquares(squares) => format!("squares {}", squares.tables.join(" ")),
                    OpKind::ReleaseRows(release) => format!("release {}", release.table),
                    _ => op.name().into(),
                }
            }
            NodeKind::Gate => "gate".into(),
        }
    }
}
