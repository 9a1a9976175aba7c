//! Prices plans: how long a collective takes on any network.
//!
//! A discrete-event run of all ranks under the usual linear costs: a message between two ranks takes the latency of the tier between them plus its bytes over
//! the tier's bandwidth, a reduction its bytes over the reduction's speed. The ranks of a host share what their host can send and receive on tiers 1 and up:
//! their messages queue for it, in each direction apart (`hosts.rs`). As on the real wire, a transfer begins when both sides are there.
//!
//! Steps are drawn from the algorithms one at a time, so thousands of ranks fit in little memory. What is not modelled: contention for the
//! memory of a host, for switches, and scaling (the executor skips it when the factor is 1).

mod hosts;
mod queue;
mod turns;
mod waiting;

use super::{
    Algorithm, PlanRequest,
    step::{Fold, Recv, Send, Step},
};
use hosts::Hosts;
use phalanx_core::Rank;
use queue::Queue;
use smallvec::{SmallVec, smallvec};
use turns::Turns;
use waiting::{Message, Waiting};

/// What one tier costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierCost {
    pub latency_us: f64,
    /// Tier 0: between two ranks, and of a copy. Tiers 1 and up: in and out of one host.
    pub gbytes_per_s: f64,
}

/// What a network costs, tier 0 (inside a host) first. Tiers beyond the last cost what the last does.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    pub tiers: Vec<TierCost>,
    /// Bytes of one operand that a rank reduces in a second.
    pub reduce_gbytes_per_s: f64,
}

/// What a collective would cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// When the last rank ends.
    pub time_us: f64,
    /// Bytes that go over links between ranks that differ in this tier and no higher one.
    pub tier_bytes: Vec<u64>,
    /// Steps of the rank that has most.
    pub n_steps: u64,
}

/// Runs all ranks of a request. The algorithm must support it, and the model must have at least one tier.
pub fn simulate(request: &PlanRequest, algorithm: Algorithm, cost: &CostModel) -> Prediction {
    Simulation::new(request, algorithm, cost).run()
}

/// One rank on its way.
struct Runner<'a> {
    steps: Box<dyn Iterator<Item = Step> + 'a>,
    step: Option<Step>,
    state: State,
    n_steps: u64,
}

enum State {
    /// Before the first step, or the present one ends at a known time.
    Busy,
    /// In an exchange, with transfers to come.
    Exchanging {
        open: Open,
        end_us: f64,
    },
    /// In an arena step, until others get on.
    Waiting,
    Ended,
}

/// The transfers of an exchange: which have not found their other side, and how many have not come.
struct Open {
    sends: SmallVec<[bool; 4]>,
    recvs: SmallVec<[bool; 4]>,
    n: usize,
}

struct Simulation<'a> {
    cost: &'a CostModel,
    elem_bytes: f64,
    hosts: Hosts<'a>,
    runners: Vec<Runner<'a>>,
    turns: Turns<'a>,
    queue: Queue,
    /// Messages that wait for their host to send them.
    waiting: Waiting,
    tier_bytes: Vec<u64>,
}

