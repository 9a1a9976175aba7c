//! How far apart two ranks are, and what their hosts can send and receive.

use super::super::PlanRequest;
use phalanx_core::Rank;

pub(super) struct Hosts<'a> {
    request: &'a PlanRequest,
    /// When each host, and each rank for what stays inside, can next send and receive.
    host_ports: Vec<Ports>,
    rank_ports: Vec<Ports>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ports {
    out_free_us: f64,
    in_free_us: f64,
}

impl<'a> Hosts<'a> {
    pub fn new(request: &'a PlanRequest) -> Hosts<'a> {
        let host_ports = vec![Ports::default(); request.topology.n_hosts() as usize];
        Hosts { request, host_ports, rank_ports: vec![Ports::default(); request.n_ranks() as usize] }
    }

    pub fn n_tiers(&self) -> usize {
        self.request.n_tiers()
    }

    /// The highest tier in which two ranks differ; 0 on one host.
    pub fn tier(&self, a: Rank, b: Rank) -> usize {
        self.request.tier_between(a, b)
    }

    /// Sends for `us` as soon as both ends can from `now_us` on; returns when it is sent.
    pub fn occupy(&mut self, tier: usize, (from, to): (Rank, Rank), now_us: f64, us: f64) -> f64 {
        let (ports, from, to) = if tier == 0 {
            (&mut self.rank_ports, from.index(), to.index())
        } else {
            let host = |rank| self.request.topology.host_of(rank) as usize;
            (&mut self.host_ports, host(from), host(to))
        };
        let begin_us = now_us.max(ports[from].out_free_us).max(ports[to].in_free_us);
        let end_us = begin_us + us;
        ports[from].out_free_us = end_us;
        ports[to].in_free_us = end_us;
        end_us
    }
}
