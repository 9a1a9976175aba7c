//! Recursive doubling: allreduce for few bytes over links.
//!
//! In every round two ranks exchange all they have, and what each knows doubles: log2(n) rounds, the least there can be. Both
//! sides of an exchange add the same two numbers, so all ranks end with the same bits.

use super::{
    Draft, Extent, PlanRequest,
    draft::{contribute, recv, send, swap},
    ring::Tour,
    seats::{Core, Role, Seats},
    step::{Buf, CollectiveOp, Fold, Step},
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let whole = Extent::new(0, request.layout.len());
    // Host by host: only the last rounds leave a host.
    let tour = Tour::new(request, me);
    let seats = Seats { place: tour.place, n: tour.n(), rank: move |i: u32| tour.ranks[i as usize] };
    let steps = contribute(request, 0, whole.len).chain(exchange_all(seats, whole));
    Draft::over_links(whole.len, steps)
}

/// Makes `whole` of every rank's `Out` the final sum of all; needs as much scratch. With one rank there is nothing to do.
pub(super) fn exchange_all(seats: Seats<impl Fn(u32) -> Rank>, whole: Extent) -> impl Iterator<Item = Step> {
    let out = whole.of(Buf::Out);
    let core = Core::of(seats.n);
    let mut steps = Vec::new();
    match core.role(seats.place) {
        Role::Outside { by } => {
            let by = (seats.rank)(by);
            steps.extend([send(by, out), recv(by, out, Fold::Store)]);
        }
        Role::Inside { number, also } => {
            let also = also.map(&seats.rank);
            steps.extend(also.map(|also| recv(also, out, Fold::Reduce)));
            // What is sent must stay as it was while the sum grows.
            let kept = Extent::new(0, whole.len).of(Buf::Scratch);
            for round in 0..core.size().ilog2() {
                let peer = (seats.rank)(core.place(number ^ (1 << round)));
                let fold = if 2 << round == core.size() { Fold::ReduceLast } else { Fold::Reduce };
                steps.extend([Step::Copy { src: out, dst: kept }, swap(peer, kept, peer, out, fold)]);
            }
            steps.extend(also.map(|also| send(also, out)));
        }
    }
    steps.into_iter()
}
