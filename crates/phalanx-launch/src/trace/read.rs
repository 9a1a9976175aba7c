//! Reads timeline files into operations.

use phalanx_core::trace::Event;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{}: {why}", path.display())]
    Read { path: PathBuf, why: io::Error },
    #[error("cannot write {}: {why}", path.display())]
    Write { path: PathBuf, why: io::Error },
    #[error("{} is empty: its rank wrote to another file, or ended before it wrote", path.display())]
    Empty { path: PathBuf },
    #[error(
        "{} ends in line {line}, in the middle of an event: it was cut off, or copied while the rank wrote to it; copy it again",
        path.display()
    )]
    Truncated { path: PathBuf, line: usize },
    #[error("{} is not a timeline of phalanx: {why}", path.display())]
    NotATrace { path: PathBuf, why: String },
    #[error("{} and {} are both of rank {rank}; give one file for each rank, of one run", a.display(), b.display())]
    Twice { rank: u32, a: PathBuf, b: PathBuf },
    #[error("{} would be overwritten: it is also one of the input files; choose another OUT", path.display())]
    OutIsIn { path: PathBuf },
}

/// One operation on one rank; times in microseconds since this rank's timeline began.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedOperation {
    pub kind: String,
    /// None if the rank had joined, or the timeline began after it.
    pub submitted: Option<f64>,
    pub ended: f64,
}

/// The timeline of one rank.
#[derive(Debug)]
pub struct Trace {
    pub path: PathBuf,
    pub rank: u32,
    pub size: Option<u32>,
    pub epoch_us: i64,
    pub events: Vec<Event>,
    /// By tensor and by number in the sequence, which are the same on every rank.
    pub operations: BTreeMap<(String, u64), TracedOperation>,
    /// Submitted and never agreed upon, since when.
    pub waiting: BTreeMap<String, f64>,
    pub n_dropped: u64,
}

/// Traces in the order of ranks, at least one.
pub fn all(paths: &[PathBuf]) -> Result<Vec<Trace>, TraceError> {
    let mut by_rank: BTreeMap<u32, Trace> = BTreeMap::new();
    for path in paths {
        let bytes = fs::read(path).map_err(|why| TraceError::Read { path: path.clone(), why })?;
        let trace = parse(path, &bytes)?;
        let rank = trace.rank;
        if let Some(other) = by_rank.insert(rank, trace) {
            return Err(TraceError::Twice { rank, a: other.path, b: path.clone() });
        }
    }
    Ok(by_rank.into_values().collect())
}

pub fn parse(path: &Path, bytes: &[u8]) -> Result<Trace, TraceError> {
    let path = path.to_path_buf();
    if bytes.trim_ascii().is_empty() {
        return Err(TraceError::Empty { path });
    }
    let events: Vec<Event> = match serde_json::from_slice(bytes) {
        Ok(events) => events,
        Err(e) if e.is_eof() && bytes.starts_with(b"[") => {
            return Err(TraceError::Truncated { path, line: e.line() });
        }
        Err(e) => return Err(TraceError::NotATrace { path, why: e.to_string() }),
    };
    let number = |name: &str| events.iter().find_map(|e| e.arg(name).filter(|_| e.pid == 0)?.as_i64());
    let (Some(rank), Some(epoch_us)) = (number("rank"), number("start_time_since_epoch_in_micros")) else {
        let merged = events.iter().any(|e| e.arg("merged_ranks").is_some());
        let why = if merged {
            "it is already a merged file; give the files that the ranks wrote"
        } else {
            "it names no rank"
        };
        return Err(TraceError::NotATrace { path, why: why.into() });
    };
    let Ok(rank) = u32::try_from(rank) else {
        return Err(TraceError::NotATrace { path, why: format!("{rank} is not a rank") });
    };
    let size = number("size").and_then(|n| u32::try_from(n).ok());
    let dropped = events.iter().filter(|e| e.name == "DROPPED_EVENTS");
    let n_dropped = dropped.filter_map(|e| e.arg("dropped")?.as_u64()).sum();
    let (operations, waiting) = operations(&events);
    Ok(Trace { path, rank, size, epoch_us, operations, waiting, n_dropped, events })
}

type Found = (BTreeMap<(String, u64), TracedOperation>, BTreeMap<String, f64>);

fn operations(events: &[Event]) -> Found {
    let mut names: BTreeMap<u64, &str> = BTreeMap::new();
    // When the operation at hand was submitted, and whether all ranks have.
    let mut at_hand: BTreeMap<u64, (f64, bool)> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for event in events {
        let name = event.name.as_str();
        if name == "process_name"
            && let Some(shown) = event.arg("name").and_then(Value::as_str)
        {
            names.insert(event.pid, shown);
        }
        let Some(ts) = event.ts else { continue };
        match (event.ph.as_str(), name.starts_with("NEGOTIATE_")) {
            ("B", true) => drop(at_hand.insert(event.pid, (ts, false))),
            ("E", true) if event.arg("refused").is_some() => drop(at_hand.remove(&event.pid)),
            ("E", true) => {
                if let Some((_, agreed)) = at_hand.get_mut(&event.pid) {
                    *agreed = true;
                }
            }
            ("E", false) => {
                let Some(number) = event.arg("operation").and_then(Value::as_u64) else { continue };
                let submitted = at_hand.remove(&event.pid).filter(|(_, agreed)| *agreed).map(|(at, _)| at);
                let tensor = names.get(&event.pid).copied().unwrap_or("?").to_string();
                found.insert(
                    (tensor, number),
                    TracedOperation { kind: event.name.clone(), submitted, ended: ts },
                );
            }
            _ => {}
        }
    }
    let open = at_hand.into_iter().filter(|(_, (_, agreed))| !agreed);
    let waiting = open.map(|(pid, (at, _))| (names.get(&pid).copied().unwrap_or("?").to_string(), at));
    (found, waiting.collect())
}
