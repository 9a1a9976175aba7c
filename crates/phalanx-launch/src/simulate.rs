//! `phalanx simulate`: predicts the time of a collective on any network, for every algorithm that supports it.

mod agreement;
mod measured;
mod overview;
mod plot;
mod sweep;

pub use measured::MeasuredCosts;

use crate::{
    bench::bytes,
    table::{TextTable, left, right},
};
use clap::Args;
use phalanx_collective::plan::{
    self, Algorithm, Memory, PlanRequest, Wiring,
    simulate::{CostModel, TierCost},
    step::{CollectiveOp, Layout},
};
use phalanx_core::{DType, Rank, Tiers, Topology, Way};
use serde::Serialize;
use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

/// Costs are linear: a message takes its tier's latency plus its bytes divided by its tier's bandwidth. The ranks of a host
/// share their host's network.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  phalanx simulate\n  phalanx simulate --ranks 1024 --tiers 8x128 --op allreduce --bytes 64M\n  phalanx simulate --tiers 4x8x2 --bytes 1M --tier-cost 0.5:20,10:12.5,25:6\n  phalanx simulate --tiers 4x3 --sweep 4K..256M --plot times.svg\n  phalanx doctor -H a:4,b:4,c:4 --topology --json > costs && phalanx simulate --tiers 4x3 --costs costs"
)]
pub struct SimulateArgs {
    /// Number of ranks [default: the product of the tiers; without --tiers, worlds of several sizes are compared]
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,

    /// Shape of the network, ranks of a host first, e.g. 8x128 [default: all ranks on hosts of 8, or one host]
    #[arg(long, value_name = "SHAPE")]
    pub tiers: Option<String>,

    /// How each tier moves its data: arena, ring, halving or direct [default: arena, then rings]
    #[arg(long, value_name = "WAY,WAY")]
    pub ways: Option<String>,

    /// Ranks on each host, for shapes that do not fit the hosts [default: the first number of the shape]
    #[arg(long, value_name = "N")]
    pub per_host: Option<u32>,

    /// The collective
    #[arg(long, value_name = "OP", default_value = "allreduce")]
    pub op: String,

    /// Size of the vector, with K, M or G
    #[arg(long, value_name = "BYTES", default_value = "64M")]
    pub bytes: String,

    /// Element type
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub dtype: String,

    /// For each tier, latency in microseconds and gigabytes per second; the last one is used for all further tiers
    #[arg(long, value_name = "US:GBPS,...", default_value = "0.5:12,15:12.5")]
    pub tier_cost: String,

    /// File with what `phalanx doctor --topology --json` printed: the costs that it measured, instead of --tier-cost
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tier_cost", "reduce_speed"])]
    pub costs: Option<PathBuf>,

    /// Predict sizes from the first to the second, each twice the one before, e.g. 4K..256M
    #[arg(long, value_name = "BYTES..BYTES", conflicts_with_all = ["bytes", "agreement"])]
    pub sweep: Option<String>,

    /// With --sweep: also draw time over size, one line for each plan, as SVG
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub plot: Option<PathBuf>,

    /// Gigabytes per second that one rank reduces
    #[arg(long, value_name = "GBPS", default_value_t = 10.0)]
    pub reduce_speed: f64,

    /// Use only links, no shared memory inside a host
    #[arg(long)]
    pub links_only: bool,

