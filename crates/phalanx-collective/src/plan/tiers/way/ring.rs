//! Round a ring: n - 1 steps, each with the next rank; as many bytes as there must be.

use super::{
    super::super::{Extent, ring::Ring},
    Leg, Steps,
};

fn ring(leg: &Leg, range: Extent) -> Ring {
    Ring::among(leg.place, leg.n(), range, |i| leg.seats[i as usize])
}

pub fn reduce_scatter(leg: &Leg, range: Extent, last: bool) -> Steps {
    Box::new(ring(leg, range).reduce_scatter(last))
}

pub fn all_gather(leg: &Leg, range: Extent) -> Steps {
    Box::new(ring(leg, range).all_gather())
}
