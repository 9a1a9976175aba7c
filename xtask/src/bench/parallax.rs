//! `cargo xtask bench parallax`: tables on servers against rows that everybody gathers, between hosts with slow links.
//!
//! A host is a network namespace; a bridge in a namespace of its own joins them, and tbf limits each link in both directions. Bytes are those of
//! the hosts' interfaces: a long run less a short one, so that meeting and ending count for nothing.

use super::{machine, page, table::Table};
use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

pub const HELP: &str = "\
cargo xtask bench parallax [OPTIONS]

  --rate 200mbit     of each host's link, in each direction
  --steps 12         steps that count
  --rows 100000      of each of the two tables
  --tokens 1280      row numbers of each table in a step of a worker
  --profile release  or demo, or test: bytes do not depend on it, times do
  --built            builds nothing: takes the example that is there
  --no-times         bytes only: leaves out what only times show
  --out FILE         the page to write; default docs/benchmarks-parallax.md; - for none
";

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
const RUN_LIMIT: Duration = Duration::from_secs(5 * 60);
const INTERFACE: &str = "cable0";
/// Steps of the short run.
const FEW: usize = 3;
const WIDTH: usize = 64;
/// Two layers, 64 to 2,560 and back, with their biases.
const DENSE_BYTES: f64 = ((64 * 2560 + 2560 + 2560 * 64 + 64) * 4) as f64;
/// A row and its number.
const ROW_BYTES: f64 = (WIDTH * 4 + 4) as f64;

#[derive(Clone, Debug, PartialEq)]
struct Options {
    rate: String,
    steps: usize,
    rows: usize,
    tokens: usize,
    profile: Profile,
    times: bool,
    is_built: bool,
    out: Option<String>,
}

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    let Some(options) = parse(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces need root".into());
    }
    let command = format!("cargo xtask bench parallax {}", args.join(" ")).trim_end().to_string();
    let mut build = shell.cargo("build --package phalanx-train --example parallax_bench");
    build.args(["--profile", options.profile.name()]);
    if !options.is_built {
        shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    }
    let mut tables = vec![ways(shell, &options)?, growth(shell, &options)?, density(shell, &options)?];
    if options.times {
        tables.push(straggler(shell, &options)?);
    }
    for table in &tables {
        println!("\n{}\n{}", table.title, table.text());
    }
    if let Some(out) = &options.out {
        let page = page::parallax(&command, &machine::describe(shell), &tables);
        fs::write(shell.root.join(out), page).map_err(|e| format!("cannot write {out}: {e}"))?;
        eprintln!("\nwritten to {out}");
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options {
        rate: "200mbit".into(),
        steps: 12,
        rows: 100_000,
        tokens: 1280,
        profile: Profile::Release,
        times: true,
        is_built: false,
        out: Some("docs/benchmarks-parallax.md".into()),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"));
        let number = |text: &String| text.parse().ok().filter(|&n: &usize| n > 0);
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--no-times" => options.times = false,
            "--built" => options.is_built = true,
            "--rate" => options.rate = value()?.clone(),
            "--out" => options.out = Some(value()?.clone()).filter(|out| out != "-"),
            "--steps" | "--rows" | "--tokens" => {
                let text = value()?;
                let n = number(text).ok_or_else(|| format!("{arg} {text} is not a number above 0"))?;
                match arg.as_str() {
                    "--steps" => options.steps = n,
                    "--rows" => options.rows = n,
                    _ => options.tokens = n,
                }
            }
            "--profile" => {
                let text = value()?;
                let all = [Profile::Release, Profile::Demo, Profile::Test];
                let found = all.into_iter().find(|profile| profile.name() == text);
                options.profile = found.ok_or_else(|| format!("there is no profile {text}\n\n{HELP}"))?;
            }
            other => return Err(format!("what is {other}?\n\n{HELP}")),
        }
    }
    Ok(Some(options))
}

/// What one world of workers did.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// In and out of a host in a step.
    bytes: f64,
    /// The median of rank 0's steps.
    ms: f64,
    /// Of a host in a step: rows that servers were asked for, that workers gave, that went to servers.
    pulled: f64,
    given: f64,
    pushed: f64,
    /// Steps of all workers.
    steps: f64,
}

