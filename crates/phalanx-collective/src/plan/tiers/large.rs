//! Allreduce along the tiers: reduce-scatter tier by tier going up, all-gather coming down.
//!
//! After tier 0 each rank of a host has its share of the host's sum, and carries only that between hosts: every local rank uses the
//! network, and of each host `2 (H - 1) / H` of the vector goes out, as much as if the host were one rank.
//!
//! Without an explicit shape there are two tiers, the hosts and the ring between them, and hosts may hold unequal numbers of ranks. Then the shares of
//! different hosts have different borders: between hosts the vector is cut at all of them, and every piece between two borders, which
//! has one owner on each host, is a track of the ring.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        draft::contribute,
        ring::{Ring, Track},
        step::CollectiveOp,
    },
    climb::{inner_share, inside_arena, legs, shaped},
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    if request.tiers.is_some() { along_tiers(request, me) } else { over_hosts(request, me) }
}

/// Each leg divides what the one below left.
fn along_tiers(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let whole = Extent::new(0, request.layout.len());
    let mut range = inner_share(request, me, whole);
    let legs: Vec<_> = legs(request, me)
        .into_iter()
        .map(|leg| {
            let divided = range;
            range = leg.share(range);
            (leg, divided)
        })
        .collect();
    let n_legs = legs.len();
    let down = legs.clone().into_iter().rev().flat_map(|(leg, range)| leg.all_gather(range));
    let up = legs.into_iter().enumerate();
    let up = up.flat_map(move |(i, (leg, range))| leg.reduce_scatter(range, i + 1 == n_legs));
    shaped(request, me, up.chain(down), n_legs == 0)
}

/// Two tiers, the hosts and the ring between them.
fn over_hosts(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let whole = Extent::new(0, request.layout.len());
    let group = request.topology.neighbours(me);
    let (n, place) = (group.len() as u32, request.topology.local_of(me));
    let outer = host_ring(request, me, whole.part(n, place), whole);
    let is_last = outer.is_none();
    let up = outer.clone().into_iter().flat_map(|ring| ring.reduce_scatter(true));
    let between = up.chain(outer.into_iter().flat_map(Ring::all_gather));
    if n == 1 {
        return Draft::over_links(0, contribute(request, 0, whole.len).chain(between));
    }
    if request.has_arena() {
        return inside_arena(request, me, between, is_last);
    }
    let inner = Ring::among(place, n, whole, |i| group[i as usize]);
    let scatter = contribute(request, 0, whole.len).chain(inner.clone().reduce_scatter(is_last));
    Draft::over_links(0, scatter.chain(between).chain(inner.all_gather()))
}

/// The ring between hosts, one track for each piece of `range` that has one owner on every host.
fn host_ring(request: &PlanRequest, me: Rank, range: Extent, whole: Extent) -> Option<Ring> {
    let topology = &request.topology;
    let (n, place) = (topology.n_hosts(), topology.host_of(me));
    if n == 1 {
        return None;
    }
    let mut sizes: Vec<u32> = topology.hosts().iter().map(|host| host.len() as u32).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let inside = |at: &u64| range.at < *at && *at < range.end();
    let mut borders: Vec<u64> = vec![range.at, range.end()];
    for size in sizes.into_iter().filter(|_| range.len > 0) {
        let owners = whole.part_of(size, range.at)..=whole.part_of(size, range.end() - 1);
        borders.extend(owners.map(|i| whole.part(size, i).at).filter(inside));
    }
    borders.sort_unstable();
    borders.dedup();
    let owner = |host: u32, at: u64| {
        let ranks = &topology.hosts()[host as usize];
        ranks[whole.part_of(ranks.len() as u32, at) as usize]
    };
    let tracks = borders.windows(2).map(|w| Track {
        range: Extent::between(w[0], w[1]),
        next: owner((place + 1) % n, w[0]),
        prev: owner((place + n - 1) % n, w[0]),
    });
    Some(Ring { place, n, tracks: tracks.collect() })
}
