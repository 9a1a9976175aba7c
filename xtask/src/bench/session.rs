//! `cargo xtask bench session`: what a session costs beside its steps, and how fast checkpoints are saved and loaded.

use super::{
    asked::{self, Asked, tell},
    page,
    table::{Table, mark, ratio},
};
use crate::{
    process::{Output, Shell},
    profile::Profile,
    python::{self, Torch},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

pub const HELP: &str = "\
cargo xtask bench session [OPTIONS]

  --rounds 5         how often saves and loads are repeated; medians are told
  --mb 400           megabytes of state
  --out FILE         the page to write; default docs/benchmarks-session.md; - for none
";

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
const RUN_LIMIT: Duration = Duration::from_secs(10 * 60);
/// What a session may add to a step: microseconds, and a part of the step.
const ADDED_US: f64 = 30.0;
const ADDED_PART: f64 = 0.02;
/// Milliseconds until a checkpoint is seen.
const SEEN_MS: f64 = 50.0;
/// How much of the time of plain writes a save may take: it is to reach 0.8 of their speed.
const OF_PLAIN: f64 = 1.25;
/// How much of a memcpy of its share the step may take that saves.
const OF_COPY: f64 = 1.5;
/// How much of the time of reading the files a load may take.
const OF_READ: f64 = 1.2;

/// Median, least and most milliseconds by what was measured.
type Figures = BTreeMap<String, [f64; 3]>;

#[derive(Debug, PartialEq)]
struct Options {
    rounds: u32,
    mb: u32,
    out: Option<String>,
}

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    let Some(options) = parse(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    let command = asked::command("session", args, &[]);
    eprintln!("building ...");
    let mut build =
        shell.cargo("build --release --package phalanx-launch --bin phalanx --package phalanx-train");
    build.args([
        "--example",
        "session_bench",
        "--package",
        "phalanx-checkpoint",
        "--example",
        "checkpoint_bench",
    ]);
    shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    let environment = python::ready(shell, Torch::Pinned, Profile::Release)?;
    if !environment.has_torch {
        return Err("there is no torch to measure with".into());
    }
    let examples = shell.built(Profile::Release, "examples");
    let _ = fs::remove_dir_all(shell.target().join("bench-session")); // Of an earlier run.
    let folder = fresh(&shell.target(), "bench-session")?;
    eprintln!("steps of a session against the bare loop, 2 ranks ...");
    let mut steps = shell.command(shell.built(Profile::Release, "phalanx"));
    steps
        .args(["run", "-np", "2", "--bind", "--tag-output", "never", "--"])
        .arg(examples.join("session_bench"))
        .arg(&folder);
    let steps = shell.must(&mut steps, Output::Kept, RUN_LIMIT)?.stdout;
    eprintln!("saves and loads of {} MB ...", options.mb);
    let mut files = shell.command(examples.join("checkpoint_bench"));
    files.arg(&folder).args([options.mb.to_string(), options.rounds.to_string()]);
    let files = shell.must(&mut files, Output::Kept, RUN_LIMIT)?.stdout;
    eprintln!("the same by a session, torch.save and torch.distributed.checkpoint, 2 ranks ...");
    let mut saves = shell.command(environment.python.with_file_name("phalanx"));
    saves
        .args(["run", "-np", "2", "--tag-output", "never", "--"])
        .arg(&environment.python)
        .arg(Path::new("benches/session/saves.py"))
        .arg(fresh(&folder, "saves")?)
        .args([options.mb.to_string(), options.rounds.to_string()])
        .env("OMP_NUM_THREADS", "1")
        .current_dir(&shell.root);
    let saves = shell.must(&mut saves, Output::Kept, RUN_LIMIT)?.stdout;
    let _ = fs::remove_dir_all(&folder);
    let (files, saves) = (figures(&files, "files")?, figures(&saves, "saves")?);
    let tables = [
        steps_table(&steps)?,
        saves_table(&saves, options.mb),
        stall_table(&saves, options.mb),
        files_table(&files, options.mb),
        loads_table(&files, &saves, options.mb),
    ];
    tell(shell, &tables, options.out.as_deref(), |machine| page::session(&command, machine, &tables))
}

/// A new folder in another one.
fn fresh(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let path = folder.join(name);
    fs::create_dir_all(&path).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
    Ok(path)
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options { rounds: 5, mb: 400, out: Some("docs/benchmarks-session.md".into()) };
    let mut asked = Asked::new("session", HELP, args);
    while let Some(flag) = asked.flag() {
        match flag {
            "--help" | "-h" => return Ok(None),
            "--rounds" => options.rounds = asked.number(flag)?,
            "--mb" => options.mb = asked.number(flag)?,
            "--out" => options.out = asked.page(flag)?,
            other => return Err(asked.bad(other)),
        }
    }
    Ok(Some(options))
}

/// The lines of `session_bench`.
fn steps_table(text: &str) -> Result<Table, String> {
    let columns = ["what", "bare loop", "session with all hooks", "added", "goal"];
    let mut table = Table::new("A step of a session, 2 ranks (microseconds)".into(), 1, &columns);
    let figure = |text: &str| text.trim().parse::<f64>().map_err(|_| format!("{text:?} is not a figure"));
    for line in text.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["session", case, bare, session] => {
                let (bare, session) = (figure(bare)?, figure(session)?);
                let (added, part) = (session - bare, (session - bare) / bare);
                let goal = format!("2 % and 30 us {}", mark(added <= ADDED_US && part <= ADDED_PART));
                let added = format!("{added:.1} ({:.1} %)", part * 100.0);
                table.push(vec![case.into(), format!("{bare:.1}"), format!("{session:.1}"), added, goal]);
            }
            ["seen", ms] => {
                let ms = figure(ms)?;
                let goal = format!("50 ms {}", mark(ms <= SEEN_MS));
                table.push(vec![
                    "a checkpoint is seen".into(),
                    "-".into(),
                    "-".into(),
                    format!("{ms:.1} ms after its manifest"),
                    goal,
                ]);
            }
            _ => {}
        }
    }
    Ok(table)
}

