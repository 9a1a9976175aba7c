//! A search for the number of partitions beside training: which steps count, and when a trial is over.
//!
//! A trial is some steps that warm up and some that are timed. At its end all workers bring their seconds together, and the sum says what
//! comes next; this file only counts, so that every worker decides the same.
//! - SEARCH-2: workers that are given the same sums try the same numbers after the same steps.

use crate::search::{Next, Search, Trial};

/// A search under way.
#[derive(Clone, Debug)]
pub struct SearchRun {
    search: Search,
    warm: u64,
    timed: u64,
    /// Steps of this trial so far, and seconds of those that count.
    n_steps: u64,
    seconds: f64,
    found: Option<u32>,
}

impl SearchRun {
    /// Trials of `warm` steps and then `timed` ones that count.
    pub fn new(search: Search, warm: u64, timed: u64) -> SearchRun {
        SearchRun { search, warm, timed: timed.max(1), n_steps: 0, seconds: 0.0, found: None }
    }

    /// The partitions to begin with.
    pub fn first(&self) -> u32 {
        self.search.first()
    }

    /// What the search has found, once it is over.
    pub fn found(&self) -> Option<u32> {
        self.found
    }

    /// A step took this long. At the end of a trial: the seconds of its timed steps, which all workers bring together for [`SearchRun::end`].
    pub fn step(&mut self, seconds: f64) -> Option<f64> {
        if self.found.is_some() {
            return None;
        }
        self.n_steps += 1;
        if self.n_steps > self.warm {
            self.seconds += seconds;
        }
        (self.n_steps >= self.warm + self.timed).then_some(self.seconds)
    }

    /// What all workers needed together; gives the partitions to go on with.
    pub fn end(&mut self, trial: Trial) -> u32 {
        (self.n_steps, self.seconds) = (0, 0.0);
        match self.search.next(trial) {
            Next::Try(partitions) => partitions,
            Next::Use(partitions) => {
                self.found = Some(partitions);
                partitions
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_end_after_their_steps_and_the_search_with_its_golden_number() {
        // SEARCH-2, with the trace of T(P) = 100 + 800/P + 0.5P that begins with 4 and goes down to 2.
        let mut run = SearchRun::new(Search::new(4, 2, 1 << 20), 50, 50);
        let (mut now, mut tried) = (run.first(), Vec::new());
        let mut n_steps = 0;
        while run.found().is_none() {
            let slow = if n_steps % 100 < 50 { 9.0 } else { 1.0 };
            let step = 100.0 + 800.0 / f64::from(now) + 0.5 * f64::from(now);
            n_steps += 1;
            if let Some(seconds) = run.step(slow * step) {
                assert_eq!(n_steps % 100, 0);
                assert!((seconds - 50.0 * step).abs() < 1e-6, "only the second half counts");
                tried.push(now);
                now = run.end(Trial::Took(seconds));
            }
        }
        assert_eq!((tried, now), (vec![4, 8, 16, 32, 64, 2], 40));
        assert_eq!(run.step(1.0), None, "it is over");
    }
}
