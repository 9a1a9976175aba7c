//! `cargo xtask fuzz`: feeds made-up bytes to everything that takes bytes from outside, guided by what of the code they reach.
//!
//! The compiler of the project builds the targets: the pass of LLVM that counts what is reached is in every compiler, and libFuzzer comes as
//! source with its crate. Neither a nightly compiler nor cargo-fuzz is needed. What reached something new is kept in `target/fuzz/corpus`, and
//! the next run starts with it.

use crate::process::{Output, Shell};
use std::{fs, path::Path, time::Duration};

pub const HELP: &str = "\
cargo xtask fuzz [TARGET] [--seconds N]

  Builds the fuzz targets of fuzz/fuzz_targets and runs each for N seconds (10), or only the one that is named. A crash, a hang of more than
  10 s and more than 1 GiB of memory are failures; the input is kept, and the command that repeats it is printed. Needs a C++ compiler.
";

/// The build, which takes minutes the first time.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// For the end of a run, and a last input that takes long.
const MORE: Duration = Duration::from_secs(60);
/// A target that does fewer was not fuzzed.
const LEAST_RUNS: u64 = 1000;

/// What of the code an input reaches, and with what it was compared.
const COUNTED: [&str; 8] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Ccodegen-units=1",
];

#[derive(Debug, PartialEq, Eq)]
struct Asked {
    target: Option<String>,
    seconds: u64,
}

