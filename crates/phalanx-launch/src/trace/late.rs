//! Which rank was last in each operation, and how long the others waited for it.

use super::{
    clock::aligned,
    read::{Trace, TracedOperation},
};
use crate::table::{TextTable, left, right};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
};

/// Lines of a table for people; machines get all of them.
const TOP: usize = 10;

#[derive(Debug, Serialize)]
pub struct Report {
    /// Where everything was joined.
    pub merged: Option<PathBuf>,
    pub ranks: Vec<RankLine>,
    /// Operations that at least two of these ranks have submitted and ended.
    pub n_compared: usize,
    /// Those that cost most time first.
    pub tensors: Vec<TensorLine>,
    pub unfinished: Vec<Unfinished>,
    /// Ranks of the world of which no file was given.
    pub missing_ranks: Vec<u32>,
}

#[derive(Debug, Serialize)]
pub struct RankLine {
    pub rank: u32,
    pub file: PathBuf,
    pub operations: usize,
    pub dropped_events: u64,
    /// How far its clock is ahead of the first rank's; none if no operation tells.
    pub clock_offset_us: Option<f64>,
    pub times_last: usize,
    /// How long the others had something waiting for it, added up over them. Of one rank every moment counts once, however many of its tensors wait.
    pub waited_for_us: f64,
}

#[derive(Debug, Serialize)]
pub struct TensorLine {
    pub tensor: String,
    pub operations: usize,
    /// The rank that cost most time by being last.
    pub last_rank: u32,
    pub times_last: usize,
    /// How much later than the last but one it came.
    pub late_mean_us: f64,
    pub late_max_us: f64,
}

/// A tensor that some ranks had submitted when their files ended, and others had not.
#[derive(Debug, Serialize)]
pub struct Unfinished {
    pub tensor: String,
    pub submitted_by: Vec<u32>,
    pub not_by: Vec<u32>,
}

/// How often a rank came last, and how late.
#[derive(Clone, Copy, Default)]
struct Lateness {
    times: usize,
    total_us: f64,
    max_us: f64,
}

impl Report {
    pub fn new(traces: &[Trace], offsets_us: &[Option<f64>], merged: Option<&Path>) -> Report {
        let Compared { n_compared, by_tensor, waits } = compare(traces, offsets_us);
        let rank_line = |(trace, offset): (&Trace, &Option<f64>)| {
            let own = by_tensor.values().filter_map(|(_, ranks)| ranks.get(&trace.rank));
            let times_last = own.map(|lateness| lateness.times).sum();
            let for_it = waits.iter().filter(|((late, _), _)| *late == trace.rank);
            let waited_for_us = for_it.map(|(_, spans)| covered(spans.clone())).sum();
            RankLine {
                rank: trace.rank,
                file: trace.path.clone(),
                operations: trace.operations.len(),
                dropped_events: trace.n_dropped,
                clock_offset_us: *offset,
                times_last,
                waited_for_us,
            }
        };
        let ranks = traces.iter().zip(offsets_us).map(rank_line).collect();
        let mut tensors: Vec<(f64, TensorLine)> = by_tensor.into_iter().filter_map(tensor_line).collect();
        tensors.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let tensors = tensors.into_iter().map(|(_, line)| line).collect();
        let have: BTreeSet<u32> = traces.iter().map(|t| t.rank).collect();
        let size = traces.iter().filter_map(|t| t.size).max().unwrap_or(0);
        let missing_ranks = (0..size).filter(|r| !have.contains(r)).collect();
        let merged = merged.map(Path::to_path_buf);
        Report { merged, ranks, n_compared, tensors, unfinished: unfinished(traces), missing_ranks }
    }
}

#[derive(Default)]
struct Compared<'a> {
    n_compared: usize,
    /// How many operations, and who came last.
    by_tensor: BTreeMap<&'a str, (usize, BTreeMap<u32, Lateness>)>,
    /// From when to when, by who was late and who waited.
    waits: BTreeMap<(u32, u32), Vec<(f64, f64)>>,
}

/// Looks at every operation that several ranks have submitted and ended.
fn compare<'a>(traces: &'a [Trace], offsets_us: &[Option<f64>]) -> Compared<'a> {
    let mut came: BTreeMap<&(String, u64), Vec<(f64, u32)>> = BTreeMap::new();
    for (trace, offset) in traces.iter().zip(offsets_us).filter(|(_, o)| o.is_some()) {
        for (key, TracedOperation { submitted, .. }) in &trace.operations {
            if let Some(at) = submitted {
                came.entry(key).or_default().push((aligned(&traces[0], trace, *offset, *at), trace.rank));
            }
        }
    }
    let mut all = Compared::default();
    for ((tensor, _), mut times) in came.into_iter().filter(|(_, times)| times.len() > 1) {
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [others @ .., (last, rank)] = &times[..] else { continue };
        let late_us = others.last().map_or(0.0, |(before, _)| last - before);
        let (n, ranks) = all.by_tensor.entry(tensor.as_str()).or_default();
        let lateness = ranks.entry(*rank).or_default();
        (*n, all.n_compared, lateness.times) = (*n + 1, all.n_compared + 1, lateness.times + 1);
        lateness.total_us += late_us;
        lateness.max_us = lateness.max_us.max(late_us);
        for (at, other) in others {
            all.waits.entry((*rank, *other)).or_default().push((*at, *last));
        }
    }
    all
}

