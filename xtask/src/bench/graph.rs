//! `cargo xtask bench graph`: the graph's kernels, steps and memory against PyTorch on one thread, and two replicas against one.

use super::{
    asked::{self, Asked, tell},
    page,
    table::{Table, mark},
};
use crate::{
    process::{Output, Shell},
    profile::Profile,
    python::{self, Missing, Torch},
};
use std::time::Duration;

pub const HELP: &str = "\
cargo xtask bench graph [OPTIONS] [PART OF A CASE'S NAME ...]

  --rounds 2         how often everything is repeated; of each case the best round counts
  --avx2             both sides without AVX-512, to see what a CPU with AVX2 does
  --out FILE         the page to write; default docs/benchmarks-graph.md; - for none
";

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
const RUN_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Samples a second of two replicas on two cores, as a multiple of one's.
const SCALING: f64 = 1.8;
/// Nanoseconds that the scheduler may take for a task.
const TASK_NS: f64 = 1000.0;

/// What keeps PyTorch and its libraries from AVX-512.
const AVX2: [(&str, &str); 3] =
    [("ATEN_CPU_CAPABILITY", "avx2"), ("ONEDNN_MAX_CPU_ISA", "AVX2"), ("MKL_ENABLE_INSTRUCTIONS", "AVX2")];

#[derive(Debug, PartialEq)]
struct Options {
    rounds: usize,
    avx2: bool,
    cases: Vec<String>,
    out: Option<String>,
}

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    let Some(options) = parse(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    let command = asked::command("graph", args, &[]);
    eprintln!("building ...");
    let features = if options.avx2 { "--no-default-features" } else { "" };
    let mut build =
        shell.cargo(&format!("build --release --package phalanx-graph --examples --quiet {features}"));
    shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    let examples = shell.built(Profile::Release, "examples");
    let environment = python::environment(shell, Torch::Pinned).map_err(Missing::into_text)?;
    if !environment.has_torch {
        return Err("there is no torch to measure with".into());
    }
    let mut scaling = String::new();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}, two replicas against one ...", options.rounds);
        let mut command = shell.command(examples.join("graph_scaling"));
        scaling += &shell.must(&mut command, Output::Kept, RUN_LIMIT)?.stdout;
    }
    let mut compare = shell.command(&environment.python);
    compare.arg("benches/graph/compare.py").arg(examples.join("graph_bench"));
    compare.arg(options.rounds.to_string()).args(&options.cases);
    compare.env("OMP_NUM_THREADS", "1").current_dir(&shell.root);
    if options.avx2 {
        compare.envs(AVX2);
    }
    let rows = shell.must(&mut compare, Output::Both, RUN_LIMIT)?.stdout;
    let tables = [times(&rows)?, memory(&rows)?, replicas(&scaling)?, tasks(&scaling)?];
    tell(shell, &tables, options.out.as_deref(), |machine| page::graph(&command, machine, &tables))
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let out = Some("docs/benchmarks-graph.md".into());
    let mut options = Options { rounds: 2, avx2: false, cases: Vec::new(), out };
    let mut asked = Asked::new("graph", HELP, args);
    while let Some(flag) = asked.flag() {
        match flag {
            "--help" | "-h" => return Ok(None),
            "--rounds" => options.rounds = asked.number(flag)?,
            "--avx2" => options.avx2 = true,
            "--out" => options.out = asked.page(flag)?,
            other if other.starts_with('-') => return Err(asked.bad(other)),
            case => options.cases.push(case.to_string()),
        }
    }
    Ok(Some(options))
}

/// The cells of lines that begin with this word.
fn rows<'a, const N: usize>(text: &'a str, word: &str) -> Result<Vec<[&'a str; N]>, String> {
    let mut rows = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        if cells[0] == word {
            rows.push(cells[1..].try_into().map_err(|_| format!("unreadable: {line}"))?);
        }
    }
    Ok(rows)
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("{text:?} is no figure"))
}

