//! Broadcast along a chain, segment by segment: for many bytes over links.
//!
//! Every rank passes a segment on while the next one comes in, so the time is that of sending the vector once, plus one segment for every
//! rank in the chain. A tree sends the vector log2(n) times.

use super::{
    Draft, Extent, PlanRequest,
    draft::{recv, send, swap},
    extent::n_pieces,
    seats::Seats,
    step::{Buf, CollectiveOp, Fold, Span, Step},
    tree::own_copy,
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Broadcast && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let root = request.layout.root().expect("a broadcast has a root");
    let n = request.n_ranks();
    let seats = Seats { place: (me.0 + n - root.0) % n, n, rank: move |v: u32| Rank((v + root.0) % n) };
    let whole = Extent::new(0, request.layout.len());
    let buf = if root == me { Buf::In } else { Buf::Out };
    let steps = pass_on(seats, whole.of(buf), request.segment_len());
    Draft::over_links(0, steps.chain(own_copy(request, root == me, whole)))
}

/// `buf` of place 0 goes to `buf` of every rank, in segments.
pub(super) fn pass_on(
    seats: Seats<impl Fn(u32) -> Rank>,
    buf: Span,
    segment_len: u64,
) -> impl Iterator<Item = Step> {
    let n_segments = n_pieces(buf.len, segment_len);
    let prev = (seats.place > 0).then(|| seats.before(1));
    let next = (seats.place + 1 < seats.n).then(|| seats.after(1));
    let segment = move |i: u32| Extent::new(buf.at, buf.len).piece(segment_len, i).of(buf.buf);
    // Step i takes segment i in and passes segment i - 1 on.
    (0..=n_segments).filter_map(move |i| {
        let taken = prev.filter(|_| i < n_segments).map(|from| (from, segment(i)));
        let passed = next.filter(|_| i > 0).map(|to| (to, segment(i - 1)));
        match (passed, taken) {
            (Some((to, src)), Some((from, dst))) => Some(swap(to, src, from, dst, Fold::Store)),
            (Some((to, src)), None) => Some(send(to, src)),
            (None, Some((from, dst))) => Some(recv(from, dst, Fold::Store)),
            (None, None) => None,
        }
    })
}
