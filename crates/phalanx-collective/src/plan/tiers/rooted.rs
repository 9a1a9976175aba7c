//! Broadcast and barrier in two levels: between the hosts' leaders over links, inside the hosts through the arena.
//!
//! The root of a broadcast leads its own host, so that no byte takes a detour.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        arena::staged,
        chain, dissemination,
        seats::Seats,
        step::{Buf, CollectiveOp, Step},
        tree,
    },
    leaders,
};
use phalanx_core::Rank;

/// Above this, leaders pass segments along a chain instead of whole vectors down a tree.
const CHAIN_BYTES: u64 = 256 << 10;

pub fn supports(request: &PlanRequest) -> bool {
    matches!(request.op, CollectiveOp::Broadcast | CollectiveOp::Barrier)
        && request.has_arena()
        && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    match request.op {
        CollectiveOp::Broadcast => broadcast(request, me),
        _ => barrier(request, me),
    }
}

fn broadcast(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let root = request.layout.root().expect("a broadcast has a root");
    let topology = &request.topology;
    let whole = Extent::new(0, request.layout.len());
    let (host, first) = (topology.host_of(me), topology.host_of(root));
    let mut leaders = leaders(request);
    leaders[first as usize] = root;
    let (leader, n) = (leaders[host as usize], leaders.len() as u32);
    let leads = leader == me;
    let buf = if root == me { Buf::In } else { Buf::Out };

    let between = leads.then(|| {
        leaders.rotate_left(first as usize);
        let seats = Seats { place: (host + n - first) % n, n, rank: move |v: u32| leaders[v as usize] };
        if request.bytes() > CHAIN_BYTES {
            Box::new(chain::pass_on(seats, whole.of(buf), request.segment_len()))
                as Box<dyn Iterator<Item = Step>>
        } else {
            Box::new(tree::broadcast(seats, whole.of(buf)))
        }
    });
    let between = between.into_iter().flatten();
    let own = tree::own_copy(request, root == me, whole);
    let group = topology.neighbours(me);
    if group.len() == 1 {
        return Draft::over_links(0, between.chain(own));
    }
    let lanes = staged::single(request, &[whole.len]);
    let inside = staged::broadcast(0, lanes, leader, (leads, buf), whole);
    Draft::in_arena(group, lanes.n_turns(), 0, between.chain(inside).chain(own))
}

fn barrier(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let topology = &request.topology;
    let group = topology.neighbours(me);
    let between = (group[0] == me).then(|| {
        let leaders = leaders(request);
        let n = leaders.len() as u32;
        let seats = Seats { place: topology.host_of(me), n, rank: move |h: u32| leaders[h as usize] };
        dissemination::hear_from_all(seats)
    });
    let scratch_len = if between.is_some() { dissemination::SCRATCH_LEN } else { 0 };
    let between = between.into_iter().flatten();
    if group.len() == 1 {
        return Draft::over_links(scratch_len, between);
    }
    let steps = std::iter::once(Step::Sync { turn: 0 }).chain(between).chain([Step::Sync { turn: 1 }]);
    Draft::in_arena(group, 2, scratch_len, steps)
}