fn times(text: &str) -> Result<Table, String> {
    let columns = ["case", "ours", "PyTorch", "PyTorch / ours", "by best times"];
    let mut table = Table::new("One step or product on one thread (microseconds)".into(), 1, &columns);
    for [case, ours, torch, ratio, by_best, goal] in rows(text, "time")? {
        let met = mark(number(ratio)? >= number(goal)?);
        let judged = format!("{ratio}x, goal {goal} {met}");
        table.push([case, ours, torch, &judged, by_best].map(String::from).to_vec());
    }
    Ok(table)
}

fn memory(text: &str) -> Result<Table, String> {
    let columns =
        ["model", "plan on", "plan off", "PyTorch", "on / off", "on / PyTorch", "arena on", "arena off"];
    let title = "Resident memory of training steps beyond parameters and feeds, at most (MB)";
    let mut table = Table::new(title.into(), 1, &columns);
    for [case, cells @ ..] in rows::<6>(text, "memory")? {
        let mut bytes = [0.0; 5];
        for (byte, cell) in bytes.iter_mut().zip(cells) {
            *byte = number(cell)?;
        }
        let [on, off, torch, arena_on, arena_off] = bytes;
        let mb = |bytes: f64| format!("{:.1}", bytes / 1e6);
        let of = |other: f64| format!("{:.2}x", on / other);
        table.push(vec![
            case.to_string(),
            mb(on),
            mb(off),
            mb(torch),
            of(off),
            of(torch),
            mb(arena_on),
            mb(arena_off),
        ]);
    }
    Ok(table)
}

fn replicas(text: &str) -> Result<Table, String> {
    let columns = ["mode", "one replica", "two replicas", "ratio"];
    let title = "Samples a second, MLP of 784-512-512-512-10 with Adam, 64 samples for each replica";
    let mut table = Table::new(title.into(), 1, &columns);
    for [mode, one, two, ratio] in rows(text, "scaling")? {
        let met = mark(number(ratio)? >= SCALING);
        let judged = format!("{ratio}x, goal {SCALING} {met}");
        table.push([mode, one, two, &judged].map(String::from).to_vec());
    }
    Ok(table)
}

fn tasks(text: &str) -> Result<Table, String> {
    let columns = ["threads", "tasks", "nanoseconds a task"];
    let mut table = Table::new("Dry runs: what the scheduler costs".into(), 1, &columns);
    for [threads, n_tasks, ns] in rows(text, "dry run")? {
        let met = mark(number(ns)? < TASK_NS);
        let judged = format!("{ns}, goal below {TASK_NS} {met}");
        table.push([threads, n_tasks, &judged].map(String::from).to_vec());
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_tables_and_goals_are_judged() {
        let text = "a note\ntime\tblock\t10.0\t9.0\t0.90\t0.91\t0.8\ntime\tmlp\t10.0\t9.0\t0.90\t0.91\t1.0\n\
                    memory\tmlp\t1000000\t4000000\t2000000\t900000\t3900000\n";
        let seen = times(text).unwrap();
        assert_eq!((seen.score().met, seen.score().of), (1, 2), "{}", seen.text());
        let seen = memory(text).unwrap().text();
        assert!(seen.contains("0.25x") && seen.contains("0.50x"), "{seen}");
        let text = "scaling\tReduce\t100\t185\t1.85\ndry run\t2\t99\t1200\n";
        assert_eq!((replicas(text).unwrap().score().met, tasks(text).unwrap().score().met), (1, 0));
        assert!(times("time\tblock\t1\n").is_err() && times("time\ta\t1\t1\tx\t1\t1\n").is_err());
    }

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let parse = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let some = parse("--rounds 3 --avx2 --out - block").unwrap().unwrap();
        assert_eq!(some, Options { rounds: 3, avx2: true, cases: vec!["block".into()], out: None });
        assert!(parse("--rounds 0").is_err() && parse("--fast").is_err() && parse("--out").is_err());
        assert!(parse("--help").unwrap().is_none());
    }
}
