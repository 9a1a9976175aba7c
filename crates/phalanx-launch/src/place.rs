//! Which rank runs on which host: fills the hosts' slots in the order given, or does what a rank file says.
//!
//! - PLACE-1: ranks are numbered host by host; a host takes no more ranks than it has slots.
//! - PLACE-4: with a rank file each host has the ranks that the file gives it. Hosts go by their lowest rank, and local ranks by rank.
//! - PLACE-3: workers are numbered first, then servers; local and cross ranks count those of the same role. An evaluator is no rank: it runs
//!   on the first host, and what is kept for each process has its place after the last rank's.
//! - PLACE-5: servers that run `phalanx serve` are dealt to hosts in turn; where some host would keep no worker they have the last slots.
//! - PLACE-2: local rank i of every host that has one forms a cross group, numbered by host.

use crate::{hosts::HostSlots, slurm};
use phalanx_core::{Rank, TaskRole};

/// The ranks of one host, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRanks {
    pub name: String,
    pub ranks: Vec<u32>,
}

/// Every rank's host. At least one rank, at least one host, no host without a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldPlan {
    hosts: Vec<HostRanks>,
    n_servers: u32,
    has_evaluator: bool,
}

/// What a rank is told about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub rank: Rank,
    pub role: TaskRole,
    /// Workers and servers.
    pub size: u32,
    pub n_servers: u32,
    pub local_rank: u32,
    pub local_size: u32,
    pub cross_rank: u32,
    pub cross_size: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    #[error("-np 0: a world has at least one rank; write e.g. -np 4")]
    NoRanks,
    #[error("{asked} for more ranks than the {slots} slots of {source_flag}; {advice}")]
    TooFewSlots { asked: String, slots: u64, source_flag: &'static str, advice: String },
    #[error("--servers {n_servers} leaves no worker among {n_ranks} ranks; lower it, or raise -np")]
    NoWorkers { n_servers: u32, n_ranks: u32 },
}

impl WorldPlan {
    /// A world without servers.
    #[cfg(test)]
    pub fn fill(
        hosts: &[HostSlots],
        n_ranks: u32,
        source_flag: &'static str,
    ) -> Result<WorldPlan, PlaceError> {
        WorldPlan::fill_with(hosts, n_ranks, 0, source_flag)
    }

    /// A number of ranks, the last of them servers. `source_flag` is where the slots came from, for the error.
    pub fn fill_with(
        hosts: &[HostSlots],
        n_ranks: u32,
        n_servers: u32,
        source_flag: &'static str,
    ) -> Result<WorldPlan, PlaceError> {
        if n_ranks == 0 {
            return Err(PlaceError::NoRanks);
        }
        if n_servers >= n_ranks {
            return Err(PlaceError::NoWorkers { n_servers, n_ranks });
        }
        let slots: u64 = hosts.iter().map(|h| u64::from(h.slots)).sum();
        if slots < u64::from(n_ranks) {
            let first = hosts.first().map_or("localhost", |h| &h.name);
            let more = u64::from(n_ranks) - slots + hosts.first().map_or(0, |h| u64::from(h.slots));
            let each = n_ranks.div_ceil(hosts.len().max(1) as u32);
            let advice = match source_flag {
                slurm::SOURCE => format!(
                    "lower -np, ask Slurm for more tasks (--ntasks={n_ranks}), or write --slots-per-host {each}"
                ),
                _ => format!("lower -np or give more slots, e.g. {first}:{more}"),
            };
            let asked = match n_servers {
                0 => format!("-np {n_ranks} asks"),
                n => format!("-np {} and --servers {n} ask", n_ranks.saturating_sub(n)),
            };
            return Err(PlaceError::TooFewSlots { asked, slots, source_flag, advice });
        }
        let mut next = 0;
        let mut filled = Vec::new();
        for host in hosts {
            let end = n_ranks.min(next + host.slots.min(n_ranks - next));
            if next < end {
                filled.push(HostRanks { name: host.name.clone(), ranks: (next..end).collect() });
            }
            next = end;
        }
        Ok(WorldPlan { hosts: filled, n_servers, has_evaluator: false })
    }

