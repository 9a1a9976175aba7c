//! What is measured, and against which goal.

use super::{
    Options,
    farm::{Farm, Seen},
};
use crate::{
    bench::{
        table::{Table, mark, ratio},
        torch,
    },
    process::Shell,
    python::Environment,
};

/// Steps of the short run.
const FEW: usize = 2;
const WIDTH: usize = 64;
/// Two layers, 64 to 2,560 and back, with their biases.
const DENSE_BYTES: f64 = ((64 * 2560 + 2560 + 2560 * 64 + 64) * 4) as f64;
const DDP: &str = "DDP over Gloo";
const RPC: &str = "servers over torch's RPC";
/// A row of each table, and four candidates for five words.
const ROWS_PER_TOKEN: f64 = 2.8;
/// A row and its number.
const ROW_BYTES: f64 = (WIDTH * 4 + 4) as f64;
/// The same where rows are gathered by all: numbers are of 8 bytes.
const GATHERED_BYTES: f64 = (WIDTH * 4 + 8) as f64;

/// A way of training, measured in every round.
struct Way<'a> {
    title: &'static str,
    /// Short run and what the long one has more.
    steps: (usize, usize),
    args: Vec<&'a str>,
    /// Slow, and without a goal: in the first round only.
    once: bool,
    /// The script of another's way; ours has none.
    script: Option<&'static str>,
}

pub fn all(
    shell: &Shell,
    options: &Options,
    environment: Option<&Environment>,
    notes: &mut Vec<String>,
) -> Result<Vec<Table>, String> {
    let mut tables = Vec::new();
    // Shown at once, because the next ones take minutes.
    let mut keep = |table: Result<Table, String>| -> Result<(), String> {
        let table = table?;
        eprintln!("\n{}\n{}", table.title, table.text());
        tables.push(table);
        Ok(())
    };
    keep(ways(shell, options, environment, notes))?;
    keep(growth(shell, options))?;
    keep(density(shell, options))?;
    if options.times {
        keep(partitions(shell, options))?;
        keep(straggler(shell, options))?;
        if let Some(environment) = environment {
            keep(one_host(shell, options, environment))?;
        }
    }
    Ok(tables)
}

/// What there is of everything in each round, and the medians.
fn rounds<T>(
    options: &Options,
    all: &[T],
    mut measure: impl FnMut(usize, &T) -> Result<Option<Seen>, String>,
) -> Result<Vec<Seen>, String> {
    let mut seen: Vec<Vec<Seen>> = all.iter().map(|_| Vec::new()).collect();
    for round in 1..=options.rounds {
        for (one, seen) in all.iter().zip(&mut seen) {
            seen.extend(measure(round, one)?);
        }
    }
    Ok(seen.iter().map(|rounds| Seen::median(rounds)).collect())
}

fn mb(bytes: f64) -> String {
    format!("{:.2}", bytes / 1e6)
}

fn rows(n: f64) -> String {
    if n > 0.0 { format!("{n:.0}") } else { "-".into() }
}

