//! The passes that every graph goes through. Each changes the list of nodes and nothing else.

use super::{BuildError, Graph, Node, NodeKind, ReduceStrategy, Summed, check::leaves};
use crate::{
    ir::{Op, OpId, Shape, Sig, VarId, VarKind},
    op::{Arith, Func, OpKind, Squares, SumSquares},
};
use phalanx_core::DType;

/// Updates up to this size are worth putting together; larger ones are split instead.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// Parameters that live on servers leave the program.
pub(super) fn serve_tables(graph: &mut Graph) -> Result<(), BuildError> {
    let names = graph.settings.build.served.clone();
    if names.is_empty() {
        return Ok(());
    }
    if graph.settings.build.reduce_strategy == ReduceStrategy::NoReduce {
        return Err(BuildError::ServedAlone);
    }
    let (program, _) = super::serve(&graph.program, &names)?;
    graph.rewrite(program)
}

pub(super) fn sync_batch_norm(graph: &mut Graph) -> Result<(), BuildError> {
    match graph.settings.build.sync_batch_norm {
        true => super::sync_norm::apply(graph),
        false => Ok(()),
    }
}

/// The norm of gradients that several processes own: each owner squares its own, so that one number travels for each.
pub(super) fn split_norms(graph: &mut Graph) -> Result<(), BuildError> {
    let owner = |var: &VarId| graph.parts.owners.of_var(*var);
    let is_split = |id: OpId, op: &Op| {
        let is_norm = matches!(op.kind, OpKind::SquaredNorm(_)) && graph.parts.is_tail[id.index()];
        is_norm && op.inputs.len() > 1 && op.inputs.iter().any(|var| owner(var).is_some())
    };
    if !graph.program.ops().any(|(id, op)| is_split(id, op)) {
        return Ok(());
    }
    let mut program = graph.program.clone();
    let mut ops = Vec::with_capacity(program.ops.len());
    for (id, op) in graph.program.ops() {
        if !is_split(id, op) {
            ops.push(op.clone());
            continue;
        }
        let mut squares = Vec::with_capacity(op.inputs.len());
        for &var in &op.inputs {
            let (name, sig) = (program.fresh("@SQUARES@"), Sig::dense(DType::F64, Shape::scalar()));
            let own = program.declare(&name, sig, VarKind::Temp, op.site.clone())?;
            ops.push(Op { kind: Squares.into(), inputs: vec![var], outputs: vec![own], ..op.clone() });
            squares.push(own);
        }
        let dtype = program.sig(op.outputs[0]).dtype;
        ops.push(Op { kind: SumSquares { dtype }.into(), inputs: squares, ..op.clone() });
    }
    program.ops = ops;
    graph.rewrite(program)
}

/// An addition and the activation that alone reads it become one node.
pub(super) fn fuse_elewise_add_act(graph: &mut Graph) -> Result<(), BuildError> {
    if !graph.settings.build.fuse_elewise_add_act_ops {
        return Ok(());
    }
    let mut readers: Vec<Vec<OpId>> = vec![Vec::new(); graph.program.vars.len()];
    for (id, op) in graph.program.ops() {
        op.inputs.iter().for_each(|v| readers[v.index()].push(id));
    }
    let is_act = |op: OpId| match &graph.program.op(op).kind {
        OpKind::Unary(unary) => matches!(unary.0, Func::Relu | Func::Tanh | Func::Sigmoid | Func::Gelu),
        _ => false,
    };
    let follower = |ops: &[OpId]| -> Option<OpId> {
        let [id] = ops else { return None };
        let op = graph.program.op(*id);
        let OpKind::Binary(binary) = &op.kind else { return None };
        // The forward reader; backward may read it again.
        let next = *readers[op.outputs[0].index()].first()?;
        (binary.op == Arith::Add && is_act(next)).then_some(next)
    };
    let mut taken = vec![false; graph.program.ops.len()];
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for mut node in std::mem::take(&mut graph.nodes) {
        if let NodeKind::Compute { ops, .. } = &mut node.kind {
            if ops.iter().all(|op| taken[op.index()]) {
                continue;
            }
            if let Some(next) = follower(ops) {
                taken[next.index()] = true;
                ops.push(next);
            }
        }
        nodes.push(node);
    }
    graph.nodes = nodes;
    Ok(())
}

