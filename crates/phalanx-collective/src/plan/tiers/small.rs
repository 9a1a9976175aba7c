//! Allreduce of few bytes across hosts: one rank of each host speaks for it.
//!
//! The leader reduces its host's vectors out of the arena, leaders double over links, and the host fetches the result from its leader's
//! slot: log2(H) messages between hosts, whatever the number of ranks.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        arena::staged,
        doubling,
        draft::contribute,
        seats::Seats,
        step::{Buf, CollectiveOp},
    },
    leaders,
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.has_arena() && request.topology.n_hosts() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let whole = Extent::new(0, request.layout.len());
    let group = request.topology.neighbours(me);
    let (host, leader) = (request.topology.host_of(me), group[0]);
    let leads = leader == me;
    let between = leads.then(|| {
        let leaders = leaders(request);
        let seats = Seats { place: host, n: leaders.len() as u32, rank: move |h: u32| leaders[h as usize] };
        doubling::exchange_all(seats, whole)
    });
    let between = between.into_iter().flatten();
    if group.len() == 1 {
        return Draft::over_links(whole.len, contribute(request, 0, whole.len).chain(between));
    }
    let lanes = staged::single(request, &[whole.len]);
    let reduce = staged::reduce(lanes, leads, whole, false);
    let share = staged::broadcast(lanes.n_turns(), lanes, leader, (leads, Buf::Out), whole);
    let scratch_len = if leads { whole.len } else { 0 };
    Draft::in_arena(group, 2 * lanes.n_turns(), scratch_len, reduce.chain(between).chain(share))
}