/// The lines of a program: its word, what, median, least and most.
fn figures(text: &str, word: &str) -> Result<Figures, String> {
    let mut found = Figures::new();
    for line in text.lines() {
        let [first, what, rest @ ..] = &line.split('\t').collect::<Vec<_>>()[..] else { continue };
        if *first == word {
            let all: Result<Vec<f64>, _> = rest.iter().map(|text| text.trim().parse()).collect();
            let three = all.ok().and_then(|all| <[f64; 3]>::try_from(all).ok());
            found.insert(what.to_string(), three.ok_or_else(|| format!("{line:?} has no three figures"))?);
        }
    }
    if found.is_empty() { Err(format!("no figures were printed:\n{text}")) } else { Ok(found) }
}

fn median(figures: &Figures, what: &str) -> Option<f64> {
    figures.get(what).map(|[median, ..]| *median)
}

/// What was measured, its time and range, and cells behind it.
fn row(figures: &Figures, what: &str, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    let [middle, low, high] = figures.get(what).copied().unwrap_or([f64::NAN; 3]);
    let mut row = vec![what.to_string(), format!("{middle:.1}"), format!("{low:.1} to {high:.1}")];
    row.extend(cells);
    row
}

const SESSION: &str = "session";
const SENT: &str = "session, shards sent to rank 0";
const WRITE: &str = "plain write + fsync of a share on each rank";
const TORCH: [&str; 3] =
    ["torch.save + fsync on rank 0", "torch.distributed.checkpoint", "torch.save without fsync on rank 0"];

/// How long until a checkpoint is on the disk.
fn saves_table(saves: &Figures, mb: u32) -> Table {
    let columns = ["saved by", "time", "range", "session / this"];
    let title = format!("{mb} MB of state on the disk, 2 ranks (milliseconds)");
    let mut table = Table::new(title, 1, &columns);
    let ours = median(saves, SESSION);
    let against = |what: &str, goal: Option<f64>| ratio(ours, median(saves, what), goal);
    table.push(row(saves, SESSION, ["-".to_string()]));
    table.push(row(saves, WRITE, [against(WRITE, Some(OF_PLAIN))]));
    table.push(row(saves, TORCH[0], [against(TORCH[0], Some(1.0))]));
    table.push(row(saves, TORCH[1], [against(TORCH[1], Some(1.0))]));
    table.push(row(saves, TORCH[2], [against(TORCH[2], None)]));
    table.push(row(saves, SENT, [against(SENT, None)]));
    table
}