    /// Instead of a collective: predict how long ranks take to agree on a step of N named tensors, for worlds up to --ranks
    #[arg(long, value_name = "TENSORS")]
    pub agreement: Option<usize>,

    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// One algorithm's price.
#[derive(Debug, Serialize)]
struct Row {
    op: &'static str,
    bytes: u64,
    ranks: u32,
    plan: &'static str,
    selected: bool,
    time_us: f64,
    /// Nothing moves between the ranks of a barrier, nor in a world of one.
    algbw_gbps: Option<f64>,
    steps: u64,
    tier_bytes: Vec<u64>,
}

pub fn main(args: &SimulateArgs) -> ExitCode {
    if let Some(n_tensors) = args.agreement {
        return agreement::main(args, n_tensors);
    }
    if let Some(range) = &args.sweep {
        return sweep::main(args, range);
    }
    if args.ranks.is_none() && args.tiers.is_none() {
        return overview::main(args);
    }
    match prepare(args) {
        Ok((request, cost)) => {
            show(args, &request, &cost);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("phalanx simulate: {why}");
            ExitCode::from(2)
        }
    }
}

const MAX_RANKS: u32 = 1 << 16;
/// Of a column of plans: that of the longest name.
const PLAN_WIDTH: usize = "tiers-overlapped".len();

fn prepare(args: &SimulateArgs) -> Result<(PlanRequest, CostModel), String> {
    let tiers: Tiers = match (&args.tiers, args.ranks) {
        (Some(shape), _) => shape.parse().map_err(|e| format!("--tiers: {e}"))?,
        (None, Some(0)) => return Err("--ranks 0: a world has at least one rank".into()),
        (None, Some(n)) if n > 8 && n.is_multiple_of(8) => {
            Tiers::new(&[8, n / 8]).map_err(|e| e.to_string())?
        }
        (None, Some(n)) => Tiers::new(&[n]).map_err(|e| e.to_string())?,
        (None, None) => return Err("give --ranks N, or --tiers SHAPE, or both".into()),
    };
    if let Some(n_ranks) = args.ranks {
        tiers.check(n_ranks).map_err(|e| e.to_string())?;
    }
    let n_ranks = tiers.n_ranks();
    if n_ranks > MAX_RANKS {
        return Err(format!("{n_ranks} ranks are too many; at most {MAX_RANKS} can be simulated"));
    }
    let op: CollectiveOp = args.op.parse().map_err(|e| format!("{e}"))?;
    let dtype: DType = args.dtype.parse().map_err(|e| format!("{e}"))?;
    let len = bytes(&args.bytes)?.div_ceil(dtype.size() as u64);
    let share = len / u64::from(n_ranks);
    let layout = match op {
        CollectiveOp::Allreduce => Layout::Whole { len },
        CollectiveOp::Broadcast | CollectiveOp::Reduce => Layout::Rooted { root: Rank::ZERO, len },
        CollectiveOp::ReduceScatter | CollectiveOp::Allgather => {
            Layout::Counts { counts: vec![share; n_ranks as usize] }
        }
        CollectiveOp::Gather | CollectiveOp::Scatter => {
            Layout::RootedCounts { root: Rank::ZERO, counts: vec![share; n_ranks as usize] }
        }
        CollectiveOp::Alltoall if n_ranks > 4096 => {
            return Err("alltoall is simulated for 4096 ranks at most".into());
        }
        CollectiveOp::Alltoall => {
            let n = n_ranks as usize;
            Layout::Matrix { n_ranks, matrix: vec![share / u64::from(n_ranks).max(1); n * n] }
        }
        CollectiveOp::Barrier => Layout::Empty,
    };
    let per_host = args.per_host.unwrap_or(tiers.dims()[0]);
    if per_host == 0 || !n_ranks.is_multiple_of(per_host) {
        return Err(format!("--per-host {per_host}: {n_ranks} ranks do not fill hosts of {per_host}"));
    }
    let topology = Topology::of_sizes(&vec![per_host; (n_ranks / per_host) as usize]);
    let ways = args.ways.as_deref().map(Way::list).transpose().map_err(|e| format!("--ways: {e}"))?;
    let is_shaped = tiers.dims().len() > 1 || args.per_host.is_some() || ways.is_some();
    let wiring = is_shaped.then(|| Wiring::new(&tiers, &topology, ways.as_deref())).transpose();
    let request = PlanRequest {
        op,
        layout,
        topology: Arc::new(topology),
        tiers: wiring.map_err(|e| e.to_string())?,
        elem_bytes: dtype.size() as u32,
        in_place: true,
        memory: Memory::Private,
        slot_bytes: phalanx_net::arena::SLOT_BYTES as u64,
        segment_bytes: phalanx_core::Config::default().segment_bytes,
        links_only: args.links_only,
    };
    let cost = match &args.costs {
        Some(path) => measured::read(path)?,
        None => CostModel {
            tiers: costs(&args.tier_cost)?,
            reduce_gbytes_per_s: positive("--reduce-speed", args.reduce_speed)?,
        },
    };
    Ok((request, cost))
}

fn costs(text: &str) -> Result<Vec<TierCost>, String> {
    let bad = |part: &str| {
        format!(
            "--tier-cost: {part:?} is not latency:bandwidth, e.g. 15:12.5 (microseconds, gigabytes per second)"
        )
    };
    text.split(',')
        .map(|part| {
            let (latency, bandwidth) = part.split_once(':').ok_or_else(|| bad(part))?;
            let latency_us = latency
                .parse::<f64>()
                .ok()
                .filter(|l| *l >= 0.0 && l.is_finite())
                .ok_or_else(|| bad(part))?;
            let gbytes_per_s = bandwidth.parse::<f64>().map_err(|_| bad(part))?;
            Ok(TierCost { latency_us, gbytes_per_s: positive("--tier-cost", gbytes_per_s)? })
        })
        .collect()
}

fn positive(what: &str, value: f64) -> Result<f64, String> {
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(format!("{what}: {value} is not a positive number"))
    }
}

