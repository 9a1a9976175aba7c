//! What is known of the network above the hosts: a grid of ranks, and how each tier moves its data.

use super::PlanRequest;
use phalanx_core::{Grid, Rank, Tiers, Topology, Way, topology::TopologyError};
use std::sync::Arc;

/// A shape with a rank at every place, and one way a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    pub grid: Arc<Grid>,
    pub ways: Vec<Way>,
}

impl Wiring {
    /// Without ways the first tier uses the arena and the others are rings; on one host all tiers use the arena.
    pub fn new(tiers: &Tiers, topology: &Topology, ways: Option<&[Way]>) -> Result<Wiring, TopologyError> {
        let n_tiers = tiers.dims().len();
        let ways = match ways {
            Some(ways) => ways.to_vec(),
            None if topology.n_hosts() == 1 => vec![Way::Arena; n_tiers],
            None => [Way::Arena].into_iter().chain([Way::Ring; 3]).take(n_tiers).collect(),
        };
        if ways.len() != n_tiers {
            return Err(TopologyError::WrongWays { shape: tiers.to_string(), n_tiers, n_ways: ways.len() });
        }
        Ok(Wiring { grid: Arc::new(tiers.over(topology)?), ways })
    }

    pub fn n_tiers(&self) -> usize {
        self.ways.len()
    }

    /// What each tier does where it cannot do what was asked for: the arena stands for whole hosts, halving needs a power of two; else it is a ring.
    pub fn used(&self, topology: &Topology, has_arena: bool) -> Vec<Way> {
        let n_arena = if has_arena { self.n_arena_tiers(topology) } else { 0 };
        let dims = self.grid.tiers().dims();
        let used = |(tier, way): (usize, &Way)| match way {
            Way::Arena if tier < n_arena => Way::Arena,
            Way::Arena => Way::Ring,
            Way::Halving if !dims[tier].is_power_of_two() => Way::Ring,
            way => *way,
        };
        self.ways.iter().enumerate().map(used).collect()
    }

    /// How many of the first tiers the arena stands for: those whose ways say so and which together are the ranks of every host.
    pub fn n_arena_tiers(&self, topology: &Topology) -> usize {
        let Some(each) = topology.even() else { return 0 };
        let dims = self.grid.tiers().dims();
        let n_asked = self.ways.iter().take_while(|way| **way == Way::Arena).count();
        (1..=n_asked).rev().find(|&k| dims[..k].iter().product::<u32>() == each).unwrap_or(0)
    }
}

impl PlanRequest {
    /// The tier of what goes from one rank to another: 0 inside a host, at least 1 between hosts.
    pub fn tier_between(&self, a: Rank, b: Rank) -> usize {
        if self.topology.host_of(a) == self.topology.host_of(b) {
            return 0;
        }
        self.tiers.as_ref().map_or(1, |wiring| wiring.grid.tier_between(a, b).max(1))
    }

    pub fn n_tiers(&self) -> usize {
        self.tiers.as_ref().map_or(2, |wiring| wiring.n_tiers().max(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wiring(shape: &str, sizes: &[u32], ways: &str) -> (Wiring, Topology) {
        let topology = Topology::of_sizes(sizes);
        let ways = (!ways.is_empty()).then(|| Way::list(ways).unwrap());
        (Wiring::new(&shape.parse().unwrap(), &topology, ways.as_deref()).unwrap(), topology)
    }

    #[test]
    fn the_arena_stands_for_the_tiers_that_are_a_host() {
        for (shape, sizes, ways, n) in [
            ("4x3", &[4, 4, 4][..], "", 1),
            ("2x2x3", &[4, 4, 4], "", 0),
            ("2x2x3", &[4, 4, 4], "arena,arena,ring", 2),
            ("2x2x3", &[2; 6], "arena,arena,ring", 1),
            ("4x3", &[4, 4, 4], "ring,ring", 0),
            ("4x3", &[4, 8], "", 0),
            ("12", &[12], "", 1),
        ] {
            let (wiring, topology) = wiring(shape, sizes, ways);
            assert_eq!(wiring.n_arena_tiers(&topology), n, "{shape} {ways}");
        }
    }

    #[test]
    fn what_is_used_is_what_is_possible() {
        for (shape, sizes, ways, used) in [
            ("4x3", &[4, 4, 4][..], "", "arena,ring"),
            ("2x6", &[4, 4, 4], "", "ring,ring"),
            ("2x2x3", &[4, 4, 4], "arena,arena,arena", "arena,arena,ring"),
            ("4x3", &[4, 4, 4], "halving,halving", "halving,ring"),
            ("4x3", &[12], "", "arena,arena"),
            ("4x3", &[12], "ring,direct", "ring,direct"),
        ] {
            let (wiring, topology) = wiring(shape, sizes, ways);
            assert_eq!(Way::show(&wiring.used(&topology, true)), used, "{shape} {ways}");
        }
        let (wiring, topology) = wiring("4x3", &[4, 4, 4], "");
        assert_eq!(Way::show(&wiring.used(&topology, false)), "ring,ring", "without shared memory");
    }

    #[test]
    fn there_is_one_way_for_each_tier() {
        let topology = Topology::of_sizes(&[4, 4, 4]);
        let error = Wiring::new(&"4x3".parse().unwrap(), &topology, Some(&[Way::Ring])).unwrap_err();
        assert_eq!(error.to_string(), "shape 4x3 has 2 tiers, but 1 ways are given: write one for each tier");
    }
}
