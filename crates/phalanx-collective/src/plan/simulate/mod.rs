//! Prices plans: how long a collective takes on any network.
//!
//! A discrete-event run of all ranks under the usual linear costs: a message between two ranks takes the latency of the tier between them plus its bytes over
//! the tier's bandwidth, a reduction its bytes over the reduction's speed. The ranks of a host share what their host can send and receive on tiers 1 and up:
//! their messages queue for it. As on the real wire, a transfer begins when both sides are there.
//!
//! Steps are drawn from the algorithms one at a time, so thousands of ranks fit in little memory. What is not modelled: contention for the
//! memory of a host, for switches, and scaling (the executor skips it when the factor is 1).

mod hosts;
mod queue;
mod turns;

use super::{
    Algorithm, PlanRequest,
    step::{Fold, Recv, Send, Step},
};
use hosts::Hosts;
use phalanx_core::Rank;
use queue::Queue;
use smallvec::SmallVec;
use turns::Turns;

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

/// The transfers of an exchange that have not found their other side.
#[derive(Default)]
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
        Simulation { cost, elem_bytes, hosts, runners, turns, queue, tier_bytes }
    }

    fn run(mut self) -> Prediction {
        let mut time_us = 0.0;
        while let Some((now_us, r)) = self.queue.pop() {
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
        let mut open = Open::default();
        let mut end_us = now_us;
        while let Some(send) = self.runners[r as usize].send(open.sends.len()) {
            let found = self.runners[send.to.index()].take_recv(Rank(r));
            open.sends.push(found.is_none());
            if let Some(fold) = found {
                let (done_us, reduced_us) = self.move_bytes(now_us, (Rank(r), send.to), send.src.len, fold);
                end_us = end_us.max(done_us);
                self.arrived(send.to.0, reduced_us);
            }
        }
        while let Some(recv) = self.runners[r as usize].recv(open.recvs.len()) {
            let found = self.runners[recv.from.index()].take_send(Rank(r));
            open.recvs.push(!found);
            if found {
                let (done_us, reduced_us) =
                    self.move_bytes(now_us, (recv.from, Rank(r)), recv.dst.len, recv.fold);
                end_us = end_us.max(reduced_us);
                self.arrived(recv.from.0, done_us);
            }
        }
        open.n = open.sends.iter().chain(&open.recvs).filter(|&&is_open| is_open).count();
        if open.n == 0 {
            self.end_at(end_us, r);
        } else {
            self.runners[r as usize].state = State::Exchanging { open, end_us };
        }
    }

    /// When a transfer that begins now has been taken, and when what it brought has been reduced.
    fn move_bytes(&mut self, now_us: f64, (from, to): (Rank, Rank), len: u64, fold: Fold) -> (f64, f64) {
        let tier = self.hosts.tier(from, to);
        let cost = self.cost.tiers[tier.min(self.cost.tiers.len() - 1)];
        let us = transfer_us(len as f64 * self.elem_bytes, cost.gbytes_per_s);
        let sent_us = self.hosts.occupy(tier, (from, to), now_us, us);
        self.tier_bytes[tier] += (len as f64 * self.elem_bytes) as u64;
        let done_us = sent_us + cost.latency_us;
        let reduces = fold != Fold::Store;
        (done_us, if reduces { done_us + self.reduce_us(len) } else { done_us })
    }

    /// One transfer of a rank that waited for it has found its other side.
    fn arrived(&mut self, r: u32, at_us: f64) {
        let State::Exchanging { open, end_us } = &mut self.runners[r as usize].state else {
            unreachable!("only a rank in an exchange has open transfers")
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
    /// A transfer of the present exchange.
    fn send(&self, i: usize) -> Option<Send> {
        match &self.step {
            Some(Step::Exchange { sends, .. }) => sends.get(i).copied(),
            _ => None,
        }
    }

    fn recv(&self, i: usize) -> Option<Recv> {
        match &self.step {
            Some(Step::Exchange { recvs, .. }) => recvs.get(i).copied(),
            _ => None,
        }
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
