//! What both algorithms along tiers have in common: the innermost tier, and the legs above it.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        arena::staged::{self, Gather, Target},
        draft::contribute,
        step::{Buf, Step},
    },
    way::Leg,
};
use phalanx_core::Rank;

/// How many of the first tiers go through the arena.
pub(super) fn n_arena_tiers(request: &PlanRequest) -> usize {
    match &request.tiers {
        Some(wiring) if request.has_arena() => wiring.n_arena_tiers(&request.topology),
        _ => 0,
    }
}

/// The tiers over links of a world with a shape, lowest first; those of one rank are left out.
pub(super) fn legs(request: &PlanRequest, me: Rank) -> Vec<Leg> {
    let Some(wiring) = &request.tiers else { return Vec::new() };
    let place = wiring.grid.coordinates(me);
    let above = n_arena_tiers(request)..wiring.n_tiers();
    let tiers = above.filter(|&tier| wiring.grid.tiers().dims()[tier] > 1);
    tiers
        .map(|tier| Leg { way: wiring.ways[tier], place: place[tier], seats: wiring.grid.group(me, tier) })
        .collect()
}

/// What this rank has of `whole` once the tiers in the arena are reduced.
pub(super) fn inner_share(request: &PlanRequest, me: Rank, whole: Extent) -> Extent {
    if n_arena_tiers(request) == 0 {
        return whole;
    }
    whole.part(request.topology.neighbours(me).len() as u32, request.topology.local_of(me))
}

/// The steps over links between a reduce-scatter and an all-gather through the arena of this rank's host.
pub(super) fn inside_arena<'a>(
    request: &'a PlanRequest,
    me: Rank,
    between: impl Iterator<Item = Step> + 'a,
    is_last: bool,
) -> Draft<'a> {
    let whole = Extent::new(0, request.layout.len());
    let group = request.topology.neighbours(me);
    let (n, place) = (group.len() as u32, request.topology.local_of(me));
    let range = whole.part(n, place);
    let chunks: Vec<Extent> = (0..n).map(|i| whole.part(n, i)).collect();
    let lanes = staged::lanes(request, &chunks);
    let target = Target { base: range.at, last: is_last };
    let scatter = staged::reduce_scatter(lanes, chunks.clone(), place, target);
    let back = staged::single(request, &[whole.part(n, 0).len]);
    let who = Gather { first: lanes.n_turns(), lanes: back, group, place, reads: true };
    let gather = staged::gather(who, Some((Buf::Out, range)), chunks);
    Draft::in_arena(group, lanes.n_turns() + back.n_turns(), 0, scatter.chain(between).chain(gather))
}

/// All steps of a world with a shape, given those over links.
pub(super) fn shaped<'a>(
    request: &'a PlanRequest,
    me: Rank,
    between: impl Iterator<Item = Step> + 'a,
    is_last: bool,
) -> Draft<'a> {
    if n_arena_tiers(request) > 0 && request.topology.neighbours(me).len() > 1 {
        return inside_arena(request, me, between, is_last);
    }
    Draft::over_links(0, contribute(request, 0, request.layout.len()).chain(between))
}
