//! `cargo xtask bench session`: what a session costs beside its steps, and how fast checkpoints are saved and loaded.

use super::{
    machine, page,
    table::{Table, mark},
};
use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::{fs, time::Duration};

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
    let command = format!("cargo xtask bench session {}", args.join(" ")).trim_end().to_string();
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
    let (examples, folder) =
        (shell.built(Profile::Release, "examples"), shell.target().join("bench-session"));
    let _ = fs::remove_dir_all(&folder); // Of an earlier run.
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
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
    let _ = fs::remove_dir_all(&folder);
    let tables = [steps_table(&steps)?];
    for table in &tables {
        println!("\n{}\n{}", table.title, table.text());
    }
    println!("\n{files}");
    if let Some(out) = &options.out {
        let text = page::session(&command, &machine::describe(shell), &tables, &files);
        fs::write(shell.root.join(out), text).map_err(|e| format!("cannot write {out}: {e}"))?;
        eprintln!("\nwritten to {out}");
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options { rounds: 5, mb: 400, out: Some("docs/benchmarks-session.md".into()) };
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
        let bad = |text: &str| format!("bench session: {text:?} cannot be used here\n\n{HELP}");
        let number = |text: &String| text.parse().ok().filter(|n| *n > 0).ok_or_else(|| bad(text));
        match flag.as_str() {
            "--help" | "-h" => return Ok(None),
            "--rounds" => options.rounds = number(value()?)?,
            "--mb" => options.mb = number(value()?)?,
            "--out" => options.out = Some(value()?.clone()).filter(|out| out != "-"),
            other => return Err(bad(other)),
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
    fn options_are_read_and_nonsense_is_refused() {
        let parse = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        assert_eq!(parse("--mb 10 --out -").unwrap().unwrap(), Options { rounds: 5, mb: 10, out: None });
        assert!(parse("--mb 0").is_err() && parse("--fast").is_err() && parse("--help").unwrap().is_none());
    }
}
