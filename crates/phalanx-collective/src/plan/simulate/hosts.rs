//! How far apart two ranks are, and what their hosts can send and receive.
//!
//! What a host sends waits in one queue, what it receives in another, each served in order. A message that has begun to leave waits for the port of
//! the other host in the switch, so the host behind it goes on with its next message: no port is idle while something waits for it.

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

    fn ports(&mut self, tier: usize, rank: Rank) -> &mut Ports {
        if tier == 0 {
            &mut self.rank_ports[rank.index()]
        } else {
            &mut self.host_ports[self.request.topology.host_of(rank) as usize]
        }
    }

    /// A message of `us` is ready to be sent: when it begins to leave.
    pub fn leave(&mut self, tier: usize, from: Rank, now_us: f64, us: f64) -> f64 {
        let ports = self.ports(tier, from);
        let begin_us = now_us.max(ports.out_free_us);
        ports.out_free_us = begin_us + us;
        begin_us
    }

    /// It begins to leave now: when all of it has come. Called in the order of time.
    pub fn come(&mut self, tier: usize, to: Rank, now_us: f64, us: f64) -> f64 {
        let ports = self.ports(tier, to);
        ports.in_free_us = now_us.max(ports.in_free_us) + us;
        ports.in_free_us
    }
}
