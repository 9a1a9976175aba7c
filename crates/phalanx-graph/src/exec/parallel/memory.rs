//! The memory of each replica: what its network and its update need, and what must outlive both.

use super::{
    lower::{Places, Signature},
    shared::Shared,
};
use crate::{
    graph::Graph,
    ir::{ALIGN, OpId, VarId, VarKind},
    kernel::MemorySpace,
    plan::{MemoryPlan, Part, Reuse},
};

fn reuse(graph: &Graph) -> Reuse {
    Reuse { across: graph.settings.build.memory_optimize, in_place: graph.settings.build.enable_inplace }
}

/// The end of a replica's memory for its network.
pub(super) fn bytes_of(bodies: &[Option<MemoryPlan>], replica: usize, replicas: usize) -> usize {
    let own = bodies.iter().skip(replica).step_by(replicas).flatten();
    own.map(|b| b.bytes).max().unwrap_or(0)
}

/// What pieces of one replica's share must not overwrite of each other's: feeds, which are all there before the run, and
/// what is fetched after it.
pub(super) struct Own {
    /// For each piece, where its variables lie.
    offsets: Vec<Vec<(VarId, usize)>>,
    /// Where the memory that pieces share begins, in each replica's arena.
    first: Vec<usize>,
}

impl Own {
    pub(super) fn new(graph: &Graph, signature: &Signature) -> Own {
        let n = graph.settings.replicas;
        let mut own = Own { offsets: vec![Vec::new(); signature.sizes.len()], first: vec![0; n] };
        if graph.settings.build.accumulate == 1 {
            return own;
        }
        let body = graph.parts.body.iter().flat_map(|&op| &graph.program.op(op).outputs);
        let computed: Vec<VarId> = body.copied().filter(|out| signature.fetched.contains(out)).collect();
        for (piece, &n_samples) in signature.sizes.iter().enumerate() {
            for (id, var) in graph.program.vars() {
                let is_computed = var.kind == VarKind::Temp && computed.contains(&id);
                if var.kind == VarKind::Feed || is_computed {
                    let at = &mut own.first[piece % n];
                    own.offsets[piece].push((id, *at));
                    *at += var.sig.bytes(n_samples).next_multiple_of(ALIGN);
                }
            }
        }
        own
    }

    fn offset(&self, piece: usize, var: VarId) -> Option<usize> {
        self.offsets[piece].iter().find(|(v, _)| *v == var).map(|(_, at)| *at)
    }
}

pub(super) fn plan_body(
    graph: &Graph,
    signature: &Signature,
    shared: &Shared,
    own: &Own,
    places: &Places,
    replica: usize,
    ops: &[OpId],
) -> MemoryPlan {
    let program = &graph.program;
    // What the update reads of the network beside sums: only where nothing is summed.
    let mut kept = signature.fetched.clone();
    let tail = graph.parts.tail.iter();
    kept.extend(
        tail.flat_map(|&op| &program.op(op).inputs).filter(|v| graph.parts.held[v.index()].is_none()),
    );
    let outside = |var: VarId| match graph.parts.held[var.index()] {
        Some(_) => Some((MemorySpace::Store(places[replica % graph.settings.replicas][var.index()]), 0)),
        None => {
            let shared = shared.in_body(var, replica).map(|at| (MemorySpace::Shared, at));
            shared.or_else(|| own.offset(replica, var).map(|at| (MemorySpace::Arena, at)))
        }
    };
    MemoryPlan::of(&Part {
        program,
        ops,
        n_samples: signature.sizes[replica],
        kept: &kept,
        reuse: reuse(graph),
        first: own.first[replica % graph.settings.replicas],
        place: MemorySpace::Arena,
        outside: &outside,
    })
}

pub(super) fn plan_tail(
    graph: &Graph,
    signature: &Signature,
    shared: &Shared,
    places: &Places,
    replica: usize,
    ops: &[OpId],
    (body, first): (&Option<MemoryPlan>, usize),
) -> MemoryPlan {
    let program = &graph.program;
    let of_body = |var: VarId| {
        let operand = body.as_ref()?.operand(var)?;
        (operand.place == MemorySpace::Arena).then_some((operand.place, operand.offset))
    };
    // Feeds are the network's; the update never sees one that it could not read.
    let elsewhere = |var: VarId| (program.var(var).kind == VarKind::Feed).then_some((MemorySpace::Arena, 0));
    let outside = |var: VarId| match graph.parts.held[var.index()] {
        Some(_) => Some((MemorySpace::Store(places[replica][var.index()]), 0)),
        None => match shared.in_tail(var) {
            Some(at) => Some((MemorySpace::Shared, at)),
            None => of_body(var).or_else(|| elsewhere(var)),
        },
    };
    let (place, first) = match graph.parts.once {
        true => (MemorySpace::Shared, shared.bytes),
        false => (MemorySpace::Arena, first),
    };
    let n_samples = if graph.settings.is_reduced() { signature.total } else { signature.sizes[replica] };
    let kept = &signature.fetched;
    MemoryPlan::of(&Part {
        program,
        ops,
        n_samples,
        kept,
        reuse: reuse(graph),
        first,
        place,
        outside: &outside,
    })
}