fn show(args: &SimulateArgs, request: &PlanRequest, cost: &CostModel) {
    let rows = rows(args, request, cost);
    let text = if args.json {
        rows.iter().map(|r| serde_json::to_string(r).unwrap_or_default() + "\n").collect()
    } else {
        table(request, &rows)
    };
    // A reader that went away has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Every algorithm's price, the fastest first.
fn rows(args: &SimulateArgs, request: &PlanRequest, cost: &CostModel) -> Vec<Row> {
    let mut rows = Vec::new();
    for algorithm in Algorithm::supporting(request).filter(|a| a.is_worth_pricing(request)) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[Ksimulating {algorithm} on {} ranks ...", request.n_ranks());
        }
        rows.push(priced(args, request, cost, algorithm));
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    rows.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
    rows
}

/// One algorithm's price.
fn priced(args: &SimulateArgs, request: &PlanRequest, cost: &CostModel, algorithm: Algorithm) -> Row {
    let is_barrier = request.op == CollectiveOp::Barrier;
    let bytes = if is_barrier { 0 } else { bytes(&args.bytes).unwrap_or_default() };
    let moves = !is_barrier && request.n_ranks() > 1;
    let predicted = plan::simulate::simulate(request, algorithm, cost);
    Row {
        op: request.op.name(),
        bytes,
        ranks: request.n_ranks(),
        plan: algorithm.name(),
        selected: algorithm == plan::select(request),
        time_us: predicted.time_us,
        algbw_gbps: moves.then(|| bytes as f64 / predicted.time_us.max(1e-9) / 1e3),
        steps: predicted.n_steps,
        tier_bytes: predicted.tier_bytes,
    }
}

/// Gigabytes per second, where anything moves.
fn rate(row: &Row) -> String {
    row.algbw_gbps.map_or("-".to_string(), |rate| format!("{rate:.3}"))
}

fn table(request: &PlanRequest, rows: &[Row]) -> String {
    let shape =
        request.tiers.as_ref().map_or_else(|| request.n_ranks().to_string(), |w| w.grid.tiers().to_string());
    let table = TextTable::new(&[
        left("plan", PLAN_WIDTH),
        right("time us", 14),
        right("alg GB/s", 10),
        right("steps", 8),
        left("bytes over links, tier by tier", 0),
    ]);
    let mut text = format!(
        "{} of {} bytes, {} rank{} as {shape}\n{}\n",
        request.op,
        rows.first().map_or(0, |r| r.bytes),
        request.n_ranks(),
        if request.n_ranks() == 1 { "" } else { "s" },
        table.head()
    );
    for row in rows {
        let tiers: Vec<String> = row.tier_bytes.iter().map(u64::to_string).collect();
        let mark = if row.selected { "  <- selected" } else { "" };
        let (time, steps) = (format!("{:.1}", row.time_us), row.steps.to_string());
        let last = tiers.join(" ") + mark;
        text += &(table.row(&[row.plan.to_string(), time, rate(row), steps, last]) + "\n");
    }
    text + &why_not_the_fastest(rows)
}

/// One line where the selection and this prediction differ.
fn why_not_the_fastest(rows: &[Row]) -> String {
    let selected = rows.iter().find(|row| row.selected);
    match (rows.first(), selected) {
        (Some(fastest), Some(selected)) if fastest.time_us < selected.time_us => format!(
            "{} is selected although {} is predicted to be faster: the selection uses fixed sizes measured \
             on ordinary machines, not --tier-cost; PHALANX_ALGORITHM={} uses the faster one\n",
            selected.plan, fastest.plan, fastest.plan
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    pub struct Line {
        #[command(flatten)]
        pub args: SimulateArgs,
    }

    fn prepared(words: &[&str]) -> Result<(PlanRequest, CostModel), String> {
        prepare(&Line::parse_from(["simulate"].iter().chain(words)).args)
    }

    #[test]
    fn shapes_and_ranks_must_agree() {
        let error = prepared(&["--ranks", "10", "--tiers", "4x3"]).unwrap_err();
        assert_eq!(error, "shape 4x3 holds 12 ranks, but the world has 10");
        assert_eq!(prepared(&["--ranks", "1024"]).unwrap().0.topology.n_hosts(), 128);
        assert!(prepared(&["--ranks", "0"]).is_err() && prepared(&[]).is_err());
        assert!(
            prepared(&["--ranks", "4", "--tier-cost", "1:0"]).unwrap_err().contains("not a positive number")
        );
    }

    fn shown(words: &[&str]) -> String {
        let args = Line::parse_from(["simulate"].iter().chain(words)).args;
        let (request, cost) = prepare(&args).unwrap();
        table(&request, &rows(&args, &request, &cost))
    }

    #[test]
    fn what_moves_nothing_has_no_rate() {
        for words in [
            &["--ranks", "1"][..],
            &["--tiers", "4x2", "--op", "barrier"],
            &["--ranks", "1", "--op", "barrier"],
        ] {
            let text = shown(words);
            let rates: Vec<&str> = text.lines().skip(2).filter_map(|l| l.split_whitespace().nth(2)).collect();
            assert!(!rates.is_empty() && rates.iter().all(|rate| *rate == "-"), "{words:?}: {text}");
        }
        assert!(shown(&["--tiers", "4x2", "--op", "barrier"]).starts_with("barrier of 0 bytes, 8 ranks"));
    }

    #[test]
    fn a_selected_plan_that_is_not_the_fastest_is_explained() {
        let row = |plan, time_us, selected| Row {
            op: "allreduce",
            bytes: 8,
            ranks: 2,
            plan,
            selected,
            time_us,
            algbw_gbps: None,
            steps: 1,
            tier_bytes: Vec::new(),
        };
        let said = why_not_the_fastest(&[row("ring", 1.0, false), row("halving", 2.0, true)]);
        assert!(said.starts_with("halving is selected although ring is predicted"), "{said}");
        assert!(said.contains("PHALANX_ALGORITHM=ring") && said.lines().count() == 1, "{said}");
        assert_eq!(why_not_the_fastest(&[row("ring", 1.0, true), row("halving", 2.0, false)]), "");
        assert_eq!(why_not_the_fastest(&[row("ring", 1.0, false), row("halving", 1.0, true)]), "");
    }

    #[test]
    fn the_selected_plan_is_among_the_predicted_ones_for_every_collective() {
        for op in CollectiveOp::ALL {
            let (request, cost) = prepared(&["--tiers", "4x3", "--op", op.name(), "--bytes", "1M"]).unwrap();
            let selected = plan::select(&request);
            assert!(selected.supports(&request), "{op}");
            assert!(plan::simulate::simulate(&request, selected, &cost).time_us > 0.0, "{op}");
        }
    }
}