pub fn run(shell: &Shell, flags: &[String]) -> Result<(), String> {
    if let [flag] = flags
        && ["--help", "-h"].contains(&flag.as_str())
    {
        print!("{HELP}");
        return Ok(());
    }
    let all = targets(&shell.root)?;
    let asked = asked(flags, &all)?;
    let wanted: Vec<&String> = match &asked.target {
        Some(target) => vec![target],
        None => all.iter().collect(),
    };
    let host = host(shell)?;
    build(shell, &host, asked.target.as_deref())?;
    let mut failed = Vec::new();
    for target in wanted {
        match fuzz(shell, &host, target, asked.seconds) {
            Ok(stats) => println!(
                "{target:16} {:>10} runs {:>9} a second, reaches {} places",
                stats.n_runs,
                stats.n_runs / asked.seconds.max(1),
                stats.n_reached
            ),
            Err(_) if shell.interrupted() => return Err("interrupted".into()),
            Err(why) => {
                println!("{target:16} FAILED");
                eprintln!("{why}");
                failed.push(target.as_str());
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

fn asked(flags: &[String], all: &[String]) -> Result<Asked, String> {
    let mut asked = Asked { target: None, seconds: 10 };
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        if flag == "--seconds" {
            let value = flags.next().ok_or("--seconds needs a number")?;
            asked.seconds = match value.parse() {
                Ok(seconds @ 1..) => seconds,
                _ => return Err(format!("--seconds {value:?} is not a whole number from 1")),
            };
        } else if asked.target.is_none() && all.contains(flag) {
            asked.target = Some(flag.clone());
        } else {
            return Err(format!("fuzz does not know {flag:?}; targets: {}\n\n{HELP}", all.join(", ")));
        }
    }
    Ok(asked)
}

/// The names of the files in `fuzz/fuzz_targets`.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let folder = root.join("fuzz/fuzz_targets");
    let listed = fs::read_dir(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let stem = |entry: fs::DirEntry| Some(entry.path().file_stem()?.to_str()?.to_string());
    let mut names: Vec<String> = listed.flatten().filter_map(stem).collect();
    names.sort_unstable();
    Ok(names)
}

/// The name of this machine's kind. Cargo applies flags to build scripts and macros, too, unless a target is named.
fn host(shell: &Shell) -> Result<String, String> {
    let said = shell.must(shell.command("rustc").arg("-vV"), Output::Kept, MORE)?.stdout;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(ToString::to_string).ok_or_else(|| format!("rustc does not say for which machine it is: {said}"))
}

fn build(shell: &Shell, host: &str, target: Option<&str>) -> Result<(), String> {
    // The same versions as everywhere else; cargo adds what only the fuzz targets use.
    let (ours, theirs) = (shell.root.join("Cargo.lock"), shell.root.join("fuzz/Cargo.lock"));
    let when = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    if when(&theirs) < when(&ours) {
        fs::copy(&ours, &theirs).map_err(|why| format!("{}: {why}", theirs.display()))?;
    }
    let mut cargo = shell.cargo("build --release --manifest-path fuzz/Cargo.toml");
    cargo.args(["--target", host]).env("CARGO_TARGET_DIR", shell.target().join("fuzz"));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", COUNTED.join("\x1f")).env_remove("RUSTFLAGS");
    match target {
        Some(target) => cargo.args(["--bin", target]),
        None => cargo.arg("--bins"),
    };
    shell.must(&mut cargo, Output::Shown, BUILD_LIMIT).map(drop)
}

/// What libFuzzer counted.
#[derive(Debug, PartialEq, Eq)]
struct Stats {
    n_runs: u64,
    n_reached: u64,
}

fn fuzz(shell: &Shell, host: &str, target: &str, seconds: u64) -> Result<Stats, String> {
    let folder = shell.target().join("fuzz");
    let (corpus, kept) = (folder.join("corpus").join(target), folder.join("artifacts").join(target));
    for folder in [&corpus, &kept] {
        fs::create_dir_all(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    }
    let program = folder.join(host).join("release").join(target);
    let mut command = shell.command(&program);
    command.arg(&corpus).arg(format!("-artifact_prefix={}/", kept.display()));
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-dict={}", shell.root.join("fuzz/words.dict").display()));
    command.args(["-use_value_profile=1", "-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
    let done = shell.run(&mut command, Output::Kept, Duration::from_secs(seconds) + MORE)?;
    if let Err(why) = done.check() {
        let input = done.text.lines().find_map(|line| line.split("Test unit written to ").nth(1));
        let again = input.map(|input| format!("\n\nrepeat it with: {} {input}", program.display()));
        return Err(format!("{}\n{target}: {why}{}", last_lines(&done.text), again.unwrap_or_default()));
    }
    let stats =
        stats(&done.text).ok_or_else(|| format!("no counts of libFuzzer:\n{}", last_lines(&done.text)))?;
    match stats.n_runs < LEAST_RUNS {
        true => Err(format!("{target}: only {} runs in {seconds} s; give it more --seconds", stats.n_runs)),
        false => Ok(stats),
    }
}

/// The counts at the end of what libFuzzer says.
fn stats(said: &str) -> Option<Stats> {
    let n_runs = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    let reached = said.lines().rev().find_map(|line| line.split(" cov: ").nth(1)?.split(' ').next());
    Some(Stats { n_runs: n_runs.trim().parse().ok()?, n_reached: reached?.parse().ok()? })
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(ToString::to_string).collect()
    }

    #[test]
    fn a_target_and_a_time_are_read_and_other_words_refused() {
        let all = words("down up");
        assert_eq!(asked(&[], &all), Ok(Asked { target: None, seconds: 10 }));
        let one = asked(&words("--seconds 3 up"), &all);
        assert_eq!(one, Ok(Asked { target: Some("up".into()), seconds: 3 }));
        for (line, why) in [
            ("sideways", "targets: down, up"),
            ("up down", "does not know \"down\""),
            ("--seconds", "needs a number"),
            ("--seconds 0", "is not a whole number from 1"),
        ] {
            let error = asked(&words(line), &all).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn every_file_is_a_target_that_cargo_builds() {
        let shell = Shell::new().unwrap();
        let manifest = fs::read_to_string(shell.root.join("fuzz/Cargo.toml")).unwrap();
        let mut built: Vec<&str> = manifest.lines().filter_map(|line| line.strip_prefix("name = ")).collect();
        built.retain(|name| *name != "\"phalanx-fuzz\"");
        built.sort_unstable();
        let files: Vec<String> =
            targets(&shell.root).unwrap().iter().map(|name| format!("{name:?}")).collect();
        assert_eq!(built, files);
    }

    #[test]
    fn what_libfuzzer_counted_is_read() {
        let said = "#2\tINITED cov: 7 ft: 8 corp: 1/1b exec/s: 0 rss: 30Mb\n#9\tDONE   cov: 12 ft: 8 corp: 1/1b\nstat::number_of_executed_units: 4711\n";
        assert_eq!(stats(said), Some(Stats { n_runs: 4711, n_reached: 12 }));
        assert_eq!(stats("Killed"), None);
    }
}
