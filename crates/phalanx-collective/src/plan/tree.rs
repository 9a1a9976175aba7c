//! Binomial trees: broadcast, reduce, gather and scatter over links in log2(n) rounds.
//!
//! Ranks are counted from the root. Node v's children are v + 1, v + 2, v + 4, ... up to v's lowest set bit, and its subtree is the run of nodes
//! from v to there: what is gathered or scattered lies in one piece.

use super::{
    Draft, Extent, PlanRequest,
    draft::{contribute, recv, send},
    seats::Seats,
    step::{Buf, CollectiveOp, Fold, Recv, Send, Span, Step},
};
use phalanx_core::Rank;
use std::ops::Range;

pub fn supports(request: &PlanRequest) -> bool {
    matches!(
        request.op,
        CollectiveOp::Broadcast | CollectiveOp::Reduce | CollectiveOp::Gather | CollectiveOp::Scatter
    ) && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let root = request.layout.root().expect("a rooted operation has a root");
    let n = request.n_ranks();
    let seats = Seats { place: (me.0 + n - root.0) % n, n, rank: move |v: u32| Rank((v + root.0) % n) };
    match request.op {
        CollectiveOp::Broadcast => {
            let whole = Extent::new(0, request.layout.len());
            let is_root = root == me;
            let buf = if is_root { Buf::In } else { Buf::Out };
            Draft::over_links(0, broadcast(seats, whole.of(buf)).chain(own_copy(request, is_root, whole)))
        }
        CollectiveOp::Reduce => reduce(request, seats),
        CollectiveOp::Gather => gather(request, seats, root),
        CollectiveOp::Scatter => scatter(request, seats, root),
        _ => unreachable!("supports() admits no other operation"),
    }
}

/// The root's own elements from `In` to `Out`, unless they are there already.
pub(super) fn own_copy(request: &PlanRequest, is_root: bool, whole: Extent) -> Option<Step> {
    (is_root && !request.in_place).then(|| Step::Copy { src: whole.of(Buf::In), dst: whole.of(Buf::Out) })
}

/// `buf` of place 0 goes to `buf` of every rank. The largest subtree is served first.
pub(super) fn broadcast(seats: Seats<impl Fn(u32) -> Rank>, buf: Span) -> impl Iterator<Item = Step> {
    let from = parent(seats.place).map(|v| recv((seats.rank)(v), buf, Fold::Store));
    let children: Vec<u32> = children(seats.place, seats.n).collect();
    from.into_iter().chain(children.into_iter().rev().map(move |v| send((seats.rank)(v), buf)))
}

/// Sums grow in `Out` of the root and in the scratch of every other rank, whose `In` is not ours to write.
fn reduce<'a>(request: &'a PlanRequest, seats: Seats<impl Fn(u32) -> Rank + 'a>) -> Draft<'a> {
    let len = request.layout.len();
    let Some(up) = parent(seats.place) else {
        let out = Span::of(Buf::Out, 0, len);
        let n_children = children(0, seats.n).count();
        let takes = children(0, seats.n).enumerate().map(move |(i, v)| {
            let fold = if i + 1 == n_children { Fold::ReduceLast } else { Fold::Reduce };
            recv((seats.rank)(v), out, fold)
        });
        return Draft::over_links(0, contribute(request, 0, len).chain(takes));
    };
    let sum = Span::of(Buf::Scratch, 0, len);
    let own = [
        Step::Copy { src: Span::of(Buf::In, 0, len), dst: sum },
        Step::Scale { span: sum, pre: true, post: false },
    ];
    let pass_on = send((seats.rank)(up), sum);
    let takes = children(seats.place, seats.n).map(move |v| recv((seats.rank)(v), sum, Fold::Reduce));
    Draft::over_links(len, own.into_iter().chain(takes).chain([pass_on]))
}

fn gather<'a>(request: &'a PlanRequest, seats: Seats<impl Fn(u32) -> Rank + 'a>, root: Rank) -> Draft<'a> {
    let run = Run::new(request, root, seats.place);
    let mine = run.hold(seats.place);
    let own = Extent::new(0, mine.len).of(Buf::In);
    let is_leaf = children(seats.place, seats.n).next().is_none();
    let up = parent(seats.place);
    let keep = match (up, is_leaf) {
        (None, _) => (!request.in_place).then_some(Step::Copy { src: own, dst: mine }),
        (Some(_), true) => None,
        (Some(_), false) => Some(Step::Copy { src: own, dst: mine }),
    };
    let mut steps: Vec<Step> = keep.into_iter().collect();
    for v in children(seats.place, seats.n) {
        let from = (seats.rank)(v);
        let recvs = run.spans(subtree(v, seats.n)).map(|dst| Recv { from, dst, fold: Fold::Store });
        steps.push(Step::Exchange { sends: Default::default(), recvs: recvs.collect() });
    }
    if let Some(up) = up {
        let to = (seats.rank)(up);
        let srcs: Vec<Span> =
            if is_leaf { vec![own] } else { run.spans(subtree(seats.place, seats.n)).collect() };
        let sends = srcs.into_iter().map(|src| Send { to, src }).collect();
        steps.push(Step::Exchange { sends, recvs: Default::default() });
    }
    Draft::over_links(run.scratch_len(is_leaf), steps.into_iter())
}

