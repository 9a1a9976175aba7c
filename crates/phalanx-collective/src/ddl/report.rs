//! Where the time of an iteration goes: by tier, and who came last.

use crate::{TierTraffic, plan::Wiring};
use std::{
    fmt::Write,
    time::{Duration, Instant},
};

/// One tier of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierLine {
    pub n_ranks: u32,
    /// What it does, which is not always what was asked for: `mpi` in `-mode m`.
    pub way: &'static str,
    pub traffic: TierTraffic,
}

/// What this rank sent along each tier, and how long that took while times were taken. What stays inside a host counts for tier 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierReport {
    pub tiers: Vec<TierLine>,
    /// What the last `check` compared with, and why, if there was one.
    pub baseline: Option<String>,
}

impl TierReport {
    /// `used` has the way of each tier.
    pub fn new(wiring: &Wiring, used: &[&'static str], traffic: &[TierTraffic]) -> TierReport {
        let dims = wiring.grid.tiers().dims().iter();
        let tiers = dims.zip(used).zip(traffic);
        let line = |((&n_ranks, &way), &traffic)| TierLine { n_ranks, way, traffic };
        let mut tiers: Vec<TierLine> = tiers.map(line).collect();
        // A single tier that spans hosts sends between them, too.
        if let ([only], [_, between, ..]) = (&mut tiers[..], traffic) {
            only.traffic.bytes += between.bytes;
            only.traffic.messages += between.messages;
            only.traffic.time += between.time;
        }
        TierReport { tiers, baseline: None }
    }

    /// What ranks tell each other for a dump: the time in calls, then that of each tier.
    pub fn words(&self, iterations: &Iterations) -> Vec<f64> {
        let tiers = self.tiers.iter().map(|line| line.traffic.time.as_secs_f64());
        [iterations.in_calls.as_secs_f64()].into_iter().chain(tiers).collect()
    }

    /// The lines that rank 0 shows; `all` has the words of every rank.
    pub fn shown(&self, iterations: &Iterations, all: &[f64]) -> String {
        let n_words = self.tiers.len() + 1;
        let waits: Vec<f64> = all.chunks(n_words).map(|words| words[0]).collect();
        // Who came last waited least.
        let last = (0..waits.len()).min_by(|a, b| waits[*a].total_cmp(&waits[*b])).unwrap_or(0);
        let most = waits.iter().copied().fold(0.0, f64::max);
        let mut text = format!(
            "DDL, {} iterations in {:.3} s, of these {:.3} s in calls; rank {last} came last and waited {:.3} s less than the first",
            iterations.n,
            iterations.since.elapsed().as_secs_f64(),
            waits.first().copied().unwrap_or(0.0),
            most - waits.get(last).copied().unwrap_or(0.0),
        );
        for (tier, line) in self.tiers.iter().enumerate() {
            let TierTraffic { bytes, messages, time } = line.traffic;
            // A String takes everything.
            let _ = write!(
                text,
                "\n  tier {tier}: {} ranks, {}, {bytes} bytes in {messages} messages, {:.3} s since Init",
                line.n_ranks,
                line.way,
                time.as_secs_f64()
            );
        }
        text
    }
}

/// Counts iterations: one ends when the first tensor comes again.
#[derive(Debug)]
pub struct Iterations {
    every: u32,
    first: Option<String>,
    n: u32,
    since: Instant,
    in_calls: Duration,
    is_due: bool,
}

impl Iterations {
    /// Due after every N iterations; 0: never.
    pub fn new(every: u32) -> Iterations {
        let (first, in_calls) = (None, Duration::ZERO);
        Iterations { every, first, n: 0, since: Instant::now(), in_calls, is_due: false }
    }

    /// A call with this tensor begins.
    pub fn begin(&mut self, tensor: &str) -> Instant {
        match &self.first {
            _ if self.every == 0 => {}
            None => self.first = Some(tensor.to_string()),
            Some(first) if first == tensor => {
                self.n += 1;
                self.is_due = self.n == self.every;
            }
            Some(_) => {}
        }
        Instant::now()
    }

    /// It has ended; whether it is time for a report.
    pub fn end(&mut self, began: Instant) -> bool {
        self.in_calls += began.elapsed();
        std::mem::take(&mut self.is_due)
    }

    /// The time in calls since the last report.
    pub fn in_calls(&self) -> Duration {
        self.in_calls
    }

    /// All time since the last report.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    pub fn reset(&mut self) {
        (self.n, self.since, self.in_calls) = (0, Instant::now(), Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_ends_when_the_first_tensor_comes_again() {
        let mut iterations = Iterations::new(2);
        let due: Vec<bool> = ["a", "b", "a", "b", "a", "b", "a", "a"]
            .iter()
            .map(|name| {
                let began = iterations.begin(name);
                let is_due = iterations.end(began);
                if is_due {
                    iterations.reset();
                }
                is_due
            })
            .collect();
        assert_eq!(due, [false, false, false, false, true, false, false, true]);
        let mut never = Iterations::new(0);
        assert!((0..9).all(|_| {
            let began = never.begin("a");
            !never.end(began)
        }));
    }

    #[test]
    fn the_rank_that_waited_least_came_last() {
        let report = TierReport {
            tiers: vec![TierLine { n_ranks: 4, way: "arena", traffic: TierTraffic::default() }],
            baseline: None,
        };
        let shown = report.shown(&Iterations::new(1), &[2.0, 0.1, 0.5, 0.1, 3.0, 0.1]);
        assert!(shown.contains("rank 1 came last and waited 2.500 s less"), "{shown}");
        assert!(
            shown.ends_with("tier 0: 4 ranks, arena, 0 bytes in 0 messages, 0.000 s since Init"),
            "{shown}"
        );
    }
}
