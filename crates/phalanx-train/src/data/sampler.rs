//! Which samples of an epoch a rank gets, also when another number of ranks took the first part of it.
//! - SAMPLE-1: the order of an epoch depends on the number of samples, the seed and the epoch only, not on the ranks.
//! - SAMPLE-2: the ranks' samples are disjoint, and together all that were left; [`Ends`] says what happens at the end.
//! - SAMPLE-3: ranks that continue where others stopped get the samples that those did not get, whatever both worlds' sizes are.
//!
//! Ranks take positions of the order in turn. So after each rank took `k` samples, all of them together took the first `k` times the number
//! of ranks: one number says how far they are.

use super::shuffle::Shuffle;
use phalanx_core::Rank;

/// What happens at the end of an epoch whose samples cannot be divided equally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// Every rank gets the same number of samples: the first samples of the epoch's order come again.
    #[default]
    Pad,
    /// Every rank gets the same number of samples: the last ones, fewer than there are ranks, are left out.
    Drop,
    /// The last ranks may get one sample less. Each sample counts once; ranks that end earlier have to join.
    Uneven,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    #[error("rank {rank} is not in a world of {world} ranks")]
    Rank { rank: Rank, world: u32 },
    #[error("the saved position is of {got} samples, the sampler has {wanted}: load it with the same data")]
    Samples { wanted: u64, got: u64 },
    #[error(
        "the saved position is of seed {got}, the sampler has seed {wanted}: make it with the saved seed"
    )]
    Seed { wanted: u64, got: u64 },
    #[error("the saved position is {consumed}, behind the last of {n} samples: the state is damaged")]
    Position { consumed: u64, n: u64 },
}

/// Divides `n` samples among the ranks, in an order that is new in each epoch.
///
/// ```
/// use phalanx_core::Rank;
/// use phalanx_train::data::{Ends, Sampler};
///
/// let sampler = |rank| Sampler { n: 10, world: 2, rank: Rank(rank), seed: 1, epoch: 0, ends: Ends::Pad };
/// let mut samples: Vec<u64> = sampler(0).indices(0)?.chain(sampler(1).indices(0)?).collect();
/// samples.sort();
/// assert_eq!(samples, (0..10).collect::<Vec<_>>());
/// # Ok::<(), phalanx_train::data::SamplerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampler {
    pub n: u64,
    /// The number of ranks.
    pub world: u32,
    pub rank: Rank,
    pub seed: u64,
    /// Of the training: how many times all samples were used before.
    pub epoch: u64,
    pub ends: Ends,
}

/// A position in the middle of an epoch; the same on all ranks, and understood by any number of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplerState {
    pub n: u64,
    pub seed: u64,
    pub epoch: u64,
    /// How many samples of the epoch all ranks together took.
    pub consumed: u64,
}

impl Sampler {
    /// This rank's samples of the epoch, without the `consumed` first ones of its order.
    pub fn indices(&self, consumed: u64) -> Result<Indices, SamplerError> {
        let (n, world, rank) = (self.n, self.world, self.rank);
        if rank.0 >= world {
            return Err(SamplerError::Rank { rank, world });
        }
        if consumed > n {
            return Err(SamplerError::Position { consumed, n });
        }
        let (left, world) = (n - consumed, u64::from(world));
        let share = match self.ends {
            Ends::Pad => left.div_ceil(world),
            Ends::Drop => left / world,
            Ends::Uneven => left.saturating_sub(u64::from(rank.0)).div_ceil(world),
        };
        let order = Shuffle::new(n, self.seed, self.epoch);
        Ok(Indices { order, n, world, rank: u64::from(rank.0), begin: consumed, taken: 0, share })
    }

    /// The state after all ranks together took `consumed` samples of the epoch.
    pub fn state(&self, consumed: u64) -> SamplerState {
        SamplerState { n: self.n, seed: self.seed, epoch: self.epoch, consumed }
    }

    /// Goes to the epoch of a saved state; returns what was consumed of it.
    pub fn restore(&mut self, state: &SamplerState) -> Result<u64, SamplerError> {
        let SamplerState { n, seed, epoch, consumed } = *state;
        if n != self.n {
            return Err(SamplerError::Samples { wanted: self.n, got: n });
        }
        if seed != self.seed {
            return Err(SamplerError::Seed { wanted: self.seed, got: seed });
        }
        if consumed > n {
            return Err(SamplerError::Position { consumed, n });
        }
        self.epoch = epoch;
        Ok(consumed)
    }
}

