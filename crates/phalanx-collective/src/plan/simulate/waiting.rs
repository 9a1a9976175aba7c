//! Messages that cannot leave yet, in the order in which they will.

use super::super::step::Fold;
use phalanx_core::Rank;
use std::collections::BTreeMap;

/// A transfer whose both sides are there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub from: Rank,
    pub to: Rank,
    pub len: u64,
    pub fold: Fold,
}

/// Times are keyed by their bits, which for numbers from 0 up are in the same order; the number tells messages of one time apart.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    messages: BTreeMap<(u64, u64), Message>,
    n: u64,
}

impl Waiting {
    pub fn push(&mut self, at_us: f64, message: Message) {
        self.n += 1;
        self.messages.insert((at_us.to_bits(), self.n), message);
    }

    /// The first message, unless it leaves after this time.
    pub fn pop_until(&mut self, us: Option<f64>) -> Option<(f64, Message)> {
        let first = self.messages.first_entry()?;
        let at_us = f64::from_bits(first.key().0);
        us.is_none_or(|us| at_us <= us).then(|| (at_us, first.remove()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_leave_by_time_and_then_in_order() {
        let mut waiting = Waiting::default();
        for (at_us, from) in [(2.0, 0), (1.0, 1), (2.0, 2)] {
            waiting.push(at_us, Message { from: Rank(from), to: Rank(9), len: 1, fold: Fold::Store });
        }
        let mut pop = |us| waiting.pop_until(us).map(|(at_us, message)| (at_us, message.from.0));
        assert_eq!(pop(Some(0.5)), None);
        assert_eq!(
            [pop(Some(1.0)), pop(Some(2.0)), pop(None), pop(None)],
            [Some((1.0, 1)), Some((2.0, 0)), Some((2.0, 2)), None]
        );
    }
}
