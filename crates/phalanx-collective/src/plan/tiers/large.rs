//! Allreduce along the tiers: reduce-scatter tier by tier going up, all-gather coming down.
//!
//! After tier 0 each rank of a host has its share of the host's sum, and carries only that between hosts: every local rank uses the
//! network, and of each host `2 (H - 1) / H` of the vector goes out, as much as if the host were one rank.
//!
//! Without an explicit shape there are two tiers, the hosts and the ring between them, and hosts may hold unequal numbers of ranks. Then the shares of
//! different hosts have different borders: between hosts the vector is cut at all of them, and every piece between two borders, which
//! has one owner on each host, is a track of the ring.

use super::super::{
    Draft, Extent, PlanRequest,
    arena::staged::{self, Gather, Target},
    draft::contribute,
    ring::{Ring, Track},
    step::{Buf, CollectiveOp},
};
use phalanx_core::{Rank, Tiers};

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let whole = Extent::new(0, request.layout.len());
    let inner = Inner::new(request, me);
    let range = whole.part(inner.n, inner.place);
    let rings = match &request.tiers {
        Some(tiers) => shaped_rings(tiers, me, range),
        None => host_ring(request, me, range, whole).into_iter().collect(),
    };
    let n_rings = rings.len();
    let (up, down) = (rings.clone(), rings);
    let climb = up.into_iter().enumerate().flat_map(move |(i, ring)| ring.reduce_scatter(i + 1 == n_rings));
    let descend = down.into_iter().rev().flat_map(Ring::all_gather);
    match inner.tier {
        Tier0::Alone => Draft::over_links(0, contribute(request, 0, whole.len).chain(climb).chain(descend)),
        Tier0::Links(ring) => {
            let gather = ring.clone().all_gather();
            let scatter = contribute(request, 0, whole.len).chain(ring.reduce_scatter(n_rings == 0));
            Draft::over_links(0, scatter.chain(climb).chain(descend).chain(gather))
        }
        Tier0::Arena => {
            let (n, place) = (inner.n, inner.place);
            let group = request.topology.neighbours(me);
            let chunks: Vec<Extent> = (0..n).map(|i| whole.part(n, i)).collect();
            let lanes = staged::lanes(request, &chunks);
            let target = Target { base: range.at, last: n_rings == 0 };
            let scatter = staged::reduce_scatter(lanes, chunks.clone(), place, target);
            let back = staged::single(request, &[whole.part(n, 0).len]);
            let who = Gather { first: lanes.n_turns(), lanes: back, group, place, reads: true };
            let gather = staged::gather(who, Some((Buf::Out, range)), chunks);
            let steps = scatter.chain(climb).chain(descend).chain(gather);
            Draft::in_arena(group, lanes.n_turns() + back.n_turns(), 0, steps)
        }
    }
}

/// This rank in its innermost group.
struct Inner {
    n: u32,
    place: u32,
    tier: Tier0,
}

/// How the innermost group talks.
enum Tier0 {
    Alone,
    Arena,
    Links(Ring),
}

impl Inner {
    fn new(request: &PlanRequest, me: Rank) -> Inner {
        let neighbours = request.topology.neighbours(me);
        let group = match &request.tiers {
            Some(tiers) => tiers.group(me, 0),
            None => neighbours.to_vec(),
        };
        let n = group.len() as u32;
        let place = group.iter().position(|&r| r == me).expect("a rank is in its own group") as u32;
        let tier = if n == 1 {
            Tier0::Alone
        } else if request.has_arena() && group == neighbours {
            Tier0::Arena
        } else {
            let whole = Extent::new(0, request.layout.len());
            Tier0::Links(Ring::among(place, n, whole, |i| group[i as usize]))
        };
        Inner { n, place, tier }
    }
}

/// One ring for each tier above 0 that holds more than one group; each divides what the one below left.
fn shaped_rings(tiers: &Tiers, me: Rank, mut range: Extent) -> Vec<Ring> {
    let place = tiers.coordinates(me);
    let mut rings = Vec::new();
    for (tier, &n) in tiers.dims().iter().enumerate().skip(1).filter(|&(_, &n)| n > 1) {
        let peers = tiers.group(me, tier);
        let ring = Ring::among(place[tier], n, range, |i| peers[i as usize]);
        range = ring.share(&ring.tracks[0]);
        rings.push(ring);
    }
    rings
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
