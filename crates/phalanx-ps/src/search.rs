//! The search for a good number of partitions: which one to try next, and which one to use.
//!
//! Doubles while that is faster, then looks below; when it has three samples it fits `t = b/P + a(P-1) + c` and takes the best whole number
//! between the smallest and the largest that was tried.
//! - SEARCH-1: it ends: no number is tried twice, and none above `most`.

use std::collections::BTreeMap;

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    least: u32,
    most: u32,
    now: u32,
    /// Seconds of each number that was tried.
    took: BTreeMap<u32, f64>,
    last: Option<f64>,
    heading: Heading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heading {
    First,
    Up,
    Down,
}

/// How a trial went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trial {
    Took(f64),
    Crashed,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Try(u32),
    Use(u32),
    /// Every trial crashed: nothing is known, so tables stay as they are.
    Stay,
}

impl Search {
    /// Begins with `first` partitions; `least` is the fewest and `most` the largest number that makes sense (the rows of the smallest table).
    pub fn new(first: u32, least: u32, most: u32) -> Search {
        let most = most.max(1);
        let least = least.clamp(1, most);
        Search {
            least,
            most,
            now: first.clamp(least, most),
            took: BTreeMap::new(),
            last: None,
            heading: Heading::First,
        }
    }

    /// The number to try first.
    pub fn first(&self) -> u32 {
        self.now
    }

    /// What follows from the trial of the number that was asked for last.
    pub fn next(&mut self, trial: Trial) -> Next {
        let Trial::Took(seconds) = trial else { return self.crashed() };
        self.took.insert(self.now, seconds);
        let is_better = self.last.replace(seconds).is_none_or(|last| seconds < last);
        let wanted = match (self.heading, is_better) {
            (Heading::First, _) => {
                self.heading = Heading::Up;
                self.now.checked_mul(2)
            }
            (Heading::Up, true) => self.now.checked_mul(2),
            (Heading::Up, false) => {
                // The way down begins below everything that was tried, and has nothing yet to be compared with but the best.
                self.heading = Heading::Down;
                let smallest = *self.took.keys().next().expect("something was tried");
                self.last = self.took.get(&smallest).copied();
                Some(smallest / 2)
            }
            (Heading::Down, true) => Some(self.now / 2),
            (Heading::Down, false) => None,
        };
        self.go(wanted)
    }

    fn crashed(&mut self) -> Next {
        if self.took.is_empty() {
            // Fewer would crash, too.
            self.least = self.now.saturating_add(1).min(self.most);
            let wanted = self.now.checked_mul(2).filter(|&n| n <= self.most);
            if let Some(wanted) = wanted {
                self.least = wanted;
                self.now = wanted;
                return Next::Try(wanted);
            }
            return Next::Stay;
        }
        self.end()
    }

    fn go(&mut self, wanted: Option<u32>) -> Next {
        match wanted.filter(|n| (self.least..=self.most).contains(n) && !self.took.contains_key(n)) {
            Some(n) => {
                self.now = n;
                Next::Try(n)
            }
            // Too many: look below before it is over.
            None if self.heading == Heading::Up && wanted.is_none_or(|n| n > self.most) => {
                self.heading = Heading::Down;
                let smallest = *self.took.keys().next().expect("something was tried");
                self.last = self.took.get(&smallest).copied();
                self.go(Some(smallest / 2))
            }
            None => self.end(),
        }
    }

    /// The fastest of those that were tried.
    pub fn best(&self) -> Option<u32> {
        self.took.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(&n, _)| n)
    }

    fn end(&self) -> Next {
        let best = self.best().unwrap_or(self.now);
        if self.took.len() < 3 {
            return Next::Use(best);
        }
        Next::Use(self.fitted().unwrap_or(best))
    }

    /// The best whole number by the fitted curve.
    fn fitted(&self) -> Option<u32> {
        let top = self.took.values().copied().fold(0.0, f64::max);
        let rows = self.took.iter().map(|(&n, &t)| ([1.0 / f64::from(n), f64::from(n) - 1.0, 1.0], t / top));
        let [b, a, c] = least_squares(rows)?;
        let at = |n: u32| b / f64::from(n) + a * (f64::from(n) - 1.0) + c;
        let (low, high) = (*self.took.keys().next()?, *self.took.keys().next_back()?);
        (low..=high).min_by(|&x, &y| at(x).total_cmp(&at(y)))
    }
}

