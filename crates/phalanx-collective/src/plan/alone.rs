//! A world of one: the result is the rank's own contribution.

use super::{
    Draft, PlanRequest,
    step::{Buf, CollectiveOp, Span, Step},
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    request.n_ranks() == 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let len = request.out_len(me);
    let out = Span::of(Buf::Out, 0, len);
    let copy = (!request.in_place || request.op == CollectiveOp::Alltoall)
        .then_some(Step::Copy { src: Span::of(Buf::In, 0, len), dst: out });
    let reduces =
        matches!(request.op, CollectiveOp::Allreduce | CollectiveOp::Reduce | CollectiveOp::ReduceScatter);
    let scale = reduces.then_some(Step::Scale { span: out, pre: true, post: true });
    Draft::over_links(0, copy.into_iter().chain(scale))
}
