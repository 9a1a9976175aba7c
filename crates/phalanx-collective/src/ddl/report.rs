//! Where the time of an iteration goes: by tier, and who came last.

use super::options::DdlOptions;
use crate::{TierTraffic, plan::Wiring};
use phalanx_core::Rank;
use std::{
    fmt::Write,
    time::{Duration, Instant},
};

/// The way of a tier along which MPI moves allreduces.
pub const BY_MPI: &str = "mpi";

/// One tier of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierLine {
    pub n_ranks: u32,
    /// What it does, which is not always what was asked for: `mpi` in `-mode m`.
    pub way: &'static str,
    /// Bytes and messages are our own. MPI does not tell its; only its time is in here.
    pub traffic: TierTraffic,
}

/// What this rank sent along each tier, and how long that took while times were taken. What stays inside a host counts for tier 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    /// What has come since an earlier report of the same shape.
    fn since(mut self, before: &TierReport) -> TierReport {
        for (line, before) in self.tiers.iter_mut().zip(&before.tiers) {
            let TierTraffic { bytes, messages, time } = before.traffic;
            line.traffic.bytes -= bytes;
            line.traffic.messages -= messages;
            line.traffic.time -= time;
        }
        self
    }

    fn line(&self, tier: usize) -> String {
        let TierLine { n_ranks, way, traffic: TierTraffic { bytes, messages, time } } = &self.tiers[tier];
        let (sent, seconds) = (format!("{bytes} bytes in {messages} messages"), time.as_secs_f64());
        if *way == BY_MPI {
            return format!("tier {tier}: {n_ranks} ranks, {way}, {seconds:.3} s; besides MPI's {sent}");
        }
        format!("tier {tier}: {n_ranks} ranks, {way}, {sent}, {seconds:.3} s")
    }
}

/// `-dbg_level`: what a rank says of its place when DDL starts, if it was asked to.
pub fn greeting(
    options: &DdlOptions,
    wiring: &Wiring,
    used: &[&'static str],
    (rank, n_hosts): (Rank, u32),
) -> Option<String> {
    let is_asked = options.dbg_level >= 2 || (options.dbg_level == 1 && rank == Rank::ZERO);
    is_asked.then(|| {
        let place: Vec<String> = wiring.grid.coordinates(rank).iter().map(u32::to_string).collect();
        let (place, ways, shape) = (place.join(", "), used.join(","), wiring.grid.tiers());
        format!("DDL: rank {rank} at ({place}) of {shape} ({ways}), {n_hosts} hosts")
    })
}

/// `-dump_iter N`: what this rank did in each N iterations.
#[derive(Debug)]
pub struct IterationDumps {
    iterations: Iterations,
    /// What had been sent when the present iterations began.
    before: TierReport,
    /// What the last ones sent, and how long they took.
    done: (TierReport, Duration),
}

impl IterationDumps {
    /// Every N iterations; 0: never.
    pub fn new(every: u32) -> IterationDumps {
        let iterations = Iterations::new(every);
        IterationDumps { iterations, before: TierReport::default(), done: Default::default() }
    }

    /// A call with this tensor begins.
    pub fn begin(&mut self, tensor: &str) -> Instant {
        self.iterations.begin(tensor)
    }

    /// It has its result.
    pub fn end(&mut self, began: Instant) {
        self.iterations.end(began);
    }

    /// After the call and what belongs to it: what this rank tells the others, if it is time for a dump. `read` has all that was sent so far.
    pub fn due(&mut self, read: impl FnOnce() -> TierReport) -> Option<Vec<f64>> {
        match self.iterations.take_turn() {
            Turn::Goes => None,
            // The first call of all belongs to no iteration: the next one ends when its tensor comes again.
            Turn::Begins => {
                self.before = read();
                None
            }
            Turn::Due => {
                self.done = (read().since(&self.before), self.iterations.elapsed());
                let tiers = self.done.0.tiers.iter().map(|line| line.traffic.time.as_secs_f64());
                Some([self.iterations.in_calls().as_secs_f64()].into_iter().chain(tiers).collect())
            }
        }
    }

    /// The lines that rank 0 shows; `all` has what every rank told, `so_far` all that was sent. The next iterations begin.
    pub fn shown(&mut self, all: &[f64], so_far: TierReport) -> String {
        let (report, elapsed) = &self.done;
        let waits: Vec<f64> = all.chunks(report.tiers.len() + 1).map(|words| words[0]).collect();
        // Who came last waited least.
        let last = (0..waits.len()).min_by(|a, b| waits[*a].total_cmp(&waits[*b])).unwrap_or(0);
        let most = waits.iter().copied().fold(0.0, f64::max);
        let mut text = format!(
            "DDL, {} iterations in {:.3} s, of these {:.3} s in calls; rank {last} came last and waited {:.3} s less than the first",
            self.iterations.n,
            elapsed.as_secs_f64(),
            waits.first().copied().unwrap_or(0.0),
            most - waits.get(last).copied().unwrap_or(0.0),
        );
        for tier in 0..report.tiers.len() {
            // A String takes everything.
            let _ = write!(text, "\n  {}", report.line(tier));
        }
        self.iterations.reset();
        // What ranks told each other for this dump is not the next one's.
        self.before = so_far;
        text
    }
}

/// What is to be done after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It was the first call: iterations begin after it.
    Begins,
    Goes,
    /// N iterations are over.
    Due,
}

