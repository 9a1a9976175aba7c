//! What is measured, and against which goal.

use super::{
    Options,
    farm::{Farm, Seen},
};
use crate::{bench::table::Table, process::Shell};

/// Steps of the short run.
const FEW: usize = 2;
const WIDTH: usize = 64;
/// Two layers, 64 to 2,560 and back, with their biases.
const DENSE_BYTES: f64 = ((64 * 2560 + 2560 + 2560 * 64 + 64) * 4) as f64;
/// A row and its number.
const ROW_BYTES: f64 = (WIDTH * 4 + 4) as f64;
/// The same where rows are gathered by all: numbers are of 8 bytes.
const GATHERED_BYTES: f64 = (WIDTH * 4 + 8) as f64;

pub fn all(shell: &Shell, options: &Options) -> Result<Vec<Table>, String> {
    let mut tables = vec![ways(shell, options)?, growth(shell, options)?];
    if options.times {
        tables.push(partitions(shell, options)?);
    }
    tables.push(density(shell, options)?);
    if options.times {
        tables.push(straggler(shell, options)?);
    }
    Ok(tables)
}

fn mb(bytes: f64) -> String {
    format!("{:.2}", bytes / 1e6)
}

fn mark(is_met: bool) -> &'static str {
    if is_met { "✓" } else { "✗" }
}

fn rows(n: f64) -> String {
    if n > 0.0 { format!("{n:.0}") } else { "-".into() }
}

/// The same model in several ways, on 4 hosts with 2 workers each.
fn ways(shell: &Shell, options: &Options) -> Result<Table, String> {
    let farm = Farm::new(shell, 4, &options.rate)?;
    let columns = [
        "way",
        "MB of a host in a step",
        "by the formula",
        "hybrid has fewer",
        "rows given",
        "rows pushed",
        "ms",
        "hybrid is faster",
    ];
    let mut table = Table::new("R1, R2, R3, R4, R6: 4 hosts x 2 workers".into(), 1, &columns);
    let (h, g) = (4.0, 2.0);
    let f = (h - 1.0) / h;
    let steps = (FEW, options.steps);
    let cases: [(&str, &[&str], (usize, usize)); 6] = [
        ("hybrid", &["--strategy", "hybrid"], steps),
        ("rows gathered by all", &["--strategy", "allreduce"], steps),
        ("all on servers", &["--strategy", "ps"], steps),
        ("all on servers, naive", &["--strategy", "ps", "--naive"], steps),
        ("hybrid, naive", &["--strategy", "hybrid", "--naive"], steps),
        ("tables made dense", &["--strategy", "allreduce", "--dense"], (1, 1)),
    ];
    let mut first: Option<Seen> = None;
    for (title, args, steps) in cases {
        eprintln!("4 hosts x 2 workers, {title} ...");
        let seen = farm.measure(shell, options, 2, steps, args)?;
        let hybrid = *first.get_or_insert(seen);
        let (union, raw) = (seen.pulled * ROW_BYTES, 2.0 * options.tokens as f64);
        let dense = 4.0 * DENSE_BYTES * f;
        let formula = match title {
            "hybrid" => dense + 4.0 * union * f,
            "rows gathered by all" => dense + 2.0 * (h * g - 1.0) * raw * GATHERED_BYTES,
            // Of a dense variable every row is a row of a table.
            "all on servers" => 4.0 * union * f,
            "all on servers, naive" => 4.0 * g * (DENSE_BYTES + raw * ROW_BYTES) * f,
            "hybrid, naive" => dense + 4.0 * g * raw * ROW_BYTES * f,
            _ => dense + 4.0 * 2.0 * (options.rows * WIDTH * 4) as f64 * f,
        };
        let (fewer, faster) = (seen.bytes / hybrid.bytes, seen.ms / hybrid.ms);
        let goal = |ratio: f64, goal: Option<f64>| match goal {
            Some(goal) => format!("{ratio:.2}x, goal {goal} {}", mark(ratio >= goal)),
            None => format!("{ratio:.2}x"),
        };
        let (bytes_goal, time_goal) = match title {
            "rows gathered by all" => (Some(2.2), Some(1.9)),
            "all on servers, naive" => (Some(1.75), None),
            _ => (None, None),
        };
        let pushed = match title {
            "hybrid" => {
                format!("{} of {} {}", rows(seen.pushed), rows(seen.union), mark(seen.pushed == seen.union))
            }
            _ => rows(seen.pushed),
        };
        let times = |text: String| if options.times { text } else { "-".into() };
        table.push(vec![
            title.into(),
            mb(seen.bytes),
            mb(formula),
            goal(fewer, bytes_goal),
            rows(seen.given),
            pushed,
            times(format!("{:.0}", seen.ms)),
            times(goal(faster, time_goal)),
        ]);
    }
    Ok(table)
}

