//! Allreduce in which every rank reduces the whole vector.
//!
//! Each rank publishes a segment and reduces it out of all slots itself: one synchronisation a segment, the least there can be. Every rank
//! reads n - 1 slots, so it is for two ranks, or for few bytes.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        step::{Buf, CollectiveOp, Layout, Step},
    },
    Lanes, one_ahead,
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.is_one_arena()
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let Layout::Whole { len } = request.layout else { unreachable!("an allreduce has a whole vector") };
    let lanes = Lanes::single(len, request.slot_len(), request.segment_len());
    let segment = move |i| lanes.piece(i, 0, Extent::new(0, len));
    let publish = move |i| [(segment(i).of(Buf::In), 0)].into_iter().collect();
    let read = move |i| {
        [Step::ReduceFrom {
            turn: i,
            slot_at: 0,
            own: segment(i).of(Buf::In),
            dst: segment(i).of(Buf::Out),
            publish: None,
            last: true,
        }]
    };
    let steps = one_ahead(0, lanes.n_turns(), publish, read);
    Draft::in_arena(request.topology.neighbours(me), lanes.n_turns(), 0, steps)
}
