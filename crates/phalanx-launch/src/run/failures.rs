//! What ranks reported about their own failures, and which of these reports the user should read.
//!
//! - FIRST-1: a rank that failed because another one did is not the first failure if another rank reports a failure of its own.

use phalanx_core::Rank;
use phalanx_net::hub::message::FailureKind;

/// The failures that ranks told, in the order in which they came.
#[derive(Debug, Default)]
pub struct Failures(Vec<RankFailure>);

#[derive(Debug, PartialEq, Eq)]
pub struct RankFailure {
    pub rank: Rank,
    pub kind: FailureKind,
    pub text: String,
}

impl Failures {
    /// Takes one more. Each rank has one place: better reasons replace worse ones.
    pub fn add(&mut self, failure: RankFailure) {
        match self.0.iter_mut().find(|f| f.rank == failure.rank) {
            Some(known) if known.kind <= failure.kind => *known = failure,
            Some(_) => {}
            None => self.0.push(failure),
        }
    }

    /// The rank that failed first, if ranks know that better than the launcher, which saw how processes ended and takes it for `culprit`.
    pub fn first(&self, culprit: Rank) -> Rank {
        let follows = |f: &RankFailure| f.rank == culprit && f.kind == FailureKind::FollowsAnother;
        let own = self.0.iter().find(|f| f.kind == FailureKind::Own);
        match own {
            Some(own) if self.0.iter().any(follows) => own.rank, // FIRST-1
            _ => culprit,
        }
    }

    pub fn of(&self, rank: Rank) -> Option<&RankFailure> {
        self.0.iter().find(|f| f.rank == rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureKind::{FollowsAnother, OfThread, Own};

    fn told(all: &[(u32, FailureKind, &str)]) -> Failures {
        let mut failures = Failures::default();
        for &(rank, kind, text) in all {
            failures.add(RankFailure { rank: Rank(rank), kind, text: text.into() });
        }
        failures
    }

    #[test]
    fn who_only_follows_is_not_the_first_failure() {
        let failures = told(&[(0, FollowsAnother, "lost"), (2, Own, "boom"), (1, Own, "later")]);
        assert_eq!(failures.first(Rank(0)), Rank(2), "FIRST-1");
        assert_eq!(failures.first(Rank(1)), Rank(1), "it failed by itself");
        assert_eq!(failures.first(Rank(3)), Rank(3), "it said nothing: it was killed");
        assert_eq!(told(&[(0, FollowsAnother, "lost")]).first(Rank(0)), Rank(0), "nobody knows better");
    }

    #[test]
    fn the_best_reason_of_a_rank_stays() {
        let failures = told(&[(0, OfThread, "a thread"), (0, Own, "boom"), (0, OfThread, "another thread")]);
        assert_eq!(failures.of(Rank(0)).map(|f| f.text.as_str()), Some("boom"));
        assert_eq!(failures.of(Rank(1)), None);
    }
}
