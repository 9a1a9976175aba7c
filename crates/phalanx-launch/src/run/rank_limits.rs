//! Checks the number of ranks against the limits of a world and of this process, before anything starts. Each agent checks its own host.

use super::LaunchError;
use crate::{limits, place::WorldPlan};
use phalanx_net::arena::MAX_LOCAL;

/// Most ranks of a world: what a rank believes a launcher.
const MAX_RANKS: u32 = 1 << 16;
/// Descriptors that do not depend on the number of ranks: strangers at the door, listeners, pipes.
const FILES: u64 = 256;

/// Checks the plan against what worlds and this process can hold.
pub fn check(plan: &WorldPlan, n_hosts: usize, writes_files: bool) -> Result<(), LaunchError> {
    fits(plan)?;
    // Every rank has a connection to the meeting point here, every agent three pipes.
    let of_rank = if writes_files { 3 } else { 1 };
    let needed = u64::from(plan.n_ranks()) * of_rank + 3 * n_hosts as u64 + FILES;
    limits::raise_files(needed)
        .map_err(|shortage| LaunchError::FewFiles { n_ranks: plan.n_ranks(), shortage })
}

fn fits(plan: &WorldPlan) -> Result<(), LaunchError> {
    if plan.n_ranks() > MAX_RANKS {
        return Err(LaunchError::LargeWorld { n_ranks: plan.n_ranks(), most: MAX_RANKS });
    }
    match plan.hosts().iter().find(|host| host.ranks.len() > MAX_LOCAL) {
        Some(host) => Err(LaunchError::CrowdedHost {
            host: host.name.clone(),
            n_local: host.ranks.len(),
            most: MAX_LOCAL,
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;

    fn says(hosts: &str, n_ranks: u32) -> Option<String> {
        fits(&WorldPlan::fill(&parse_list(hosts).unwrap(), n_ranks, "-H").unwrap())
            .err()
            .map(|e| e.to_string())
    }

    #[test]
    fn a_host_and_a_world_have_room_for_so_many() {
        assert_eq!(says("a:1024,b:1024", 2048), None);
        assert_eq!(
            says("a:9,b:2000", 2009).unwrap(),
            "2000 ranks on host b are more than the 1024 that one host can have; \
             lower -np, or spread them over more hosts with -H"
        );
        assert!(says("a:70000", 70_000).unwrap().contains("at most 65536"));
    }
}