/// How much time these spans cover, overlaps counted once.
fn covered(mut spans: Vec<(f64, f64)>) -> f64 {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut total, mut until) = (0.0, f64::MIN);
    for (from, to) in spans {
        total += (to - from.max(until)).max(0.0);
        until = until.max(to);
    }
    total
}

/// The line of a tensor, and what its lateness cost.
fn tensor_line(
    (tensor, (operations, ranks)): (&str, (usize, BTreeMap<u32, Lateness>)),
) -> Option<(f64, TensorLine)> {
    let cost_us = ranks.values().map(|l| l.total_us).sum();
    let (last_rank, worst) = ranks.into_iter().max_by(|a, b| a.1.total_us.total_cmp(&b.1.total_us))?;
    let line = TensorLine {
        tensor: tensor.to_string(),
        operations,
        last_rank,
        times_last: worst.times,
        late_mean_us: worst.total_us / worst.times as f64,
        late_max_us: worst.max_us,
    };
    Some((cost_us, line))
}

fn unfinished(traces: &[Trace]) -> Vec<Unfinished> {
    let names: BTreeSet<&String> = traces.iter().flat_map(|t| t.waiting.keys()).collect();
    let ranks = |name: &String, waits: bool| -> Vec<u32> {
        traces.iter().filter(|t| t.waiting.contains_key(name) == waits).map(|t| t.rank).collect()
    };
    let line = |name: &String| Unfinished {
        tensor: name.clone(),
        submitted_by: ranks(name, true),
        not_by: ranks(name, false),
    };
    names.into_iter().map(line).collect()
}

/// As people read times.
fn time(us: f64) -> String {
    match us.abs() {
        small if small < 1e3 => format!("{us:.1} us"),
        middle if middle < 1e6 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.3} s", us / 1e6),
    }
}

fn listed(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(TOP).map(u32::to_string).collect();
    let more = ranks.len().saturating_sub(TOP);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} {}{more}", if ranks.len() == 1 { "rank" } else { "ranks" }, shown.join(", "))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.merged {
            writeln!(f, "wrote {}; open it in https://ui.perfetto.dev\n", path.display())?;
        }
        let table = TextTable::new(&[
            right("rank", 6),
            right("operations", 10),
            right("clock", 12),
            right("was last", 10),
            right("others waited", 18),
        ]);
        writeln!(f, "{}", table.head())?;
        for line in &self.ranks {
            let clock =
                line.clock_offset_us.map_or_else(|| "unknown".to_string(), |us| format!("+{}", time(us)));
            let (clock, waited) = (clock.replace("+-", "-"), time(line.waited_for_us));
            let [rank, n, last] =
                [line.rank.to_string(), line.operations.to_string(), line.times_last.to_string()];
            writeln!(f, "{}", table.row(&[rank, n, clock, last, waited]))?;
        }
        for line in self.ranks.iter().filter(|l| l.dropped_events > 0) {
            writeln!(f, "rank {}: {} events did not fit and are missing", line.rank, line.dropped_events)?;
        }
        for line in self.ranks.iter().filter(|l| l.clock_offset_us.is_none()) {
            writeln!(
                f,
                "rank {} has no operation in common with the first rank and is not compared",
                line.rank
            )?;
        }
        if !self.missing_ranks.is_empty() {
            writeln!(f, "no file was given for {}", listed(&self.missing_ranks))?;
        }
        self.tensors(f)?;
        for Unfinished { tensor, submitted_by, not_by } in self.unfinished.iter().take(TOP) {
            let others =
                if not_by.is_empty() { String::new() } else { format!(", not by {}", listed(not_by)) };
            writeln!(f, "unfinished: {tensor} was submitted by {}{others}", listed(submitted_by))?;
        }
        let more = self.unfinished.len().saturating_sub(TOP);
        if more > 0 { writeln!(f, "unfinished: and {more} more") } else { Ok(()) }
    }
}

impl Report {
    fn tensors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tensors.is_empty() {
            return writeln!(
                f,
                "\nno operation was found on more than one rank, so there is nothing to compare"
            );
        }
        writeln!(
            f,
            "\nthe last rank of each tensor, and how much later it came than the one before it, in {} operations:",
            self.n_compared
        )?;
        let table = TextTable::new(&[
            right("rank", 6),
            right("mean", 12),
            right("worst", 12),
            right("operations", 10),
            right("was last", 10),
            left("tensor", 0),
        ]);
        writeln!(f, "{}", table.head())?;
        for line in self.tensors.iter().take(TOP) {
            let (mean, worst) = (time(line.late_mean_us), time(line.late_max_us));
            let TensorLine { tensor, last_rank, times_last, operations, .. } = line;
            let [rank, n, last] = [last_rank.to_string(), operations.to_string(), times_last.to_string()];
            writeln!(f, "{}", table.row(&[rank, mean, worst, n, last, tensor.to_string()]))?;
        }
        let more = self.tensors.len().saturating_sub(TOP);
        let mut cells = [const { String::new() }; 6];
        cells[5] = format!("and {more} more tensors");
        if more > 0 { writeln!(f, "{}", table.row(&cells)) } else { Ok(()) }
    }
}
