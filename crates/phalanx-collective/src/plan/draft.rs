//! A plan whose steps have not been collected yet.
//!
//! The steps of a flat ring of thousands of ranks do not fit in memory together; the simulator pulls them one by one. Drafts also take
//! away what moves nothing, so that algorithms need no special case for empty ranges.

use super::{
    PlanRequest,
    step::{Buf, Fold, Recv, Send, Span, Step},
};
use phalanx_core::Rank;
use smallvec::SmallVec;
use std::fmt;

/// What `Plan` holds, with the steps still to come.
pub struct Draft<'a> {
    pub group: &'a [Rank],
    pub n_turns: u32,
    pub scratch_len: u64,
    pub steps: Box<dyn Iterator<Item = Step> + 'a>,
}

impl<'a> Draft<'a> {
    /// A plan that uses links and this rank's own memory.
    pub fn over_links(scratch_len: u64, steps: impl Iterator<Item = Step> + 'a) -> Draft<'a> {
        Draft { group: &[], n_turns: 0, scratch_len, steps: Box::new(Stripped(steps)) }
    }

    /// A plan that uses the arena of these ranks too.
    pub fn in_arena(
        group: &'a [Rank],
        n_turns: u32,
        scratch_len: u64,
        steps: impl Iterator<Item = Step> + 'a,
    ) -> Draft<'a> {
        Draft { group, n_turns, scratch_len, steps: Box::new(Stripped(steps)) }
    }
}

impl fmt::Debug for Draft<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft")
            .field("group", &self.group)
            .field("n_turns", &self.n_turns)
            .field("scratch_len", &self.scratch_len)
            .finish_non_exhaustive()
    }
}

/// Steps without what moves nothing.
struct Stripped<I>(I);

impl<I: Iterator<Item = Step>> Iterator for Stripped<I> {
    type Item = Step;

    // A loop rather than `filter_map`, which moves every step, and steps are large, more often.
    fn next(&mut self) -> Option<Step> {
        loop {
            let mut step = self.0.next();
            if step.as_mut().is_none_or(strip) {
                return step;
            }
        }
    }
}

/// Takes the empty transfers out of a step; false if nothing is left of it. Both ends of a transfer see the same length, so both drop it.
fn strip(step: &mut Step) -> bool {
    match step {
        Step::Copy { src, .. } => src.len > 0,
        Step::Scale { span, pre, post } => span.len > 0 && (*pre || *post),
        Step::Exchange { sends, recvs } => {
            sends.retain(|s| s.src.len > 0);
            recvs.retain(|r| r.dst.len > 0);
            !sends.is_empty() || !recvs.is_empty()
        }
        Step::Publish { turn, parts } => {
            parts.retain(|(span, _)| span.len > 0);
            *turn == 0 || !parts.is_empty()
        }
        Step::ReduceFrom { dst, .. } | Step::Fetch { dst, .. } | Step::FetchDirect { dst, .. } => dst.len > 0,
        Step::ReduceDirect { len, .. } => *len > 0,
        Step::Release { .. } | Step::Sync { .. } => true,
    }
}

/// Makes `Out[at..at + len]` this rank's prescaled contribution to a reduction over links.
pub(super) fn contribute(request: &PlanRequest, at: u64, len: u64) -> impl Iterator<Item = Step> + use<> {
    let out = Span::of(Buf::Out, at, len);
    let copy = (!request.in_place).then_some(Step::Copy { src: Span::of(Buf::In, at, len), dst: out });
    copy.into_iter().chain([Step::Scale { span: out, pre: true, post: false }])
}

/// One transfer out.
pub(super) fn send(to: Rank, src: Span) -> Step {
    Step::Exchange { sends: SmallVec::from_iter([Send { to, src }]), recvs: SmallVec::new() }
}

/// One transfer in.
pub(super) fn recv(from: Rank, dst: Span, fold: Fold) -> Step {
    Step::Exchange { sends: SmallVec::new(), recvs: SmallVec::from_iter([Recv { from, dst, fold }]) }
}

/// One transfer each way, at the same time.
pub(super) fn swap(to: Rank, src: Span, from: Rank, dst: Span, fold: Fold) -> Step {
    Step::Exchange {
        sends: SmallVec::from_iter([Send { to, src }]),
        recvs: SmallVec::from_iter([Recv { from, dst, fold }]),
    }
}
