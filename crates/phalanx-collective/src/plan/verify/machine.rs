//! All ranks of a request, run together on symbols.

mod arena;

use super::{
    super::{
        PlanRequest,
        step::{Buf, Fold, N_SLOTS, Plan, Recv, Send, Span, Step},
    },
    PlanCost, PlanFault, What,
    memory::{RankMemory, RankSet, Value},
    race::{By, Races},
};
use phalanx_core::Rank;
use std::ops::Range;

/// A slot that was published.
#[derive(Clone)]
struct Slot {
    turn: u32,
    cells: Vec<Option<Value>>,
    /// Whom the publisher had heard from.
    heard: RankSet,
}

/// One rank on its way through its plan.
struct Runner<'a> {
    plan: &'a Plan,
    step: usize,
    memory: RankMemory,
    slots: Vec<Option<Slot>>,
    last_published: i64,
    last_released: i64,
    /// Which transfers of the present exchange are done; `None` before it has begun.
    transfers: Option<Transfers>,
    /// Ranks that are known to have begun.
    heard: RankSet,
    sent_bytes: u64,
}

struct Transfers {
    sends: Vec<bool>,
    recvs: Vec<bool>,
}

/// How far one attempt at a step came.
enum Progress {
    Done,
    /// Something happened, but the step goes on.
    Some,
    Blocked,
}

pub(super) struct Machine<'a> {
    request: &'a PlanRequest,
    runners: Vec<Runner<'a>>,
    pub races: Races,
    host_bytes: Vec<u64>,
    tier_bytes: Vec<u64>,
}

/// What the ranks are left with.
pub(super) struct Outcome {
    pub outs: Vec<Vec<Value>>,
    pub heard: Vec<RankSet>,
    pub report: PlanCost,
}

