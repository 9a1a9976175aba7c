//! Algorithms that know which ranks are near each other.
//!
//! Inside a host the arena is used where there is one; between hosts data goes over links, in as few messages as possible.

pub mod large;
pub mod overlapped;
pub mod pipelined;
pub mod rooted;
pub mod small;

mod climb;
mod way;

use super::PlanRequest;
use phalanx_core::Rank;

/// The lowest rank of each host speaks for it.
fn leaders(request: &PlanRequest) -> Vec<Rank> {
    request.topology.hosts().iter().map(|host| host[0]).collect()
}
