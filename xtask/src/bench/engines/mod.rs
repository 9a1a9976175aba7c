//! `cargo xtask bench engines`: how long ranks need to start under each engine, what encryption costs between hosts, and Open MPI over the same
//! network. One run, rounds of everybody interleaved, medians.

mod cluster;
mod slurm;
mod starts;
mod traffic;

use super::{
    asked::{self, Asked, tell},
    figures::Figures,
    net::Pair,
    page,
    table::{Table, mark, ratio, size},
};
use crate::process::{Output, Shell};
use cluster::Cluster;
use std::time::{Duration, Instant};

pub const HELP: &str = "\
cargo xtask bench engines [OPTIONS]          needs root, for network namespaces

  --rounds 5         how often everything is repeated; medians over the rounds are told
  --only PARTS       of starts,crowd,traffic; writes no page unless --out is given
  --out FILE         the page to write; default docs/benchmarks-engines.md; - for none

  Starts 2x2 ranks in two namespaces under phalanx run, Open MPI, MPICH and Slurm, and 256 ranks on this machine; measures allreduce of 2x2 ranks
  between the namespaces, plain, encrypted and under Open MPI, and at 1 Gbit/s. Engines that are absent are skipped with the package that has them.
";

const PARTS: [&str; 3] = ["starts", "crowd", "traffic"];
const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
/// No round begins later than this.
const ENOUGH: Duration = Duration::from_secs(110);
/// How much longer than `true` a world of 2x2 ranks may take to start and end, in seconds.
const START_GOAL: f64 = 0.5;
/// Encrypted over plain, on a network of 1 Gbit/s: time and bytes.
const TIME_GOAL: f64 = 1.15;
const BYTES_GOAL: f64 = 1.01;

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    let Some(Options { rounds, only, out }) = parse(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    let wants = |part: &'static str| only.as_ref().is_none_or(|only| only.contains(&part));
    if !rustix::process::geteuid().is_root() {
        return Err("bench engines needs root to make network namespaces".into());
    }
    let command = asked::command("engines", args, &[]);
    eprintln!("building phalanx and the programs of MPI ...");
    let mut build = shell.cargo("build --release --package phalanx-launch --quiet");
    shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    let pair = Pair::new(shell)?;
    let mut cluster = Cluster::new(shell, &pair)?;
    let (mut figures, begun) = (Figures::default(), Instant::now());
    let mut n_rounds = 0;
    while n_rounds < rounds && begun.elapsed() < ENOUGH {
        n_rounds += 1;
        if wants("starts") {
            eprintln!("round {n_rounds} of {rounds}: starting 2x2 ranks ...");
            starts::two_hosts(&mut cluster, &mut figures)?;
        }
        if wants("crowd") {
            eprintln!("round {n_rounds} of {rounds}: starting {} ranks ...", starts::CROWD);
            starts::crowd(&mut cluster, &mut figures)?;
        }
        if wants("traffic") {
            eprintln!("round {n_rounds} of {rounds}: allreduce between two hosts ...");
            traffic::unshaped(&mut cluster, &mut figures)?;
            eprintln!("round {n_rounds} of {rounds}: the same at 1 Gbit/s ...");
            traffic::shaped(&mut cluster, &mut figures)?;
        }
    }
    if wants("crowd") {
        eprintln!("starting {} ranks of MPI ...", starts::CROWD);
        starts::crowd_of_mpi(&mut cluster, &mut figures)?;
    }
    let took = begun.elapsed().as_secs();
    let crowd = starts::CROWD;
    cluster.note(format!(
        "rounds: {n_rounds}, in {took} s; {crowd} ranks of MPI were started once, after them."
    ));
    let tables = [start_table(&figures), crowd_table(&figures), tls_table(&figures), plain_table(&figures)];
    tell(shell, &tables, out.as_deref(), |machine| page::engines(&command, machine, &cluster.notes, &tables))
}

#[derive(Debug, PartialEq)]
struct Options {
    rounds: u32,
    only: Option<Vec<&'static str>>,
    out: Option<String>,
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let (mut rounds, mut only, mut out) = (5, None, None);
    let mut asked = Asked::new("engines", HELP, args);
    while let Some(flag) = asked.flag() {
        match flag {
            "--help" | "-h" => return Ok(None),
            "--rounds" => rounds = asked.number(flag)?,
            "--only" => only = Some(asked.list(flag, &PARTS)?),
            "--out" => out = Some(asked.page(flag)?),
            other => return Err(asked.bad(other)),
        }
    }
    let usual = only.is_none().then(|| "docs/benchmarks-engines.md".to_string());
    Ok(Some(Options { rounds, only, out: out.unwrap_or(usual) }))
}

fn seconds(value: Option<f64>) -> String {
    value.map_or("-".into(), |s| format!("{s:.2}"))
}

