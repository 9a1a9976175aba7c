//! What ranks tell each other at the end of a step: eight bytes, of which every rank gets the largest.
//!
//! - VOTE-1: all ranks leave a step with the same verdict: whether training goes on, and whether this step is saved.
//! - VOTE-2: only where a verdict needs words (an end, a failure) do ranks exchange more than eight bytes.

use phalanx_core::Rank;
use serde::{Deserialize, Serialize};

/// How many bytes travel.
pub const VOTE_BYTES: usize = 8;

/// Why training ends, in the words of the rank that wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// A hook, a signal, or the program.
    pub by: String,
    pub why: String,
}

/// What one rank tells the others of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndWords {
    Wish(Reason),
    /// A save has failed. The rank that could not save need not be the one that tells it.
    Save {
        step: u64,
        rank: Rank,
        why: String,
    },
}

/// What one rank wants, or what all ranks together want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// Training ends after this step, as an error.
    pub fails: bool,
    /// Training ends after this step.
    pub stops: bool,
    /// It ends because the system wants the machine back: it is not finished.
    pub is_asked: bool,
    /// This step is saved.
    pub saves: bool,
}

impl Vote {
    pub fn to_bytes(self) -> [u8; VOTE_BYTES] {
        [self.fails, self.stops, self.is_asked, self.saves, false, false, false, false].map(u8::from)
    }

    pub fn from_bytes(bytes: &[u8]) -> Vote {
        let is = |at: usize| bytes.get(at).is_some_and(|&byte| byte > 0);
        Vote { fails: is(0), stops: is(1), is_asked: is(2), saves: is(3) }
    }

    /// Whether ranks have to tell why (VOTE-2).
    pub fn needs_words(self) -> bool {
        self.fails || self.stops
    }
}

/// The rank whose reason counts: the lowest one that fails, else the lowest one that stops.
pub fn spokesman(said: &[(Vote, Option<EndWords>)]) -> Option<(usize, &EndWords)> {
    let find = |wants: fn(&Vote) -> bool| {
        let found = said.iter().enumerate().find(|(_, (vote, why))| wants(vote) && why.is_some());
        found.and_then(|(rank, (_, why))| Some((rank, why.as_ref()?)))
    };
    find(|vote| vote.fails).or_else(|| find(|vote| vote.stops))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Vote> {
        let is = |n: u32, bit: u32| n >> bit & 1 == 1;
        let vote = |n| Vote { fails: is(n, 0), stops: is(n, 1), is_asked: is(n, 2), saves: is(n, 3) };
        (0..16).map(vote).collect()
    }

    /// VOTE-1.
    #[test]
    fn the_largest_bytes_are_what_any_rank_wants() {
        for a in all() {
            for b in all() {
                let largest: Vec<u8> =
                    a.to_bytes().into_iter().zip(b.to_bytes()).map(|(a, b)| a.max(b)).collect();
                let wanted = Vote {
                    fails: a.fails || b.fails,
                    stops: a.stops || b.stops,
                    is_asked: a.is_asked || b.is_asked,
                    saves: a.saves || b.saves,
                };
                assert_eq!(Vote::from_bytes(&largest), wanted);
            }
        }
    }

    /// VOTE-2.
    #[test]
    fn a_failure_speaks_before_a_stop() {
        let words = |by: &str| EndWords::Wish(Reason { by: by.into(), why: "x".into() });
        let stop = Vote { stops: true, ..Vote::default() };
        let fail = Vote { fails: true, ..Vote::default() };
        let said = [(Vote::default(), None), (stop, Some(words("time"))), (fail, Some(words("nan")))];
        assert_eq!(spokesman(&said), Some((2, &words("nan"))));
        assert_eq!(spokesman(&said[..2]).map(|(rank, _)| rank), Some(1));
        assert_eq!(spokesman(&said[..1]), None);
        assert!(
            stop.needs_words()
                && fail.needs_words()
                && !Vote { saves: true, ..Vote::default() }.needs_words()
        );
    }
}