/// Every replica gets its nodes: one replica's after the other's, so that on one thread each finds its own data in the
/// cache; but up to each sum of statistics, and to each fetch from servers, all of them first. What all replicas update alike is there
/// once.
pub(super) fn replicate(graph: &mut Graph) -> Result<(), BuildError> {
    let one = std::mem::take(&mut graph.nodes);
    let is_sync =
        |ops: &[OpId]| ops.iter().any(|&op| matches!(graph.program.op(op).kind, OpKind::SyncSum(_)));
    let pulled = |ops: &[OpId]| {
        ops.iter().copied().find(|&op| matches!(graph.program.op(op).kind, OpKind::PullRows(_)))
    };
    let pushed = |ops: &[OpId]| {
        ops.iter().copied().find(|&op| matches!(graph.program.op(op).kind, OpKind::PushRows(_)))
    };
    let asks =
        |op: OpId| matches!(graph.program.op(op).kind, OpKind::ServedSquares(_) | OpKind::ReleaseRows(_));
    // Pieces of a share are in the same memory one after another: each fetches its own.
    let together = graph.settings.build.accumulate == 1;
    let (mut body, mut tail, mut stretches) = (Vec::new(), Vec::new(), Vec::new());
    for node in one {
        let NodeKind::Compute { ops, .. } = node.kind else { continue };
        if graph.is_tail(&ops) {
            tail.push(ops);
        } else if graph.settings.is_reduced() && is_sync(&ops) {
            stretches.push((std::mem::take(&mut body), None));
        } else if let Some(op) = pulled(&ops).filter(|_| together) {
            stretches.push((std::mem::take(&mut body), Some(op)));
        } else {
            body.push(ops);
        }
    }
    stretches.push((body, None));
    let (n, copies) = (graph.settings.replicas, graph.settings.copies());
    let (owners, process) = (&graph.parts.owners, graph.settings.process);
    let put = |replica: Option<usize>, all: &[Vec<OpId>]| {
        let mut nodes = Vec::with_capacity(all.len());
        for ops in all {
            // What owners send comes right before the operation that waits for it, or is next.
            let due = owners.sharings.iter().filter(|s| s.before.is_some_and(|op| ops.contains(&op)));
            nodes.extend(due.map(|s| Node::new(NodeKind::Share { vars: s.vars.clone() })));
            if owners.of_op(ops[0]).is_some_and(|owner| owner != process) {
                continue;
            }
            let kind = match (pulled(ops), pushed(ops)) {
                (Some(op), _) => NodeKind::Pull { op, copies: replica.into_iter().collect() },
                // What servers update is everybody's.
                (_, Some(_)) if replica.is_some_and(|r| r > 0) => continue,
                _ if asks(ops[0]) && replica.is_some_and(|r| r > 0) => continue,
                (_, Some(op)) => NodeKind::Push { op },
                _ if asks(ops[0]) => NodeKind::Serve { op: ops[0] },
                _ => NodeKind::Compute { replica, ops: ops.clone() },
            };
            nodes.push(Node::new(kind));
        }
        nodes
    };
    let mut all = Vec::new();
    for (stretch, pull) in &stretches {
        (0..copies).for_each(|replica| all.extend(put(Some(replica), stretch)));
        all.extend(pull.map(|op| Node::new(NodeKind::Pull { op, copies: (0..copies).collect() })));
    }
    match graph.parts.once {
        true => all.extend(put(None, &tail)),
        false => (0..n).for_each(|replica| all.extend(put(Some(replica), &tail))),
    }
    let last = owners.sharings.iter().filter(|s| s.before.is_none());
    all.extend(last.map(|s| Node::new(NodeKind::Share { vars: s.vars.clone() })));
    graph.nodes = all;
    chain_exchanges(graph);
    Ok(())
}