fn start_table(figures: &Figures) -> Table {
    let columns = ["launcher", "`true`", "a world of 2x2 ranks", "longer by", "goal"];
    let title = "Starting and ending 2x2 ranks on two hosts (seconds)".to_string();
    let mut table = Table::new(title, 1, &columns);
    for engine in cluster::ENGINES {
        let [idle, world] = ["true", "world"].map(|what| figures.get(what, engine.name()));
        let longer = idle.zip(world).map(|(idle, world)| world - idle);
        let goal = longer.map_or("-".into(), |s| format!("{START_GOAL} {}", mark(s <= START_GOAL)));
        table.push(vec![engine.name().into(), seconds(idle), seconds(world), seconds(longer), goal]);
    }
    table
}

fn crowd_table(figures: &Figures) -> Table {
    let columns = ["who", "`true`", "all have met and ended", "longer by"];
    let title = format!("Starting and ending {} ranks on this machine (seconds)", starts::CROWD);
    let mut table = Table::new(title, 1, &columns);
    for (who, name) in [
        ("ours", "a world under `phalanx run`"),
        ("openmpi", "MPI_Init and MPI_Finalize, Open MPI"),
        ("mpich", "MPI_Init and MPI_Finalize, MPICH"),
    ] {
        let [idle, met] = ["crowd true", "crowd"].map(|what| figures.get(what, who));
        let longer = idle.zip(met).map(|(idle, met)| met - idle);
        table.push(vec![name.into(), seconds(idle), seconds(met), seconds(longer)]);
    }
    table
}

fn tls_table(figures: &Figures) -> Table {
    let columns =
        ["network", "size", "plain", "encrypted", "time, encrypted / plain", "bytes, encrypted / plain"];
    let title = "Allreduce of f32, 2x2 ranks on two hosts, plain and encrypted (microseconds)".to_string();
    let mut table = Table::new(title, 2, &columns);
    for (network, name, goal) in
        [("shaped", "1 Gbit/s", Some((TIME_GOAL, BYTES_GOAL))), ("unshaped", "as fast as it goes", None)]
    {
        for bytes in traffic::LARGE {
            let get = |what: &str, who: &str| figures.get(&format!("{network} {what} {bytes}"), who);
            let (plain, tls) = (get("us", "plain"), get("us", "encrypted"));
            let us = |value: Option<f64>| value.map_or("-".into(), |us| format!("{us:.0}"));
            table.push(vec![
                name.into(),
                size(bytes),
                us(plain),
                us(tls),
                ratio(tls, plain, goal.map(|(time, _)| time)),
                ratio_of_bytes(
                    get("bytes", "encrypted"),
                    get("bytes", "plain"),
                    goal.map(|(_, bytes)| bytes),
                ),
            ]);
        }
    }
    table
}

/// Four digits: the goal is a hundredth.
fn ratio_of_bytes(ours: Option<f64>, other: Option<f64>, goal: Option<f64>) -> String {
    let Some((ours, other)) = ours.zip(other) else { return "-".into() };
    let ratio = ours / other;
    match goal {
        None => format!("{ratio:.4}x"),
        Some(goal) => format!("{ratio:.4}x, goal {goal} {}", mark(ratio <= goal)),
    }
}

fn plain_table(figures: &Figures) -> Table {
    let columns = ["size", "Open MPI over TCP", "ours, plain", "ours / Open MPI"];
    let title = "Allreduce of f32, 2x2 ranks on two hosts, nothing encrypted (microseconds)".to_string();
    let mut table = Table::new(title, 1, &columns);
    for bytes in super::goals::NET_SIZES {
        let get = |who: &str| figures.get(&format!("unshaped us {bytes}"), who);
        let us = |value: Option<f64>| value.map_or("-".into(), |us| format!("{us:.1}"));
        let (mpi, ours) = (get("openmpi"), get("plain"));
        table.push(vec![size(bytes), us(mpi), us(ours), ratio(ours, mpi, Some(1.0))]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_medians_differences_and_goals() {
        let mut figures = Figures::default();
        for (idle, world) in [(0.2, 0.4), (0.3, 0.6), (0.1, 2.0)] {
            figures.add("true", "phalanx run", idle);
            figures.add("world", "phalanx run", world);
        }
        assert_eq!(figures.get("world", "phalanx run"), Some(0.6));
        let text = start_table(&figures).text();
        let row = text.lines().find(|line| line.contains("phalanx run")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["phalanx run", "0.20", "0.60", "0.40", "0.5 ✓"]);
        assert_eq!(ratio_of_bytes(Some(1.02), Some(1.0), Some(1.01)), "1.0200x, goal 1.01 ✗");
    }

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let read = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let page = Some("docs/benchmarks-engines.md".to_string());
        assert_eq!(read(""), Ok(Some(Options { rounds: 5, only: None, out: page })));
        let only = Some(vec!["crowd"]);
        assert_eq!(read("--rounds 2 --only crowd"), Ok(Some(Options { rounds: 2, only, out: None })));
        assert_eq!(read("--help"), Ok(None));
        assert!(["--rounds 0", "--only x", "--out", "--fast"].iter().all(|line| read(line).is_err()));
    }
}