impl<'a> Simulation<'a> {
    fn new(request: &'a PlanRequest, algorithm: Algorithm, cost: &'a CostModel) -> Simulation<'a> {
        assert!(!cost.tiers.is_empty(), "a cost model has at least tier 0");
        let n_ranks = request.n_ranks();
        let mut turns = Turns::new(n_ranks);
        let mut queue = Queue::default();
        let runners = (0..n_ranks).map(|r| {
            let draft = algorithm.draft(request, Rank(r));
            turns.join(Rank(r), draft.group, draft.n_turns);
            queue.push(0.0, r);
            Runner { steps: draft.steps, step: None, state: State::Busy, n_steps: 0 }
        });
        let runners = runners.collect();
        let hosts = Hosts::new(request);
        let tier_bytes = vec![0; hosts.n_tiers().max(cost.tiers.len())];
        let elem_bytes = f64::from(request.elem_bytes);
        let waiting = Waiting::default();
        Simulation { cost, elem_bytes, hosts, runners, turns, queue, waiting, tier_bytes }
    }

    fn run(mut self) -> Prediction {
        let mut time_us = 0.0;
        loop {
            // A message that leaves now comes before what ranks do at this time.
            if let Some((now_us, message)) = self.waiting.pop_until(self.queue.next_us()) {
                self.deliver(now_us, message);
                continue;
            }
            let Some((now_us, r)) = self.queue.pop() else { break };
            time_us = now_us;
            self.finish(now_us, r);
            self.begin_next(now_us, r);
        }
        let has_ended = |r: &Runner<'_>| matches!(r.state, State::Ended);
        assert!(self.runners.iter().all(has_ended), "verified plans do not deadlock");
        let n_steps = self.runners.iter().map(|r| r.n_steps).max().unwrap_or(0);
        Prediction { time_us, tier_bytes: self.tier_bytes, n_steps }
    }

    /// The present step has ended: what it publishes can be seen.
    fn finish(&mut self, now_us: f64, r: u32) {
        let published = match &self.runners[r as usize].step {
            Some(Step::Publish { turn, .. }) => Some(*turn),
            Some(Step::ReduceFrom { publish, .. }) => publish.map(|(turn, _)| turn),
            _ => None,
        };
        if let Some(turn) = published {
            self.turns.publish(Rank(r), turn);
            self.wake(now_us, r);
        }
    }

    /// Begins the next step; goes on to further ones while they take no time.
    fn begin_next(&mut self, now_us: f64, r: u32) {
        loop {
            let runner = &mut self.runners[r as usize];
            runner.step = runner.steps.next();
            let Some(step) = &runner.step else {
                runner.state = State::Ended;
                self.turns.release_all(Rank(r));
                self.wake(now_us, r);
                return;
            };
            runner.n_steps += 1;
            match step {
                Step::Scale { .. } => {}
                Step::Release { turn } => {
                    self.turns.release(Rank(r), *turn);
                    self.wake(now_us, r);
                }
                Step::Exchange { .. } => return self.begin_exchange(now_us, r),
                Step::Copy { src, .. } => {
                    let len = src.len;
                    return self.end_at(now_us + self.copy_us(len), r);
                }
                Step::Sync { turn } => {
                    self.turns.publish(Rank(r), *turn);
                    self.wake(now_us, r);
                    return self.try_arena(now_us, r);
                }
                _ => return self.try_arena(now_us, r),
            }
        }
    }

    fn end_at(&mut self, end_us: f64, r: u32) {
        self.runners[r as usize].state = State::Busy;
        self.queue.push(end_us, r);
    }

    /// Begins an arena step if what it waits for has happened.
    fn try_arena(&mut self, now_us: f64, r: u32) {
        let step = self.runners[r as usize].step.as_ref().expect("an arena step has begun");
        if self.turns.is_ready(Rank(r), step) {
            let us = self.arena_us(r, step);
            self.end_at(now_us + us, r);
        } else {
            self.runners[r as usize].state = State::Waiting;
            self.turns.wait(Rank(r));
        }
    }

    /// Something changed in this rank's group: ranks that wait for it may go on.
    fn wake(&mut self, now_us: f64, r: u32) {
        for waiter in self.turns.take_waiters(Rank(r)) {
            self.try_arena(now_us, waiter.0);
        }
    }

    fn arena_us(&self, r: u32, step: &Step) -> f64 {
        let n = self.turns.group_len(Rank(r)) as f64;
        let seen_us = self.cost.tiers[0].latency_us;
        match step {
            Step::Publish { parts, .. } => self.copy_us(parts.iter().map(|(span, _)| span.len).sum()),
            Step::ReduceFrom { dst, .. } => seen_us + (n - 1.0) * self.reduce_us(dst.len),
            Step::Fetch { dst, .. } => seen_us + self.copy_us(dst.len),
            Step::FetchDirect { dst, .. } => self.copy_us(dst.len),
            Step::ReduceDirect { len, .. } => (n - 1.0) * (self.reduce_us(*len) + self.copy_us(*len)),
            Step::Sync { .. } => seen_us,
            _ => unreachable!("not an arena step that takes time"),
        }
    }

    fn copy_us(&self, len: u64) -> f64 {
        transfer_us(len as f64 * self.elem_bytes, self.cost.tiers[0].gbytes_per_s)
    }

    fn reduce_us(&self, len: u64) -> f64 {
        transfer_us(len as f64 * self.elem_bytes, self.cost.reduce_gbytes_per_s)
    }

    /// Finds the other sides that are there already; those that come later will find this one.
    fn begin_exchange(&mut self, now_us: f64, r: u32) {
        let (n_sends, n_recvs) = match &self.runners[r as usize].step {
            Some(Step::Exchange { sends, recvs }) => (sends.len(), recvs.len()),
            _ => unreachable!("an exchange has begun"),
        };
        let n = n_sends + n_recvs;
        if n == 0 {
            return self.end_at(now_us, r);
        }
        let open = Open { sends: smallvec![true; n_sends], recvs: smallvec![true; n_recvs], n };
        self.runners[r as usize].state = State::Exchanging { open, end_us: now_us };
        for i in 0..n_sends {
            let send = self.runners[r as usize].send(i);
            if let Some(fold) = self.runners[send.to.index()].take_recv(Rank(r)) {
                self.runners[r as usize].open().sends[i] = false;
                self.start(now_us, Message { from: Rank(r), to: send.to, len: send.src.len, fold });
            }
        }
        for i in 0..n_recvs {
            let recv = self.runners[r as usize].recv(i);
            if self.runners[recv.from.index()].take_send(Rank(r)) {
                self.runners[r as usize].open().recvs[i] = false;
                let (len, fold) = (recv.dst.len, recv.fold);
                self.start(now_us, Message { from: recv.from, to: Rank(r), len, fold });
            }
        }
    }

    /// The tier of a message, the latency there, and how long it occupies a port.
    fn price(&self, message: &Message) -> (usize, f64, f64) {
        let tier = self.hosts.tier(message.from, message.to);
        let cost = self.cost.tiers[tier.min(self.cost.tiers.len() - 1)];
        let us = transfer_us(message.len as f64 * self.elem_bytes, cost.gbytes_per_s);
        (tier, cost.latency_us, us)
    }

    /// Both sides of a message are there.
    fn start(&mut self, now_us: f64, message: Message) {
        let (tier, _, us) = self.price(&message);
        self.tier_bytes[tier] += (message.len as f64 * self.elem_bytes) as u64;
        let leaves_us = self.hosts.leave(tier, message.from, now_us, us);
        if leaves_us > now_us {
            self.waiting.push(leaves_us, message);
        } else {
            self.deliver(now_us, message);
        }
    }

    /// It leaves now: when it has come, and what it brought has been reduced, is known from here on.
    fn deliver(&mut self, now_us: f64, message: Message) {
        let (tier, latency_us, us) = self.price(&message);
        let done_us = self.hosts.come(tier, message.to, now_us, us) + latency_us;
        let reduces = message.fold != Fold::Store;
        let reduced_us = if reduces { done_us + self.reduce_us(message.len) } else { done_us };
        self.arrived(message.from.0, done_us);
        self.arrived(message.to.0, reduced_us);
    }

    /// One transfer of a rank ends at a known time.
    fn arrived(&mut self, r: u32, at_us: f64) {
        let State::Exchanging { open, end_us } = &mut self.runners[r as usize].state else {
            unreachable!("only a rank in an exchange has transfers")
        };
        open.n -= 1;
        *end_us = end_us.max(at_us);
        if open.n == 0 {
            let end_us = *end_us;
            self.end_at(end_us, r);
        }
    }
}