/// Sums come right after the last node that touches what they add up: at the birth of a gradient. The update waits
/// behind a gate, so that a run that fails has updated nothing.
pub(super) fn collectives(graph: &mut Graph) -> Result<(), BuildError> {
    let first_tail = graph.nodes.iter().position(|node| match &node.kind {
        NodeKind::Compute { ops, .. } => graph.is_tail(ops),
        kind => matches!(kind, NodeKind::Push { .. } | NodeKind::Serve { .. } | NodeKind::Share { .. }),
    });
    let end = first_tail.unwrap_or(graph.nodes.len());
    let mut due: Vec<Vec<NodeKind>> = vec![Vec::new(); end];
    let last_touch = |var: VarId| {
        graph.nodes[..end].iter().rposition(|node| match &node.kind {
            NodeKind::Compute { ops, .. } => ops.iter().any(|&op| {
                let op = graph.program.op(op);
                op.inputs.contains(&var) || op.outputs.contains(&var)
            }),
            _ => false,
        })
    };
    for &summed in &graph.parts.summed {
        let Some(at) = last_touch(summed.local) else { continue };
        due[at].push(NodeKind::Sum { vars: vec![summed] });
        if graph.settings.processes > 1 && !graph.parts.sent.contains(&summed.whole) {
            due[at].push(NodeKind::Exchange { vars: vec![summed] });
        }
    }
    for &var in &graph.parts.gathered {
        if let Some(at) = last_touch(var) {
            due[at].push(NodeKind::Gather { var });
        }
    }
    let mut nodes = Vec::new();
    let mut due = due.into_iter();
    for (at, node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
        if Some(at) == first_tail {
            nodes.push(Node::new(NodeKind::Gate));
        }
        nodes.push(node);
        nodes.extend(due.next().unwrap_or_default().into_iter().map(Node::new));
    }
    graph.nodes = nodes;
    graph.has_sums = true;
    chain_exchanges(graph);
    Ok(())
}

/// What goes between processes goes in one order (SSA-3). The last of it waits for the whole network: as long as a
/// process may still fail, no other one has all it needs for its update (PARA-2).
fn chain_exchanges(graph: &mut Graph) {
    let processes = graph.settings.processes;
    let held = if processes > 1 { hold_last(graph) } else { None };
    let mut last = None;
    for at in 0..graph.nodes.len() {
        let node = &mut graph.nodes[at];
        if processes > 1 && leaves(node) {
            node.after = last.into_iter().collect();
            last = Some(at);
        }
    }
    if let Some(held) = held {
        graph.nodes[held].after = (0..held).collect();
    }
}

/// Puts the last exchange of a gradient right before the update; gives its place.
fn hold_last(graph: &mut Graph) -> Option<usize> {
    let is_gradient = |node: &Node| match &node.kind {
        NodeKind::Exchange { vars } => vars.iter().all(|s| s.local == s.whole),
        kind => matches!(kind, NodeKind::Gather { .. }),
    };
    let last = graph.nodes.iter().rposition(is_gradient)?;
    let gate = graph.nodes.iter().position(|node| node.kind == NodeKind::Gate);
    let end = gate.unwrap_or(graph.nodes.len());
    graph.nodes[last..end].rotate_left(1);
    Some(end - 1)
}

