//! One counter per rank in shared memory: all ranks of the host see each other's progress without a message.
//!
//! - BOARD-1: a rank writes only its own word; a rank that reads the word also sees everything the writer wrote before.
//! - BOARD-2: a rank that sleeps until a word changes is woken by the change (WAIT-2).
//!
//! tests/board.rs compiles this file against an arena that tries every order of execution.

use super::{Arena, tenants::Tenancy};
use std::sync::{Arc, atomic::Ordering};

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

    /// Writes this rank's word and wakes sleeping threads.
    pub fn show(&self, word: u64) {
        self.arena.map.u64_at(self.words[self.me]).store(word, Ordering::Release);
        self.arena.bells.ring_sleepers(&self.arena.map);
        self.arena.nudge();
    }

    /// Every rank's words, in order.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|at| self.arena.map.u64_at(*at).load(Ordering::Acquire))
    }
}
