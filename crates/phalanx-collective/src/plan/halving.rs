//! Recursive halving and doubling: allreduce over links that is good at middle sizes.
//!
//! Reduce-scatter in which the range halves in every round, then all-gather in which it doubles: the bytes of a ring in 2 log2(n)
//! rounds. Nearest ranks, those of the same host, come first, because the first round moves most. Worlds that are no power of two pay one vector more at each end.

use super::{
    Draft, Extent, PlanRequest,
    draft::{contribute, recv, send, swap},
    ring::Tour,
    seats::{Core, Role},
    step::{Buf, CollectiveOp, Fold, Step},
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let whole = Extent::new(0, request.layout.len());
    let out = whole.of(Buf::Out);
    let core = Core::of(request.n_ranks());
    let tour = Tour::new(request, me);
    let rank = |place: u32| tour.ranks[place as usize];
    let steps: Vec<Step> = match core.role(tour.place) {
        Role::Outside { by } => vec![send(rank(by), out), recv(rank(by), out, Fold::Store)],
        Role::Inside { number, also } => {
            let first = also.map(|also| recv(rank(also), out, Fold::Reduce));
            let last = also.map(|also| send(rank(also), out));
            first.into_iter().chain(halve_and_double(core, number, whole, rank)).chain(last).collect()
        }
    };
    Draft::over_links(0, contribute(request, 0, whole.len).chain(steps))
}

fn halve_and_double(core: Core, number: u32, whole: Extent, rank: impl Fn(u32) -> Rank) -> Vec<Step> {
    let n_rounds = core.size().ilog2();
    let mut range = whole;
    // (peer, the half I keep, the half the peer keeps)
    let rounds: Vec<_> = (0..n_rounds)
        .map(|round| {
            let bit = (number >> round) & 1;
            let (kept, given) = (range.part(2, bit), range.part(2, 1 - bit));
            range = kept;
            (rank(core.place(number ^ (1 << round))), kept.of(Buf::Out), given.of(Buf::Out))
        })
        .collect();
    let halves = rounds.iter().enumerate().map(|(round, &(peer, kept, given))| {
        let fold = if round as u32 + 1 == n_rounds { Fold::ReduceLast } else { Fold::Reduce };
        swap(peer, given, peer, kept, fold)
    });
    let doubles = rounds.iter().rev().map(|&(peer, kept, given)| swap(peer, kept, peer, given, Fold::Store));
    halves.chain(doubles).collect()
}