impl Runner<'_> {
    /// The transfers of the present exchange that have no other side yet.
    fn open(&mut self) -> &mut Open {
        let State::Exchanging { open, .. } = &mut self.state else { unreachable!("it is in an exchange") };
        open
    }

    /// A transfer of the present exchange.
    fn send(&self, i: usize) -> Send {
        let Some(Step::Exchange { sends, .. }) = &self.step else { unreachable!("it is in an exchange") };
        sends[i]
    }

    fn recv(&self, i: usize) -> Recv {
        let Some(Step::Exchange { recvs, .. }) = &self.step else { unreachable!("it is in an exchange") };
        recvs[i]
    }

    /// Takes the first open transfer from `peer`, if this rank is in an exchange that has one.
    fn take_recv(&mut self, peer: Rank) -> Option<Fold> {
        let State::Exchanging { open, .. } = &mut self.state else { return None };
        let Some(Step::Exchange { recvs, .. }) = &self.step else { return None };
        let i = recvs.iter().zip(&open.recvs).position(|(recv, &open)| open && recv.from == peer)?;
        open.recvs[i] = false;
        Some(recvs[i].fold)
    }

    /// Takes the first open transfer to `peer`, if this rank is in an exchange that has one.
    fn take_send(&mut self, peer: Rank) -> bool {
        let State::Exchanging { open, .. } = &mut self.state else { return false };
        let Some(Step::Exchange { sends, .. }) = &self.step else { return false };
        let found = sends.iter().zip(&open.sends).position(|(send, &open)| open && send.to == peer);
        if let Some(i) = found {
            open.sends[i] = false;
        }
        found.is_some()
    }
}

/// Gigabytes a second are bytes a nanosecond.
fn transfer_us(bytes: f64, gbytes_per_s: f64) -> f64 {
    bytes / gbytes_per_s / 1e3
}

#[cfg(test)]
mod tests;