/// Gradients that are born after one another are added up in buckets.
pub(super) fn fuse_all_reduce(graph: &mut Graph) -> Result<(), BuildError> {
    if !graph.settings.build.fuse_all_reduce_ops {
        return Ok(());
    }
    let limit = graph.settings.build.bucket_bytes;
    let bytes = |s: &Summed| graph.program.sig(s.whole).bytes(0);
    let mut buckets: Vec<Vec<Summed>> = Vec::new();
    let mut room = 0;
    for &s in graph.parts.summed.iter().filter(|s| s.local == s.whole) {
        let is_sent = |s: Summed| graph.parts.sent.contains(&s.whole);
        let dtype = |s: Summed| graph.program.sig(s.whole).dtype;
        let like = |b: &Vec<Summed>| dtype(b[0]) == dtype(s) && is_sent(b[0]) == is_sent(s);
        match buckets.last_mut().filter(|b| like(b) && room >= bytes(&s)) {
            Some(bucket) => bucket.push(s),
            None => {
                buckets.push(vec![s]);
                room = limit;
            }
        }
        room = room.saturating_sub(bytes(&s));
    }
    let bucket_of = |s: Summed| buckets.iter().position(|b| b.contains(&s));
    let mut nodes: Vec<Node> = Vec::with_capacity(graph.nodes.len());
    for node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        // From behind: the last sum of a bucket stays, with all of it; the others go.
        let (NodeKind::Sum { vars } | NodeKind::Exchange { vars }) = &node.kind else {
            nodes.push(node);
            continue;
        };
        let Some(bucket) = bucket_of(vars[0]) else {
            nodes.push(node);
            continue;
        };
        let vars = buckets[bucket].clone();
        let kind = match &node.kind {
            NodeKind::Sum { .. } => NodeKind::Sum { vars },
            _ => NodeKind::Exchange { vars },
        };
        if !nodes.iter().any(|n| n.kind == kind) {
            nodes.push(Node::new(kind));
        }
    }
    nodes.reverse();
    graph.nodes = nodes;
    chain_exchanges(graph);
    Ok(())
}

/// Small updates of one kind that follow each other become one node.
pub(super) fn fuse_optimizer(graph: &mut Graph) -> Result<(), BuildError> {
    if !graph.settings.build.fuse_all_optimizer_ops {
        return Ok(());
    }
    let size = |ops: &[OpId]| -> usize {
        let outputs = ops.iter().flat_map(|&op| &graph.program.op(op).outputs);
        outputs.map(|&v| graph.program.sig(v).bytes(0)).sum()
    };
    let small = |ops: &[OpId]| {
        let last = graph.program.op(*ops.last().expect("nodes have operations"));
        graph.parts.is_tail[ops[0].index()]
            && last.kind.operator().is_elementwise()
            && last.outputs.iter().any(|&v| graph.program.var(v).kind != VarKind::Temp)
            && size(ops) <= CHUNK_BYTES
    };
    let name = |ops: &[OpId]| graph.program.op(ops[0]).name();
    let mut nodes: Vec<Node> = Vec::with_capacity(graph.nodes.len());
    for node in std::mem::take(&mut graph.nodes) {
        if let NodeKind::Compute { replica, ops } = &node.kind
            && let Some(Node { kind: NodeKind::Compute { replica: before, ops: others }, .. }) =
                nodes.last_mut()
            && before == replica
            && small(ops)
            && small(others)
            && name(ops) == name(others)
            && size(others) + size(ops) <= CHUNK_BYTES
        {
            others.extend(ops);
        } else {
            nodes.push(node);
        }
    }
    graph.nodes = nodes;
    // What is sent behind updates stands elsewhere now.
    chain_exchanges(graph);
    Ok(())
}

/// Each replica's nodes wait for each other in the order they stand.
pub(super) fn sequential(graph: &mut Graph) -> Result<(), BuildError> {
    if !graph.settings.build.enable_sequential_execution {
        return Ok(());
    }
    let mut last = vec![None; graph.settings.copies() + 1];
    for (at, node) in graph.nodes.iter_mut().enumerate() {
        if let NodeKind::Compute { replica, .. } = node.kind {
            let slot = replica.unwrap_or(graph.settings.copies());
            node.after.extend(last[slot]);
            last[slot] = Some(at);
        }
    }
    Ok(())
}
