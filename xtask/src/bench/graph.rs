//! `cargo xtask bench graph`: the graph's kernels, steps and memory against PyTorch on one thread, two replicas against one, and Reduce
//! against AllReduce on several ranks.

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
use std::{collections::BTreeSet, time::Duration};

pub const HELP: &str = "\
cargo xtask bench graph [OPTIONS] [PART OF A CASE'S NAME | replicas | reduce ...]

  with names         only these cases; `replicas` is two replicas against one, `reduce` is Reduce on 2 and 4 ranks
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
/// How many ranks train with Reduce, and which part of AllReduce's memory the states of its fullest rank may take.
const RANKS: [(usize, Option<f64>); 2] = [(2, None), (4, Some(0.3))];
/// Blocks of steps of each strategy in a round.
const BLOCKS: usize = 9;
/// Names of what is no case.
const SECTIONS: [&str; 2] = ["replicas", "reduce"];

/// What keeps PyTorch and its libraries from AVX-512.
const AVX2: [(&str, &str); 3] =
    [("ATEN_CPU_CAPABILITY", "avx2"), ("ONEDNN_MAX_CPU_ISA", "AVX2"), ("MKL_ENABLE_INSTRUCTIONS", "AVX2")];

#[derive(Debug, PartialEq)]
struct Options {
    rounds: usize,
    avx2: bool,
    cases: Vec<String>,
    sections: BTreeSet<&'static str>,
    out: Option<String>,
}

impl Options {
    fn names_nothing(&self) -> bool {
        self.cases.is_empty() && self.sections.is_empty()
    }

    fn wants(&self, section: &str) -> bool {
        self.names_nothing() || self.sections.contains(section)
    }
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
    let (mut scaling, mut rows) = (String::new(), String::new());
    for round in 1..=options.rounds {
        if !options.wants("replicas") {
            break;
        }
        eprintln!("round {round} of {}, two replicas against one ...", options.rounds);
        let mut command = shell.command(examples.join("graph_scaling"));
        scaling += &shell.must(&mut command, Output::Kept, RUN_LIMIT)?.stdout;
    }
    let reduced = if options.wants("reduce") { on_ranks(shell, options.rounds)? } else { Vec::new() };
    if options.names_nothing() || !options.cases.is_empty() {
        let mut compare = shell.command(&environment.python);
        compare.arg("benches/graph/compare.py").arg(examples.join("graph_bench"));
        compare.arg(options.rounds.to_string()).args(&options.cases);
        compare.env("OMP_NUM_THREADS", "1").current_dir(&shell.root);
        if options.avx2 {
            compare.envs(AVX2);
        }
        rows = shell.must(&mut compare, Output::Both, RUN_LIMIT)?.stdout;
    }
    let mut tables =
        vec![times(&rows)?, memory(&rows)?, replicas(&scaling)?, tasks(&scaling)?, reduce(&reduced)?];
    tables.retain(Table::is_worth_showing);
    tell(shell, &tables, options.out.as_deref(), |machine| page::graph(&command, machine, &tables))
}

