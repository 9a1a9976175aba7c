//! Everything but allreduce, through the slots.
//!
//! A rank publishes its data for the others piece by piece; the others fetch or reduce their parts. Counts may be uneven and zero.
//! A barrier is one `Sync`.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        step::{Buf, CollectiveOp, Step},
    },
    Lanes, Parts, one_ahead,
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.op != CollectiveOp::Allreduce && request.is_one_arena()
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let group = request.topology.neighbours(me);
    let layout = &request.layout;
    let place = me.0;
    match request.op {
        CollectiveOp::Barrier => Draft::in_arena(group, 1, 0, std::iter::once(Step::Sync { turn: 0 })),
        CollectiveOp::ReduceScatter => {
            let chunks = layout.extents();
            let lanes = lanes(request, &chunks);
            let steps = reduce_scatter(lanes, chunks, place, Target { base: 0, last: true });
            Draft::in_arena(group, lanes.n_turns(), 0, steps)
        }
        CollectiveOp::Allgather => {
            let chunks = layout.extents();
            let lanes = single(request, layout.counts());
            let own = copy(request, Extent::new(0, chunks[me.index()].len), chunks[me.index()]);
            let src = Extent::new(0, chunks[me.index()].len);
            let steps =
                gather(Gather { first: 0, lanes, group, place, reads: true }, Some((Buf::In, src)), chunks);
            Draft::in_arena(group, lanes.n_turns(), 0, steps.chain(own))
        }
        CollectiveOp::Gather => {
            let is_root = layout.root() == Some(me);
            let chunks = layout.extents();
            let lanes = single(request, layout.counts());
            let len = chunks[me.index()].len;
            let own = is_root.then(|| copy(request, Extent::new(0, len), chunks[me.index()])).flatten();
            let src = (!is_root).then_some((Buf::In, Extent::new(0, len)));
            let steps = gather(Gather { first: 0, lanes, group, place, reads: is_root }, src, chunks);
            Draft::in_arena(group, lanes.n_turns(), 0, steps.chain(own))
        }
        CollectiveOp::Broadcast => {
            let root = layout.root().expect("a broadcast has a root");
            let whole = Extent::new(0, layout.len());
            let lanes = single(request, &[whole.len]);
            let own = (root == me).then(|| copy(request, whole, whole)).flatten();
            let buf = if root == me { Buf::In } else { Buf::Out };
            let steps = broadcast(0, lanes, root, (root == me, buf), whole);
            Draft::in_arena(group, lanes.n_turns(), 0, steps.chain(own))
        }
        CollectiveOp::Reduce => {
            let root = layout.root().expect("a reduce has a root");
            let whole = Extent::new(0, layout.len());
            let lanes = single(request, &[whole.len]);
            Draft::in_arena(group, lanes.n_turns(), 0, reduce(lanes, root == me, whole, true))
        }
        CollectiveOp::Scatter => scatter(request, me),
        CollectiveOp::Alltoall => alltoall(request, me),
        CollectiveOp::Allreduce => unreachable!("supports() leaves allreduce to others"),
    }
}

/// Lanes for these chunks, one for each rank.
pub(in super::super) fn lanes(request: &PlanRequest, chunks: &[Extent]) -> Lanes {
    let longest = chunks.iter().map(|c| c.len).max().unwrap_or(0);
    Lanes::new(chunks.len() as u32, longest, request.slot_len(), request.segment_len(), request.elem_bytes)
}

/// One lane for chunks of these lengths.
pub(in super::super) fn single(request: &PlanRequest, lens: &[u64]) -> Lanes {
    Lanes::single(lens.iter().copied().max().unwrap_or(0), request.slot_len(), request.segment_len())
}

/// This rank's own elements from `In` to `Out`, unless they are there already.
fn copy(request: &PlanRequest, src: Extent, dst: Extent) -> Option<Step> {
    let in_place = request.in_place && request.op != CollectiveOp::Alltoall;
    (!in_place).then(|| Step::Copy { src: src.of(Buf::In), dst: dst.of(Buf::Out) })
}

/// Where a reduced chunk goes and whether it is final.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Target {
    /// Where in `Out` the chunk begins.
    pub base: u64,
    pub last: bool,
}

/// From turn 0: each rank of the group reduces its chunk of every rank's `In`.
pub(in super::super) fn reduce_scatter<'a>(
    lanes: Lanes,
    chunks: Vec<Extent>,
    place: u32,
    target: Target,
) -> impl Iterator<Item = Step> + 'a {
    let mine = chunks[place as usize];
    let publish = move |i| {
        let others = lanes.owners(i).filter(|&owner| owner != place);
        others
            .map(|owner| (lanes.piece(i, owner, chunks[owner as usize]).of(Buf::In), lanes.slot_at(owner)))
            .collect::<Parts>()
    };
    let read = move |i| {
        let own = lanes.piece(i, place, mine);
        [Step::ReduceFrom {
            turn: i,
            slot_at: lanes.slot_at(place),
            own: own.of(Buf::In),
            dst: Extent::new(target.base + (own.at - mine.at), own.len).of(Buf::Out),
            publish: None,
            last: target.last,
        }]
    };
    one_ahead(0, lanes.n_turns(), publish, read)
}

