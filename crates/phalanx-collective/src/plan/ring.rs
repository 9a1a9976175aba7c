//! Rings: every rank sends to the next and receives from the one before it, n - 1 times.
//!
//! A reduce-scatter round the ring followed by an all-gather moves `2 (n - 1) / n` of the vector out of every rank, which is
//! the least an allreduce can, in 2 (n - 1) steps. For large messages.
//!
//! The ring visits one host after the other, whatever the numbers of their ranks, so that it enters each host once.
//!
//! A ring runs over *tracks*: ranges of elements that travel together but may have different neighbours. A flat ring has one; the
//! ring between hosts of unequal sizes has several.

use super::{
    Draft, Extent, PlanRequest,
    draft::{contribute, swap},
    step::{Buf, CollectiveOp, Fold, Recv, Send, Span, Step},
};
use phalanx_core::Rank;
use std::iter::once;

pub fn supports(request: &PlanRequest) -> bool {
    matches!(request.op, CollectiveOp::Allreduce | CollectiveOp::ReduceScatter | CollectiveOp::Allgather)
        && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    match request.op {
        CollectiveOp::Allreduce => {
            let whole = Extent::new(0, request.layout.len());
            let tour = Tour::new(request, me);
            let ring = Ring::among(tour.place, tour.n(), whole, |i| tour.ranks[i as usize]);
            let steps = contribute(request, 0, whole.len).chain(ring.clone().reduce_scatter(true));
            Draft::over_links(0, steps.chain(ring.all_gather()))
        }
        CollectiveOp::ReduceScatter => reduce_scatter(request, me),
        CollectiveOp::Allgather => allgather(request, me),
        _ => unreachable!("supports() admits no other operation"),
    }
}

/// The ranks host by host, however they are numbered: the order in which a flat ring visits them.
pub(super) struct Tour {
    pub ranks: Vec<Rank>,
    pub place: u32,
}

impl Tour {
    pub fn new(request: &PlanRequest, me: Rank) -> Tour {
        let ranks = request.topology.hosts().concat();
        let before = &request.topology.hosts()[..request.topology.host_of(me) as usize];
        let place = before.iter().map(|host| host.len() as u32).sum::<u32>() + request.topology.local_of(me);
        Tour { ranks, place }
    }

    pub fn n(&self) -> u32 {
        self.ranks.len() as u32
    }

    fn neighbours(&self) -> (Rank, Rank) {
        let (n, place) = (self.ranks.len(), self.place as usize);
        (self.ranks[(place + 1) % n], self.ranks[(place + n - 1) % n])
    }

    /// Each rank's elements, in the order of the tour.
    fn chunks(&self, request: &PlanRequest) -> Vec<Extent> {
        let extents = request.layout.extents();
        self.ranks.iter().map(|r| extents[r.index()]).collect()
    }
}

/// A range of `Out` that goes round, and the neighbours it goes to and comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Track {
    pub range: Extent,
    pub next: Rank,
    pub prev: Rank,
}

/// One rank's part in a ring: `place` of `n`.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    pub place: u32,
    pub n: u32,
    pub tracks: Vec<Track>,
}

impl Ring {
    /// A ring of one track; `rank` says who is at a place.
    pub fn among(place: u32, n: u32, range: Extent, rank: impl Fn(u32) -> Rank) -> Ring {
        let track = Track { range, next: rank((place + 1) % n), prev: rank((place + n - 1) % n) };
        Ring { place, n, tracks: vec![track] }
    }

    /// Ends with this rank's share, part `place` of `n` of every track, reduced over all ranks, and final if `last`.
    pub fn reduce_scatter(self, last: bool) -> impl Iterator<Item = Step> {
        let (n, place) = (self.n, self.place);
        (1..n).map(move |s| {
            let fold = if last && s == n - 1 { Fold::ReduceLast } else { Fold::Reduce };
            self.pass((place + n - s) % n, (place + 2 * n - s - 1) % n, fold)
        })
    }

    /// Begins with the shares that `reduce_scatter` leaves and ends with all of every track.
    pub fn all_gather(self) -> impl Iterator<Item = Step> {
        let (n, place) = (self.n, self.place);
        (1..n).map(move |s| self.pass((place + n - s + 1) % n, (place + n - s) % n, Fold::Store))
    }

    /// Passes one part of every track on while another comes in.
    fn pass(&self, out: u32, into: u32, fold: Fold) -> Step {
        let part = |track: &Track, i| track.range.part(self.n, i).of(Buf::Out);
        if let [t] = &self.tracks[..] {
            return swap(t.next, part(t, out), t.prev, part(t, into), fold);
        }
        Step::Exchange {
            sends: self.tracks.iter().map(|t| Send { to: t.next, src: part(t, out) }).collect(),
            recvs: self.tracks.iter().map(|t| Recv { from: t.prev, dst: part(t, into), fold }).collect(),
        }
    }
}

/// Partial results travel in two halves of the scratch, because `In` is not ours to write: one is sent while the other comes in.
fn reduce_scatter(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let tour = Tour::new(request, me);
    let (n, place, (next, prev)) = (tour.n(), tour.place, tour.neighbours());
    let chunks = tour.chunks(request);
    let half = chunks.iter().map(|c| c.len).max().unwrap_or(0);
    // The chunk of round s is the one that is received in it; round 0 receives nothing.
    let chunk = move |s: u32| chunks[((place + 2 * n - 1 - s) % n) as usize];
    let copy = move |src: Extent, dst: Span| {
        [Step::Copy { src: src.of(Buf::In), dst }, Step::Scale { span: dst, pre: true, post: false }]
    };
    let home = move |s: u32, len: u64| {
        if s == n - 1 {
            Span::of(Buf::Out, 0, len)
        } else {
            Span::of(Buf::Scratch, u64::from(s % 2) * half, len)
        }
    };
    let first = copy(chunk(0), home(0, chunk(0).len));
    let rounds = (1..n).flat_map(move |s| {
        let (sent, taken) = (home(s - 1, chunk(s - 1).len), home(s, chunk(s).len));
        let fold = if s == n - 1 { Fold::ReduceLast } else { Fold::Reduce };
        copy(chunk(s), taken).into_iter().chain(once(swap(next, sent, prev, taken, fold)))
    });
    Draft::over_links(2 * half, first.into_iter().chain(rounds))
}

fn allgather(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let tour = Tour::new(request, me);
    let (n, place, (next, prev)) = (tour.n(), tour.place, tour.neighbours());
    let chunks = tour.chunks(request);
    let mine = chunks[place as usize];
    let own = (!request.in_place)
        .then(|| Step::Copy { src: Span::of(Buf::In, 0, mine.len), dst: mine.of(Buf::Out) });
    let rounds = (1..n).map(move |s| {
        let chunk = |i: u32| chunks[(i % n) as usize].of(Buf::Out);
        swap(next, chunk(place + n - s + 1), prev, chunk(place + n - s), Fold::Store)
    });
    Draft::over_links(0, own.into_iter().chain(rounds))
}
