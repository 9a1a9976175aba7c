//! Finds better values while the program runs: one thing at a time, a few steps each, and then it is done.
//!
//! Pure: it takes what ran and when, and returns what to try next. A *step* lasts until the operation with which it began runs again.
//! - TUNE-1: it ends after a bounded number of steps, with the best values it has seen.
//! - TUNE-2: explicit settings are not changed.
//! - TUNE-3: steps are recognised whatever ran before them, and again if the program changes: see [`Rhythm`].

mod rhythm;

use super::{negotiate::message::Tuning, spec::Name};
use rhythm::{Beat, Rhythm};
use std::fmt::{self, Write};

/// Steps after a change that do not count: ranks negotiate again before they replay.
const WARM_UP: u32 = 6;
/// Steps of one sample.
const STEPS: u32 = 12;

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
    rhythm: Rhythm,
    steps: u32,
    since_us: u64,
    bytes: u64,
    /// Of what was there at first; what was found is compared with it.
    first_score: f64,
    n_samples: u32,
    n_wanted: u32,
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
        let n_wanted = todo.iter().map(Vec::len).sum::<usize>() as u32 + 1;
        Tuner {
            todo,
            best: start.clone(),
            best_score: 0.0,
            trying: start,
            rhythm: Rhythm::default(),
            steps: 0,
            since_us: 0,
            bytes: 0,
            first_score: 0.0,
            n_samples: 0,
            n_wanted,
            log: "sample,fusion_bytes,segment_bytes,algorithm,steps,bytes_per_us,best\n".into(),
        }
    }

    /// The steps it takes at most, if every step is recognised.
    pub fn most_steps(&self) -> u32 {
        self.n_wanted * (WARM_UP + STEPS)
    }

    /// What it has tried, as CSV; the last line is what it settled for.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// An operation ran.
    pub fn ran(&mut self, now_us: u64, name: &Name, bytes: u64) -> Option<Advice> {
        self.bytes += bytes;
        match self.rhythm.hear(name) {
            Beat::Within => return None,
            Beat::First => {
                self.begin(now_us);
                return None;
            }
            Beat::Step => {}
        }
        self.steps += 1;
        if self.steps == WARM_UP {
            (self.bytes, self.since_us) = (0, now_us);
        }
        if self.steps < WARM_UP + STEPS {
            return None;
        }
        let score = self.bytes as f64 / now_us.saturating_sub(self.since_us).max(1) as f64;
        self.note(score);
        let advice = self.next();
        self.begin(now_us);
        Some(advice)
    }

    fn begin(&mut self, now_us: u64) {
        (self.steps, self.bytes, self.since_us) = (0, 0, now_us);
    }

    fn note(&mut self, score: f64) {
        if self.n_samples == 0 {
            self.first_score = score;
        }
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

/// What was tried and chosen, or how far it came, in one sentence for people.
impl fmt::Display for Tuner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, all) = (self.n_samples, self.n_wanted);
        if n == 0 {
            let why = match self.rhythm.is_found() {
                true => "the program ended before the first values were measured",
                false => "no sequence of operations repeated, so there were no steps to measure",
            };
            return write!(f, "autotuning did not change any setting: {why}");
        }
        match self.todo.is_empty() {
            true => write!(f, "autotuning is done: of {n} settings")?,
            false => {
                write!(f, "autotuning tried {n} of {all} settings before the program ended: of these")?;
            }
        }
        let Tuning { fusion_bytes, segment_bytes, algorithm } = &self.best;
        write!(
            f,
            " the fastest is PHALANX_FUSION_BYTES={fusion_bytes} PHALANX_SEGMENT_BYTES={segment_bytes}"
        )?;
        if let Some(algorithm) = algorithm {
            write!(f, " PHALANX_ALGORITHM={algorithm}")?;
        }
        write!(f, ", {:.0} MB/s", self.best_score)?;
        // Steps that moved nothing have no speed to compare with.
        match self.first_score > 0.0 {
            true => write!(
                f,
                " and {:.0} % more than at first",
                100.0 * (self.best_score / self.first_score - 1.0)
            ),
            false => Ok(()),
        }
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
        |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} in its last line is not a number"));
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
        // The rhythm is known with the second step, which begins the first that counts.
        let most = tuner.most_steps() + 2;
        loop {
            steps += 1;
            assert!(steps <= most, "TUNE-1: more than {most} steps");
            for name in ["a", "b", "c"] {
                now += us_per_step(&values) / 3;
                match tuner.ran(now, &name.into(), 1000) {
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
    fn it_tunes_whatever_ran_before_the_steps_and_says_what_it_did() {
        let mut tuner = Tuner::new(start(), Fixed::default(), &[]);
        let idle = "autotuning did not change any setting: no sequence of operations repeated, so there were no steps to measure";
        assert_eq!(tuner.to_string(), idle);
        // Parameters are broadcast, twice; ranks compare what they have; nothing of it ever runs again.
        for name in ["broadcast.w", "broadcast.b", "broadcast.w", "allgather.noname.1", "allgather.noname.2"]
        {
            assert_eq!(tuner.ran(0, &name.into(), 8), None);
        }
        let (mut now, mut settled) = (0, None);
        // Until it is clear that the broadcast does not come back, and then as many as it takes.
        for step in 0..tuner.most_steps() + rhythm::GONE + 1 {
            for name in ["a", "b"] {
                now += 100;
                match tuner.ran(now, &name.into(), 1000) {
                    Some(Advice::Settle(best)) => settled = settled.or(Some((step, best))),
                    advice => assert!(settled.is_none() || advice.is_none(), "TUNE-1"),
                }
            }
            if settled.is_some() {
                break;
            }
        }
        assert_eq!(settled.map(|s| s.1), Some(start()), "TUNE-3");
        assert_eq!(
            tuner.to_string(),
            "autotuning is done: of 8 settings the fastest is PHALANX_FUSION_BYTES=67108864 PHALANX_SEGMENT_BYTES=131072, \
             10 MB/s and 0 % more than at first"
        );
    }

    #[test]
    fn explicit_values_stay() {
        let fixed = Fixed { fusion: true, segment: true, algorithm: true };
        let (best, steps, _) = settle(Tuner::new(start(), fixed, &["ring"]), |_| 300);
        assert_eq!((best, steps), (start(), WARM_UP + STEPS + 2), "TUNE-2");
    }

    #[test]
    fn logs_of_something_else_are_refused() {
        assert!(recorded("").is_err());
        assert!(recorded("a,b,c,1").is_err());
        assert!(recorded("0,x,1,,12,3.0,1").is_err());
    }
}
