//! Ranks laid over a shape: who sits where, and how a tier moves its data.
//!
//! - GRID-1: ranks are laid out host by host, however they are numbered: where the first tier is as long as a host has ranks, its groups are
//!   the hosts.

use crate::{Rank, Tiers, Topology, topology::TopologyError};
use std::{fmt, str::FromStr};

/// A shape with a rank at every place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    tiers: Tiers,
    /// The rank at each place; places are counted along tier 0 first.
    ranks: Vec<Rank>,
    /// The place of each rank.
    places: Vec<u32>,
}

impl Tiers {
    /// Lays the ranks of these hosts over the shape (GRID-1).
    pub fn over(&self, topology: &Topology) -> Result<Grid, TopologyError> {
        self.check(topology.n_ranks())?;
        let ranks = topology.hosts().concat();
        let mut places = vec![0; ranks.len()];
        for (place, rank) in ranks.iter().enumerate() {
            places[rank.index()] = place as u32;
        }
        Ok(Grid { tiers: self.clone(), ranks, places })
    }
}

impl Grid {
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    pub fn n_ranks(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The rank's place along each tier.
    pub fn coordinates(&self, rank: Rank) -> Vec<u32> {
        self.tiers.coordinates(self.places[rank.index()])
    }

    /// The rank at these coordinates.
    pub fn rank(&self, coordinates: &[u32]) -> Rank {
        self.ranks[self.tiers.place(coordinates) as usize]
    }

    /// The ranks that differ from `rank` only along `tier`, itself included, in the order of that tier.
    pub fn group(&self, rank: Rank, tier: usize) -> Vec<Rank> {
        let mut at = self.coordinates(rank);
        (0..self.tiers.dims()[tier])
            .map(|i| {
                at[tier] = i;
                self.rank(&at)
            })
            .collect()
    }

    /// The ranks that share all coordinates from `tier` on with `rank`, in order: what the tiers below it span together.
    pub fn block(&self, rank: Rank, tier: usize) -> &[Rank] {
        let size = self.tiers.dims()[..tier].iter().product::<u32>();
        let from = self.places[rank.index()] / size * size;
        &self.ranks[from as usize..(from + size) as usize]
    }

    /// The highest tier along which two ranks differ; 0 for a rank and itself.
    pub fn tier_between(&self, a: Rank, b: Rank) -> usize {
        let (mut a, mut b) = (self.places[a.index()], self.places[b.index()]);
        let mut highest = 0;
        for (tier, dim) in self.tiers.dims().iter().enumerate() {
            if a % dim != b % dim {
                highest = tier;
            }
            (a, b) = (a / dim, b / dim);
        }
        highest
    }
}

/// How the ranks of one tier reduce and gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Through the memory of the host, where the tiers up to this one are exactly its ranks; round a ring elsewhere.
    Arena,
    /// From each rank to the next: every rank has two neighbours.
    Ring,
    /// In log2(n) rounds, where n is a power of two; round a ring elsewhere.
    Halving,
    /// From each rank to every other, without detour.
    Direct,
}

/// A word that is no way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a way: write arena, ring, halving or direct for each tier, e.g. arena,ring")]
pub struct UnknownWay(pub String);

impl Way {
    pub const ALL: [Way; 4] = [Way::Arena, Way::Ring, Way::Halving, Way::Direct];

    pub const fn name(self) -> &'static str {
        match self {
            Way::Arena => "arena",
            Way::Ring => "ring",
            Way::Halving => "halving",
            Way::Direct => "direct",
        }
    }

    /// Ways in a row, as in `arena,ring`.
    pub fn list(text: &str) -> Result<Vec<Way>, UnknownWay> {
        text.split(',').map(|word| word.trim().parse()).collect()
    }

    /// The list as it is written.
    pub fn show(ways: &[Way]) -> String {
        ways.iter().map(|w| w.name()).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Way {
    type Err = UnknownWay;

    fn from_str(word: &str) -> Result<Way, UnknownWay> {
        Way::ALL.into_iter().find(|w| w.name() == word).ok_or_else(|| UnknownWay(word.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(n_hosts: u32, each: u32) -> Topology {
        let host = |h| (0..each).map(|i| Rank(i * n_hosts + h)).collect();
        Topology::new((0..n_hosts).map(host).collect()).unwrap()
    }

    #[test]
    fn ranks_are_laid_out_host_by_host_however_numbered() {
        let tiers: Tiers = "4x3".parse().unwrap();
        for topology in [Topology::of_sizes(&[4, 4, 4]), dealt(3, 4)] {
            let grid = tiers.over(&topology).unwrap();
            for rank in (0..12).map(Rank) {
                assert_eq!(grid.rank(&grid.coordinates(rank)), rank);
                assert_eq!(grid.group(rank, 0), topology.neighbours(rank), "GRID-1");
                assert_eq!(grid.group(rank, 1), topology.cross(rank), "GRID-1");
                assert_eq!(grid.block(rank, 1), topology.neighbours(rank));
                assert_eq!(grid.block(rank, 2).len(), 12);
            }
        }
        let grid = tiers.over(&dealt(3, 4)).unwrap();
        assert_eq!(grid.coordinates(Rank(5)), [1, 2], "the second rank of the third host");
    }

    #[test]
    fn ranks_of_uneven_hosts_are_laid_out_one_host_after_the_other() {
        let hosts = vec![vec![Rank(1), Rank(3)], vec![Rank(0), Rank(2), Rank(4), Rank(5)]];
        let grid = "2x3".parse::<Tiers>().unwrap().over(&Topology::new(hosts).unwrap()).unwrap();
        assert_eq!(grid.group(Rank(0), 0), [0, 2].map(Rank));
        assert_eq!(grid.group(Rank(0), 1), [0, 4, 1].map(Rank));
    }

    #[test]
    fn the_tier_between_two_ranks_is_the_highest_along_which_they_differ() {
        let grid = "2x2x2".parse::<Tiers>().unwrap().over(&Topology::of_sizes(&[2; 4])).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 7].map(|r| grid.tier_between(Rank(0), Rank(r))), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_shape_of_another_size_names_both_numbers() {
        let error = "4x3".parse::<Tiers>().unwrap().over(&Topology::of_sizes(&[4, 4])).unwrap_err();
        assert_eq!(error.to_string(), "shape 4x3 holds 12 ranks, but the world has 8");
    }

    #[test]
    fn ways_are_words_in_a_row() {
        assert_eq!(Way::list("arena, ring,direct"), Ok(vec![Way::Arena, Way::Ring, Way::Direct]));
        assert_eq!(Way::show(&[Way::Arena, Way::Halving]), "arena,halving");
        assert_eq!(
            Way::list("arena,").unwrap_err().to_string(),
            "\"\" is not a way: write arena, ring, halving or direct for each tier, e.g. arena,ring"
        );
    }
}