/// The same model three ways, on 4 hosts with 2 workers each.
fn ways(shell: &Shell, options: &Options) -> Result<Table, String> {
    let farm = Farm::new(shell, 4, &options.rate)?;
    let mut table = Table::new(
        "R1, R3, R6: 4 hosts x 2 workers".into(),
        1,
        &[
            "way",
            "MB of a host in a step",
            "by the formula",
            "against gathered",
            "rows given",
            "rows pushed",
            "ms",
        ],
    );
    let (h, g) = (4.0, 2.0);
    let f = (h - 1.0) / h;
    let mut gathered = None;
    for (way, title) in
        [("allreduce", "rows gathered by all"), ("hybrid", "hybrid"), ("ps", "all on servers")]
    {
        eprintln!("4 hosts x 2 workers, {title} ...");
        let seen = farm.measure(shell, options, 2, &["--strategy", way])?;
        let union = seen.pulled * ROW_BYTES;
        let raw = 2.0 * options.tokens as f64 * (ROW_BYTES + 4.0);
        let formula = match way {
            "allreduce" => 4.0 * DENSE_BYTES * f + 2.0 * (h * g - 1.0) * raw,
            "hybrid" => 4.0 * DENSE_BYTES * f + 4.0 * union * f,
            // Of a dense variable every row is a row of a table.
            _ => 4.0 * union * f,
        };
        let first = *gathered.get_or_insert(seen.bytes);
        let (goal, ratio) = (2.2, first / seen.bytes);
        let ratio = match way {
            "hybrid" => format!("{ratio:.2}x fewer, goal {goal} {}", if ratio >= goal { "✓" } else { "✗" }),
            _ => format!("{ratio:.2}x"),
        };
        let rows = |n: f64| if n > 0.0 { format!("{n:.0}") } else { "-".into() };
        let mb = |bytes: f64| format!("{:.2}", bytes / 1e6);
        let ms = if options.times { format!("{:.0}", seen.ms) } else { "-".into() };
        table.push(vec![
            title.into(),
            mb(seen.bytes),
            mb(formula),
            ratio,
            rows(seen.given),
            rows(seen.pushed),
            ms,
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
        format!("{:.2} ({off:+.1} %, goal 8 % {})", bytes / 1e6, if off.abs() <= 8.0 { "✓" } else { "✗" })
    };
    for hosts in [2, 4, 8] {
        let farm = Farm::new(shell, hosts, &options.rate)?;
        let f = (hosts as f64 - 1.0) / hosts as f64;
        eprintln!("{hosts} hosts x 1 worker ...");
        let gathered = farm.measure(shell, options, 1, &["--strategy", "allreduce"])?;
        let hybrid = farm.measure(shell, options, 1, &["--strategy", "hybrid"])?;
        let dense = 4.0 * DENSE_BYTES * f;
        let raw = dense + 2.0 * (hosts as f64 - 1.0) * 2.0 * options.tokens as f64 * (ROW_BYTES + 4.0);
        let served = dense + 4.0 * hybrid.pulled * ROW_BYTES * f;
        let mb = |bytes: f64| format!("{:.2}", bytes / 1e6);
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

/// More and more of the tables is touched in a step.
fn density(shell: &Shell, options: &Options) -> Result<Table, String> {
    let farm = Farm::new(shell, 4, &options.rate)?;
    let mut table = Table::new(
        "R8: rows of a worker in a step, 4 hosts x 1 worker, MB of a host in a step".into(),
        1,
        &["rows", "gathered", "hybrid", "auto", "auto against the better"],
    );
    for part in [16, 4, 1] {
        let tokens = (options.tokens / part).max(1).to_string();
        eprintln!("{tokens} rows ...");
        let of = |way: &str| farm.measure(shell, options, 1, &["--strategy", way, "--tokens", &tokens]);
        let [gathered, hybrid, auto] = [of("allreduce")?, of("hybrid")?, of("auto")?].map(|seen| seen.bytes);
        let behind = (auto / gathered.min(hybrid) - 1.0) * 100.0;
        let mark = if behind <= 10.0 { "✓" } else { "✗" };
        let mb = |bytes: f64| format!("{:.2}", bytes / 1e6);
        table.push(vec![
            tokens.clone(),
            mb(gathered),
            mb(hybrid),
            mb(auto),
            format!("{behind:+.1} %, goal 10 % {mark}"),
        ]);
    }
    Ok(table)
}

/// One of four workers is slow; the others wait for it, or do not.
fn straggler(shell: &Shell, options: &Options) -> Result<Table, String> {
    let farm = Farm::new(shell, 1, "10gbit")?;
    let mut table = Table::new(
        "R14: steps of 4 workers in 8 seconds, one of them sleeps 400 ms in each step".into(),
        1,
        &["way", "steps", "against sync"],
    );
    let mut first = None;
    for (title, extra) in [("sync", &[][..]), ("async", &["--asynchronous"])] {
        let base = ["--strategy", "ps", "--tokens", "40", "--straggle-ms", "400"];
        let limit = if title == "sync" { ["--steps", "20"] } else { ["--for-ms", "8000"] };
        let args: Vec<&str> = base.iter().chain(extra).chain(&limit).copied().collect();
        let seen = farm.world(shell, options, 4, &args)?;
        // In sync all workers run alike, so that a number of steps says as much.
        let steps = if title == "sync" { 4.0 * 8000.0 / seen.ms.max(1.0) } else { seen.steps };
        let ratio = steps / *first.get_or_insert(steps);
        let goal = match title {
            "sync" => "1.00x".to_string(),
            _ => format!("{ratio:.2}x, goal 3.5 {}", if ratio >= 3.5 { "✓" } else { "✗" }),
        };
        table.push(vec![title.into(), format!("{steps:.0}"), goal]);
    }
    Ok(table)
}

/// Namespaces around a bridge, which go when the measurement ends, however it does.
struct Farm {
    hosts: Vec<String>,
    switch: String,
}

impl Farm {
    fn new(shell: &Shell, n: usize, rate: &str) -> Result<Farm, String> {
        let pid = std::process::id();
        let hosts = (0..n).map(|i| format!("phx{pid}h{i}")).collect();
        // From here on it is dropped, and everything removed, whatever fails.
        let farm = Farm { hosts, switch: format!("phx{pid}sw") };
        let call = |program: &str, args: String| {
            let mut command = shell.command(program);
            command.args(args.split_whitespace());
            shell.must(&mut command, Output::Kept, Duration::from_secs(20)).map(drop)
        };
        let switch = &farm.switch;
        call("ip", format!("netns add {switch}"))?;
        call("ip", format!("-n {switch} link add bridge0 type bridge"))?;
        call("ip", format!("-n {switch} link set bridge0 up"))?;
        for (i, host) in farm.hosts.iter().enumerate() {
            call("ip", format!("netns add {host}"))?;
            call("ip", format!("-n {host} link add {INTERFACE} type veth peer name port{i} netns {switch}"))?;
            call("ip", format!("-n {host} addr add {}/24 dev {INTERFACE}", address(i)))?;
            call("ip", format!("-n {host} link set {INTERFACE} up"))?;
            call("ip", format!("-n {host} link set lo up"))?;
            call("ip", format!("-n {switch} link set port{i} master bridge0 up"))?;
            let shape = format!("root tbf rate {rate} burst 256kb latency 100ms");
            call("tc", format!("-n {host} qdisc add dev {INTERFACE} {shape}"))?;
            call("tc", format!("-n {switch} qdisc add dev port{i} {shape}"))?;
        }
        Ok(farm)
    }

    /// A long run less a short one.
    fn measure(
        &self,
        shell: &Shell,
        options: &Options,
        workers: usize,
        args: &[&str],
    ) -> Result<Seen, String> {
        let mut both = Vec::new();
        for steps in [FEW, FEW + options.steps] {
            let text = steps.to_string();
            let args: Vec<&str> = args.iter().copied().chain(["--warm", "1", "--steps", &text]).collect();
            let before = self.bytes(shell)?;
            let mut seen = self.world(shell, options, workers, &args)?;
            seen.bytes = self.bytes(shell)? - before;
            both.push(seen);
        }
        let (short, long, n) = (both[0], both[1], options.steps as f64);
        let of_host = |a: f64, b: f64| (b - a) / n / self.hosts.len() as f64;
        Ok(Seen {
            bytes: of_host(short.bytes, long.bytes),
            ms: long.ms,
            pulled: of_host(short.pulled, long.pulled),
            given: of_host(short.given, long.given),
            pushed: of_host(short.pushed, long.pushed),
            steps: long.steps,
        })
    }

    /// What all hosts have sent and received.
    fn bytes(&self, shell: &Shell) -> Result<f64, String> {
        let mut sum = 0.0;
        for host in &self.hosts {
            let mut command = shell.command("nsenter");
            command.args([&format!("--net=/run/netns/{host}"), "cat", "/proc/net/dev"]);
            let done = shell.must(&mut command, Output::Kept, Duration::from_secs(20))?;
            sum += counted(&done.stdout).ok_or_else(|| format!("{host} has no {INTERFACE}"))?;
        }
        Ok(sum)
    }

    /// Runs this many workers on each host; sums what they say.
    fn world(&self, shell: &Shell, options: &Options, workers: usize, args: &[&str]) -> Result<Seen, String> {
        let program: PathBuf = shell.built(options.profile, "examples/parallax_bench");
        let n = self.hosts.len() * workers;
        let (mut script, mut rank) = ("pids=\n".to_string(), 0);
        for host in &self.hosts {
            for local in 0..workers {
                script += &format!(
                    "RANK={rank} LOCAL_RANK={local} PHALANX_HOST_ID={host} nsenter --net=/run/netns/{host} \"$@\" & pids=\"$pids $!\"\n"
                );
                rank += 1;
            }
        }
        script += "code=0\nfor pid in $pids; do wait $pid || code=$?; done\nexit $code\n";
        let (rows, tokens) = (options.rows.to_string(), options.tokens.to_string());
        let has_tokens = args.contains(&"--tokens");
        let secret = format!("{:064x}", std::process::id());
        let mut command = shell.command("sh");
        command
            .args(["-c", &script, "sh"])
            .arg(&program)
            .args(["--rows", &rows])
            .args((!has_tokens).then_some(["--tokens", &tokens]).into_iter().flatten())
            .args(args)
            .env("WORLD_SIZE", n.to_string())
            .env("LOCAL_WORLD_SIZE", workers.to_string())
            .env("MASTER_ADDR", address(0))
            .env("MASTER_PORT", "29511")
            .env("PHALANX_SECRET", secret)
            .env("PHALANX_ENCRYPT", "never");
        let done = shell.must(&mut command, Output::Kept, RUN_LIMIT)?;
        summed(&done.stdout).ok_or_else(|| format!("the workers said nothing:\n{}", done.text))
    }
}

fn address(host: usize) -> String {
    format!("10.198.0.{}", host + 1)
}

impl Drop for Farm {
    fn drop(&mut self) {
        // Not through the shell, which starts nothing after Ctrl-C. What does not exist needs no removing.
        for name in self.hosts.iter().chain([&self.switch]) {
            let mut command = Command::new("ip");
            command
                .args(["netns", "del", name])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let _ = command.status();
        }
    }
}

/// Bytes in and out of the interface, of a table of `/proc/net/dev`.
fn counted(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(INTERFACE)?.strip_prefix(':'))?;
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Some(numbers.first()? + numbers.get(8)?)
}

/// What the lines of all workers say together.
fn summed(text: &str) -> Option<Seen> {
    let mut seen: Option<Seen> = None;
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let Ok(said) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let number = |name: &str| said[name].as_f64().unwrap_or(0.0);
        let all = seen.get_or_insert_default();
        all.pulled += number("pulled_rows");
        all.given += number("given_rows");
        all.pushed += number("pushed_rows");
        all.steps += number("steps");
        if number("rank") == 0.0 {
            all.ms = number("ms");
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_lines_are_read() {
        let text = " face |bytes\n  lo: 5 0 0 0 0 0 0 0 5 0\ncable0: 100 1 0 0 0 0 0 0 23 1 0\n";
        assert_eq!(counted(text), Some(123.0));
        assert_eq!(counted("lo: 5"), None);
        let lines = "noise\n{\"rank\":1,\"ms\":9.0,\"steps\":4,\"pulled_rows\":3}\n{\"rank\":0,\"ms\":2.5,\"steps\":4,\"pulled_rows\":5}\n";
        let seen = summed(lines).unwrap();
        assert_eq!((seen.ms, seen.steps, seen.pulled), (2.5, 8.0, 8.0));
        assert!(summed("nothing").is_none());
    }

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let parse = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let options = parse("--profile test --steps 3 --no-times --out -").unwrap().unwrap();
        assert_eq!(
            (options.profile, options.steps, options.times, options.out),
            (Profile::Test, 3, false, None)
        );
        assert!(parse("--steps 0").is_err() && parse("--profile fast").is_err() && parse("--quick").is_err());
        assert!(parse("--help").unwrap().is_none());
    }
}
