//! Alltoall over links: in round s every rank sends to the rank s after it and hears from the rank s before it.
//!
//! Every round is a permutation, so no rank is asked by two at once, and the ranks that are in the earliest round find their peers there:
//! there is no circular wait, even where some transfers are empty and left out.

use super::{
    Draft, PlanRequest,
    draft::swap,
    step::{Buf, CollectiveOp, Fold, Step},
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Alltoall && request.n_ranks() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let n = request.n_ranks();
    let (row, column) = (request.layout.row(me), request.layout.column(me));
    let own = Step::Copy { src: row[me.index()].of(Buf::In), dst: column[me.index()].of(Buf::Out) };
    let rounds = (1..n).map(move |s| {
        let (to, from) = (Rank((me.0 + s) % n), Rank((me.0 + n - s) % n));
        swap(to, row[to.index()].of(Buf::In), from, column[from.index()].of(Buf::Out), Fold::Store)
    });
    Draft::over_links(0, rounds.chain([own]))
}
