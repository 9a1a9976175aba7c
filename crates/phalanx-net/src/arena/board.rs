//! One counter per rank in shared memory: all ranks of the host see each other's progress without a message.
//!
//! - BOARD-1: a rank writes only its own word; a rank that reads the word also sees everything the writer wrote before.
//! - BOARD-2: a rank that sleeps until a word changes is woken by a writer that rings after the change (WAIT-2). A writer that reads the words
//!   between the two sees every word that was written before its own, so that of several ranks at least the last one sees all of them.
//!
//! tests/board.rs compiles this file against an arena that tries every order of execution.

use super::{
    Arena,
    sync::{Ordering, fence},
    tenants::Tenancy,
};
use std::sync::Arc;

/// The words of one communicator's members.
#[derive(Clone, Debug)]
pub struct Board {
    arena: Arc<Arena>,
    /// Where each member's word is.
    words: Vec<usize>,
    me: usize,
    _tenancy: Arc<Tenancy>,
}

impl Board {
    /// Words at these places of the arena, the one at `me` this rank's own; nobody else has them during the tenancy.
    pub(super) fn new(arena: Arc<Arena>, words: Vec<usize>, me: usize, tenancy: Arc<Tenancy>) -> Board {
        Board { arena, words, me, _tenancy: tenancy }
    }

    /// Writes this rank's word. A ring after this wakes the ranks that wait for it.
    pub fn show(&self, word: u64) {
        self.arena.map.u64_at(self.words[self.me]).store(word, Ordering::Release);
        // BOARD-2: the words are read after this one was written.
        fence(Ordering::SeqCst);
    }

    /// Wakes the other ranks' threads that sleep until a word changes.
    pub fn ring(&self) {
        self.arena.bells.ring_sleepers(&self.arena.map);
    }

    /// The same, and threads that wait for nothing in particular.
    pub fn ring_all(&self) {
        self.arena.alarm();
    }

    /// Every rank's words, in order.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|at| self.arena.map.u64_at(*at).load(Ordering::Acquire))
    }
}
