//! One tier over links: a reduce-scatter and an all-gather among the ranks of one group, in the way that the tier has.
//!
//! - WAY-1: whatever the way, the rank at place i of n ends the reduce-scatter with part i of n of the range, and begins the all-gather with it: a
//!   tier's way does not change what the tiers above it see.

mod direct;
mod halving;
mod ring;

use super::super::{Extent, step::Step};
use phalanx_core::{Rank, Way};

/// The steps of one half of a leg.
pub(super) type Steps = Box<dyn Iterator<Item = Step>>;

/// This rank in its group along one tier.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub way: Way,
    pub place: u32,
    pub seats: Vec<Rank>,
}

impl Leg {
    fn n(&self) -> u32 {
        self.seats.len() as u32
    }

    /// WAY-1.
    pub fn share(&self, range: Extent) -> Extent {
        range.part(self.n(), self.place)
    }

    /// Ends with this rank's share of `range` reduced over the group, and final if `last`.
    pub fn reduce_scatter(&self, range: Extent, last: bool) -> Steps {
        match self.way {
            Way::Direct => direct::reduce_scatter(self.clone(), range, last),
            Way::Halving if self.n().is_power_of_two() => halving::reduce_scatter(self, range, last),
            _ => ring::reduce_scatter(self, range, last),
        }
    }

    /// Begins with the shares that `reduce_scatter` leaves and ends with all of `range`.
    pub fn all_gather(&self, range: Extent) -> Steps {
        match self.way {
            Way::Direct => direct::all_gather(self, range),
            Way::Halving if self.n().is_power_of_two() => halving::all_gather(self, range),
            _ => ring::all_gather(self, range),
        }
    }
}
