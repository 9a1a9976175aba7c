//! Merges several traces into one: each rank is a group, and all use the first rank's clock.

use super::{
    clock::aligned,
    read::{Trace, TraceError},
};
use phalanx_core::trace::Event;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

pub fn write(
    out: &Path,
    paths: &[PathBuf],
    traces: &[Trace],
    offsets_us: &[Option<f64>],
) -> Result<(), TraceError> {
    let failed = |why| TraceError::Write { path: out.into(), why };
    if let Ok(there) = out.canonicalize()
        && paths.iter().any(|p| p.canonicalize().is_ok_and(|p| p == there))
    {
        return Err(TraceError::OutIsIn { path: out.into() });
    }
    let mut file = BufWriter::new(File::create(out).map_err(failed)?);
    joined(&mut file, traces, offsets_us).and_then(|()| file.flush()).map_err(failed)
}

pub fn joined(out: &mut impl Write, traces: &[Trace], offsets_us: &[Option<f64>]) -> io::Result<()> {
    let Some(first) = traces.first() else { return out.write_all(b"[]\n") };
    let stride = stride(traces);
    // Time begins with the earliest event of all.
    let times = traces.iter().zip(offsets_us).flat_map(|(trace, offset)| {
        trace.events.iter().filter_map(|e| Some(aligned(first, trace, *offset, e.ts?)))
    });
    let zero = times.fold(f64::MAX, f64::min);
    let zero = if zero == f64::MAX { 0.0 } else { zero };
    let ranks: Vec<u32> = traces.iter().map(|t| t.rank).collect();
    let epoch_us = first.epoch_us + zero as i64;
    let head = json!({ "name": "merged", "ph": "M", "pid": 0, "args":
        { "merged_ranks": ranks, "start_time_since_epoch_in_micros": epoch_us } });
    write!(out, "[\n{head}")?;
    for (trace, offset) in traces.iter().zip(offsets_us) {
        for event in &trace.events {
            let event = moved(event, trace.rank, stride, |at| aligned(first, trace, *offset, at) - zero);
            write!(out, ",\n{event}")?;
        }
    }
    out.write_all(b"\n]\n")
}

/// Numbers of one rank: a power of ten, so that people see the rank in a number.
fn stride(traces: &[Trace]) -> u64 {
    let most = traces.iter().flat_map(|t| &t.events).map(|e| e.pid).max().unwrap_or(0);
    (1..19).map(|n| 10u64.pow(n)).find(|stride| *stride > most).unwrap_or(u64::MAX >> 32)
}

fn moved(event: &Event, rank: u32, stride: u64, time: impl Fn(f64) -> f64) -> Event {
    let base = (u64::from(rank) + 1) * stride;
    let mut rest = event.rest.clone();
    if let Some(args) = rest.get_mut("args") {
        match event.name.as_str() {
            "process_name" => {
                let name = args.get("name").and_then(Value::as_str).unwrap_or_default();
                let shown =
                    if event.pid == 0 { format!("rank {rank}") } else { format!("rank {rank}: {name}") };
                *args = json!({ "name": shown });
            }
            "process_sort_index" => *args = json!({ "sort_index": base + event.pid }),
            _ => {}
        }
    }
    Event {
        name: event.name.clone(),
        ph: event.ph.clone(),
        // To the nanosecond, as it was written.
        ts: event.ts.map(|at| (time(at) * 1e3).round() / 1e3),
        pid: base + event.pid,
        tid: event.tid.map(|tid| base + tid),
        rest,
    }
}
