//! Where the ranks are: hosts, tiers, coordinates.
//!
//! - TOPO-1: every rank is on exactly one host; hosts are numbered by their lowest rank.
//! - TOPO-2: tier 0 varies fastest: in a `4x3` world place 5 has the coordinates (1, 1).

use crate::Rank;
use std::{fmt, str::FromStr};

/// The shape of the network, tier 0 first: `4x8x2` is 4 ranks a host, 8 hosts a rack, 2 racks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tiers(Vec<u32>);

/// What is wrong with a shape or with the hosts of a world.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("{text:?} is not a shape like 8, 4x3 or 4x8x2 (one to four positive numbers joined by x)")]
    BadShape { text: String },
    #[error("shape {shape} holds {product} ranks, but the world has {n_ranks}")]
    WrongProduct { shape: String, product: u64, n_ranks: u32 },
    #[error("shape {shape} has {n_tiers} tiers, but {n_ways} ways are given: write one for each tier")]
    WrongWays { shape: String, n_tiers: usize, n_ways: usize },
    #[error("rank {0} is not on any host")]
    RankNowhere(Rank),
    #[error("rank {0} is on two hosts")]
    RankTwice(Rank),
}

impl Tiers {
    pub fn new(dims: &[u32]) -> Result<Tiers, TopologyError> {
        let bad = || TopologyError::BadShape {
            text: dims.iter().map(u32::to_string).collect::<Vec<_>>().join("x"),
        };
        let product = dims.iter().try_fold(1u32, |all, &d| all.checked_mul(d));
        if dims.is_empty() || dims.len() > 4 || product.is_none_or(|p| p == 0) {
            return Err(bad());
        }
        Ok(Tiers(dims.to_vec()))
    }

    pub fn dims(&self) -> &[u32] {
        &self.0
    }

    pub fn n_ranks(&self) -> u32 {
        self.0.iter().product()
    }

    /// Checks that the shape holds exactly this many ranks.
    pub fn check(&self, n_ranks: u32) -> Result<(), TopologyError> {
        let product = u64::from(self.n_ranks());
        if product != u64::from(n_ranks) {
            return Err(TopologyError::WrongProduct { shape: self.to_string(), product, n_ranks });
        }
        Ok(())
    }

    /// Where the place of this number is along each tier. `over` says which rank sits there.
    pub fn coordinates(&self, place: u32) -> Vec<u32> {
        let mut rest = place;
        self.0
            .iter()
            .map(|&dim| {
                let at = rest % dim;
                rest /= dim;
                at
            })
            .collect()
    }

    /// The number of the place at these coordinates.
    pub fn place(&self, coordinates: &[u32]) -> u32 {
        self.0.iter().zip(coordinates).rev().fold(0, |place, (&dim, &at)| place * dim + at)
    }
}

impl fmt::Display for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(u32::to_string).collect::<Vec<_>>().join("x"))
    }
}

impl FromStr for Tiers {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Tiers, TopologyError> {
        let bad = || TopologyError::BadShape { text: text.to_string() };
        let dims = text.split('x').map(|d| d.parse().map_err(|_| bad())).collect::<Result<Vec<u32>, _>>()?;
        Tiers::new(&dims).map_err(|_| bad())
    }
}

/// Which ranks share a host. Hosts may hold unequal numbers of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    hosts: Vec<Vec<Rank>>,
    place: Vec<(u32, u32)>,
}

impl Topology {
    /// `hosts[h]` lists the ranks of host h. Ranks are put in order and hosts by their lowest rank.
    pub fn new(hosts: Vec<Vec<Rank>>) -> Result<Topology, TopologyError> {
        let mut hosts: Vec<Vec<Rank>> = hosts.into_iter().filter(|h| !h.is_empty()).collect();
        hosts.iter_mut().for_each(|h| h.sort_unstable());
        hosts.sort_unstable();
        let n_ranks = hosts.iter().map(Vec::len).sum();
        let mut place = vec![None; n_ranks];
        for (h, ranks) in hosts.iter().enumerate() {
            for (l, &rank) in ranks.iter().enumerate() {
                let slot =
                    place.get_mut(rank.index()).ok_or(TopologyError::RankNowhere(Rank::at(n_ranks - 1)))?;
                if slot.replace((h as u32, l as u32)).is_some() {
                    return Err(TopologyError::RankTwice(rank));
                }
            }
        }
        let place = place
            .into_iter()
            .enumerate()
            .map(|(r, p)| p.ok_or(TopologyError::RankNowhere(Rank::at(r))))
            .collect::<Result<_, _>>()?;
        Ok(Topology { hosts, place })
    }