/// The samples of one rank, one after the other.
#[derive(Clone, Debug)]
pub struct Indices {
    order: Shuffle,
    n: u64,
    world: u64,
    rank: u64,
    /// The position at which the ranks began.
    begin: u64,
    taken: u64,
    /// How many this rank gets.
    share: u64,
}

impl Indices {
    /// How many samples this rank has taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many samples of the epoch all ranks together have consumed once each of them took `taken`, which is what [`SamplerState`] has. At the
    /// end of [`Ends::Uneven`] some ranks take one less: rank 0's number is right then.
    pub fn consumed_after(&self, taken: u64) -> u64 {
        let together = u128::from(taken) * u128::from(self.world) + u128::from(self.begin);
        // Samples that come again at the end, and places that no sample is left for, do not count.
        u64::try_from(together).map_or(self.n, |together| together.min(self.n))
    }
}

impl Iterator for Indices {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.taken == self.share {
            return None;
        }
        let turn = u128::from(self.taken) * u128::from(self.world) + u128::from(self.rank);
        self.taken += 1;
        // Behind the end the order begins again, more than once if there are more ranks than samples.
        let position = (turn + u128::from(self.begin)) % u128::from(self.n);
        Some(self.order.at(position as u64))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.share - self.taken).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Indices {}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: [Ends; 3] = [Ends::Pad, Ends::Drop, Ends::Uneven];

    fn sampler(n: u64, world: u32, rank: u32, ends: Ends) -> Sampler {
        Sampler { n, world, rank: Rank(rank), seed: 5, epoch: 2, ends }
    }

    /// What each rank of a world takes, up to `most` samples.
    fn all(n: u64, world: u32, ends: Ends, consumed: u64, most: usize) -> Vec<Vec<u64>> {
        let of = |rank| sampler(n, world, rank, ends).indices(consumed).expect("it is valid");
        (0..world).map(|rank| of(rank).take(most).collect()).collect()
    }

    fn sorted(shares: &[Vec<u64>]) -> Vec<u64> {
        let mut samples = shares.concat();
        samples.sort_unstable();
        samples
    }

    /// SAMPLE-2, for every world up to 8 ranks and positions all over small data sets.
    #[test]
    fn shares_are_disjoint_and_cover_what_is_left() {
        for (n, world) in (0..60u64).flat_map(|n| (1..9u32).map(move |world| (n, world))) {
            for consumed in [0, 1, n / 3, n / 2, n.saturating_sub(1), n].into_iter().filter(|c| *c <= n) {
                check_shares(n, world, consumed);
            }
        }
        check_shares(397, 7, 101);
    }

    fn check_shares(n: u64, world: u32, consumed: u64) {
        let case = format!("n={n} world={world} consumed={consumed}");
        let before = all(n, 1, Ends::Uneven, 0, consumed as usize);
        let left: Vec<u64> = (0..n).filter(|sample| !before[0].contains(sample)).collect();

        let uneven = all(n, world, Ends::Uneven, consumed, usize::MAX);
        assert_eq!(sorted(&uneven), left, "{case}");
        let longest = uneven.iter().map(Vec::len).max().unwrap_or(0);
        assert!(uneven.iter().all(|share| longest - share.len() <= 1), "{case}");

        let padded = all(n, world, Ends::Pad, consumed, usize::MAX);
        assert!(padded.iter().all(|share| share.len() == longest), "{case}: {padded:?}");
        assert!(left.iter().all(|sample| padded.concat().contains(sample)), "{case}");

        let dropped = all(n, world, Ends::Drop, consumed, usize::MAX);
        assert!(dropped.iter().all(|share| share.len() == left.len() / world as usize), "{case}");
        let mut once = sorted(&dropped);
        once.dedup();
        assert_eq!(once.len(), dropped.concat().len(), "none comes twice: {case}");
        assert!(once.iter().all(|sample| left.contains(sample)), "{case}");
    }

    /// SAMPLE-1, SAMPLE-3: a second and a third world continue, and each sample counts once.
    #[test]
    fn another_world_continues() {
        let worlds = |i: u64| [i % 8 + 1, i / 8 % 8 + 1, i / 64 % 8 + 1].map(|world| world as u32);
        for i in 0..512 {
            let ([first, second, third], n) = (worlds(i), i * 37 % 400);
            let take = |world, consumed, most: usize| {
                let shares = all(n, world, Ends::Uneven, consumed, most);
                let indices = sampler(n, world, 0, Ends::Uneven).indices(consumed).expect("it is valid");
                (shares, indices.consumed_after(most as u64))
            };
            let (before, consumed) = take(first, 0, (i % 32) as usize);
            let (between, consumed) = take(second, consumed, (i / 5 % 32) as usize);
            let after = all(n, third, Ends::Uneven, consumed, usize::MAX);
            let counted = sorted(&[before, between, after].concat());
            assert!(counted.into_iter().eq(0..n), "n={n}, worlds of {first}, {second}, {third}");
        }
    }

    /// SAMPLE-3, with numbers: 4 ranks take 3 samples each of 30, then 2 ranks take the 18 others.
    #[test]
    fn from_four_ranks_to_two_each_sample_counts_once() {
        for ends in EACH {
            let first = all(30, 4, ends, 0, 3);
            let mut indices = sampler(30, 4, 3, ends).indices(0).expect("it is valid");
            assert_eq!(indices.by_ref().take(3).count(), 3);
            let consumed = indices.consumed_after(indices.taken());
            assert_eq!(consumed, 12);
            let state = sampler(30, 4, 3, ends).state(consumed);
            let mut two = Sampler { epoch: 0, ..sampler(30, 2, 0, ends) };
            assert_eq!(two.restore(&state), Ok(12));
            assert_eq!(two.epoch, 2);
            let second = all(30, 2, ends, 12, usize::MAX);
            assert_eq!(second.iter().map(Vec::len).collect::<Vec<_>>(), [9, 9]);
            assert!(sorted(&[first, second].concat()).into_iter().eq(0..30));
        }
    }

    /// SAMPLE-1.
    #[test]
    fn any_number_of_ranks_interleaves_to_the_same_order() {
        let serial = all(24, 1, Ends::Pad, 0, usize::MAX).concat();
        for world in [2u32, 3, 4, 6] {
            let shares = all(24, world, Ends::Pad, 0, usize::MAX);
            let turn = |i: usize| shares[i % world as usize][i / world as usize];
            assert!((0..24).map(turn).eq(serial.iter().copied()), "{world}");
        }
    }

    #[test]
    fn more_ranks_than_samples_and_no_samples() {
        let padded = all(2, 5, Ends::Pad, 0, usize::MAX);
        assert!(padded.iter().all(|share| share.len() == 1));
        assert_eq!((padded[0].clone(), padded[1].clone()), (padded[2].clone(), padded[3].clone()));
        assert_eq!(all(2, 5, Ends::Drop, 0, usize::MAX).concat(), [0; 0]);
        assert_eq!(sorted(&all(2, 5, Ends::Uneven, 0, usize::MAX)), [0, 1]);
        for ends in EACH {
            assert_eq!(all(0, 3, ends, 0, usize::MAX).concat(), [0; 0]);
        }
        let huge = Sampler { n: u64::MAX, world: 3, rank: Rank(2), seed: 0, epoch: 0, ends: Ends::Pad };
        let indices = huge.indices(u64::MAX - 1).expect("it is valid");
        assert_eq!((indices.clone().count(), indices.consumed_after(u64::MAX)), (1, u64::MAX));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        assert_eq!(
            sampler(9, 2, 2, Ends::Pad).indices(0).expect_err("no such rank"),
            SamplerError::Rank { rank: Rank(2), world: 2 }
        );
        assert!(sampler(9, 0, 0, Ends::Pad).indices(0).is_err());
        assert!(sampler(9, 1, 0, Ends::Pad).indices(10).is_err());
        let mut one = sampler(9, 1, 0, Ends::Pad);
        let state = SamplerState { epoch: 7, ..one.state(3) };
        for wrong in [
            SamplerState { n: 8, ..state },
            SamplerState { seed: 6, ..state },
            SamplerState { consumed: 10, ..state },
        ] {
            one.restore(&wrong).expect_err("it does not fit");
            assert_eq!(one.epoch, 2);
        }
        assert_eq!((one.restore(&state), one.epoch), (Ok(3), 7));
    }
}