    /// The world of a rank file, which names a host for each of the ranks from 0 on (PLACE-4).
    pub fn of_hosts(host_of: &[String], n_servers: u32) -> Result<WorldPlan, PlaceError> {
        let n_ranks = host_of.len() as u32;
        if n_ranks == 0 {
            return Err(PlaceError::NoRanks);
        }
        if n_servers >= n_ranks {
            return Err(PlaceError::NoWorkers { n_servers, n_ranks });
        }
        let mut hosts: Vec<HostRanks> = Vec::new();
        for (rank, name) in (0..n_ranks).zip(host_of) {
            match hosts.iter_mut().find(|host| host.name == *name) {
                Some(host) => host.ranks.push(rank),
                None => hosts.push(HostRanks { name: name.clone(), ranks: vec![rank] }),
            }
        }
        Ok(WorldPlan { hosts, n_servers, has_evaluator: false })
    }

    /// The same ranks on each host, where servers are dealt to hosts in turn, as long as every host keeps a worker (PLACE-5).
    #[must_use]
    pub fn spread_servers(self) -> WorldPlan {
        let mut serves = vec![0; self.hosts.len()];
        let mut left = self.n_servers;
        while left > 0 {
            let before = left;
            for (n, host) in serves.iter_mut().zip(&self.hosts) {
                let has_room = *n + 1 < host.ranks.len() as u32;
                if has_room && left > 0 {
                    (*n, left) = (*n + 1, left - 1);
                }
            }
            if left == before {
                return self;
            }
        }
        let (mut worker, mut server) = (0, self.n_workers());
        let dealt = |(host, n): (&HostRanks, u32)| {
            let n_workers = host.ranks.len() as u32 - n;
            let ranks = (worker..worker + n_workers).chain(server..server + n).collect();
            (worker, server) = (worker + n_workers, server + n);
            HostRanks { name: host.name.clone(), ranks }
        };
        let hosts = self.hosts.iter().zip(serves).map(dealt).collect();
        WorldPlan { hosts, ..self }
    }

    /// The same world with an evaluator beside it.
    #[must_use]
    pub fn with_evaluator(self, has_evaluator: bool) -> WorldPlan {
        WorldPlan { has_evaluator, ..self }
    }

    pub fn hosts(&self) -> &[HostRanks] {
        &self.hosts
    }

    pub fn n_ranks(&self) -> u32 {
        self.hosts.iter().map(|h| h.ranks.len() as u32).sum()
    }

    pub fn n_servers(&self) -> u32 {
        self.n_servers
    }

    pub fn n_workers(&self) -> u32 {
        self.n_ranks() - self.n_servers
    }

    /// The place of the evaluator among all processes, if there is one (PLACE-3).
    pub fn evaluator(&self) -> Option<Rank> {
        self.has_evaluator.then(|| Rank(self.n_ranks()))
    }

    /// Ranks, and the evaluator.
    pub fn n_processes(&self) -> u32 {
        self.n_ranks() + u32::from(self.has_evaluator)
    }

    /// What a process is called in front of its output: its rank.
    pub fn label(&self, process: Rank) -> String {
        match self.evaluator() == Some(process) {
            true => "evaluator".to_string(),
            false => process.to_string(),
        }
    }

    pub fn role(&self, process: Rank) -> TaskRole {
        match process.0 {
            n if n < self.n_workers() => TaskRole::Worker,
            n if n < self.n_ranks() => TaskRole::Server,
            _ => TaskRole::Evaluator,
        }
    }

