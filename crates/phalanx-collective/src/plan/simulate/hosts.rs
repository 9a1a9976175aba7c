//! How far apart two ranks are, and what their hosts can send and receive.

use super::super::PlanRequest;
use phalanx_core::Rank;

pub(super) struct Hosts {
    host: Vec<u32>,
    /// For every tier but the last, how many ranks one of its groups holds with all below: empty without an explicit shape.
    groups: Vec<u32>,
    n_tiers: usize,
    /// When each host, and each rank for what stays inside, can next send and receive.
    host_ports: Vec<Ports>,
    rank_ports: Vec<Ports>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ports {
    out_free_us: f64,
    in_free_us: f64,
}

impl Hosts {
    pub fn new(request: &PlanRequest) -> Hosts {
        let n_ranks = request.n_ranks();
        let groups: Vec<u32> = request
            .tiers
            .iter()
            .flat_map(|tiers| {
                tiers.dims().iter().scan(1, |all, dim| {
                    *all *= dim;
                    Some(*all)
                })
            })
            .collect();
        let host: Vec<u32> = match groups.first() {
            Some(size) => (0..n_ranks).map(|r| r / size).collect(),
            None => (0..n_ranks).map(|r| request.topology.host_of(Rank(r))).collect(),
        };
        let n_hosts = host.iter().max().map_or(0, |h| *h as usize + 1);
        let n_tiers = if groups.is_empty() { 2 } else { groups.len() };
        let host_ports = vec![Ports::default(); n_hosts];
        Hosts { host, groups, n_tiers, host_ports, rank_ports: vec![Ports::default(); n_ranks as usize] }
    }

    pub fn n_tiers(&self) -> usize {
        self.n_tiers
    }

    /// The highest tier in which two ranks differ.
    pub fn tier(&self, a: Rank, b: Rank) -> usize {
        if self.host[a.index()] == self.host[b.index()] {
            return 0;
        }
        let inner = self.groups.iter().skip(1);
        1 + inner.take_while(|&size| a.0 / size != b.0 / size).count()
    }

    /// Sends for `us` as soon as both ends can from `now_us` on; returns when it is sent.
    pub fn occupy(&mut self, tier: usize, (from, to): (Rank, Rank), now_us: f64, us: f64) -> f64 {
        let (ports, from, to) = if tier == 0 {
            (&mut self.rank_ports, from.index(), to.index())
        } else {
            (&mut self.host_ports, self.host[from.index()] as usize, self.host[to.index()] as usize)
        };
        let begin_us = now_us.max(ports[from].out_free_us).max(ports[to].in_free_us);
        let end_us = begin_us + us;
        ports[from].out_free_us = end_us;
        ports[to].in_free_us = end_us;
        end_us
    }
}
