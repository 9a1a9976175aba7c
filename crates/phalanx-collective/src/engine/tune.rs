//! Finds better values while the program runs: one thing at a time, a few steps each, and then it is done.
//!
//! Pure: it is told what ran and when, and answers with what to try. A *step* is recognised by its first operation running again.
//! - TUNE-1: it ends after a bounded number of steps, with the best values it has seen.
//! - TUNE-2: what was set explicitly is not changed.

use super::negotiate::message::Tuning;
use std::fmt::Write;

/// Steps after a change that do not count: ranks negotiate again before they replay.
const WARM_UP: u32 = 6;
/// Steps of one sample.
const STEPS: u32 = 12;
/// An operation that runs this often within one step is part of a loop inside it; steps are not recognised then.
const LONGEST_STEP: u64 = 100_000;

/// What may be changed.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Fusion(u64),
    Segment(u64),
    Algorithm(Option<String>),
}

#[derive(Debug)]
pub struct Tuner {
    /// Still to be tried, last first. A new axis begins with the best of the axes before.
    todo: Vec<Vec<Change>>,
    best: Tuning,
    best_score: f64,
    trying: Tuning,
    /// The operation by which steps are recognised.
    first: Option<String>,
    steps: u32,
    since_us: u64,
    bytes: u64,
    operations: u64,
    n_samples: u32,
    log: String,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Advice {
    Try(Tuning),
    /// These were the best; nothing more will be tried.
    Settle(Tuning),
}

/// Which values were set explicitly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed {
    pub fusion: bool,
    pub segment: bool,
    pub algorithm: bool,
}

impl Tuner {
    pub fn new(start: Tuning, fixed: Fixed, algorithms: &[&str]) -> Tuner {
        let mut todo = Vec::new();
        let mut axis = |fixed: bool, changes: Vec<Change>| {
            if !fixed && !changes.is_empty() {
                todo.push(changes);
            }
        };
        axis(
            fixed.algorithm,
            algorithms.iter().rev().map(|a| Change::Algorithm(Some(a.to_string()))).collect(),
        );
        let segments = [256u64 << 10, 64 << 10, 32 << 10].into_iter().filter(|s| *s != start.segment_bytes);
        axis(fixed.segment, segments.map(Change::Segment).collect());
        let fusions =
            [2u64 << 20, 1 << 20, 32 << 20, 128 << 20].into_iter().filter(|f| *f != start.fusion_bytes);
        axis(fixed.fusion, fusions.map(Change::Fusion).collect());
        Tuner {
            todo,
            best: start.clone(),
            best_score: 0.0,
            trying: start,
            first: None,
            steps: 0,
            since_us: 0,
            bytes: 0,
            operations: 0,
            n_samples: 0,
            log: "sample,fusion_bytes,segment_bytes,algorithm,steps,bytes_per_us,best\n".into(),
        }
    }

    /// The steps it takes at most, if every step is recognised.
    pub fn most_steps(&self) -> u32 {
        let n: usize = self.todo.iter().map(Vec::len).sum();
        (n as u32 + 1) * (WARM_UP + STEPS)
    }

    /// What it has tried, as CSV; the last line is what it settled for.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// An operation ran.
    pub fn ran(&mut self, now_us: u64, name: &str, bytes: u64) -> Option<Advice> {
        self.bytes += bytes;
        self.operations += 1;
        match &self.first {
            Some(first) if first == name => {}
            // The first one is gone from the program: begin again with another.
            Some(_) if self.operations < LONGEST_STEP => return None,
            _ => {
                self.first = Some(name.to_string());
                self.begin(now_us);
                return None;
            }
        }
        self.steps += 1;
        if self.steps == WARM_UP {
            (self.bytes, self.since_us) = (0, now_us);
        }
        if self.steps < WARM_UP + STEPS {
            self.operations = 0;
            return None;
        }
        let score = self.bytes as f64 / now_us.saturating_sub(self.since_us).max(1) as f64;
        self.note(score);
        let advice = self.next();
        self.begin(now_us);
        Some(advice)
    }

    fn begin(&mut self, now_us: u64) {
        (self.steps, self.bytes, self.operations, self.since_us) = (0, 0, 0, now_us);
    }