impl<'a> Machine<'a> {
    pub fn new(request: &'a PlanRequest, plans: &'a [Plan]) -> Machine<'a> {
        let runners = plans.iter().enumerate().map(|(r, plan)| Runner {
            plan,
            step: 0,
            memory: RankMemory::new(request, Rank::at(r), plan.scratch_len),
            slots: vec![None; N_SLOTS as usize],
            last_published: -1,
            last_released: -1,
            transfers: None,
            heard: 1 << r,
            sent_bytes: 0,
        });
        let is_direct = |step: &Step| matches!(step, Step::ReduceDirect { .. } | Step::FetchDirect { .. });
        let is_needed = plans.iter().any(|plan| plan.steps.iter().any(is_direct));
        let races = Races::new(is_needed, plans.len());
        let host_bytes = vec![0; request.topology.n_hosts() as usize];
        let tier_bytes = vec![0; request.n_tiers()];
        Machine { request, runners: runners.collect(), races, host_bytes, tier_bytes }
    }

    /// Lets every rank go as far as it can until all have ended.
    pub fn run(&mut self) -> Result<(), PlanFault> {
        loop {
            let mut moved = false;
            for r in 0..self.runners.len() {
                while let Some(step) = self.runners[r].current() {
                    let by = By { rank: Rank::at(r), step: self.runners[r].step };
                    let fault = |what| PlanFault { rank: by.rank, step: Some(by.step), what };
                    match self.attempt(by, step).map_err(fault)? {
                        Progress::Done => self.runners[r].step += 1,
                        Progress::Some => {}
                        Progress::Blocked => break,
                    }
                    moved = true;
                }
            }
            if self.runners.iter().all(|r| r.current().is_none()) {
                return self.check_first_turns();
            }
            if !moved {
                return Err(self.deadlock());
            }
        }
    }

    pub fn outcome(self) -> Outcome {
        let report = PlanCost {
            sent_bytes: self.runners.iter().map(|r| r.sent_bytes).collect(),
            host_bytes: self.host_bytes,
            tier_bytes: self.tier_bytes,
            n_steps: self.runners.iter().map(|r| r.plan.steps.len()).collect(),
        };
        Outcome {
            outs: self.runners.iter().map(|r| r.memory.out().to_vec()).collect(),
            heard: self.runners.iter().map(|r| r.heard).collect(),
            report,
        }
    }

    /// The first rank that has not ended, and somebody it waits for.
    fn deadlock(&self) -> PlanFault {
        let stuck = self.runners.iter().position(|r| r.current().is_some()).expect("somebody has not ended");
        let runner = &self.runners[stuck];
        let open = |done: &[bool], i: usize| !done[i];
        let peer = match (runner.current(), &runner.transfers) {
            (Some(Step::Exchange { sends, recvs }), Some(transfers)) => {
                let to =
                    sends.iter().enumerate().find(|(i, _)| open(&transfers.sends, *i)).map(|(_, s)| s.to);
                let from =
                    recvs.iter().enumerate().find(|(i, _)| open(&transfers.recvs, *i)).map(|(_, r)| r.from);
                to.or(from)
            }
            (Some(Step::Fetch { peer, .. }), _) => Some(*peer),
            _ => {
                let others = runner.plan.group.iter().filter(|r| r.index() != stuck);
                others.min_by_key(|r| self.runners[r.index()].last_published).copied()
            }
        };
        let what = What::Deadlock { peer: peer.unwrap_or(Rank::at(stuck)) };
        PlanFault { rank: Rank::at(stuck), step: Some(runner.step), what }
    }

    /// PLAN-3.
    fn check_first_turns(&self) -> Result<(), PlanFault> {
        for (r, runner) in self.runners.iter().enumerate() {
            let publishes = runner
                .plan
                .steps
                .iter()
                .any(|step| matches!(step, Step::Publish { turn: 0, .. } | Step::Sync { turn: 0 }));
            if !runner.plan.group.is_empty() && !publishes {
                return Err(PlanFault { rank: Rank::at(r), step: None, what: What::NoFirstTurn });
            }
        }
        Ok(())
    }

    fn attempt(&mut self, by: By, step: &'a Step) -> Result<Progress, What> {
        match step {
            Step::Copy { src, dst } => self.copy(by, *src, *dst),
            Step::Scale { span, pre, post } => {
                let cells = self.written(by, *span)?;
                for cell in &mut self.runner(by.rank).memory.cells[cells] {
                    *cell = cell.scaled(*pre, *post)?;
                }
                Ok(Progress::Done)
            }
            Step::Exchange { sends, recvs } => self.exchange(by, sends, recvs),
            Step::Publish { turn, parts } => {
                if !self.may_publish(by.rank, *turn)? {
                    return Ok(Progress::Blocked);
                }
                let mut cells = Vec::new();
                for &(span, at) in parts {
                    let values = self.read(by, span)?;
                    self.put(&mut cells, at, &values)?;
                }
                self.publish(by.rank, *turn, cells);
                Ok(Progress::Done)
            }
            Step::ReduceFrom { turn, slot_at, own, dst, publish, last } => {
                self.reduce_from(by, (*turn, *slot_at), (*own, *dst), *publish, *last)
            }
            Step::Fetch { turn, peer, slot_at, dst } => {
                if !self.has_published(by.rank, *peer, *turn)? {
                    return Ok(Progress::Blocked);
                }
                let values = self.read_slot(by.rank, *peer, *turn, *slot_at, dst.len)?;
                self.write(by, *dst, &values)?;
                Ok(Progress::Done)
            }
            Step::Release { turn } => {
                let runner = self.in_group(by.rank)?;
                if i64::from(*turn) <= runner.last_released || *turn >= runner.plan.n_turns {
                    return Err(What::TurnOutOfOrder { turn: *turn, last: runner.last_released });
                }
                runner.last_released = i64::from(*turn);
                Ok(Progress::Done)
            }
            Step::Sync { turn } => self.sync(by.rank, *turn),
            Step::ReduceDirect { at, len, last } => self.reduce_direct(by, *at, *len, *last),
            Step::FetchDirect { peer, at, dst } => {
                Races::check_ready(self.runner(by.rank).heard, *peer)?;
                let cells = self.peer_cells(by.rank, *peer, Span::of(Buf::In, *at, dst.len))?;
                self.races.record(by, *peer, cells.clone(), false);
                let values = self.runners[peer.index()].memory.cells[cells].to_vec();
                self.write(by, *dst, &values)?;
                Ok(Progress::Done)
            }
        }
    }

    fn copy(&mut self, by: By, src: Span, dst: Span) -> Result<Progress, What> {
        same_len(src.len, dst.len)?;
        let (from, to) = (self.located(by.rank, src)?, self.located(by.rank, dst)?);
        if from != to {
            apart(&from, &to)?;
            let values = self.read(by, src)?;
            self.write(by, dst, &values)?;
        }
        Ok(Progress::Done)
    }

    fn exchange(&mut self, by: By, sends: &[Send], recvs: &[Recv]) -> Result<Progress, What> {
        let mut progress = Progress::Blocked;
        if self.runner(by.rank).transfers.is_none() {
            self.check_exchange(by, sends, recvs)?;
            let (sends, recvs) = (vec![false; sends.len()], vec![false; recvs.len()]);
            self.runner(by.rank).transfers = Some(Transfers { sends, recvs });
            progress = Progress::Some;
        }
        // The later of the two sides to arrive moves the data.
        for send in sends {
            while self.transfer(by.rank, send.to)? {
                progress = Progress::Some;
            }
        }
        for recv in recvs {
            while self.transfer(recv.from, by.rank)? {
                progress = Progress::Some;
            }
        }
        let open = self.runner(by.rank).transfers.as_ref().expect("the exchange has begun");
        if open.sends.iter().chain(&open.recvs).all(|&done| done) {
            self.runner(by.rank).transfers = None;
            return Ok(Progress::Done);
        }
        Ok(progress)
    }

    fn check_exchange(&mut self, by: By, sends: &[Send], recvs: &[Recv]) -> Result<(), What> {
        let n = self.runners.len();
        let bad = |peer: Rank, len| peer == by.rank || peer.index() >= n || len == 0;
        let bad_send = sends.iter().any(|s| bad(s.to, s.src.len));
        if bad_send || recvs.iter().any(|r| bad(r.from, r.dst.len)) || sends.len() + recvs.len() == 0 {
            return Err(What::EmptyTransfer);
        }
        let srcs = sends.iter().map(|s| self.located(by.rank, s.src)).collect::<Result<Vec<_>, _>>()?;
        let dsts = recvs.iter().map(|r| self.written(by, r.dst)).collect::<Result<Vec<_>, _>>()?;
        for (i, dst) in dsts.iter().enumerate() {
            dsts[i + 1..].iter().chain(&srcs).try_for_each(|other| apart(dst, other))?;
        }
        for src in srcs {
            self.races.record(by, by.rank, src, false);
        }
        Ok(())
    }

    /// Moves the next transfer from `a` to `b`, if both are in an exchange that has one.
    fn transfer(&mut self, a: Rank, b: Rank) -> Result<bool, What> {
        let Some((i, send)) = self.runners[a.index()].next_send(b) else { return Ok(false) };
        let Some((j, recv)) = self.runners[b.index()].next_recv(a) else { return Ok(false) };
        if send.src.len != recv.dst.len {
            return Err(What::TransferDiffers { peer: a, sent: send.src.len, taken: recv.dst.len });
        }
        let src = self.located(a, send.src)?;
        let dst = self.located(b, recv.dst)?;
        for (from, to) in src.zip(dst) {
            let value = self.runners[a.index()].memory.cells[from];
            let cell = &mut self.runners[b.index()].memory.cells[to];
            *cell = match recv.fold {
                Fold::Store => value,
                Fold::Reduce => cell.reduced(value, false)?,
                Fold::ReduceLast => cell.reduced(value, true)?,
            };
        }
        let bytes = send.src.len * u64::from(self.request.elem_bytes);
        let tier = self.request.tier_between(a, b);
        self.tier_bytes[tier] += bytes;
        if tier > 0 {
            self.host_bytes[self.request.topology.host_of(a) as usize] += bytes;
        }
        let heard = self.runners[a.index()].heard;
        self.runners[a.index()].sent_bytes += bytes;
        self.runners[b.index()].heard |= heard;
        self.runners[a.index()].transfers.as_mut().expect("in an exchange").sends[i] = true;
        self.runners[b.index()].transfers.as_mut().expect("in an exchange").recvs[j] = true;
        Ok(true)
    }

    fn runner(&mut self, rank: Rank) -> &mut Runner<'a> {
        &mut self.runners[rank.index()]
    }

    fn in_group(&mut self, rank: Rank) -> Result<&mut Runner<'a>, What> {
        let runner = self.runner(rank);
        if runner.plan.group.is_empty() { Err(What::NoGroup) } else { Ok(runner) }
    }

    fn located(&self, rank: Rank, span: Span) -> Result<Range<usize>, What> {
        self.runners[rank.index()].memory.locate(span)
    }

    fn peer_cells(&self, me: Rank, peer: Rank, span: Span) -> Result<Range<usize>, What> {
        if !self.runners[me.index()].plan.group.contains(&peer) {
            return Err(What::NoGroup);
        }
        self.located(peer, span)
    }

    /// Checks that a span may be written and notes that it is.
    fn written(&mut self, by: By, span: Span) -> Result<Range<usize>, What> {
        let cells = self.runner(by.rank).memory.locate_to_write(span)?;
        self.races.record(by, by.rank, cells.clone(), true);
        Ok(cells)
    }

    fn read(&mut self, by: By, span: Span) -> Result<Vec<Value>, What> {
        let cells = self.located(by.rank, span)?;
        self.races.record(by, by.rank, cells.clone(), false);
        Ok(self.runner(by.rank).memory.cells[cells].to_vec())
    }

    fn write(&mut self, by: By, span: Span, values: &[Value]) -> Result<(), What> {
        let cells = self.written(by, span)?;
        self.runner(by.rank).memory.cells[cells].copy_from_slice(values);
        Ok(())
    }
}

impl<'a> Runner<'a> {
    fn current(&self) -> Option<&'a Step> {
        self.plan.steps.get(self.step)
    }

    fn next_send(&self, to: Rank) -> Option<(usize, Send)> {
        let (Some(Step::Exchange { sends, .. }), Some(transfers)) = (self.current(), &self.transfers) else {
            return None;
        };
        let (i, send) = sends.iter().enumerate().find(|(i, s)| s.to == to && !transfers.sends[*i])?;
        Some((i, *send))
    }

    fn next_recv(&self, from: Rank) -> Option<(usize, Recv)> {
        let (Some(Step::Exchange { recvs, .. }), Some(transfers)) = (self.current(), &self.transfers) else {
            return None;
        };
        let (i, recv) = recvs.iter().enumerate().find(|(i, r)| r.from == from && !transfers.recvs[*i])?;
        Some((i, *recv))
    }
}

fn same_len(a: u64, b: u64) -> Result<(), What> {
    if a == b { Ok(()) } else { Err(What::LengthsDiffer { a, b }) }
}

fn apart(a: &Range<usize>, b: &Range<usize>) -> Result<(), What> {
    if a.start < b.end && b.start < a.end { Err(What::Overlap) } else { Ok(()) }
}
