//! Ranges of elements and the ways to divide them.

use super::step::{Buf, Span};

/// A range of elements of no particular buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extent {
    pub at: u64,
    pub len: u64,
}

impl Extent {
    pub fn new(at: u64, len: u64) -> Extent {
        Extent { at, len }
    }

    /// The elements from `from` to `to`; none if there are none.
    pub fn between(from: u64, to: u64) -> Extent {
        Extent { at: from, len: to.saturating_sub(from) }
    }

    pub fn end(self) -> u64 {
        self.at + self.len
    }

    pub fn of(self, buf: Buf) -> Span {
        Span::of(buf, self.at, self.len)
    }

    /// Part `i` of `n`, even up to one element.
    pub fn part(self, n: u32, i: u32) -> Extent {
        let (n, i) = (u64::from(n), u64::from(i));
        let (each, more) = (self.len / n, self.len % n);
        Extent { at: self.at + i * each + i.min(more), len: each + u64::from(i < more) }
    }

    /// The part of `n` that holds element `at`, which must be inside.
    pub fn part_of(self, n: u32, at: u64) -> u32 {
        let at = at - self.at;
        let (each, more) = (self.len / u64::from(n), self.len % u64::from(n));
        let in_long_parts = more * (each + 1);
        let i = if at < in_long_parts { at / (each + 1) } else { more + (at - in_long_parts) / each };
        i as u32
    }

    /// Part `i` of `n` whose borders are multiples of `grain` from the start, where there are that many grains.
    pub fn part_in_grains(self, n: u32, i: u32, grain: u64) -> Extent {
        let n_grains = self.len.div_ceil(grain);
        if n_grains < u64::from(n) {
            return self.part(n, i);
        }
        let grains = Extent { at: 0, len: n_grains }.part(n, i);
        let end = self.len.min(grains.end() * grain);
        Extent::between(self.at + grains.at * grain, self.at + end)
    }

    /// Piece `i` where every piece but the last has `size` elements; empty beyond the last.
    pub fn piece(self, size: u64, i: u32) -> Extent {
        let from = self.len.min(u64::from(i) * size);
        Extent { at: self.at + from, len: size.min(self.len - from) }
    }
}

/// Pieces of at most `size` that make up `len`.
pub fn n_pieces(len: u64, size: u64) -> u32 {
    u32::try_from(len.div_ceil(size)).expect("a call has fewer than 2^32 segments")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_pieces_cover_everything_once() {
        for len in [0, 1, 2, 7, 16, 63, 64, 1000] {
            let whole = Extent::new(5, len);
            for n in 1..=17 {
                for grain in [1, 4, 16] {
                    let mut next = whole.at;
                    for i in 0..n {
                        let part = whole.part_in_grains(n, i, grain);
                        assert_eq!(part.at, next, "len={len} n={n} i={i} grain={grain}");
                        next = part.end();
                    }
                    assert_eq!(next, whole.end());
                }
                for at in whole.at..whole.end() {
                    let part = whole.part(n, whole.part_of(n, at));
                    assert!(part.at <= at && at < part.end(), "len={len} n={n} at={at}");
                }
                let covered: u64 =
                    (0..n_pieces(len, u64::from(n))).map(|i| whole.piece(u64::from(n), i).len).sum();
                assert_eq!(covered, len);
            }
        }
    }

    #[test]
    fn borders_fall_on_grains_when_there_are_enough() {
        let whole = Extent::new(0, 100);
        assert_eq!(whole.part_in_grains(3, 0, 16), Extent::new(0, 48));
        assert_eq!(whole.part_in_grains(3, 2, 16), Extent::new(80, 20));
        assert_eq!(whole.part_in_grains(8, 0, 16), Extent::new(0, 13), "7 grains are too few for 8");
    }
}