    fn note(&mut self, score: f64) {
        let better = score > self.best_score;
        if better {
            (self.best, self.best_score) = (self.trying.clone(), score);
        }
        self.line(STEPS, score, better);
        self.n_samples += 1;
    }

    fn line(&mut self, steps: u32, score: f64, best: bool) {
        let Tuning { fusion_bytes, segment_bytes, algorithm } = &self.trying;
        let algorithm = algorithm.as_deref().unwrap_or("");
        let best = u8::from(best);
        let n = self.n_samples;
        // Writing to a string cannot fail.
        let _ =
            writeln!(self.log, "{n},{fusion_bytes},{segment_bytes},{algorithm},{steps},{score:.3},{best}");
    }

    fn next(&mut self) -> Advice {
        while let Some(axis) = self.todo.last_mut() {
            let Some(change) = axis.pop() else {
                self.todo.pop();
                continue;
            };
            let mut next = self.best.clone();
            match change {
                Change::Fusion(bytes) => next.fusion_bytes = bytes,
                Change::Segment(bytes) => next.segment_bytes = bytes,
                Change::Algorithm(name) => next.algorithm = name,
            }
            self.trying = next.clone();
            return Advice::Try(next);
        }
        self.trying = self.best.clone();
        self.line(0, self.best_score, true);
        Advice::Settle(self.best.clone())
    }
}

/// The values on which an earlier run settled: the last line of its log.
pub fn recorded(log: &str) -> Result<Tuning, String> {
    let line =
        log.lines().last().filter(|l| l.ends_with(",1")).ok_or("it has no last line with the best values")?;
    let fields: Vec<&str> = line.split(',').collect();
    let [_, fusion, segment, algorithm, ..] = fields[..] else {
        return Err(format!("its last line {line:?} does not have the fields of an autotune log"));
    };
    let number =
        |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} in its last line is no number"));
    let algorithm = (!algorithm.is_empty()).then(|| algorithm.to_string());
    Ok(Tuning { fusion_bytes: number(fusion)?, segment_bytes: number(segment)?, algorithm })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Tuning {
        Tuning { fusion_bytes: 64 << 20, segment_bytes: 128 << 10, algorithm: None }
    }

    /// Runs steps of three operations whose speed depends on the values, until it settles.
    fn settle(mut tuner: Tuner, us_per_step: impl Fn(&Tuning) -> u64) -> (Tuning, u32, String) {
        let (mut now, mut values, mut steps) = (0, start(), 0);
        let most = tuner.most_steps() + 1;
        loop {
            steps += 1;
            assert!(steps <= most, "TUNE-1: more than {most} steps");
            for name in ["a", "b", "c"] {
                now += us_per_step(&values) / 3;
                match tuner.ran(now, name, 1000) {
                    None => {}
                    Some(Advice::Try(next)) => values = next,
                    Some(Advice::Settle(best)) => return (best, steps, tuner.log().to_string()),
                }
            }
        }
    }

    #[test]
    fn it_finds_the_fastest_values_within_its_bound() {
        let tuner = Tuner::new(start(), Fixed::default(), &["ring"]);
        let (best, _, log) = settle(tuner, |t| {
            let fusion = if t.fusion_bytes == 2 << 20 { 300 } else { 600 };
            let segment = if t.segment_bytes == 256 << 10 { 30 } else { 90 };
            fusion + segment + if t.algorithm.is_some() { 300 } else { 0 }
        });
        let want = Tuning { fusion_bytes: 2 << 20, segment_bytes: 256 << 10, algorithm: None };
        assert_eq!(best, want, "TUNE-1\n{log}");
        assert_eq!(recorded(&log), Ok(want));
    }

    #[test]
    fn explicit_values_stay() {
        let fixed = Fixed { fusion: true, segment: true, algorithm: true };
        let (best, steps, _) = settle(Tuner::new(start(), fixed, &["ring"]), |_| 300);
        assert_eq!((best, steps), (start(), WARM_UP + STEPS + 1), "TUNE-2");
    }

    #[test]
    fn logs_of_something_else_are_refused() {
        assert!(recorded("").is_err());
        assert!(recorded("a,b,c,1").is_err());
        assert!(recorded("0,x,1,,12,3.0,1").is_err());
    }
}
