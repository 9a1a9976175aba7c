//! Algorithms for ranks that share the memory of one host.
//!
//! All of them work through the slots in *turns* and keep one turn ahead: a rank copies its next segment in before it
//! reads the present one, so that no rank waits for a copy that could have been made earlier.

pub mod all;
pub mod direct;
pub mod split;
pub mod staged;

mod lanes;

pub(super) use lanes::Lanes;

use super::step::{Span, Step};
use smallvec::SmallVec;

/// Parts of a `Publish`.
pub(super) type Parts = SmallVec<[(Span, u64); 2]>;

/// Runs the turns `first..first + n_turns` one ahead: turn t + 1 is published before turn t is read. The end of the plan or of a later
/// turn releases the last one. Turn 0 of a plan is published even if it is empty (PLAN-3).
pub(super) fn one_ahead<'a, R>(
    first: u32,
    n_turns: u32,
    publish: impl Fn(u32) -> Parts + 'a,
    read: impl Fn(u32) -> R + 'a,
) -> impl Iterator<Item = Step> + 'a
where
    R: IntoIterator<Item = Step> + 'a,
    R::IntoIter: 'a,
{
    let publish = move |i| Step::Publish { turn: first + i, parts: publish(i) };
    let ahead = publish(0);
    std::iter::once(ahead).chain((0..n_turns).flat_map(move |i| {
        let next = (i + 1 < n_turns).then(|| publish(i + 1));
        let release = (i + 1 < n_turns).then_some(Step::Release { turn: first + i });
        next.into_iter().chain(read(i)).chain(release)
    }))
}

/// Elements in 64 bytes: where borders fall on them, no two ranks write one cache line.
pub(super) fn cache_line_len(elem_bytes: u32) -> u64 {
    (64 / u64::from(elem_bytes)).max(1)
}
