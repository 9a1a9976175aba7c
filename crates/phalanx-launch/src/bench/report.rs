//! The output of the benchmark: a table or JSON.

use super::{measure::Measured, options::Case};
use crate::table::{TextTable, left, right};
use indicatif::{ProgressBar, ProgressStyle};
use phalanx_collective::{Communicator, plan::step::CollectiveOp};
use phalanx_core::Rank;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// One measured line.
#[derive(Debug, Serialize)]
pub struct Row {
    op: &'static str,
    dtype: &'static str,
    bytes: u64,
    np: u32,
    buffers: &'static str,
    transport: &'static str,
    plan: &'static str,
    median_us: f64,
    min_us: f64,
    p99_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    calls: usize,
    /// "ok": the result was compared and right; "none": there was nothing that can be compared.
    check: &'static str,
    #[serde(flatten)]
    traffic: Option<Traffic>,
}

/// What one call sends over links.
#[derive(Debug, Serialize)]
struct Traffic {
    host_bytes: u64,
    tier_bytes: Vec<u64>,
    tier_messages: Vec<u64>,
}

impl Row {
    pub fn new(comm: &Communicator, case: &Case, measured: &Measured, with_traffic: bool) -> Row {
        let times = &measured.times;
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let median = at(0.5);
        let algbw = case.bytes as f64 / median / 1e9;
        let links = comm.world().config().transport == phalanx_core::Transport::Tcp;
        Row {
            op: case.op.name(),
            dtype: case.dtype.name(),
            bytes: case.bytes,
            np: comm.size(),
            buffers: case.buffers.name(),
            transport: match (links, comm.topology().n_hosts(), comm.size()) {
                (_, _, 1) => "none",
                (true, 1, _) => comm.world().transport_to(Rank(u32::from(comm.rank() == Rank::ZERO))),
                (true, hosts, ranks) if hosts < ranks && comm.world().config().links.is_some() => "unix+tcp",
                (true, ..) => "tcp",
                (false, 1, _) => "shm",
                (false, hosts, ranks) if hosts == ranks => "tcp",
                _ => "shm+tcp",
            },
            plan: measured.plan,
            median_us: round(median * 1e6),
            min_us: round(times[0] * 1e6),
            p99_us: round(at(0.99) * 1e6),
            algbw_gbps: round(algbw),
            busbw_gbps: round(algbw * bus_factor(case.op, f64::from(comm.size()))),
            calls: times.len(),
            check: measured.checked.name(),
            traffic: with_traffic.then(|| Traffic {
                host_bytes: measured.traffic.host_bytes,
                tier_bytes: measured.traffic.tier_bytes.clone(),
                tier_messages: measured.traffic.tier_messages.clone(),
            }),
        }
    }

    /// `16 MiB in 12 messages along tier 1`, for people.
    fn traffic_line(&self) -> Option<String> {
        let Traffic { host_bytes, tier_bytes, tier_messages } = self.traffic.as_ref()?;
        let tiers = tier_bytes.iter().zip(tier_messages).enumerate();
        let tiers: Vec<String> = tiers
            .map(|(tier, (bytes, messages))| format!("tier {tier}: {bytes} bytes in {messages} messages"))
            .collect();
        let share = *host_bytes as f64 / self.bytes.max(1) as f64;
        Some(match tiers.is_empty() {
            true => "    nothing is sent over links".into(),
            false => format!(
                "    a call sends along {}; out of the fullest host {host_bytes} bytes ({share:.3} of the vector)",
                tiers.join(", ")
            ),
        })
    }

    fn cells(&self) -> [String; 11] {
        [
            self.op.to_string(),
            self.dtype.to_string(),
            self.bytes.to_string(),
            self.buffers.to_string(),
            self.plan.to_string(),
            format!("{:.2}", self.min_us),
            format!("{:.2}", self.median_us),
            format!("{:.2}", self.p99_us),
            format!("{:.3}", self.algbw_gbps),
            format!("{:.3}", self.busbw_gbps),
            self.check.to_string(),
        ]
    }
}

fn columns() -> TextTable {
    TextTable::new(&[
        left("op", 14),
        right("type", 5),
        right("bytes", 10),
        right("memory", 8),
        left("plan", 12),
        right("min us", 12),
        right("median us", 12),
        right("p99 us", 12),
        right("alg GB/s", 9),
        right("bus GB/s", 9),
        left("check", 0),
    ])
}

fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

/// How many bytes a rank's wire carries for each byte of the vector, at best: algorithm bandwidth times this compares with hardware.
fn bus_factor(op: CollectiveOp, n: f64) -> f64 {
    match op {
        CollectiveOp::Allreduce => 2.0 * (n - 1.0) / n,
        CollectiveOp::ReduceScatter
        | CollectiveOp::Allgather
        | CollectiveOp::Alltoall
        | CollectiveOp::Gather
        | CollectiveOp::Scatter => (n - 1.0) / n,
        CollectiveOp::Broadcast | CollectiveOp::Reduce | CollectiveOp::Barrier => 1.0,
    }
}

/// Prints rows as they come, on rank 0 only.
#[derive(Debug)]
pub struct BenchReport {
    json: bool,
    lead: bool,
    titled: bool,
    progress: Option<ProgressBar>,
}

impl BenchReport {
    pub fn new(json: bool, lead: bool, n_cases: usize) -> BenchReport {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} measured, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let shows = lead && std::io::stderr().is_terminal();
        let progress = shows.then(|| ProgressBar::new(n_cases as u64).with_style(style));
        BenchReport { json, lead, titled: false, progress }
    }

    pub fn row(&mut self, row: &Row) {
        if !self.lead {
            return;
        }
        let mut text = String::new();
        if self.json {
            text = serde_json::to_string(row).unwrap_or_default();
        } else {
            let table = columns();
            if !self.titled {
                self.titled = true;
                text = table.head() + "\n";
            }
            text += &table.row(&row.cells());
            row.traffic_line().iter().for_each(|line| text += &format!("\n{line}"));
        }
        let print = || {
            let mut out = std::io::stdout().lock();
            // A reader that went away ends the benchmark by the launcher's means.
            let _ = writeln!(out, "{text}").and_then(|()| out.flush());
        };
        match &self.progress {
            Some(bar) => {
                bar.suspend(print);
                bar.inc(1);
            }
            None => print(),
        }
    }

    pub fn end(&self) {
        if let Some(bar) = &self.progress {
            bar.finish_and_clear();
        }
    }
}