fn scatter<'a>(request: &'a PlanRequest, seats: Seats<impl Fn(u32) -> Rank + 'a>, root: Rank) -> Draft<'a> {
    let run = Run::new(request, root, seats.place);
    let mine = run.hold(seats.place);
    let own = Extent::new(0, mine.len).of(Buf::Out);
    let is_leaf = children(seats.place, seats.n).next().is_none();
    let mut steps = Vec::new();
    if let Some(up) = parent(seats.place) {
        let from = (seats.rank)(up);
        let dsts: Vec<Span> =
            if is_leaf { vec![own] } else { run.spans(subtree(seats.place, seats.n)).collect() };
        let recvs = dsts.into_iter().map(|dst| Recv { from, dst, fold: Fold::Store }).collect();
        steps.push(Step::Exchange { sends: Default::default(), recvs });
    }
    let children: Vec<u32> = children(seats.place, seats.n).collect();
    for &v in children.iter().rev() {
        let to = (seats.rank)(v);
        let sends = run.spans(subtree(v, seats.n)).map(|src| Send { to, src }).collect();
        steps.push(Step::Exchange { sends, recvs: Default::default() });
    }
    let in_place_root = root == (seats.rank)(seats.place) && request.in_place;
    if !is_leaf && !in_place_root {
        steps.push(Step::Copy { src: mine, dst: own });
    }
    Draft::over_links(run.scratch_len(is_leaf), steps.into_iter())
}

/// Where one node holds the elements of its subtree: the root in the caller's buffer, in order of ranks; the others in scratch, in order
/// of nodes. The two orders differ where the ranks wrap round from n - 1 to 0, so a run across that place is moved in two pieces.
struct Run {
    /// The elements of each node in the root's buffer.
    at_root: Vec<Extent>,
    /// Where each node's elements begin when all are laid out in order of nodes; one more for the end.
    starts: Vec<u64>,
    root: Rank,
    node: u32,
    buf: Buf,
}

impl Run {
    fn new(request: &PlanRequest, root: Rank, node: u32) -> Run {
        let mut at_root = request.layout.extents();
        at_root.rotate_left(root.index());
        let mut starts = vec![0];
        starts.extend(at_root.iter().scan(0, |sum, extent| {
            *sum += extent.len;
            Some(*sum)
        }));
        let buf = if request.op == CollectiveOp::Gather { Buf::Out } else { Buf::In };
        Run { at_root, starts, root, node, buf }
    }

    /// Where this node holds the elements of one node.
    fn hold(&self, v: u32) -> Span {
        self.span(v..v + 1)
    }

    /// Where this node holds the elements of these nodes.
    fn spans(&self, nodes: Range<u32>) -> impl Iterator<Item = Span> {
        let wrap = (self.at_root.len() as u32 - self.root.0).clamp(nodes.start, nodes.end);
        [nodes.start..wrap, wrap..nodes.end].into_iter().filter(|r| !r.is_empty()).map(|r| self.span(r))
    }

    fn span(&self, nodes: Range<u32>) -> Span {
        let len = self.starts[nodes.end as usize] - self.starts[nodes.start as usize];
        if self.node == 0 {
            return Span::of(self.buf, self.at_root[nodes.start as usize].at, len);
        }
        let at = self.starts[nodes.start as usize] - self.starts[self.node as usize];
        Span::of(Buf::Scratch, at, len)
    }

    fn scratch_len(&self, is_leaf: bool) -> u64 {
        if self.node == 0 || is_leaf {
            return 0;
        }
        let n = self.at_root.len() as u32;
        self.spans(subtree(self.node, n)).map(|span| span.len).sum()
    }
}

fn parent(v: u32) -> Option<u32> {
    (v > 0).then(|| v & (v - 1))
}

/// Smallest subtree first.
fn children(v: u32, n: u32) -> impl Iterator<Item = u32> {
    let n_bits = if v == 0 { 31 } else { v.trailing_zeros() };
    (0..n_bits).map(move |bit| v + (1 << bit)).take_while(move |&child| child < n)
}

fn subtree(v: u32, n: u32) -> Range<u32> {
    v..n.min(v + (v & v.wrapping_neg()))
}
