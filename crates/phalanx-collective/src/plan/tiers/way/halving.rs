//! Recursive halving and doubling: log2(n) steps for a power of two, with the bytes of a ring.
//!
//! The farthest place comes first, so that the part that remains is the one of this rank's place (WAY-1). Along one tier all are equally far.

use super::{
    super::super::{
        Extent,
        draft::swap,
        step::{Buf, Fold, Span},
    },
    Leg, Steps,
};
use phalanx_core::Rank;

/// One round: with whom, what this rank keeps, what the other keeps.
struct Round {
    peer: Rank,
    kept: Span,
    given: Span,
}

fn rounds(leg: &Leg, range: Extent) -> Vec<Round> {
    let n = leg.n();
    let parts = |from: u32, len: u32| {
        Extent::between(range.part(n, from).at, range.part(n, from + len - 1).end()).of(Buf::Out)
    };
    (0..n.ilog2())
        .map(|round| {
            let half = n >> (round + 1);
            let other = leg.place ^ half;
            let begin = |place: u32| place & !(half - 1);
            Round {
                peer: leg.seats[other as usize],
                kept: parts(begin(leg.place), half),
                given: parts(begin(other), half),
            }
        })
        .collect()
}

pub fn reduce_scatter(leg: &Leg, range: Extent, last: bool) -> Steps {
    let rounds = rounds(leg, range);
    let n_rounds = rounds.len();
    Box::new(rounds.into_iter().enumerate().map(move |(i, Round { peer, kept, given })| {
        let fold = if last && i + 1 == n_rounds { Fold::ReduceLast } else { Fold::Reduce };
        swap(peer, given, peer, kept, fold)
    }))
}

pub fn all_gather(leg: &Leg, range: Extent) -> Steps {
    let rounds = rounds(leg, range).into_iter().rev();
    Box::new(rounds.map(|Round { peer, kept, given }| swap(peer, kept, peer, given, Fold::Store)))
}