    /// The host of a rank or of the evaluator, as an index.
    pub fn host_of(&self, rank: Rank) -> usize {
        if self.evaluator() == Some(rank) {
            return 0;
        }
        self.hosts
            .iter()
            .position(|h| h.ranks.binary_search(&rank.0).is_ok())
            .expect("every rank of the plan has a host")
    }

    pub fn host_name(&self, rank: Rank) -> &str {
        &self.hosts[self.host_of(rank)].name
    }

    pub fn place(&self, rank: Rank) -> Assignment {
        let host = self.host_of(rank);
        let role = self.role(rank);
        let alike = match role {
            TaskRole::Worker => 0..self.n_workers(),
            TaskRole::Server | TaskRole::Evaluator => self.n_workers()..self.n_ranks(),
        };
        let n_from = |h: &HostRanks, end: u32| {
            let below = |limit: u32| h.ranks.partition_point(|r| *r < limit);
            (below(end) - below(alike.start)) as u32
        };
        let n_alike = |h: &HostRanks| n_from(h, alike.end);
        let local_rank = n_from(&self.hosts[host], rank.0);
        let has_peer = |h: &&HostRanks| n_alike(h) > local_rank;
        Assignment {
            rank,
            role,
            size: self.n_ranks(),
            n_servers: self.n_servers,
            local_rank,
            local_size: n_alike(&self.hosts[host]),
            cross_rank: self.hosts[..host].iter().filter(has_peer).count() as u32,
            cross_size: self.hosts.iter().filter(has_peer).count() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(slots: &[u32]) -> Vec<HostSlots> {
        slots.iter().enumerate().map(|(i, &slots)| HostSlots { name: format!("h{i}"), slots }).collect()
    }

    fn ranges(slots: &[u32], n: u32) -> Vec<Vec<u32>> {
        let plan = WorldPlan::fill(&hosts(slots), n, "-H").unwrap();
        plan.hosts().iter().map(|h| h.ranks.clone()).collect()
    }

    #[test]
    fn slots_are_filled_in_order() {
        assert_eq!(ranges(&[2, 2], 4), [[0, 1], [2, 3]], "PLACE-1");
        let uneven = ranges(&[4, 2, 9], 5);
        assert_eq!(uneven, [vec![0, 1, 2, 3], vec![4]], "a host without ranks is no host of the world");
        assert_eq!(ranges(&[u32::MAX, u32::MAX], 3), [[0, 1, 2]]);
    }

    #[test]
    fn a_rank_file_deals_ranks_to_hosts_as_it_likes() {
        let host_of: Vec<String> = ["b", "a", "b", "a", "b"].map(String::from).into();
        let plan = WorldPlan::of_hosts(&host_of, 1).unwrap();
        let seen: Vec<_> = plan.hosts().iter().map(|h| (h.name.as_str(), h.ranks.clone())).collect();
        assert_eq!(seen, [("b", vec![0, 2, 4]), ("a", vec![1, 3])], "PLACE-4");
        let place = |r| {
            let p = plan.place(Rank(r));
            (p.local_rank, p.local_size, p.cross_rank, p.cross_size)
        };
        assert_eq!([0, 1, 2, 3].map(place), [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]);
        assert_eq!((place(4), plan.role(Rank(4))), ((0, 1, 0, 1), TaskRole::Server), "PLACE-3");
        assert_eq!((plan.n_ranks(), plan.n_workers(), plan.host_name(Rank(3))), (5, 4, "a"));
        assert_eq!(WorldPlan::of_hosts(&[], 0), Err(PlaceError::NoRanks));
    }

    #[test]
    fn cross_ranks_count_the_hosts_that_have_the_local_rank() {
        let plan = WorldPlan::fill(&hosts(&[2, 1, 3]), 6, "-H").unwrap();
        let place = |r| {
            let p = plan.place(Rank(r));
            (p.local_rank, p.local_size, p.cross_rank, p.cross_size)
        };
        assert_eq!(place(0), (0, 2, 0, 3));
        assert_eq!(place(1), (1, 2, 0, 2));
        assert_eq!(place(2), (0, 1, 1, 3));
        assert_eq!(place(4), (1, 3, 1, 2), "PLACE-2: h1 has no local rank 1");
        assert_eq!(place(5), (2, 3, 0, 1));
        assert_eq!(plan.host_name(Rank(4)), "h2");
    }

    #[test]
    fn servers_come_after_workers_and_an_evaluator_after_all_ranks() {
        let plan = WorldPlan::fill_with(&hosts(&[2, 3]), 5, 2, "-H").unwrap().with_evaluator(true);
        let place = |r| {
            let p = plan.place(Rank(r));
            (p.role, p.local_rank, p.local_size, p.cross_rank, p.cross_size)
        };
        assert_eq!(place(1), (TaskRole::Worker, 1, 2, 0, 1));
        assert_eq!(place(2), (TaskRole::Worker, 0, 1, 1, 2), "PLACE-3");
        assert_eq!(place(3), (TaskRole::Server, 0, 2, 0, 1), "PLACE-3");
        assert_eq!((plan.n_ranks(), plan.n_workers(), plan.n_processes()), (5, 3, 6));
        assert_eq!(
            (plan.evaluator(), plan.host_name(Rank(5)), plan.label(Rank(5))),
            (Some(Rank(5)), "h0", "evaluator".into())
        );
        let error = WorldPlan::fill_with(&hosts(&[2]), 3, 1, "-H").unwrap_err().to_string();
        assert!(
            error.starts_with("-np 2 and --servers 1 ask for more ranks than the 2 slots of -H"),
            "{error}"
        );
        let error = WorldPlan::fill_with(&hosts(&[2]), 2, 2, "-H").unwrap_err().to_string();
        assert_eq!(error, "--servers 2 leaves no worker among 2 ranks; lower it, or raise -np");
    }

    /// PLACE-5.
    #[test]
    fn servers_are_dealt_to_hosts_in_turn() {
        let spread = |slots: &[u32], n_ranks, n_servers| -> Vec<Vec<u32>> {
            let plan =
                WorldPlan::fill_with(&hosts(slots), n_ranks, n_servers, "-H").unwrap().spread_servers();
            assert_eq!((plan.n_ranks(), plan.n_servers()), (n_ranks, n_servers));
            plan.hosts().iter().map(|host| host.ranks.clone()).collect()
        };
        assert_eq!(spread(&[3, 3], 6, 2), [[0, 1, 4], [2, 3, 5]]);
        assert_eq!(spread(&[3, 3], 6, 3), [vec![0, 3, 4], vec![1, 2, 5]]);
        assert_eq!(spread(&[1, 4], 5, 3), [vec![0], vec![1, 2, 3, 4]], "every host keeps a worker");
        assert_eq!(spread(&[1, 2, 1], 4, 2), [vec![0], vec![1, 2], vec![3]], "there is no room for that");
        assert_eq!(spread(&[2, 2], 4, 0), [[0, 1], [2, 3]]);
    }

    #[test]
    fn errors_say_both_numbers_and_the_flag() {
        let error = WorldPlan::fill(&hosts(&[2, 1]), 4, "-H").unwrap_err().to_string();
        assert_eq!(
            error,
            "-np 4 asks for more ranks than the 3 slots of -H; lower -np or give more slots, e.g. h0:3"
        );
        let error = WorldPlan::fill(&hosts(&[2, 1]), 5, slurm::SOURCE).unwrap_err().to_string();
        assert_eq!(
            error,
            "-np 5 asks for more ranks than the 3 slots of the Slurm allocation; \
             lower -np, ask Slurm for more tasks (--ntasks=5), or write --slots-per-host 3"
        );
        assert_eq!(WorldPlan::fill(&hosts(&[2]), 0, "-H"), Err(PlaceError::NoRanks));
    }
}
