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
    /// Partitions that tables have, and those that were asked for since.
    has: u32,
    asked: Option<u32>,
    is_over: bool,
    /// Whether it has gone back to the best that was tried.
    is_back: bool,
}

impl SearchRun {
    /// Trials of `warm` steps and then `timed` ones that count.
    pub fn new(search: Search, warm: u64, timed: u64) -> SearchRun {
        let has = search.first();
        SearchRun {
            search,
            warm,
            timed: timed.max(1),
            n_steps: 0,
            seconds: 0.0,
            has,
            asked: None,
            is_over: false,
            is_back: false,
        }
    }

    /// The partitions to begin with.
    pub fn first(&self) -> u32 {
        self.search.first()
    }

    /// What the search has found, once it is over: what tables then have.
    pub fn found(&self) -> Option<u32> {
        self.is_over.then(|| self.asked.unwrap_or(self.has))
    }

    /// A step took this long. At the end of a trial: the seconds of its timed steps, which all workers bring together for [`SearchRun::end`].
    pub fn step(&mut self, seconds: f64) -> Option<f64> {
        if self.is_over {
            return None;
        }
        self.has = self.asked.take().unwrap_or(self.has);
        self.n_steps += 1;
        if self.n_steps > self.warm {
            self.seconds += seconds;
        }
        (self.n_steps >= self.warm + self.timed).then_some(self.seconds)
    }

    /// A step of this trial failed: its seconds count no more, whatever the other steps take.
    pub fn crash(&mut self) {
        self.seconds = f64::INFINITY;
    }

    /// Some rank cannot have the partitions that the search wants: as if their trial had crashed. Gives others, at last the best that were
    /// tried; `None` if even those cannot be, so that tables stay as they are.
    pub fn refused(&mut self) -> Option<u32> {
        self.asked = None;
        if !self.is_over {
            return Some(self.end(Trial::Crashed));
        }
        let best = self.search.best().filter(|best| !self.is_back && *best != self.has)?;
        self.is_back = true;
        self.asked = Some(best);
        Some(best)
    }

    /// What all workers needed together; gives the partitions to go on with. Seconds that are not finite are those of a trial that crashed.
    pub fn end(&mut self, trial: Trial) -> u32 {
        (self.n_steps, self.seconds) = (0, 0.0);
        let trial = match trial {
            Trial::Took(seconds) if !seconds.is_finite() => Trial::Crashed,
            trial => trial,
        };
        self.has = self.asked.take().unwrap_or(self.has);
        let next = self.search.next(trial);
        self.is_over = !matches!(next, Next::Try(_));
        let wanted = match next {
            Next::Try(partitions) | Next::Use(partitions) => partitions,
            Next::Stay => self.has,
        };
        self.asked = Some(wanted);
        wanted
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

    #[test]
    fn trials_that_crash_or_are_refused_lead_to_the_best_that_went_well() {
        let mut run = SearchRun::new(Search::new(4, 1, 64), 0, 2);
        run.crash();
        assert_eq!(run.step(1.0), None);
        let crashed = run.step(1.0).expect("it has two steps");
        assert!(crashed.is_infinite());
        assert_eq!(run.end(Trial::Took(crashed)), 8, "the first that crashes is doubled");
        let took = |run: &mut SearchRun, seconds: f64| {
            assert_eq!(run.step(seconds), None);
            run.step(seconds).map(|all| run.end(Trial::Took(all))).expect("it has two steps")
        };
        assert_eq!(took(&mut run, 3.0), 16);
        assert_eq!(took(&mut run, 2.0), 32);
        let refused = run.refused().expect("some went well");
        assert_eq!((refused, run.found()), (16, Some(16)), "two samples: the better one");
        assert_eq!((run.refused(), run.found()), (None, Some(16)), "they have it already");
    }

    #[test]
    fn what_is_found_is_what_tables_have() {
        let mut run = SearchRun::new(Search::new(4, 1, 16), 0, 1);
        // Every trial crashes: 8 partitions are had, 16 are refused.
        run.crash();
        assert_eq!(run.step(1.0).map(|all| run.end(Trial::Took(all))), Some(8));
        run.crash();
        assert_eq!(run.step(1.0).map(|all| run.end(Trial::Took(all))), Some(16));
        assert_eq!(run.refused(), Some(8), "tables stay as they are");
        assert_eq!(run.found(), Some(8));
        // What the curve prefers is refused, and so is the best that was tried: tables stay with the last.
        let mut run = SearchRun::new(Search::new(4, 2, 1 << 20), 0, 1);
        let mut now = run.first();
        while run.found().is_none() {
            let n = f64::from(now);
            let all = run.step(100.0 + 800.0 / n + 0.5 * n).expect("a trial is a step");
            now = run.end(Trial::Took(all));
        }
        assert_eq!((now, run.found()), (40, Some(40)));
        assert_eq!((run.refused(), run.found()), (Some(32), Some(32)));
        assert_eq!((run.refused(), run.found()), (None, Some(2)));
    }
}
