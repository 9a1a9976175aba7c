//! The event queue: ranks ordered by the time at which their current step ends.
//!
//! In most algorithms all ranks move in step, so few distinct times are pending; ranks of one time wait in one list, in the order in which
//! they came.

use std::collections::BTreeMap;

/// Times are keyed by their bits, which for numbers from 0 up are in the same order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The ranks of the present time that have not been popped, last first.
    now: Vec<u32>,
    now_us: f64,
    later: BTreeMap<u64, Vec<u32>>,
    spare: Vec<Vec<u32>>,
}

impl Queue {
    pub fn push(&mut self, at_us: f64, rank: u32) {
        debug_assert!(at_us >= 0.0, "time does not run backwards");
        let spare = &mut self.spare;
        self.later.entry(at_us.to_bits()).or_insert_with(|| spare.pop().unwrap_or_default()).push(rank);
    }

    /// The time of what comes next.
    pub fn next_us(&self) -> Option<f64> {
        match self.now.is_empty() {
            true => self.later.first_key_value().map(|(at, _)| f64::from_bits(*at)),
            false => Some(self.now_us),
        }
    }

    pub fn pop(&mut self) -> Option<(f64, u32)> {
        if self.now.is_empty() {
            let (at, ranks) = self.later.pop_first()?;
            let mut emptied = std::mem::replace(&mut self.now, ranks);
            emptied.clear();
            self.spare.push(emptied);
            self.now.reverse();
            self.now_us = f64::from_bits(at);
        }
        self.now.pop().map(|rank| (self.now_us, rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_by_time_and_then_in_order_of_arrival() {
        let mut queue = Queue::default();
        for (at, rank) in [(2.0, 1), (0.5, 2), (2.0, 3), (0.5, 4)] {
            queue.push(at, rank);
        }
        assert_eq!(queue.pop(), Some((0.5, 2)));
        queue.push(1.0, 5);
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [(0.5, 4), (1.0, 5), (2.0, 1), (2.0, 3)]);
    }
}
