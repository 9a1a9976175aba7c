//! The order of the samples in one epoch, as a function from a position to a sample: no rank keeps a list of all samples.
//! - SHUFFLE-1: every sample has exactly one position.
//!
//! A Feistel network shuffles the numbers of as many bits as the samples need. It is a bijection whatever its round function is. A number
//! that is not a sample is shuffled again until it is one ("cycle walking"). That keeps the bijection, and takes two turns at most on
//! average, because more than half of the numbers are samples. All of it is arithmetic on integers, so the order is the same on every machine.

/// Enough for orders of few samples to be equally likely; six are not far from it.
const ROUNDS: usize = 8;
/// Narrower networks prefer some orders. For fewer samples, an epoch takes 256 turns through the network in all.
const LEAST_BITS: u32 = 8;

/// An order of `n` samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shuffle {
    n: u64,
    /// Bits of the lower half; the upper half has as many or one more.
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; ROUNDS],
}

impl Shuffle {
    /// Orders of other seeds or other epochs have nothing to do with each other.
    pub(super) fn new(n: u64, seed: u64, epoch: u64) -> Shuffle {
        let bits = (u64::BITS - n.saturating_sub(1).leading_zeros()).max(LEAST_BITS);
        let low_bits = bits / 2;
        let mask = |bits: u32| u64::MAX >> (u64::BITS - bits);
        // Mixed one after the other: with a sum, epoch 1 of seed 0 would be epoch 0 of seed 1.
        let root = mixed(mixed(seed) ^ epoch);
        let keys = std::array::from_fn(|round| mixed(root ^ (round as u64 + 1)));
        Shuffle { n, low_bits, low_mask: mask(low_bits), high_mask: mask(bits - low_bits), keys }
    }

    /// The sample at a position below `n`.
    pub(super) fn at(&self, position: u64) -> u64 {
        debug_assert!(position < self.n, "positions are below the number of samples");
        let mut number = self.once(position);
        while number >= self.n {
            number = self.once(number);
        }
        number
    }

    fn once(&self, number: u64) -> u64 {
        let (mut low, mut high) = (number & self.low_mask, number >> self.low_bits);
        for keys in self.keys.chunks_exact(2) {
            high ^= mixed(low ^ keys[0]) & self.high_mask;
            low ^= mixed(high ^ keys[1]) & self.low_mask;
        }
        high << self.low_bits | low
    }
}

/// A bijection in which every bit of the result depends on every bit of the input: two multiplications between three shifts.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn order(n: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let shuffle = Shuffle::new(n, seed, epoch);
        (0..n).map(|position| shuffle.at(position)).collect()
    }

    /// SHUFFLE-1, for every small size and for larger ones with their own seeds.
    #[test]
    fn every_sample_has_one_position() {
        for n in (1..200u64).chain((200..3000).step_by(97)) {
            let (seed, epoch) = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n.rotate_right(7));
            let mut all = order(n, seed, epoch);
            all.sort_unstable();
            assert!(all.into_iter().eq(0..n), "n={n} seed={seed} epoch={epoch}");
        }
    }

    #[test]
    fn sizes_that_fit_in_no_memory_have_an_order() {
        for bits in 40..64u32 {
            for n in [1u64 << bits, (1 << bits) + 1, u64::MAX >> (63 - bits)] {
                let shuffle = Shuffle::new(n, u64::from(bits), 0);
                for position in [0, 1, n / 3, n - 1] {
                    assert!(shuffle.at(position) < n, "n={n} position={position}");
                }
            }
        }
    }

    /// The numbers are those of every machine and version: saved positions rely on them.
    #[test]
    fn the_order_never_changes() {
        assert_eq!(order(10, 0, 0), [8, 1, 9, 4, 7, 5, 2, 3, 6, 0]);
        assert_eq!(order(7, 42, 3), [1, 4, 6, 3, 2, 5, 0]);
        assert_eq!(Shuffle::new(1 << 40, 1, 2).at(3), 589_052_763_688);
    }

    #[test]
    fn seeds_and_epochs_are_not_summed() {
        let orders = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)].map(|(s, e)| order(100, s, e));
        for (i, a) in orders.iter().enumerate() {
            assert!(orders[..i].iter().all(|b| a != b), "{i}");
        }
    }

    /// Each of the 120 orders of 5 samples occurs about 500 times among 60,000; the deviation of a fair one is 22.
    #[test]
    fn orders_of_few_samples_are_equally_likely() {
        let mut counts: BTreeMap<Vec<u64>, u32> = BTreeMap::new();
        (0..60_000).for_each(|seed| *counts.entry(order(5, seed, 0)).or_default() += 1);
        assert_eq!(counts.len(), 120);
        assert!(counts.values().all(|n| (400..=600).contains(n)), "{counts:?}");
    }

    /// The sample at a position and its neighbour are as far apart as independent numbers: a third of all samples on average.
    #[test]
    fn neighbours_come_from_anywhere() {
        for n in [1000u64, 1024, 1025] {
            let distances = (0..50).flat_map(|epoch| {
                let order = order(n, 7, epoch);
                (1..order.len()).map(move |i| order[i].abs_diff(order[i - 1])).collect::<Vec<_>>()
            });
            let mean = distances.clone().sum::<u64>() as f64 / distances.count() as f64 / n as f64;
            assert!((mean - 1.0 / 3.0).abs() < 0.01, "{n}: {mean}");
        }
    }
}
