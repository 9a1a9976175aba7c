//! Barrier over links: after round k every rank has heard, directly or not, from 2^(k + 1) ranks.
//!
//! Empty messages are not sent over a link, so each message is one element of scratch whose value is not used.

use super::{
    Draft, PlanRequest,
    draft::swap,
    seats::Seats,
    step::{Buf, CollectiveOp, Fold, Span, Step},
};
use phalanx_core::Rank;

/// Scratch that `hear_from_all` needs.
pub(super) const SCRATCH_LEN: u64 = 2;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Barrier && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let seats = Seats { place: me.0, n: request.n_ranks(), rank: Rank };
    Draft::over_links(SCRATCH_LEN, hear_from_all(seats))
}

/// Ends once every rank has begun.
pub(super) fn hear_from_all(seats: Seats<impl Fn(u32) -> Rank>) -> impl Iterator<Item = Step> {
    let (sent, heard) = (Span::of(Buf::Scratch, 0, 1), Span::of(Buf::Scratch, 1, 1));
    let n_rounds = seats.n.next_power_of_two().ilog2();
    (0..n_rounds).map(move |round| {
        let distance = 1 << round;
        swap(seats.after(distance), sent, seats.before(distance), heard, Fold::Store)
    })
}