    /// All ranks on one host.
    pub fn one_host(n_ranks: u32) -> Topology {
        Topology {
            hosts: vec![(0..n_ranks).map(Rank).collect()],
            place: (0..n_ranks).map(|r| (0, r)).collect(),
        }
    }

    /// Hosts of these sizes, ranks numbered host by host.
    pub fn of_sizes(sizes: &[u32]) -> Topology {
        let mut next = 0;
        let hosts = sizes
            .iter()
            .map(|&n| {
                next += n;
                (next - n..next).map(Rank).collect()
            })
            .collect();
        Topology::new(hosts).expect("ranks counted up are each on one host")
    }

    pub fn n_ranks(&self) -> u32 {
        self.place.len() as u32
    }

    pub fn n_hosts(&self) -> u32 {
        self.hosts.len() as u32
    }

    pub fn hosts(&self) -> &[Vec<Rank>] {
        &self.hosts
    }

    /// The number of the rank's host.
    pub fn host_of(&self, rank: Rank) -> u32 {
        self.place[rank.index()].0
    }

    /// The rank's place on its host.
    pub fn local_of(&self, rank: Rank) -> u32 {
        self.place[rank.index()].1
    }

    /// The ranks of the rank's host, itself included, in order.
    pub fn neighbours(&self, rank: Rank) -> &[Rank] {
        &self.hosts[self.host_of(rank) as usize]
    }

    /// The ranks with the same place on their hosts, itself included, by host: Horovod's "cross" ranks.
    pub fn cross(&self, rank: Rank) -> Vec<Rank> {
        let local = self.local_of(rank) as usize;
        self.hosts.iter().filter_map(|h| h.get(local).copied()).collect()
    }

    /// The number of ranks a host, where it is the same on every host.
    pub fn even(&self) -> Option<u32> {
        let first = self.hosts.first()?.len();
        self.hosts.iter().all(|h| h.len() == first).then_some(first as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_parse_and_name_what_is_wrong() {
        assert_eq!("4x8x2".parse::<Tiers>().unwrap().n_ranks(), 64);
        for bad in ["", "x", "4x", "0", "4x0", "-1", "1x1x1x1x1", "a", "65536x65536"] {
            assert_eq!(bad.parse::<Tiers>(), Err(TopologyError::BadShape { text: bad.into() }));
        }
        let error = "4x3".parse::<Tiers>().unwrap().check(16).unwrap_err();
        assert_eq!(error.to_string(), "shape 4x3 holds 12 ranks, but the world has 16");
    }

    #[test]
    fn tier_0_varies_fastest() {
        let tiers: Tiers = "4x3".parse().unwrap();
        assert_eq!(tiers.coordinates(5), [1, 1], "TOPO-2");
        for place in 0..12 {
            assert_eq!(tiers.place(&tiers.coordinates(place)), place);
        }
    }

    #[test]
    fn uneven_hosts_keep_every_rank_on_one_host() {
        let topology = Topology::new(vec![vec![Rank(3), Rank(2)], vec![Rank(0), Rank(1), Rank(4)]]).unwrap();
        assert_eq!(topology.hosts(), [vec![Rank(0), Rank(1), Rank(4)], vec![Rank(2), Rank(3)]], "TOPO-1");
        assert_eq!((topology.host_of(Rank(4)), topology.local_of(Rank(4))), (0, 2));
        assert_eq!(topology.cross(Rank(0)), [0, 2].map(Rank));
        assert_eq!(topology.cross(Rank(4)), [Rank(4)]);
        assert_eq!(topology.even(), None);
    }

    #[test]
    fn a_rank_on_two_hosts_or_none_is_named() {
        let twice = Topology::new(vec![vec![Rank(0)], vec![Rank(0)]]);
        assert_eq!(twice, Err(TopologyError::RankTwice(Rank(0))));
        assert!(matches!(Topology::new(vec![vec![Rank(0), Rank(2)]]), Err(TopologyError::RankNowhere(_))));
    }
}
