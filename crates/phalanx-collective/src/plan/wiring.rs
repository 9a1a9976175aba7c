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
    /// Without ways the first tier uses the arena and the others are rings.
    pub fn new(tiers: &Tiers, topology: &Topology, ways: Option<&[Way]>) -> Result<Wiring, TopologyError> {
        let n_tiers = tiers.dims().len();
        let ways = match ways {
            Some(ways) => ways.to_vec(),
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
    fn there_is_one_way_for_each_tier() {
        let topology = Topology::of_sizes(&[4, 4, 4]);
        let error = Wiring::new(&"4x3".parse().unwrap(), &topology, Some(&[Way::Ring])).unwrap_err();
        assert_eq!(error.to_string(), "shape 4x3 has 2 tiers, but 1 ways are given: write one for each tier");
    }
}