/// Counts iterations: one ends when the first tensor comes again.
#[derive(Debug)]
pub struct Iterations {
    every: u32,
    first: Option<String>,
    n: u32,
    since: Instant,
    in_calls: Duration,
    turn: Turn,
}

impl Iterations {
    /// Due after every N iterations; 0: never.
    pub fn new(every: u32) -> Iterations {
        let (first, in_calls) = (None, Duration::ZERO);
        Iterations { every, first, n: 0, since: Instant::now(), in_calls, turn: Turn::Goes }
    }

    /// A call with this tensor begins.
    pub fn begin(&mut self, tensor: &str) -> Instant {
        match &self.first {
            _ if self.every == 0 => {}
            None => (self.first, self.turn) = (Some(tensor.to_string()), Turn::Begins),
            Some(first) if first == tensor => {
                self.n += 1;
                // A call that fails leaves it to the next one.
                if self.n >= self.every {
                    self.turn = Turn::Due;
                }
            }
            Some(_) => {}
        }
        Instant::now()
    }

    /// It has its result.
    pub fn end(&mut self, began: Instant) {
        self.in_calls += began.elapsed();
    }

    /// What is to be done now; once for each turn.
    pub fn take_turn(&mut self) -> Turn {
        let turn = std::mem::replace(&mut self.turn, Turn::Goes);
        if turn == Turn::Begins {
            self.reset();
        }
        turn
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
        let turns: Vec<Turn> = ["a", "b", "a", "b", "a", "b", "a", "a"]
            .iter()
            .map(|name| {
                let began = iterations.begin(name);
                iterations.end(began);
                let turn = iterations.take_turn();
                if turn == Turn::Due {
                    iterations.reset();
                }
                turn
            })
            .collect();
        let (begins, goes, due) = (Turn::Begins, Turn::Goes, Turn::Due);
        assert_eq!(turns, [begins, goes, goes, goes, due, goes, goes, due]);
        let mut never = Iterations::new(0);
        assert!((0..9).all(|_| {
            never.begin("a");
            never.take_turn() == Turn::Goes
        }));
    }

    #[test]
    fn a_call_that_fails_when_a_report_is_due_leaves_it_to_the_next() {
        let mut iterations = Iterations::new(1);
        iterations.begin("a");
        assert_eq!(iterations.take_turn(), Turn::Begins);
        iterations.begin("a");
        iterations.begin("b");
        assert_eq!(iterations.take_turn(), Turn::Due);
        iterations.reset();
        iterations.begin("a");
        assert_eq!(iterations.take_turn(), Turn::Due, "and the one after comes in time");
    }

    fn report(way: &'static str, bytes: u64, ms: u64) -> TierReport {
        let traffic = TierTraffic { bytes, messages: bytes / 10, time: Duration::from_millis(ms) };
        TierReport { tiers: vec![TierLine { n_ranks: 4, way, traffic }], baseline: None }
    }

    #[test]
    fn a_dump_is_of_the_iterations_since_the_last_one_and_names_the_rank_that_waited_least() {
        let mut dumps = IterationDumps::new(2);
        // What is there before the first call, what a call adds, and what a dump itself adds.
        let (mut bytes, mut ms) = (1000, 5000);
        let mut said = Vec::new();
        for _ in 0..7 {
            let began = dumps.begin("a");
            (bytes, ms) = (bytes + 100, ms + 30);
            dumps.end(began);
            if let Some(words) = dumps.due(|| report("ring", bytes, ms)) {
                assert_eq!(words[1], 0.06, "two calls");
                (bytes, ms) = (bytes + 7, ms + 11);
                let all = [2.0, 0.06, 0.5, 0.06, 3.0, 0.06];
                said.push(dumps.shown(&all, report("ring", bytes, ms)));
            }
        }
        assert_eq!(said.len(), 3);
        for text in said {
            assert!(text.starts_with("DDL, 2 iterations in 0.0"), "{text}");
            assert!(text.contains("rank 1 came last and waited 2.500 s less"), "{text}");
            assert!(text.ends_with("\n  tier 0: 4 ranks, ring, 200 bytes in 20 messages, 0.060 s"), "{text}");
        }
    }

    #[test]
    fn ranks_say_where_they_are_if_they_are_asked() {
        let topology = phalanx_core::Topology::of_sizes(&[2, 2]);
        let wiring = Wiring::new(&"2x2".parse().unwrap(), &topology, None).unwrap();
        let says = |level: &str, rank| {
            let options = format!("-dbg_level {level}").parse().unwrap();
            greeting(&options, &wiring, &["arena", "ring"], (Rank(rank), 2))
        };
        assert_eq!((says("0", 0), says("1", 1)), (None, None));
        assert_eq!(says("1", 0).as_deref(), Some("DDL: rank 0 at (0, 0) of 2x2 (arena,ring), 2 hosts"));
        assert_eq!(says("2", 3).as_deref(), Some("DDL: rank 3 at (1, 1) of 2x2 (arena,ring), 2 hosts"));
    }

    #[test]
    fn bytes_of_mpi_are_not_said_to_be_known() {
        assert_eq!(
            report(BY_MPI, 40, 1500).line(0),
            "tier 0: 4 ranks, mpi, 1.500 s; besides MPI's 40 bytes in 4 messages"
        );
    }
}
