//! Running agreed batches over and over without a word about them.
//!
//! Every rank counts the batches it is ready for, in the recorded order; a batch runs once the counts of all ranks have passed it.
//! - REPLAY-1: a count never falls, and a rank that has counted a batch runs it as soon as all other ranks have counted it, too.
//! - REPLAY-2: a rank that wants to stop freezes: it counts nothing more. Seeing one frozen rank, every other freezes. When all are frozen, the
//!   lowest count is where it ends, on every rank alike; what was submitted beyond it is negotiated.

use super::{
    fuse::Batch,
    message::{Agreed, Generation},
};
use crate::engine::spec::Name;
use std::collections::BTreeMap;

#[derive(Debug)]
pub struct Replay {
    pub generation: Generation,
    batches: Vec<Batch>,
    /// Which batch a name belongs to, and what was agreed about it.
    places: BTreeMap<Name, (usize, usize)>,
    /// Of each batch: what is submitted, but not counted yet, and how much of it.
    waiting: Vec<(Vec<bool>, usize)>,
    n_waiting: usize,
    /// Batches this rank is ready for.
    pub count: u64,
    /// Batches that run, or have.
    pub committed: u64,
    pub frozen: bool,
    /// When something was last counted or committed.
    pub moved_at: u64,
}

/// What all ranks' counts say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub generation: Generation,
    pub lowest: u64,
    pub any_frozen: bool,
    pub all_frozen: bool,
}

impl Replay {
    pub fn new(generation: Generation, batches: Vec<Batch>, now: u64) -> Replay {
        let mut places = BTreeMap::new();
        for (b, batch) in batches.iter().enumerate() {
            for (i, agreed) in batch.iter().enumerate() {
                places.insert(agreed.name.clone(), (b, i));
            }
        }
        let waiting = batches.iter().map(|b| (vec![false; b.len()], 0)).collect();
        Replay {
            generation,
            batches,
            places,
            waiting,
            n_waiting: 0,
            count: 0,
            committed: 0,
            frozen: false,
            moved_at: now,
        }
    }

    pub fn n_batches(&self) -> usize {
        self.batches.len()
    }

    /// What was agreed about a name.
    pub fn agreed(&self, name: &str) -> Option<&Agreed> {
        self.places.get(name).map(|&(b, i)| &*self.batches[b][i])
    }

    /// Takes a submission that is as agreed.
    pub fn submit(&mut self, name: &str, now: u64) {
        let Some(&(b, i)) = self.places.get(name) else { return };
        let (flags, n) = &mut self.waiting[b];
        assert!(!std::mem::replace(&mut flags[i], true), "a name is submitted once until it has run");
        *n += 1;
        self.n_waiting += 1;
        self.advance(now);
    }

    fn advance(&mut self, now: u64) {
        while !self.frozen {
            let (flags, n) = &mut self.waiting[(self.count % self.batches.len() as u64) as usize];
            if *n < flags.len() {
                return;
            }
            flags.fill(false);
            self.n_waiting -= std::mem::take(n);
            self.count += 1;
            self.moved_at = now;
        }
    }

    /// Whether something submitted waits for something that is not.
    pub fn is_waiting(&self) -> bool {
        self.n_waiting > 0
    }

    /// The batches that now may run.
    pub fn commit(&mut self, count: u64, now: u64) -> impl Iterator<Item = Batch> + '_ {
        let until = count.min(self.count);
        if until > self.committed {
            self.moved_at = now;
        }
        let from = self.committed;
        self.committed = from.max(until);
        (from..until).map(|k| self.batches[(k % self.batches.len() as u64) as usize].clone())
    }
}
