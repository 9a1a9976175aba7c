//! Worlds that are no power of two, for algorithms that need one.
//!
//! The largest power of two of the ranks form the *core*. Each rank outside it hands its contribution to a neighbour inside and gets the
//! result back at the end: one more step at each end, whatever the number of ranks.

use phalanx_core::Rank;

/// What a place does in an algorithm for powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Represented by the rank at this place.
    Outside { by: u32 },
    /// Number `number` in the core; stands for the rank at place `also` too.
    Inside { number: u32, also: Option<u32> },
}

/// The places `0..n` and those of them that are in the core. The first places come in pairs of an outsider and its representative, so that
/// neighbours, who are near each other, talk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Core {
    n: u32,
    size: u32,
}

impl Core {
    pub fn of(n: u32) -> Core {
        assert!(n > 0, "a world has a rank");
        Core { n, size: 1 << n.ilog2() }
    }

    pub fn size(self) -> u32 {
        self.size
    }

    pub fn role(self, place: u32) -> Role {
        let n_outside = self.n - self.size;
        if place >= 2 * n_outside {
            Role::Inside { number: place - n_outside, also: None }
        } else if place.is_multiple_of(2) {
            Role::Outside { by: place + 1 }
        } else {
            Role::Inside { number: place / 2, also: Some(place - 1) }
        }
    }

    /// The place of number `number` of the core.
    pub fn place(self, number: u32) -> u32 {
        let n_outside = self.n - self.size;
        if number < n_outside { 2 * number + 1 } else { number + n_outside }
    }
}

/// Who takes part in an algorithm: this rank's place among them and the rank at each place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seats<F> {
    pub place: u32,
    pub n: u32,
    pub rank: F,
}

impl<F: Fn(u32) -> Rank> Seats<F> {
    /// The rank `ahead` places after this one, counted round.
    pub fn after(&self, ahead: u32) -> Rank {
        (self.rank)((self.place + ahead) % self.n)
    }

    /// The rank `behind` places before this one, counted round.
    pub fn before(&self, behind: u32) -> Rank {
        (self.rank)((self.place + self.n - behind % self.n) % self.n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_inside_or_stood_for_once() {
        for n in 1..100 {
            let core = Core::of(n);
            let mut seen = vec![0; n as usize];
            for number in 0..core.size() {
                let place = core.place(number);
                let Role::Inside { number: same, also } = core.role(place) else {
                    panic!("n={n} place={place}")
                };
                assert_eq!(same, number);
                seen[place as usize] += 1;
                if let Some(outside) = also {
                    assert_eq!(core.role(outside), Role::Outside { by: place });
                    seen[outside as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "n={n}: {seen:?}");
        }
    }
}