/// The solution of the normal equations; `None` where there is none.
fn least_squares(rows: impl Iterator<Item = ([f64; 3], f64)>) -> Option<[f64; 3]> {
    let mut m = [[0.0; 4]; 3];
    for (x, y) in rows {
        for i in 0..3 {
            for j in 0..3 {
                m[i][j] += x[i] * x[j];
            }
            m[i][3] += x[i] * y;
        }
    }
    for i in 0..3 {
        let pivot = (i..3).max_by(|&a, &b| m[a][i].abs().total_cmp(&m[b][i].abs()))?;
        m.swap(i, pivot);
        if m[i][i].abs() < 1e-12 {
            return None;
        }
        for row in 0..3 {
            if row != i {
                let factor = m[row][i] / m[i][i];
                let from = m[i];
                m[row].iter_mut().zip(from).for_each(|(to, from)| *to -= factor * from);
            }
        }
    }
    Some([0, 1, 2].map(|i| m[i][3] / m[i][i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MANY: u32 = 1 << 20;

    fn trace(first: u32, least: u32, most: u32, time: impl Fn(u32) -> Trial) -> (Vec<u32>, u32) {
        let mut search = Search::new(first, least, most);
        let (mut tried, mut now) = (Vec::new(), search.first());
        loop {
            tried.push(now);
            match search.next(time(now)) {
                Next::Try(n) => now = n,
                Next::Use(n) => return (tried, n),
                Next::Stay => return (tried, now),
            }
        }
    }

    fn valley(n: u32) -> Trial {
        let n = f64::from(n);
        Trial::Took(100.0 + 800.0 / n + 0.5 * n)
    }

    #[test]
    fn it_takes_the_way_that_was_published() {
        assert_eq!(trace(4, 2, MANY, valley), (vec![4, 8, 16, 32, 64, 2], 40));
        assert_eq!(trace(8, 8, MANY, valley), (vec![8, 16, 32, 64], 40));
        let rising = |n| Trial::Took(10.0 + f64::from(n));
        assert_eq!(trace(8, 1, MANY, rising), (vec![8, 16, 4, 2, 1], 1));
        assert_eq!(trace(4, 4, MANY, rising), (vec![4, 8], 4));
        let small_ones_crash = |n| if n < 16 { Trial::Crashed } else { valley(n) };
        assert_eq!(trace(4, 1, MANY, small_ones_crash), (vec![4, 8, 16, 32, 64], 40));
    }

    #[test]
    fn it_ends_where_times_fall_for_ever_and_where_everything_crashes() {
        let falling = |n| Trial::Took(1.0 / f64::from(n));
        let (tried, used) = trace(2, 2, 100, falling);
        assert_eq!((tried, used), (vec![2, 4, 8, 16, 32, 64], 64), "SEARCH-1");
        let (tried, used) = trace(2, 1, 9, |_| Trial::Crashed);
        assert_eq!((tried, used), (vec![2, 4, 8], 8), "tables stay as they are");
    }

    proptest! {
        #[test]
        fn it_always_ends_within_bounds(first in 1u32..5000, least in 1u32..100, most in 1u32..3000, seed: u64) {
            let dice = |n: u32| {
                let x = (u64::from(n) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                if x % 7 == 0 { Trial::Crashed } else { Trial::Took(x as f64 + 1.0) }
            };
            let (tried, used) = trace(first, least, most, dice);
            prop_assert!(used >= 1 && used <= most);
            let mut sorted = tried.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), tried.len(), "SEARCH-1");
            prop_assert!(tried.iter().all(|&n| n <= most));
        }
    }
}
