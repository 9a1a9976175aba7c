//! Predicts how long agreement takes on any network: the real nodes, with simulated message times.

use super::{Input, Negotiator, NegotiatorSetup, Output, fuse::FusionLimits};
use crate::engine::spec::{Form, Kind, Spec};
use phalanx_core::{DType, Rank};
use phalanx_net::frame;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

/// What a message costs.
#[derive(Clone, Copy, Debug)]
pub struct MessageCost {
    /// From the sender's call to the receiver's, in microseconds.
    pub latency_us: f64,
    pub us_per_byte: f64,
    /// What a node does for every message, and for every operation in it.
    pub handling_us: f64,
    pub entry_us: f64,
}

impl Default for MessageCost {
    /// An ordinary network between hosts, and this code on an ordinary core.
    fn default() -> MessageCost {
        MessageCost { latency_us: 20.0, us_per_byte: 0.001, handling_us: 2.0, entry_us: 0.5 }
    }
}

/// Until the last rank knows what to run, for one step of all tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// The first time: every tensor is described.
    pub first_us: f64,
    /// The second: remembered by number from then on.
    pub cached_us: f64,
    /// Replayed: readiness alone is told.
    pub replayed_us: f64,
    /// Messages of the first step.
    pub n_messages: u64,
}

struct Flight<M> {
    at: f64,
    order: u64,
    from: usize,
    to: usize,
    message: M,
}

impl<M> PartialEq for Flight<M> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<M> Eq for Flight<M> {}
impl<M> PartialOrd for Flight<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<M> Ord for Flight<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.total_cmp(&other.at).then(self.order.cmp(&other.order))
    }
}

struct Simulated {
    nodes: Vec<Negotiator>,
    /// When each node is free again, and when each pair's last message arrives: messages of a pair stay in order.
    free_at: Vec<f64>,
    arrives: BTreeMap<(usize, usize), f64>,
    flights: BinaryHeap<Reverse<Flight<super::message::Message>>>,
    cost: MessageCost,
    n_messages: u64,
    n_run: Vec<usize>,
}

impl Simulated {
    fn new(n_ranks: usize, n_tensors: usize, cost: MessageCost, replay: bool) -> Simulated {
        let node = |me| {
            Negotiator::new(NegotiatorSetup {
                me,
                members: (0..n_ranks).map(Rank::at).collect(),
                limits: FusionLimits { fusion_bytes: 1 << 30, alone_bytes: 1 << 30 },
                cache_capacity: n_tensors + 1,
                board: false,
                replay,
                stall_ms: None,
                abort_ms: None,
                says_where: false,
            })
        };
        Simulated {
            nodes: (0..n_ranks).map(node).collect(),
            free_at: vec![0.0; n_ranks],
            arrives: BTreeMap::new(),
            flights: BinaryHeap::new(),
            cost,
            n_messages: 0,
            n_run: vec![0; n_ranks],
        }
    }

    fn step(&mut self, now: f64, me: usize, input: Input) {
        let began = now.max(self.free_at[me]);
        let mut out = Vec::new();
        self.nodes[me].step(began as u64, input, &mut out);
        self.nodes[me].step(began as u64, Input::Flush, &mut out);
        self.act(began, me, out);
    }

    /// Does what a node wants done, which keeps it busy.
    fn act(&mut self, began: f64, me: usize, mut out: Vec<Output>) {
        let mut done = began + self.cost.handling_us;
        let mut i = 0;
        while i < out.len() {
            if let Output::Run { batch, .. } = &out[i] {
                self.n_run[me] += batch.len();
                done += self.cost.entry_us * batch.len() as f64;
                // Data are another matter: here they move at once.
                let mut more = Vec::new();
                self.nodes[me].step(done as u64, Input::Ran(1), &mut more);
                out.extend(more);
            }
            i += 1;
        }
        for output in out {
            let Output::Send { to, message } = output else { continue };
            let bytes = frame::encode(&message).map_or(0, |b| b.len()) as f64;
            done += self.cost.handling_us;
            let at = done + self.cost.latency_us + bytes * self.cost.us_per_byte;
            let last = self.arrives.entry((me, to)).or_insert(0.0);
            *last = last.max(at);
            self.n_messages += 1;
            let flight = Flight { at: *last, order: self.n_messages, from: me, to, message };
            self.flights.push(Reverse(flight));
        }
        self.free_at[me] = done;
    }

    /// Every rank submits everything at once; returns how long it takes until every rank may run it.
    fn all_submit(&mut self, names: &[String], spec: &Spec) -> f64 {
        let start = self.free_at.iter().copied().fold(0.0, f64::max);
        let want = self.n_run[0] + names.len();
        for me in 0..self.nodes.len() {
            let mut out = Vec::new();
            for name in names {
                let input = Input::Submit { name: name.as_str().into(), spec: spec.clone() };
                self.nodes[me].step(start as u64, input, &mut out);
            }
            self.nodes[me].step(start as u64, Input::Flush, &mut out);
            self.act(start + self.cost.entry_us * names.len() as f64, me, out);
        }
        while let Some(Reverse(flight)) = self.flights.pop() {
            let Flight { at, from, to, message, .. } = flight;
            self.step(at, to, Input::Heard { from, message });
        }
        assert!(self.n_run.iter().all(|n| *n == want), "NEG-3: what all have submitted runs");
        self.free_at.iter().copied().fold(0.0, f64::max) - start
    }
}

/// The time of agreement of `n_ranks` on a step of `n_tensors`.
pub fn predict(n_ranks: usize, n_tensors: usize, cost: MessageCost) -> Agreement {
    let names: Vec<String> = (0..n_tensors).map(|i| format!("layer{i}.weight")).collect();
    let spec = Spec::new(Kind::Allreduce, vec![Form { dtype: DType::F32, shape: vec![256, 256] }]);
    let mut plain = Simulated::new(n_ranks, n_tensors, cost, false);
    let first_us = plain.all_submit(&names, &spec);
    let n_messages = plain.n_messages;
    plain.all_submit(&names, &spec);
    let cached_us = plain.all_submit(&names, &spec);
    drop(plain);
    let mut replaying = Simulated::new(n_ranks, n_tensors, cost, true);
    // The third time the repetition is noticed.
    let replayed_us = (0..4).map(|_| replaying.all_submit(&names, &spec)).last().unwrap_or(0.0);
    Agreement { first_us, cached_us, replayed_us, n_messages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_takes_a_logarithmic_time() {
        let at = |n| predict(n, 20, MessageCost::default());
        let (few, many) = (at(16), at(1024));
        // Sixty-four times the ranks are three levels of the tree more: from two levels to five.
        for (few, many) in [
            (few.first_us, many.first_us),
            (few.cached_us, many.cached_us),
            (few.replayed_us, many.replayed_us),
        ] {
            assert!(many < few * 3.5, "{many} us for 1024 ranks, {few} us for 16");
        }
        assert!(many.replayed_us < many.cached_us && many.cached_us < many.first_us);
    }
}
