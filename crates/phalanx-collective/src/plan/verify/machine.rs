//! All ranks of a request, run together on symbols.

use super::{
    super::{
        Request,
        step::{Buf, Fold, N_SLOTS, Plan, Recv, Send, Span, Step},
    },
    Fault, Report, What,
    memory::{Memory, Ranks, Value},
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
    heard: Ranks,
}

/// One rank on its way through its plan.
struct Runner<'a> {
    plan: &'a Plan,
    step: usize,
    memory: Memory,
    slots: Vec<Option<Slot>>,
    last_published: i64,
    last_released: i64,
    /// Which transfers of the present exchange are done; `None` before it has begun.
    transfers: Option<Transfers>,
    /// Ranks that are known to have begun.
    heard: Ranks,
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
    request: &'a Request,
    runners: Vec<Runner<'a>>,
    pub races: Races,
    host_bytes: Vec<u64>,
}

/// What the ranks are left with.
pub(super) struct Outcome {
    pub outs: Vec<Vec<Value>>,
    pub heard: Vec<Ranks>,
    pub report: Report,
}

impl<'a> Machine<'a> {
    pub fn new(request: &'a Request, plans: &'a [Plan]) -> Machine<'a> {
        let runners = plans.iter().enumerate().map(|(r, plan)| Runner {
            plan,
            step: 0,
            memory: Memory::new(request, Rank::at(r), plan.scratch_len),
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
        Machine { request, runners: runners.collect(), races, host_bytes }
    }

    /// Lets every rank go as far as it can until all have ended.
    pub fn run(&mut self) -> Result<(), Fault> {
        loop {
            let mut moved = false;
            for r in 0..self.runners.len() {
                while let Some(step) = self.runners[r].current() {
                    let by = By { rank: Rank::at(r), step: self.runners[r].step };
                    let fault = |what| Fault { rank: by.rank, step: Some(by.step), what };
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
        let report = Report {
            sent_bytes: self.runners.iter().map(|r| r.sent_bytes).collect(),
            host_bytes: self.host_bytes,
            n_steps: self.runners.iter().map(|r| r.plan.steps.len()).collect(),
        };
        Outcome {
            outs: self.runners.iter().map(|r| r.memory.out().to_vec()).collect(),
            heard: self.runners.iter().map(|r| r.heard).collect(),
            report,
        }
    }

    /// The first rank that has not ended, and somebody it waits for.
    fn deadlock(&self) -> Fault {
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
        Fault { rank: Rank::at(stuck), step: Some(runner.step), what }
    }

    /// PLAN-3.
    fn check_first_turns(&self) -> Result<(), Fault> {
        for (r, runner) in self.runners.iter().enumerate() {
            let publishes = runner
                .plan
                .steps
                .iter()
                .any(|step| matches!(step, Step::Publish { turn: 0, .. } | Step::Sync { turn: 0 }));
            if !runner.plan.group.is_empty() && !publishes {
                return Err(Fault { rank: Rank::at(r), step: None, what: What::NoFirstTurn });
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
        let topology = &self.request.topology;
        if topology.host_of(a) != topology.host_of(b) {
            self.host_bytes[topology.host_of(a) as usize] += bytes;
        }
        let heard = self.runners[a.index()].heard;
        self.runners[a.index()].sent_bytes += bytes;
        self.runners[b.index()].heard |= heard;
        self.runners[a.index()].transfers.as_mut().expect("in an exchange").sends[i] = true;
        self.runners[b.index()].transfers.as_mut().expect("in an exchange").recvs[j] = true;
        Ok(true)
    }

    fn reduce_from(
        &mut self,
        by: By,
        (turn, slot_at): (u32, u64),
        (own, dst): (Span, Span),
        publish: Option<(u32, u64)>,
        last: bool,
    ) -> Result<Progress, What> {
        same_len(own.len, dst.len)?;
        self.in_group(by.rank)?;
        let group = &self.runners[by.rank.index()].plan.group;
        for &peer in group.iter().filter(|&&p| p != by.rank) {
            if !self.has_published(by.rank, peer, turn)? {
                return Ok(Progress::Blocked);
            }
        }
        if let Some((turn, _)) = publish
            && !self.may_publish(by.rank, turn)?
        {
            return Ok(Progress::Blocked);
        }
        let (from, to) = (self.located(by.rank, own)?, self.located(by.rank, dst)?);
        if from != to {
            apart(&from, &to)?;
        }
        let mut contributions = Vec::with_capacity(group.len());
        for &peer in group {
            contributions.push(if peer == by.rank {
                self.read(by, own)?
            } else {
                self.read_slot(by.rank, peer, turn, slot_at, dst.len)?
            });
        }
        let sums = (0..dst.len as usize).map(|i| {
            let column: Vec<Value> = contributions.iter().map(|c| c[i]).collect();
            Value::reduced_all(&column, last)
        });
        let sums = sums.collect::<Result<Vec<_>, _>>()?;
        self.write(by, dst, &sums)?;
        if let Some((turn, at)) = publish {
            let mut cells = Vec::new();
            self.put(&mut cells, at, &sums)?;
            self.publish(by.rank, turn, cells);
        }
        Ok(Progress::Done)
    }

    fn sync(&mut self, me: Rank, turn: u32) -> Result<Progress, What> {
        let mut progress = Progress::Blocked;
        if self.in_group(me)?.last_published < i64::from(turn) {
            if !self.may_publish(me, turn)? {
                return Ok(Progress::Blocked);
            }
            self.publish(me, turn, Vec::new());
            progress = Progress::Some;
        }
        let group = &self.runners[me.index()].plan.group;
        for &peer in group {
            if !self.has_published(me, peer, turn)? {
                return Ok(progress);
            }
        }
        for &peer in group {
            let heard = self.slot(peer, turn)?.heard;
            self.runner(me).heard |= heard;
        }
        self.races.n_syncs[me.index()] += 1;
        Ok(Progress::Done)
    }

    fn reduce_direct(&mut self, by: By, at: u64, len: u64, last: bool) -> Result<Progress, What> {
        self.in_group(by.rank)?;
        let group = &self.runners[by.rank.index()].plan.group;
        let mut contributions = Vec::with_capacity(group.len());
        for &peer in group {
            Races::check_ready(self.runners[by.rank.index()].heard, peer)?;
            let cells = self.peer_cells(by.rank, peer, Span::of(Buf::In, at, len))?;
            self.races.record(by, peer, cells.clone(), false);
            contributions.push(self.runners[peer.index()].memory.cells[cells].to_vec());
        }
        for i in 0..len as usize {
            let column: Vec<Value> = contributions.iter().map(|c| c[i]).collect();
            let sum = Value::reduced_all(&column, last)?;
            for &peer in group {
                let out = self.located(peer, Span::of(Buf::Out, at, len))?;
                self.runner(peer).memory.cells[out.start + i] = sum;
            }
        }
        for &peer in group {
            let out = self.runners[peer.index()].memory.locate_to_write(Span::of(Buf::Out, at, len))?;
            self.races.record(by, peer, out, true);
        }
        Ok(Progress::Done)
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

    /// ARENA-1 and ARENA-2: whether the slot of this turn is free.
    fn may_publish(&mut self, me: Rank, turn: u32) -> Result<bool, What> {
        let runner = self.in_group(me)?;
        let last = runner.last_published;
        if i64::from(turn) <= last || turn >= runner.plan.n_turns {
            return Err(What::TurnOutOfOrder { turn, last });
        }
        let before = i64::from(turn) - i64::from(N_SLOTS);
        let group = &self.runners[me.index()].plan.group;
        Ok(group.iter().all(|r| {
            let peer = &self.runners[r.index()];
            peer.current().is_none() || peer.last_released >= before
        }))
    }

    fn publish(&mut self, me: Rank, turn: u32, cells: Vec<Option<Value>>) {
        let runner = self.runner(me);
        runner.last_published = i64::from(turn);
        let heard = runner.heard;
        runner.slots[(turn % N_SLOTS) as usize] = Some(Slot { turn, cells, heard });
    }

    /// Puts values into a slot that is being filled.
    fn put(&self, cells: &mut Vec<Option<Value>>, at: u64, values: &[Value]) -> Result<(), What> {
        let end = at.saturating_add(values.len() as u64);
        if end > self.request.slot_len() {
            return Err(What::OutOfSlot { at, end, len: self.request.slot_len() });
        }
        if cells.len() < end as usize {
            cells.resize(end as usize, None);
        }
        for (cell, value) in cells[at as usize..].iter_mut().zip(values) {
            if cell.replace(*value).is_some() {
                return Err(What::Overlap);
            }
        }
        Ok(())
    }

    fn has_published(&mut self, me: Rank, peer: Rank, turn: u32) -> Result<bool, What> {
        let runner = self.in_group(me)?;
        if i64::from(turn) <= runner.last_released {
            return Err(What::ReadsReleased { turn });
        }
        if turn >= runner.plan.n_turns || !runner.plan.group.contains(&peer) {
            return Err(What::NotPublished { peer, turn });
        }
        Ok(self.runners[peer.index()].last_published >= i64::from(turn))
    }

    fn slot(&self, peer: Rank, turn: u32) -> Result<&Slot, What> {
        let slot = self.runners[peer.index()].slots[(turn % N_SLOTS) as usize].as_ref();
        slot.filter(|s| s.turn == turn).ok_or(What::NotPublished { peer, turn })
    }

    fn read_slot(&mut self, me: Rank, peer: Rank, turn: u32, at: u64, len: u64) -> Result<Vec<Value>, What> {
        let slot = self.slot(peer, turn)?;
        let missing = What::NotPublished { peer, turn };
        let cells = slot.cells.get(at as usize..(at + len) as usize).ok_or(missing.clone())?;
        let values = cells.iter().map(|cell| cell.ok_or(missing.clone())).collect::<Result<Vec<_>, _>>()?;
        let heard = slot.heard;
        self.runner(me).heard |= heard;
        Ok(values)
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