/// The same model in several ways, on 4 hosts with 2 workers each.
fn ways(
    shell: &Shell,
    options: &Options,
    environment: Option<&Environment>,
    notes: &mut Vec<String>,
) -> Result<Table, String> {
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
    let way = |title, args: &[&'static str]| Way {
        title,
        steps: (FEW, options.steps),
        args: args.to_vec(),
        once: false,
        script: None,
    };
    let mut cases = vec![
        way("hybrid", &["--strategy", "hybrid"]),
        way("rows gathered by all", &["--strategy", "allreduce"]),
        way("all on servers", &["--strategy", "ps"]),
        way("all on servers, naive", &["--strategy", "ps", "--naive"]),
        way("hybrid, naive", &["--strategy", "hybrid", "--naive"]),
        Way {
            steps: (1, 1),
            once: true,
            ..way("tables made dense", &["--strategy", "allreduce", "--dense"])
        },
    ];
    if environment.is_some() {
        let peers = [(DDP, "benches/parallax/peer.py"), (RPC, "benches/parallax/rpc_peer.py")];
        cases.extend(peers.map(|(title, script)| Way {
            once: true,
            script: Some(script),
            ..way(title, &[])
        }));
    }
    let all = rounds(options, &cases, |round, way| {
        if way.once && round > 1 {
            return Ok(None);
        }
        eprintln!("round {round} of {}, 4 hosts x 2 workers, {} ...", options.rounds, way.title);
        let Some((script, environment)) = way.script.zip(environment) else {
            return farm.measure(shell, options, 2, way.steps, &way.args).map(Some);
        };
        let program = [environment.python.clone().into(), shell.root.join(script).into()];
        let world = |args: &[&str]| farm.processes(shell, options, 2, &program, args);
        farm.difference(way.steps, world, &way.args).map(Some)
    })?;
    let mut first: Option<Seen> = None;
    for (Way { title, .. }, seen) in cases.iter().zip(all) {
        let title = *title;
        let hybrid = *first.get_or_insert(seen);
        let (union, raw) = (seen.pulled * ROW_BYTES, ROWS_PER_TOKEN * options.tokens as f64);
        let dense = 4.0 * DENSE_BYTES * f;
        let formula = match title {
            "hybrid" => dense + 4.0 * union * f,
            "rows gathered by all" => dense + 2.0 * (h * g - 1.0) * raw * GATHERED_BYTES,
            // Of a dense variable every row is a row of a table, of another width.
            "all on servers" => 4.0 * DENSE_BYTES * f + 4.0 * hybrid.pulled * ROW_BYTES * f,
            "all on servers, naive" => 4.0 * g * (DENSE_BYTES + raw * ROW_BYTES) * f,
            "hybrid, naive" => dense + 4.0 * g * raw * ROW_BYTES * f,
            DDP | RPC => f64::NAN,
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
            if formula.is_nan() { "-".into() } else { mb(formula) },
            goal(fewer, bytes_goal),
            rows(seen.given),
            pushed,
            times(format!("{:.0}", seen.ms)),
            times(goal(faster, time_goal)),
        ]);
    }
    if options.times {
        eprintln!("one process ...");
        let alone = Farm::new(shell, 1, &options.rate)?;
        let seen =
            alone.world(shell, options, 1, &["--strategy", "allreduce", "--warm", "2", "--steps", "20"])?;
        notes
            .push(format!("one process alone, which exchanges nothing, takes {:.1} ms for a step.", seen.ms));
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
    for hosts in [2u32, 4, 8, 12] {
        let farm = Farm::new(shell, hosts, &options.rate)?;
        let (n, f) = (f64::from(hosts), f64::from(hosts - 1) / f64::from(hosts));
        eprintln!("{hosts} hosts x 1 worker ...");
        let steps = (1, 3);
        let gathered = farm.measure(shell, options, 1, steps, &["--strategy", "allreduce"])?;
        let hybrid = farm.measure(shell, options, 1, steps, &["--strategy", "hybrid"])?;
        let dense = 4.0 * DENSE_BYTES * f;
        let raw = dense + 2.0 * (n - 1.0) * ROWS_PER_TOKEN * options.tokens as f64 * GATHERED_BYTES;
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
    eprintln!("a search ...");
    let searched = ["--strategy", "hybrid", "--search", "1", "--steps", "3"];
    let found = farm.world(shell, options, 1, &searched)?.partitions as u32;
    let powers = (0..=10).map(|power| 1u32 << power);
    let mut all: Vec<u32> = powers.chain([found]).collect();
    all.sort_unstable();
    all.dedup();
    let seen = rounds(options, &all, |round, partitions| {
        eprintln!("round {round} of {}, {partitions} partitions ...", options.rounds);
        let text = partitions.to_string();
        let args = ["--strategy", "hybrid", "--partitions", &text, "--warm", "2", "--steps", "9"];
        farm.world(shell, options, 1, &args).map(Some)
    })?;
    let best = seen.iter().map(|seen| seen.ms).fold(f64::INFINITY, f64::min);
    for (partitions, Seen { ms, .. }) in all.iter().zip(seen) {
        let behind = (ms / best - 1.0) * 100.0;
        let (name, verdict) = match *partitions == found {
            true => {
                (format!("{partitions}, found"), format!("{behind:+.1} %, goal 5 % {}", mark(behind <= 5.0)))
            }
            false => (partitions.to_string(), format!("{behind:+.1} %")),
        };
        table.push(vec![name, format!("{ms:.1}"), verdict]);
    }
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
    for tokens in ["60", "500", "4000"] {
        eprintln!("{tokens} rows of 2,000 ...");
        let seen = rounds(options, &["allreduce", "hybrid", "auto"], |_, way| {
            let args = ["--strategy", way, "--tokens", tokens, "--rows", "2000"];
            farm.measure(shell, options, 1, (1, 9), &args).map(Some)
        })?;
        let [gathered, hybrid, auto] = seen[..] else { return Err("three ways were measured".into()) };
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
    let both = [("sync", &[][..]), ("async", &["--asynchronous"])];
    let all = rounds(options, &both, |round, (title, extra)| {
        eprintln!("round {round} of {}, a straggler, {title} ...", options.rounds);
        let base = ["--strategy", "ps", "--tokens", "40", "--pause-ms", "80", "--straggle-ms", "400"];
        let limit = if *title == "sync" { ["--steps", "15"] } else { ["--for-ms", "8000"] };
        let args: Vec<&str> = base.iter().chain(*extra).chain(&limit).copied().collect();
        farm.world(shell, options, 4, &args).map(Some)
    })?;
    for ((title, _), seen) in both.into_iter().zip(all) {
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

/// The language model of `bench torch` with sparse gradients, its table on both ranks and on servers.
fn one_host(shell: &Shell, options: &Options, environment: &Environment) -> Result<Table, String> {
    eprintln!("one host, 2 ranks with torch ...");
    let modes = [
        ("single", "one process"),
        ("phalanx", "table on both ranks"),
        ("phalanx-served", "table on servers"),
    ];
    let figures =
        torch::raced(shell, environment, "lm-sparse", &modes.map(|(mode, _)| mode), 1.0, options.rounds)?;
    let columns = [
        "way",
        "ms",
        "against both ranks",
        "MB of memory of the rank with the most",
        "with the least",
        "both ranks less",
    ];
    let title = "One host, 2 ranks: the language model of `bench torch` with sparse gradients, a table of 200,000 rows; the host's server is in its first rank";
    let mut table = Table::new(title.into(), 1, &columns);
    let [time, memory, least] =
        ["", " memory", " least memory"].map(|what| move |mode: &str| (format!("{mode}{what}"), "lm-sparse"));
    let of = |(what, model): (String, &str)| figures.get(&what, model);
    for (mode, title) in modes {
        let (ms, most, fewest) = (of(time(mode)), of(memory(mode)), of(least(mode)));
        let is_served = mode == "phalanx-served";
        let goal = is_served.then_some(1.0);
        let sum = |mode: &str| Some(of(memory(mode))? + of(least(mode))?);
        let less = sum("phalanx").zip(sum(mode)).filter(|_| is_served).map(|(both, own)| both - own);
        let is_alone = mode == "single";
        table.push(vec![
            title.into(),
            ms.map_or("-".into(), |ms| format!("{ms:.1}")),
            if is_alone { "-".into() } else { ratio(ms, of(time("phalanx")), goal) },
            most.map_or("-".into(), mb),
            fewest.filter(|_| !is_alone).map_or("-".into(), mb),
            less.map_or("-".into(), mb),
        ]);
    }
    Ok(table)
}
