//! Allreduce in which every rank reduces one chunk: reduce-scatter and all-gather, segment by segment.
//!
//! Of each segment a rank reduces its own chunk out of all slots and publishes the result, which the others fetch: each rank reads every
//! byte twice however many ranks there are. Three segments are under way at once: one is copied in, one reduced, one
//! copied out.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        extent::n_pieces,
        step::{Buf, CollectiveOp, Layout, Step},
    },
    Parts, cache_line_len,
};
use phalanx_core::Rank;

/// Smallest chunk worth a synchronisation of its own.
const MIN_CHUNK_BYTES: u64 = 4 << 10;
/// Segments that a short message is cut into, so that the three stages overlap.
const MIN_SEGMENTS: u64 = 4;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.is_one_arena()
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let Layout::Whole { len } = request.layout else { unreachable!("an allreduce has a whole vector") };
    let cut = Cut::new(request, len);
    let group = request.topology.neighbours(me);
    let place = request.topology.local_of(me);

    let publish = move |j| {
        let (segment, own) = (cut.segment(j), cut.chunk(j, place));
        let parts = [Extent::between(segment.at, own.at), Extent::between(own.end(), segment.end())];
        let parts: Parts = parts.into_iter().map(|part| (part.of(Buf::In), part.at - segment.at)).collect();
        Step::Publish { turn: cut.turn_in(j), parts }
    };
    let reduce = move |j| {
        let own = cut.chunk(j, place);
        Step::ReduceFrom {
            turn: cut.turn_in(j),
            slot_at: own.at - cut.segment(j).at,
            own: own.of(Buf::In),
            dst: own.of(Buf::Out),
            publish: Some((cut.turn_out(j), 0)),
            last: true,
        }
    };
    // Every rank begins with the next rank, so that not all read the same slot at once.
    let fetch = move |j| {
        (1..cut.n_ranks).map(move |s| {
            let peer = (place + s) % cut.n_ranks;
            let (turn, dst) = (cut.turn_out(j), cut.chunk(j, peer).of(Buf::Out));
            Step::Fetch { turn, peer: group[peer as usize], slot_at: 0, dst }
        })
    };
    let steps = (0..=cut.n_segments).flat_map(move |j| {
        let first = (j == 0).then(|| publish(0));
        let next = (j + 1 < cut.n_segments).then(|| publish(j + 1));
        let reduce = (j < cut.n_segments && cut.n_segments > 0).then(|| reduce(j));
        let fetch = (j > 0).then(|| fetch(j - 1)).into_iter().flatten();
        let release = (j > 0 && j < cut.n_segments).then(|| Step::Release { turn: cut.turn_out(j - 1) });
        first.into_iter().chain(next).chain(reduce).chain(fetch).chain(release)
    });
    Draft::in_arena(group, cut.n_turns(), 0, steps)
}

/// The vector in segments, each in a chunk for every rank.
#[derive(Clone, Copy, Debug)]
struct Cut {
    len: u64,
    n_ranks: u32,
    grain: u64,
    segment_len: u64,
    n_segments: u32,
}

impl Cut {
    fn new(request: &PlanRequest, len: u64) -> Cut {
        let n_ranks = request.n_ranks();
        let grain = cache_line_len(request.elem_bytes);
        let smallest = (MIN_CHUNK_BYTES / u64::from(request.elem_bytes)).max(1) * u64::from(n_ranks);
        let largest = (u64::from(n_ranks) * request.segment_len()).min(request.slot_len());
        let wanted = len.div_ceil(MIN_SEGMENTS).max(smallest);
        // Whole cache lines for every rank, unless the slot is too small for that.
        let row = grain * u64::from(n_ranks);
        let segment_len =
            if largest >= row { wanted.next_multiple_of(row).min(largest / row * row) } else { largest };
        Cut { len, n_ranks, grain, segment_len, n_segments: n_pieces(len, segment_len) }
    }

    fn segment(&self, j: u32) -> Extent {
        Extent::new(0, self.len).piece(self.segment_len, j)
    }

    fn chunk(&self, j: u32, place: u32) -> Extent {
        self.segment(j).part_in_grains(self.n_ranks, place, self.grain)
    }

    /// Turns are numbered as they are published: in 0, in 1, out 0, in 2, out 1, ...
    fn turn_in(&self, j: u32) -> u32 {
        (2 * j).saturating_sub(1)
    }

    fn turn_out(&self, j: u32) -> u32 {
        if j + 1 < self.n_segments { 2 * j + 2 } else { 2 * j + 1 }
    }

    fn n_turns(&self) -> u32 {
        (2 * self.n_segments).max(1)
    }
}
