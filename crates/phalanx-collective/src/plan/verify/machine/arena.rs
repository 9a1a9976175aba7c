//! The arena's part of the machine: slots, turns, and peers' memory.

use super::{
    super::{
        super::step::{Buf, N_SLOTS, Span},
        What,
        memory::Value,
        race::{By, Races},
    },
    Machine, Progress, Slot, apart, same_len,
};
use phalanx_core::Rank;

impl Machine<'_> {
    pub(super) fn reduce_from(
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

    pub(super) fn sync(&mut self, me: Rank, turn: u32) -> Result<Progress, What> {
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

    pub(super) fn reduce_direct(&mut self, by: By, at: u64, len: u64, last: bool) -> Result<Progress, What> {
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

    /// ARENA-1 and ARENA-2: whether the slot of this turn is free.
    pub(super) fn may_publish(&mut self, me: Rank, turn: u32) -> Result<bool, What> {
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

    pub(super) fn publish(&mut self, me: Rank, turn: u32, cells: Vec<Option<Value>>) {
        let runner = self.runner(me);
        runner.last_published = i64::from(turn);
        let heard = runner.heard;
        runner.slots[(turn % N_SLOTS) as usize] = Some(Slot { turn, cells, heard });
    }

    /// Puts values into a slot that is being filled.
    pub(super) fn put(&self, cells: &mut Vec<Option<Value>>, at: u64, values: &[Value]) -> Result<(), What> {
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

    pub(super) fn has_published(&mut self, me: Rank, peer: Rank, turn: u32) -> Result<bool, What> {
        let runner = self.in_group(me)?;
        if i64::from(turn) <= runner.last_released {
            return Err(What::ReadsReleased { turn });
        }
        if turn >= runner.plan.n_turns || !runner.plan.group.contains(&peer) {
            return Err(What::NotPublished { peer, turn });
        }
        Ok(self.runners[peer.index()].last_published >= i64::from(turn))
    }

    pub(super) fn slot(&self, peer: Rank, turn: u32) -> Result<&Slot, What> {
        let slot = self.runners[peer.index()].slots[(turn % N_SLOTS) as usize].as_ref();
        slot.filter(|s| s.turn == turn).ok_or(What::NotPublished { peer, turn })
    }

    pub(super) fn read_slot(
        &mut self,
        me: Rank,
        peer: Rank,
        turn: u32,
        at: u64,
        len: u64,
    ) -> Result<Vec<Value>, What> {
        let slot = self.slot(peer, turn)?;
        let missing = What::NotPublished { peer, turn };
        let cells = slot.cells.get(at as usize..(at + len) as usize).ok_or(missing.clone())?;
        let values = cells.iter().map(|cell| cell.ok_or(missing.clone())).collect::<Result<Vec<_>, _>>()?;
        let heard = slot.heard;
        self.runner(me).heard |= heard;
        Ok(values)
    }
}