/// One worker on each of more and more hosts.
fn growth(shell: &Shell, options: &Options) -> Result<Table, String> {
    let mut table = Table::new(
        "R5: one worker on each host, MB of a host in a step".into(),
        1,
        &["hosts", "gathered", "formula", "hybrid", "formula"],
    );
    let within = |bytes: f64, formula: f64| {
        let off = (bytes / formula - 1.0) * 100.0;
        format!("{} ({off:+.1} %), goal 8 % {}", mb(bytes), mark(off.abs() <= 8.0))
    };
    for hosts in [2, 4, 8, 12] {
        let farm = Farm::new(shell, hosts, &options.rate)?;
        let (n, f) = (hosts as f64, (hosts as f64 - 1.0) / hosts as f64);
        eprintln!("{hosts} hosts x 1 worker ...");
        let steps = (1, 3);
        let gathered = farm.measure(shell, options, 1, steps, &["--strategy", "allreduce"])?;
        let hybrid = farm.measure(shell, options, 1, steps, &["--strategy", "hybrid"])?;
        let dense = 4.0 * DENSE_BYTES * f;
        let raw = dense + 2.0 * (n - 1.0) * 2.0 * options.tokens as f64 * GATHERED_BYTES;
        let served = dense + 4.0 * hybrid.pulled * ROW_BYTES * f;
        table.push(vec![
            hosts.to_string(),
            within(gathered.bytes, raw),
            mb(raw),
            within(hybrid.bytes, served),
            mb(served),
        ]);
    }
    Ok(table)
}

/// Powers of two, one after the other, and what a search finds.
fn partitions(shell: &Shell, options: &Options) -> Result<Table, String> {
    let farm = Farm::new(shell, 4, &options.rate)?;
    let mut table =
        Table::new("R7: partitions, 4 hosts x 1 worker".into(), 1, &["partitions", "ms", "against the best"]);
    let of = |partitions: u32| {
        eprintln!("{partitions} partitions ...");
        let text = partitions.to_string();
        let args = ["--strategy", "hybrid", "--partitions", &text, "--warm", "2", "--steps", "9"];
        farm.world(shell, options, 1, &args).map(|seen| seen.ms)
    };
    let mut all = Vec::new();
    for partitions in (0..=10).map(|power| 1 << power) {
        all.push((partitions, of(partitions)?));
    }
    eprintln!("a search ...");
    let found = farm.world(shell, options, 1, &["--strategy", "hybrid", "--search", "1", "--steps", "3"])?;
    let found = found.partitions as u32;
    let best = all.iter().map(|(_, ms)| *ms).fold(f64::INFINITY, f64::min);
    for (partitions, ms) in &all {
        table.push(vec![partitions.to_string(), format!("{ms:.0}"), format!("{:.2}x", ms / best)]);
    }
    let ms = of(found)?;
    let behind = (ms / best - 1.0) * 100.0;
    let text = format!("{behind:+.1} %, goal 5 % {}", mark(behind <= 5.0));
    table.push(vec![format!("{found}, found"), format!("{ms:.0}"), text]);
    Ok(table)
}

/// More and more of the tables is touched in a step.
fn density(shell: &Shell, options: &Options) -> Result<Table, String> {
    let farm = Farm::new(shell, 2, &options.rate)?;
    let mut table = Table::new(
        "R8: tables of 2,000 rows, 2 hosts x 1 worker, ms and MB of a host in a step".into(),
        1,
        &["rows of a worker", "gathered", "hybrid", "auto", "auto against the better"],
    );
    for tokens in ["64", "512", "4096"] {
        eprintln!("{tokens} rows of 2,000 ...");
        let of = |way: &str| {
            let args = ["--strategy", way, "--tokens", tokens, "--rows", "2000"];
            farm.measure(shell, options, 1, (1, 5), &args)
        };
        let [gathered, hybrid, auto] = [of("allreduce")?, of("hybrid")?, of("auto")?];
        let behind = |of: fn(&Seen) -> f64| (of(&auto) / of(&gathered).min(of(&hybrid)) - 1.0) * 100.0;
        let (bytes, time) = (behind(|seen| seen.bytes), behind(|seen| seen.ms));
        let verdict = match options.times {
            true => format!("{bytes:+.1} % bytes, {time:+.1} % time, goal 10 % {}", mark(time <= 10.0)),
            false => format!("{bytes:+.1} % bytes"),
        };
        let cell = |seen: Seen| format!("{:.0} ms, {}", seen.ms, mb(seen.bytes));
        table.push(vec![tokens.into(), cell(gathered), cell(hybrid), cell(auto), verdict]);
    }
    Ok(table)
}

/// One of four workers takes five times as long; the others wait for it, or do not.
fn straggler(shell: &Shell, options: &Options) -> Result<Table, String> {
    let farm = Farm::new(shell, 1, "10gbit")?;
    let mut table = Table::new(
        "R14: steps of 4 workers in 8 seconds, three sleep 80 ms in each step, one 400 ms".into(),
        1,
        &["way", "steps", "against sync"],
    );
    let mut first = None;
    for (title, extra) in [("sync", &[][..]), ("async", &["--asynchronous"])] {
        eprintln!("a straggler, {title} ...");
        let base = ["--strategy", "ps", "--tokens", "40", "--pause-ms", "80", "--straggle-ms", "400"];
        let limit = if title == "sync" { ["--steps", "15"] } else { ["--for-ms", "8000"] };
        let args: Vec<&str> = base.iter().chain(extra).chain(&limit).copied().collect();
        let seen = farm.world(shell, options, 4, &args)?;
        // In sync all workers run alike, so that a number of steps says as much.
        let steps = if title == "sync" { 4.0 * 8000.0 / seen.ms.max(1.0) } else { seen.steps };
        let ratio = steps / *first.get_or_insert(steps);
        let goal = match title {
            "sync" => "1.00x".to_string(),
            _ => format!("{ratio:.2}x, goal 3.5 {}", mark(ratio >= 3.5)),
        };
        table.push(vec![title.into(), format!("{steps:.0}"), goal]);
    }
    Ok(table)
}
