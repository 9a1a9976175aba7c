//! Numbers of operations that were agreed before: the second time, four bytes replace the description.
//!
//! - TABLE-1: all nodes change their tables by responses alone, so equal numbers mean equal operations on every rank.
//! - TABLE-2: a table is replaced only as a whole, and the one before is kept, because messages may still refer to it. No message can
//!   refer to an older one, because filling a table needs all ranks.

use super::message::Agreed;
use crate::engine::spec::Name;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Names remembered to have run once; the second time they get a number.
const SEEN: usize = 4096;

#[derive(Debug)]
pub struct OperationTable {
    pub number: u32,
    /// With gaps: numbers are given out before operations run, and those need not run in that order.
    known: Vec<Option<Arc<Agreed>>>,
    ids: BTreeMap<Name, u32>,
    before: Vec<Option<Arc<Agreed>>>,
    seen: BTreeSet<Name>,
    seen_order: VecDeque<Name>,
    capacity: usize,
    /// At the root: numbers given out.
    n_given: u32,
    /// A name was worth a number, but none was left.
    overflowed: bool,
}

impl OperationTable {
    pub fn new(capacity: usize) -> OperationTable {
        OperationTable {
            number: 0,
            known: Vec::new(),
            ids: BTreeMap::new(),
            before: Vec::new(),
            seen: BTreeSet::new(),
            seen_order: VecDeque::new(),
            capacity,
            n_given: 0,
            overflowed: false,
        }
    }

    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    pub fn get(&self, id: u32) -> Option<&Arc<Agreed>> {
        self.known.get(id as usize)?.as_ref()
    }

    /// What a number means to somebody whose table has this number.
    pub fn resolve(&self, table: u32, id: u32) -> Option<&Arc<Agreed>> {
        if table == self.number {
            self.known.get(id as usize)?.as_ref()
        } else if table.wrapping_add(1) == self.number {
            self.before.get(id as usize)?.as_ref()
        } else {
            None
        }
    }

    pub fn find(&self, name: &str) -> Option<(u32, &Arc<Agreed>)> {
        let id = *self.ids.get(name)?;
        Some((id, self.get(id)?))
    }

    /// At the root: the number under which to remember this operation, if it is worth one.
    pub fn worth(&mut self, name: &Name) -> Option<u32> {
        if self.capacity == 0 {
            return None;
        }
        if let Some(id) = self.ids.get(name) {
            return Some(*id);
        }
        if self.seen.remove(name) {
            self.overflowed = self.n_given as usize >= self.capacity;
            if self.overflowed {
                return None;
            }
            self.n_given += 1;
            return Some(self.n_given - 1);
        }
        self.seen.insert(name.clone());
        self.seen_order.push_back(name.clone());
        if self.seen_order.len() > SEEN
            && let Some(old) = self.seen_order.pop_front()
        {
            self.seen.remove(&old);
        }
        None
    }

    /// TABLE-1: remembers what a response says.
    pub fn remember(&mut self, id: u32, agreed: Arc<Agreed>) {
        let at = id as usize;
        if at >= self.capacity {
            return; // No root of ours gives out such a number.
        }
        self.ids.insert(agreed.name.clone(), id);
        if at >= self.known.len() {
            self.known.resize(at + 1, None);
        }
        self.known[at] = Some(agreed);
    }

    /// TABLE-2.
    pub fn renew(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.before = std::mem::take(&mut self.known);
        self.ids.clear();
        self.n_given = 0;
        self.overflowed = false;
    }
}
