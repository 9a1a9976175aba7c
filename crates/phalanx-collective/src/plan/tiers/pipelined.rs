//! Allreduce along the tiers with several segments under way: while one is between racks, the next is between hosts.
//!
//! A segment goes up the legs and down again, one leg a *stage*. The next segment begins two stages later: stages of one parity are in different
//! tiers each, so every tier over links carries exactly one segment at any time. What segments do in one stage is merged into common exchanges, whose
//! transfers progress together.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        step::{CollectiveOp, Step},
    },
    climb::{inner_share, legs, shaped},
    way::{Leg, Steps},
};
use phalanx_core::Rank;

/// More segments bring more messages and less gain.
const MAX_SEGMENTS: u64 = 16;
/// A segment is this many pieces of the preferred size: every leg divides it further.
const PIECES: u64 = 4;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.n_ranks() > 1 && legs(request, Rank::ZERO).len() > 1
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let whole = Extent::new(0, request.layout.len());
    let range = inner_share(request, me, whole);
    let legs = legs(request, me);
    let n_segments = n_segments(request, whole.len);
    let segments: Vec<Segment> =
        (0..n_segments).map(|j| Segment::new(&legs, range.part(n_segments, j))).collect();
    let n_stages = 2 * legs.len() as u32;
    let slots = 0..n_stages + 2 * (n_segments - 1);
    let steps = slots.flat_map(move |slot| {
        let under_way = segments.iter().zip(0..).filter_map(|(segment, j)| {
            let stage = slot.checked_sub(2 * j).filter(|&stage| stage < n_stages)?;
            Some(segment.stage(&legs, stage as usize))
        });
        Merged(under_way.collect())
    });
    shaped(request, me, steps, false)
}

/// The same on every rank: shares of different ranks may differ by an element.
fn n_segments(request: &PlanRequest, len: u64) -> u32 {
    let n_inner = len / u64::from(request.topology.even().unwrap_or(1));
    n_inner.div_ceil(PIECES * request.segment_len()).clamp(1, MAX_SEGMENTS) as u32
}

/// One segment: what each leg divides.
struct Segment {
    ranges: Vec<Extent>,
}

impl Segment {
    fn new(legs: &[Leg], whole: Extent) -> Segment {
        let ranges = legs.iter().scan(whole, |rest, leg| {
            let range = *rest;
            *rest = leg.share(range);
            Some(range)
        });
        Segment { ranges: ranges.collect() }
    }

    fn stage(&self, legs: &[Leg], stage: usize) -> Steps {
        let n = legs.len();
        if stage < n {
            return legs[stage].reduce_scatter(self.ranges[stage], stage + 1 == n);
        }
        let leg = 2 * n - 1 - stage;
        legs[leg].all_gather(self.ranges[leg])
    }
}

/// The exchanges of several legs, merged one by one.
struct Merged(Vec<Steps>);

impl Iterator for Merged {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let mut merged = None;
        for steps in &mut self.0 {
            let Some(Step::Exchange { sends, recvs }) = steps.next() else { continue };
            match &mut merged {
                None => merged = Some((sends, recvs)),
                Some((all_sends, all_recvs)) => {
                    all_sends.extend(sends);
                    all_recvs.extend(recvs);
                }
            }
        }
        merged.map(|(sends, recvs)| Step::Exchange { sends, recvs })
    }
}
