//! What one call sends over links, from the counters of all ranks.

use phalanx_collective::{Communicator, Error, TierTraffic};
use phalanx_core::Rank;

/// Of one call, all ranks together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTraffic {
    /// Along each tier, 0 inside the hosts.
    pub tier_bytes: Vec<u64>,
    pub tier_messages: Vec<u64>,
    /// What leaves the host from which most leaves.
    pub host_bytes: u64,
}

impl CallTraffic {
    /// What the ranks have sent since these counters were read; every rank calls it.
    pub fn since(comm: &mut Communicator, before: &[TierTraffic]) -> Result<CallTraffic, Error> {
        let now = comm.traffic();
        let mine: Vec<i64> = now
            .iter()
            .zip(before)
            .flat_map(|(now, before)| [now.bytes - before.bytes, now.messages - before.messages])
            .map(|n| n as i64)
            .collect();
        let n_ranks = comm.size() as usize;
        let mut all = vec![0; mine.len() * n_ranks];
        comm.allgather(&mine, &mut all, &vec![mine.len() as u64; n_ranks])?;
        let topology = comm.topology();
        Ok(sum(&all, mine.len(), |rank| topology.host_of(rank) as usize))
    }
}

/// Of words of bytes and messages, tier by tier and rank by rank.
fn sum(all: &[i64], each: usize, host_of: impl Fn(Rank) -> usize) -> CallTraffic {
    let mut sums = vec![0; each];
    let mut hosts: Vec<u64> = Vec::new();
    for (rank, words) in all.chunks(each).enumerate() {
        let host = host_of(Rank::at(rank));
        hosts.resize(hosts.len().max(host + 1), 0);
        for (i, &word) in words.iter().enumerate() {
            sums[i] += word as u64;
            // Bytes above tier 0.
            if i >= 2 && i.is_multiple_of(2) {
                hosts[host] += word as u64;
            }
        }
    }
    // Tiers that nothing goes along and nothing above them does, are not shown.
    let n_tiers = sums.chunks(2).rposition(|tier| tier[1] > 0).map_or(0, |last| last + 1);
    let column = |at: usize| sums.chunks(2).take(n_tiers).map(|tier| tier[at]).collect();
    CallTraffic {
        tier_bytes: column(0),
        tier_messages: column(1),
        host_bytes: hosts.into_iter().max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_fullest_host_is_what_its_ranks_send_above_tier_0() {
        // Three ranks on two hosts: bytes and messages of tiers 0, 1, 2.
        let all = [10, 1, 100, 2, 0, 0, 10, 1, 50, 1, 0, 0, 0, 0, 120, 3, 0, 0];
        let found = sum(&all, 6, |rank| usize::from(rank == Rank(2)));
        let (tier_bytes, tier_messages) = (vec![20, 270], vec![2, 6]);
        assert_eq!(found, CallTraffic { tier_bytes, tier_messages, host_bytes: 150 });
        assert_eq!(sum(&[0; 6], 6, |_| 0), CallTraffic::default(), "inside one arena nothing is sent");
    }
}
