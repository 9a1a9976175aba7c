//! `cargo xtask test`: everything that must hold. Goes on after a failure, so that one run tells all of them.

use crate::{
    counts::{self, Counts},
    examples,
    process::{Output, Shell},
    python,
    stage::{self, CLIPPY, FORMAT, TIDY, Verdict},
};
use std::{io::IsTerminal, process::Command};

struct Line {
    name: &'static str,
    verdict: Verdict,
    counts: Counts,
}

pub fn run(shell: &Shell) -> Result<(), String> {
    let has_nextest = shell.works(&mut shell.cargo("nextest --version"));
    notes(has_nextest);
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |name, verdict: Verdict| {
        let mut counts = Counts::parse(&verdict.text);
        // A stage that fails without naming a test counts as one.
        counts.failed = counts.failed.max(u64::from(verdict.failure.is_some()));
        let word = if verdict.failure.is_some() { "FAILED" } else { "ok" };
        eprintln!("{word:7} {name:14} {:>8}", stage::seconds(verdict.took));
        lines.push(Line { name, verdict, counts });
    };

    for stage in [FORMAT, TIDY, CLIPPY] {
        add(stage.name, stage.run(shell, Output::Shown));
    }
    // Cargo does not build these for the tests of the C library, and a test is no place to wait for a compiler.
    let built = "build --profile test -p phalanx-c -p phalanx-launch --quiet";
    add("test build", stage::run(shell, &mut shell.cargo(built), Output::Shown));
    add("tests", stage::run(shell, &mut tests(shell, has_nextest), Output::Both));
    add(
        "doc tests",
        stage::run(shell, &mut with_colour(shell.cargo("test --workspace --doc")), Output::Both),
    );
    let built = stage::time(|| examples::build(shell).map(|()| String::new()));
    let is_built = built.failure.is_none();
    add("release build", built);
    if is_built {
        let mut n_failed = 0;
        let mut verdict = stage::time(|| {
            let (n_passed, failed) = examples::run(shell)?;
            n_failed = failed.len();
            let names: String = failed.iter().map(|name| format!("test {name} ... FAILED\n")).collect();
            Ok(format!("{names}test result: {n_passed} passed; {n_failed} failed"))
        });
        if n_failed > 0 {
            verdict.failure = Some(format!("{n_failed} examples failed"));
        }
        add("examples", verdict);
    }
    if let Some(verdict) = python_tests(shell) {
        add("Python", verdict);
    }
    summary(&lines)
}

/// The tests of the Python package; nothing where there is no Python to test it with.
fn python_tests(shell: &Shell) -> Option<Verdict> {
    let environment = match python::environment(shell, python::Torch::Pinned) {
        Ok(environment) => environment,
        Err(python::Missing::Python(why)) => {
            eprintln!("note: {why}; the Python package is not tested");
            return None;
        }
        Err(python::Missing::Failed(why)) => {
            eprintln!(
                "note: packages for the Python tests cannot be installed ({why}); the Python package is not tested"
            );
            return None;
        }
    };
    Some(stage::time(|| {
        python::install_package(shell, &environment)?;
        python::test(shell, &environment)
    }))
}

fn tests(shell: &Shell, has_nextest: bool) -> Command {
    with_colour(if has_nextest {
        shell.cargo("nextest run --workspace --no-fail-fast")
    } else {
        shell.cargo("test --workspace --no-fail-fast --lib --bins --tests")
    })
}

/// Cargo writes into our pipe and would leave its colours out.
fn with_colour(mut command: Command) -> Command {
    if std::io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command
}

/// What this machine cannot do, and what that means.
fn notes(has_nextest: bool) {
    if !has_nextest {
        eprintln!(
            "note: cargo-nextest is not installed; `cargo test` runs the tests, without a deadline for each. \
             `cargo install --locked cargo-nextest` brings it."
        );
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("note: not root; tests between network namespaces skip themselves and say so.");
    }
    eprintln!(
        "note: cargo fetches the crates of Cargo.lock if they are not here yet; packages for the Python tests go into the user's cache, and are announced."
    );
}

fn summary(lines: &[Line]) -> Result<(), String> {
    let mut all = Counts::default();
    eprintln!("\n{:14} {:>9} {:>8} {:>8}", "stage", "time", "passed", "failed");
    for line in lines {
        let Counts { passed, failed } = line.counts;
        let number = |n: u64| if n == 0 { "-".to_string() } else { n.to_string() };
        let why =
            line.verdict.failure.as_deref().map(|w| format!("   {}", first_line(w))).unwrap_or_default();
        eprintln!(
            "{:14} {:>9} {:>8} {:>8}{why}",
            line.name,
            stage::seconds(line.verdict.took),
            number(passed),
            number(failed)
        );
        all.add(line.counts);
    }
    eprintln!();
    for name in failing_names(lines) {
        eprintln!("FAILED  {name}");
    }
    println!("{} passed, {} failed", all.passed, all.failed);
    if lines.iter().any(|l| l.verdict.failure.is_some()) {
        return Err("some stages failed; see the table above".into());
    }
    Ok(())
}

/// Every test that failed; a stage that failed without naming one stands for itself.
fn failing_names(lines: &[Line]) -> Vec<String> {
    let of_line = |line: &Line| {
        let names = counts::failing(&line.verdict.text);
        match &line.verdict.failure {
            Some(why) if names.is_empty() => vec![format!("{}: {}", line.name, first_line(why))],
            _ => names,
        }
    };
    lines.iter().flat_map(of_line).collect()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_end_repeats_the_names_of_failing_tests() {
        let line = |name, failure: Option<&str>, text: &str| Line {
            name,
            verdict: Verdict {
                took: Duration::ZERO,
                failure: failure.map(str::to_string),
                text: text.to_string(),
            },
            counts: Counts::default(),
        };
        let lines = [
            line("format", Some("exit status: 1\nmore"), ""),
            line("tidy", None, ""),
            line("tests", Some("exit status: 100"), "test a ... ok\ntest b::c ... FAILED\n"),
        ];
        assert_eq!(failing_names(&lines), ["format: exit status: 1", "b::c"]);
    }
}
