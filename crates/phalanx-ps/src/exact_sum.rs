//! A sum of finite numbers whose bits do not depend on their order: the norms of gradients are the same however rows are spread.
//!
//! - EXACT-1: the sum is exact; it is rounded once, when it is read.

/// Each limb holds 32 bits of the sum, with room for carries; limb 0 begins at 2^-1088.
const LIMBS: usize = 70;
/// The lowest bit of limb 0 is two to the minus this.
const BELOW: i32 = 1088;
/// After this many numbers the carries are passed on: each adds at most 2^32 to a limb.
const SETTLE_EVERY: u32 = 1 << 30;

/// A sum under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactSum {
    limbs: [i64; LIMBS],
    since: u32,
    /// Of what was added and is not finite: plus infinity, minus infinity, no number.
    beyond: [bool; 3],
}

/// Bytes of a sum that travels.
pub const SUM_BYTES: usize = LIMBS * 8 + 8;

impl Default for ExactSum {
    fn default() -> ExactSum {
        ExactSum { limbs: [0; LIMBS], since: 0, beyond: [false; 3] }
    }
}

impl ExactSum {
    pub fn add(&mut self, value: f64) {
        if value == 0.0 {
            return;
        }
        if !value.is_finite() {
            let kind = if value.is_nan() { 2 } else { usize::from(value < 0.0) };
            self.beyond[kind] = true;
            return;
        }
        let bits = value.to_bits();
        let raw = (bits >> 52 & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        let (mantissa, exponent) =
            if raw == 0 { (fraction, -1074) } else { (fraction | 1 << 52, raw - 1075) };
        let at = (exponent + BELOW) as usize;
        let wide = u128::from(mantissa) << (at % 32);
        for (i, limb) in self.limbs[at / 32..].iter_mut().take(3).enumerate() {
            let part = (wide >> (32 * i) & 0xffff_ffff) as i64;
            *limb += if value < 0.0 { -part } else { part };
        }
        self.since += 1;
        if self.since == SETTLE_EVERY {
            self.settle();
        }
    }

    pub fn add_sum(&mut self, other: &ExactSum) {
        let mut other = other.clone();
        other.settle();
        self.settle();
        self.limbs.iter_mut().zip(other.limbs).for_each(|(a, b)| *a += b);
        self.beyond.iter_mut().zip(other.beyond).for_each(|(a, b)| *a |= b);
        self.settle();
    }

    /// The sum, rounded towards zero in its 64th bit and then to nearest. What is not finite has the sum that it has elsewhere: infinite, or no
    /// number if such a one was added, or infinities of both signs.
    pub fn value(&self) -> f64 {
        match self.beyond {
            [false, false, false] => {}
            [true, false, false] => return f64::INFINITY,
            [false, true, false] => return f64::NEG_INFINITY,
            _ => return f64::NAN,
        }
        let mut sum = self.clone();
        sum.settle();
        let is_negative = sum.limbs[LIMBS - 1] < 0;
        if is_negative {
            sum.limbs.iter_mut().for_each(|limb| *limb = -*limb);
            sum.settle();
        }
        let Some(top) = sum.limbs.iter().rposition(|&limb| limb != 0) else { return 0.0 };
        // Four limbs have more bits than a number; what is below only matters as "something".
        let mut wide = 0u128;
        for i in 0..4 {
            let limb = top.checked_sub(i).map_or(0, |at| sum.limbs[at] as u128);
            wide = wide << 32 | limb;
        }
        if top >= 4 && sum.limbs[..top - 3].iter().any(|&limb| limb != 0) {
            wide |= 1;
        }
        let exponent = (top as i32 - 3) * 32 - BELOW;
        let value = scaled(wide, exponent);
        if is_negative { -value } else { value }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut sum = self.clone();
        sum.settle();
        let mut bytes: Vec<u8> = sum.limbs.iter().flat_map(|limb| limb.to_le_bytes()).collect();
        let bits = (0..3).map(|at| u64::from(sum.beyond[at]) << at).sum::<u64>();
        bytes.extend(bits.to_le_bytes());
        bytes
    }

    /// `None` unless these are the bytes of a sum.
    pub fn from_bytes(bytes: &[u8]) -> Option<ExactSum> {
        let (words, rest) = bytes.as_chunks::<8>();
        let (last, limbs) = words.split_last()?;
        if !rest.is_empty() || limbs.len() != LIMBS {
            return None;
        }
        let mut sum = ExactSum::default();
        sum.limbs.iter_mut().zip(limbs).for_each(|(limb, word)| *limb = i64::from_le_bytes(*word));
        // What settled sums hold; others would overflow.
        let is_settled = sum.limbs[..LIMBS - 1].iter().all(|limb| (0..1 << 32).contains(limb));
        let bits = u64::from_le_bytes(*last);
        sum.beyond = std::array::from_fn(|at| bits >> at & 1 == 1);
        let has_room = sum.limbs[LIMBS - 1].unsigned_abs() < 1 << 40;
        (is_settled && bits < 8 && has_room).then_some(sum)
    }

    /// Passes carries on, so that every limb but the last is in 0..2^32.
    fn settle(&mut self) {
        let mut carry = 0;
        let (last, limbs) = self.limbs.split_last_mut().expect("there are limbs");
        for limb in limbs {
            let whole = *limb + carry;
            *limb = whole & 0xffff_ffff;
            carry = whole >> 32;
        }
        *last += carry;
        self.since = 0;
    }
}

/// `wide * 2^exponent`; the conversion rounds once, the rest only moves the exponent unless the result is denormal.
fn scaled(wide: u128, exponent: i32) -> f64 {
    let mut value = wide as f64;
    let mut left = exponent;
    while left != 0 {
        let by = left.clamp(-1000, 1000);
        value *= 2f64.powi(by);
        left -= by;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_ones_are_not_lost_beside_large_ones() {
        let mut sum = ExactSum::default();
        [1e300, 1.0, -1e300, 2f64.powi(-1074), 1e-300, -1.0, -1e-300].into_iter().for_each(|v| sum.add(v));
        assert_eq!(sum.value(), 2f64.powi(-1074), "EXACT-1");
        sum.add(f64::INFINITY);
        let infinite = ExactSum::from_bytes(&sum.to_bytes()).unwrap();
        assert_eq!(infinite.value(), f64::INFINITY);
        sum.add(f64::NEG_INFINITY);
        assert!(sum.value().is_nan());
        let mut below = ExactSum::default();
        below.add(f64::NEG_INFINITY);
        assert_eq!(below.value(), f64::NEG_INFINITY);
        below.add(f64::NAN);
        sum = infinite;
        sum.add_sum(&below);
        assert!(sum.value().is_nan());
        let mut two = ExactSum::default();
        (0..1000).for_each(|_| two.add(0.1));
        assert!((two.value() - 100.0).abs() < 1e-12);
    }

    proptest! {
        /// EXACT-1
        #[test]
        fn order_and_grouping_do_not_matter(values in prop::collection::vec(-1e18f64..1e18, 1..60), cut in 0usize..60) {
            let add = |sum: &mut ExactSum, some: &[f64]| some.iter().for_each(|&v| sum.add(v));
            let (mut whole, mut left, mut right) = <(ExactSum, ExactSum, ExactSum)>::default();
            add(&mut whole, &values);
            let (first, last) = values.split_at(cut.min(values.len()));
            add(&mut right, first);
            add(&mut left, last);
            left.add_sum(&right);
            prop_assert_eq!(left.value().to_bits(), whole.value().to_bits());
            let there = ExactSum::from_bytes(&left.to_bytes()).unwrap();
            prop_assert_eq!(there.value().to_bits(), whole.value().to_bits());
            let near: f64 = values.iter().sum();
            let size: f64 = values.iter().map(|v| v.abs()).sum();
            prop_assert!((whole.value() - near).abs() <= size * 1e-13);
        }

        #[test]
        fn garbage_is_no_sum(bytes in prop::collection::vec(any::<u8>(), 0..SUM_BYTES + 9)) {
            if let Some(sum) = ExactSum::from_bytes(&bytes) {
                let _ = sum.value();
            }
        }
    }
}
