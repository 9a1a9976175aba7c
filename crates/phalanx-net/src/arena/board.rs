//! One word a rank, seen by all ranks of the host: how far each is, without a message.
//!
//! - BOARD-1: a rank writes only its own word; whoever sees it sees everything the rank wrote before.

use super::Arena;
use phalanx_core::Rank;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The words of one communicator's members.
#[derive(Clone, Debug)]
pub struct Board {
    arena: Arc<Arena>,
    /// Where each member's word is.
    words: Vec<usize>,
    me: usize,
}

impl Board {
    /// The board beside lane number `index`, for these members (which include this rank), in order.
    pub fn open(arena: Arc<Arena>, index: u32, members: &[Rank], me: usize) -> Option<Board> {
        if index >= super::MAX_LANES {
            return None;
        }
        let place = |rank: &Rank| arena.ranks.iter().position(|r| r == rank);
        let places = members.iter().map(place).collect::<Option<Vec<usize>>>()?;
        let at = arena.plan.lanes_at + index as usize * arena.plan.lane_bytes;
        let words = places.iter().map(|p| at + super::Lane::board_at(*p)).collect();
        Some(Board { arena, words, me })
    }

    fn word(&self, member: usize) -> &AtomicU64 {
        self.arena.map.u64_at(self.words[member])
    }

    /// Writes this rank's word and wakes whoever sleeps.
    pub fn show(&self, word: u64) {
        self.word(self.me).store(word, Ordering::Release);
        self.arena.bells.ring_sleepers(&self.arena.map);
        self.arena.nudge();
    }

    /// Everybody's words, in order.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.words.len()).map(|m| self.word(m).load(Ordering::Acquire))
    }
}