/// What each number of ranks prints. Built here, because the command and the example need crates that nothing else here does.
fn on_ranks(shell: &Shell, rounds: usize) -> Result<Vec<String>, String> {
    let mut build = shell.cargo("build --release --quiet --package phalanx-launch --bin phalanx");
    build.args(["--package", "phalanx-train", "--example", "reduce_bench"]);
    shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    let mut all = Vec::new();
    for (n, _) in RANKS {
        eprintln!("Reduce against AllReduce, {n} ranks ...");
        let mut command = shell.command(shell.built(Profile::Release, "phalanx"));
        command.args(["run", "-np", &n.to_string(), "--tag-output", "never", "--"]);
        command.arg(shell.built(Profile::Release, "examples").join("reduce_bench"));
        command.arg((BLOCKS * rounds).to_string());
        all.push(shell.must(&mut command, Output::Kept, RUN_LIMIT)?.stdout);
    }
    Ok(all)
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let out = Some("docs/benchmarks-graph.md".into());
    let (cases, sections) = (Vec::new(), BTreeSet::new());
    let mut options = Options { rounds: 2, avx2: false, cases, sections, out };
    let mut asked = Asked::new("graph", HELP, args);
    while let Some(flag) = asked.flag() {
        match flag {
            "--help" | "-h" => return Ok(None),
            "--rounds" => options.rounds = asked.number(flag)?,
            "--avx2" => options.avx2 = true,
            "--out" => options.out = asked.page(flag)?,
            other if other.starts_with('-') => return Err(asked.bad(other)),
            name => match SECTIONS.into_iter().find(|section| *section == name) {
                Some(section) => {
                    options.sections.insert(section);
                }
                None => options.cases.push(name.to_string()),
            },
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

/// From what `reduce_bench` prints on each number of ranks.
fn reduce(texts: &[String]) -> Result<Table, String> {
    let columns = [
        "ranks",
        "step, AllReduce (ms)",
        "step, Reduce (ms)",
        "Reduce / AllReduce",
        "states, AllReduce (MB)",
        "states, Reduce (MB)",
        "Reduce / AllReduce, states",
    ];
    let title = "Reduce across processes: a step with Adam, and the states that the fullest rank keeps";
    let mut table = Table::new(title.into(), 1, &columns);
    for text in texts {
        let steps = rows::<4>(text, "step")?;
        let &[[n, all_ms, reduce_ms, ratio]] = steps.as_slice() else {
            return Err(format!("reduce_bench printed no step:\n{text}"));
        };
        if !text.lines().any(|line| line == "same") {
            return Err(format!("Reduce has other bits than AllReduce on {n} ranks:\n{text}"));
        }
        let (mut all, mut fullest) = (0f64, 0f64);
        for [_, with_all, with_reduce, _] in rows::<4>(text, "states")? {
            (all, fullest) = (all.max(number(with_all)?), fullest.max(number(with_reduce)?));
        }
        let part = fullest / all;
        let goal = RANKS.iter().find(|(ranks, _)| ranks.to_string() == n).and_then(|(_, goal)| *goal);
        let of_states = match goal {
            Some(goal) => format!("{part:.2}x, goal {goal} {}", mark(part <= goal)),
            None => format!("{part:.2}x"),
        };
        let of_step = format!("{ratio}x, goal 1.0 {}", mark(number(ratio)? <= 1.0));
        let mb = |bytes: f64| format!("{:.1}", bytes / 1e6);
        table.push(
            [n, all_ms, reduce_ms, &of_step, &mb(all), &mb(fullest), &of_states].map(String::from).to_vec(),
        );
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_reduce_are_judged_by_time_and_memory() {
        let states = "states\t1\t1000000\t260000\t0.260\nstates\t0\t1000000\t240000\t0.240\n";
        let four = format!("{states}step\t4\t9.00\t9.90\t1.100\nsame\n");
        let two = "states\t1\t1000000\t500000\t0.500\nstep\t2\t9.00\t8.10\t0.900\nsame\n".to_string();
        let seen = reduce(&[two, four.clone()]).unwrap();
        // The states of two ranks have no goal; four are slower than they should be.
        assert_eq!((seen.score().met, seen.score().of), (2, 3), "{}", seen.text());
        assert!(seen.text().contains("0.26x, goal 0.3 ✓") && seen.text().contains("1.100x, goal 1.0 ✗"));
        assert!(reduce(&[four.replace("same", "different bits")]).unwrap_err().contains("other bits"));
        assert!(reduce(&[states.into()]).is_err());
        assert!(!reduce(&[]).unwrap().is_worth_showing());
    }

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
        let (cases, sections) = (vec!["block".into()], BTreeSet::new());
        assert_eq!(some, Options { rounds: 3, avx2: true, cases, sections, out: None });
        assert!(!some.wants("reduce") && !some.names_nothing());
        let some = parse("reduce").unwrap().unwrap();
        assert!(some.wants("reduce") && !some.wants("replicas") && some.cases.is_empty());
        assert!(parse("").unwrap().unwrap().wants("replicas"));
        assert!(parse("--rounds 0").is_err() && parse("--fast").is_err() && parse("--out").is_err());
        assert!(parse("--help").unwrap().is_none());
    }
}