/// Who gathers, and in which turns.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Gather<'a> {
    pub first: u32,
    pub lanes: Lanes,
    pub group: &'a [Rank],
    pub place: u32,
    /// Whether this rank wants the others' chunks.
    pub reads: bool,
}

/// Publishes `own`, if anybody wants it, and fetches those of every other rank chunk to its place in `Out`.
pub(in super::super) fn gather<'a>(
    who: Gather<'a>,
    own: Option<(Buf, Extent)>,
    chunks: Vec<Extent>,
) -> impl Iterator<Item = Step> + 'a {
    let Gather { first, lanes, group, place, reads } = who;
    let n = group.len() as u32;
    let publish =
        move |i| own.iter().map(|&(buf, chunk)| (lanes.piece(i, 0, chunk).of(buf), 0)).collect::<Parts>();
    let read = move |i| {
        let peers = if reads { 1..n } else { 0..0 };
        let fetches = peers.map(|s| {
            let peer = (place + s) % n;
            let dst = lanes.piece(i, 0, chunks[peer as usize]).of(Buf::Out);
            Step::Fetch { turn: first + i, peer: group[peer as usize], slot_at: 0, dst }
        });
        fetches.collect::<Vec<_>>()
    };
    one_ahead(first, lanes.n_turns(), publish, read)
}

/// The root publishes `whole` of its buffer, the others fetch it to the same place in theirs.
pub(in super::super) fn broadcast<'a>(
    first: u32,
    lanes: Lanes,
    root: Rank,
    (is_root, buf): (bool, Buf),
    whole: Extent,
) -> impl Iterator<Item = Step> + 'a {
    let piece = move |i| lanes.piece(i, 0, whole).of(buf);
    let publish = move |i| is_root.then(|| (piece(i), 0)).into_iter().collect::<Parts>();
    let read =
        move |i| (!is_root).then(|| Step::Fetch { turn: first + i, peer: root, slot_at: 0, dst: piece(i) });
    one_ahead(first, lanes.n_turns(), publish, read)
}

/// From turn 0: the root reduces every rank's `In` into its `Out`.
pub(in super::super) fn reduce<'a>(
    lanes: Lanes,
    is_root: bool,
    whole: Extent,
    last: bool,
) -> impl Iterator<Item = Step> + 'a {
    let piece = move |i| lanes.piece(i, 0, whole);
    let publish = move |i| (!is_root).then(|| (piece(i).of(Buf::In), 0)).into_iter().collect::<Parts>();
    let read = move |i| {
        let (own, dst) = (piece(i).of(Buf::In), piece(i).of(Buf::Out));
        is_root.then_some(Step::ReduceFrom { turn: i, slot_at: 0, own, dst, publish: None, last })
    };
    one_ahead(0, lanes.n_turns(), publish, read)
}

fn scatter(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let root = request.layout.root().expect("a scatter has a root");
    let chunks = request.layout.extents();
    let lanes = lanes(request, &chunks);
    let mine = chunks[me.index()];
    let own = (root == me).then(|| copy(request, mine, Extent::new(0, mine.len))).flatten();
    let publish = move |i| {
        let owners = if root == me { lanes.owners(i) } else { 0..0 };
        let parts = owners.filter(|&owner| owner != me.0);
        parts
            .map(|owner| (lanes.piece(i, owner, chunks[owner as usize]).of(Buf::In), lanes.slot_at(owner)))
            .collect::<Parts>()
    };
    let read = move |i| {
        let piece = lanes.piece(i, me.0, mine);
        let dst = Extent::new(piece.at - mine.at, piece.len).of(Buf::Out);
        (root != me).then(|| Step::Fetch { turn: i, peer: root, slot_at: lanes.slot_at(me.0), dst })
    };
    let steps = one_ahead(0, lanes.n_turns(), publish, read);
    Draft::in_arena(request.topology.neighbours(me), lanes.n_turns(), 0, steps.chain(own))
}

fn alltoall(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let n = request.n_ranks();
    let ranks = move || (0..n).map(Rank);
    let layout = &request.layout;
    let longest =
        ranks().flat_map(|p| ranks().filter(move |&q| q != p).map(move |q| layout.cell(p, q))).max();
    let lanes =
        Lanes::new(n, longest.unwrap_or(0), request.slot_len(), request.segment_len(), request.elem_bytes);
    let (row, column) = (layout.row(me), layout.column(me));
    let own = copy(request, row[me.index()], column[me.index()]);
    let publish = move |i| {
        let others = lanes.owners(i).filter(|&q| q != me.0);
        others.map(|q| (lanes.piece(i, q, row[q as usize]).of(Buf::In), lanes.slot_at(q))).collect::<Parts>()
    };
    let read = move |i| {
        let fetches = (1..n).map(|s| {
            let peer = (me.0 + s) % n;
            let dst = lanes.piece(i, me.0, column[peer as usize]).of(Buf::Out);
            Step::Fetch { turn: i, peer: Rank(peer), slot_at: lanes.slot_at(me.0), dst }
        });
        fetches.collect::<Vec<_>>()
    };
    let steps = one_ahead(0, lanes.n_turns(), publish, read);
    Draft::in_arena(request.topology.neighbours(me), lanes.n_turns(), 0, steps.chain(own))
}
