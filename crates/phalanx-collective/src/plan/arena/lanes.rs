//! How the chunks of several owners share a slot.
//!
//! A slot is cut into *lanes* of equal size, one for each owner; a turn moves the next piece of every owner's chunk, so
//! that all owners work in every turn. If there are more owners than elements in a slot, they take turns.

use super::super::{Extent, extent::n_pieces};
use std::ops::Range;

/// Smallest piece worth a turn of its own.
const MIN_PIECE_BYTES: u64 = 4 << 10;
/// Turns that a short message is spread over, so that copying in, reducing and copying out overlap.
const MIN_TURNS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Lanes {
    n_owners: u32,
    /// Owners served in one turn.
    at_once: u32,
    /// Elements of one lane.
    size: u64,
    n_rounds: u32,
}

impl Lanes {
    /// For owners of whom none has more than `longest` elements, in slots of `slot_len` elements and pieces of about `segment_len`.
    pub fn new(n_owners: u32, longest: u64, slot_len: u64, segment_len: u64, elem_bytes: u32) -> Lanes {
        let at_once = n_owners.min(u32::try_from(slot_len).unwrap_or(u32::MAX)).max(1);
        let smallest = (MIN_PIECE_BYTES / u64::from(elem_bytes)).max(1);
        let size = longest
            .div_ceil(MIN_TURNS)
            .max(smallest)
            .min(segment_len)
            .min(slot_len / u64::from(at_once))
            .max(1);
        Lanes { n_owners, at_once, size, n_rounds: n_pieces(longest, size) }
    }

    /// One owner, whose chunks fill whole segments.
    pub fn single(longest: u64, slot_len: u64, segment_len: u64) -> Lanes {
        let size = segment_len.min(slot_len).max(1);
        Lanes { n_owners: 1, at_once: 1, size, n_rounds: n_pieces(longest, size) }
    }

    /// At least one, so that every rank publishes something (PLAN-3).
    pub fn n_turns(&self) -> u32 {
        (self.n_rounds * self.n_shifts()).max(1)
    }

    /// The owners served in this turn.
    pub fn owners(&self, turn: u32) -> Range<u32> {
        let from = turn % self.n_shifts() * self.at_once;
        from..self.n_owners.min(from + self.at_once)
    }

    /// What is moved in this turn of the chunk that this owner has.
    pub fn piece(&self, turn: u32, owner: u32, chunk: Extent) -> Extent {
        if self.owners(turn).contains(&owner) {
            chunk.piece(self.size, turn / self.n_shifts())
        } else {
            Extent::new(chunk.at, 0)
        }
    }

    /// Where that is in the slot.
    pub fn slot_at(&self, owner: u32) -> u64 {
        u64::from(owner % self.at_once) * self.size
    }

    fn n_shifts(&self) -> u32 {
        self.n_owners.div_ceil(self.at_once)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_owners_than_elements_in_a_slot_take_turns() {
        let lanes = Lanes::new(17, 3, 8, 8, 4);
        assert_eq!((lanes.at_once, lanes.size, lanes.n_turns()), (8, 1, 9));
        assert_eq!(lanes.owners(2), 16..17);
        assert_eq!(lanes.piece(5, 16, Extent::new(10, 3)), Extent::new(11, 1));
    }

    #[test]
    fn a_middling_message_is_spread_over_four_turns() {
        let lanes = Lanes::new(4, 16 << 10, 1 << 20, 16 << 10, 4);
        assert_eq!(lanes.n_turns(), 4);
    }
}