/// How long the training stands still.
fn stall_table(saves: &Figures, mb: u32) -> Table {
    let columns = ["a step that saves", "time", "range", "this / memcpy"];
    let title = format!("What the training waits for, {mb} MB of state, 2 ranks (milliseconds)");
    let mut table = Table::new(title, 1, &columns);
    let copy = "memcpy of a share";
    let step = format!("{SESSION}: the step");
    table.push(row(saves, copy, ["-".to_string()]));
    for (what, goal) in [
        (step.as_str(), Some(OF_COPY)),
        ("session: the first step", None),
        ("session, shards sent to rank 0: the step", None),
        (TORCH[0], None),
        (TORCH[1], None),
    ] {
        table.push(row(saves, what, [ratio(median(saves, what), median(saves, copy), goal)]));
    }
    table
}

/// What one process does.
fn files_table(files: &Figures, mb: u32) -> Table {
    let columns = ["what", "time", "range", "this / plain write"];
    let mut table = Table::new(format!("Files of {mb} MB, one process (milliseconds)"), 1, &columns);
    let plain = "plain write + fsync";
    table.push(row(files, "copy into kept memory", ["-".to_string()]));
    table.push(row(files, plain, ["-".to_string()]));
    for (what, goal) in [("save (from the copy)", Some(OF_PLAIN)), ("save (from the state)", None)] {
        table.push(row(files, what, [ratio(median(files, what), median(files, plain), goal)]));
    }
    table
}

/// How long a load takes, by one process and by two ranks.
fn loads_table(files: &Figures, saves: &Figures, mb: u32) -> Table {
    let columns = ["what", "time", "range", "this / plain read"];
    let title = format!("Loading {mb} MB that the system has in memory (milliseconds)");
    let mut table = Table::new(title, 1, &columns);
    table.push(row(files, "plain read", ["-".to_string()]));
    let load = ratio(median(files, "load"), median(files, "plain read"), Some(OF_READ));
    table.push(row(files, "load", [load]));
    let read = "plain read on rank 0";
    table.push(row(saves, read, ["-".to_string()]));
    for what in ["session resumes", "torch.load on each rank", "its load"] {
        let mut cells = row(saves, what, [ratio(median(saves, what), median(saves, read), None)]);
        cells[0] = what.replace("its load", "load of torch.distributed.checkpoint") + ", 2 ranks";
        table.push(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_become_rows_with_their_goals() {
        let text = "session\t1 ms\t1000.0\t1015.0\nnoise\nsession\tLeNet\t9000\t9100\nseen\t3.5\n";
        let table = steps_table(text).unwrap().text();
        assert!(table.contains("15.0 (1.5 %)") && table.contains("2 % and 30 us ✓"), "{table}");
        assert!(table.contains("100.0 (1.1 %)") && table.contains("2 % and 30 us ✗"), "{table}");
        assert!(table.contains("50 ms ✓"), "{table}");
        assert!(steps_table("session\ta\tb\tc").is_err());
    }

    #[test]
    fn lines_of_programs_become_ratios() {
        let lines: String = [
            (SESSION, 100.0),
            (WRITE, 90.0),
            (TORCH[0], 200.0),
            (TORCH[1], 80.0),
            ("memcpy of a share", 20.0),
            ("session: the step", 29.0),
        ]
        .map(|(what, ms)| format!("saves\t{what}\t{ms}\t1.0\t300\n"))
        .concat();
        let saves = figures(&format!("noise\n{lines}"), "saves").unwrap();
        let table = saves_table(&saves, 400).text();
        for says in ["1.11x, goal 1.25 ✓", "0.50x, goal 1.00 ✓", "1.25x, goal 1.00 ✗"] {
            assert!(table.contains(says), "{says}: {table}");
        }
        assert!(stall_table(&saves, 400).text().contains("1.45x, goal 1.50 ✓"));
        let files = figures("files\tplain read\t10\t9\t11\nfiles\tload\t13\t9\t20\n", "files").unwrap();
        assert!(loads_table(&files, &saves, 400).text().contains("1.30x, goal 1.20 ✗"));
        assert!(figures("saves\ta\tb\tc\td", "saves").is_err() && figures("", "saves").is_err());
    }

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let parse = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        assert_eq!(parse("--mb 10 --out -").unwrap().unwrap(), Options { rounds: 5, mb: 10, out: None });
        assert!(parse("--mb 0").is_err() && parse("--fast").is_err() && parse("--help").unwrap().is_none());
    }
}
