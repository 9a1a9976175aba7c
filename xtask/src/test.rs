//! `cargo xtask test`: everything that must hold. Goes on after a failure, so that one run tells all of them.
//!
//! Everything that runs is built once, while Python's packages are installed, with one profile and one set of features: tests, examples, the command, both libraries. Then tests
//! and examples run, and Python beside them: all of them wait a lot. Clippy and the doc tests have the cores meanwhile, with the lowest priority.

mod lines;
mod nextest;
pub mod skips;

use crate::{
    examples, frameworks, lint,
    process::{Output, Shell},
    profile::Profile,
    python::{self, Missing},
    stage::{self, CLIPPY, FORMAT, TIDY, Verdict},
};
use lines::Lines;
use nextest::Listed;
use std::{io::IsTerminal, process::Command, sync::Mutex, thread};

/// All that the other stages run. The libraries are nobody's dependency: only `--all-targets` names them.
const BUILD: &str = "build --workspace --all-targets --profile test";

pub fn run(shell: &Shell, flags: &[String]) -> Result<(), String> {
    let asked = frameworks::asked(flags)?;
    let has_nextest = shell.works(&mut shell.cargo("nextest --version"));
    notes(has_nextest, shell.works(shell.command("mpirun").arg("--version")));
    let lines = Mutex::new(Lines::default());
    // A lock for a list: each stage adds its line when it ends, on either thread.
    let add = |name, verdict: Verdict| lines.lock().expect("adding a line does not fail").add(name, verdict);
    for stage in [FORMAT, TIDY] {
        add(stage.name, stage.run(shell, Output::Shown));
    }
    thread::scope(|scope| {
        // Packages are downloaded while the compiler has the cores.
        let environment = scope.spawn(|| python::environment(shell, python::Torch::Pinned));
        let mut built = stage::run(shell, &mut with_colour(shell.cargo(BUILD)), Output::Shown);
        let listed = (has_nextest && built.failure.is_none()).then(|| nextest::list(shell));
        let listed = listed.transpose().unwrap_or_else(|why| {
            built.failure = Some(why);
            None
        });
        let is_built = built.failure.is_none();
        add("build", built);
        let beside = scope.spawn(|| {
            // What runs has the cores first; a system without priorities is slower, not wrong.
            let _ = rustix::process::setpriority_process(None, 19);
            add(CLIPPY.name, CLIPPY.run(shell, Output::Kept));
            let mut docs = with_colour(shell.cargo("test --workspace --doc"));
            add("doc tests", stage::run(shell, &mut docs, Output::Kept));
        });
        if is_built {
            let python = scope.spawn(|| {
                let environment = environment.join().expect("an environment that cannot be is an error");
                let (verdict, environment) = python_tests(shell, environment);
                add("Python", verdict);
                if let Some(environment) = environment {
                    for framework in &frameworks::ALL {
                        let is_asked = asked.contains(&framework.name);
                        add(framework.name, frameworks::test(shell, &environment, framework, is_asked));
                    }
                    add("Python types", lint::run(shell, &environment));
                }
            });
            add("tests", rust_tests(shell, listed.as_ref()));
            add("examples", example_runs(shell));
            python.join().expect("stages end with a verdict");
        }
        beside.join().expect("stages end with a verdict");
    });
    lines.into_inner().expect("adding a line does not fail").summary()
}

fn rust_tests(shell: &Shell, listed: Option<&Listed>) -> Verdict {
    let report = skips::report(shell);
    // So that no count is that of an earlier run.
    let _ = std::fs::remove_file(&report);
    let tests = match listed {
        Some(listed) => listed.command(shell),
        None => shell.cargo("test --workspace --no-fail-fast --lib --bins --tests"),
    };
    let mut verdict = stage::run(shell, with_colour(tests).env(IS_BUILT, "1"), Output::Both);
    verdict.skips = std::fs::read_to_string(report).map(|text| skips::told(&text)).unwrap_or_default();
    verdict
}

/// Tells tests that need the command and the library for C that both are built: a test is no place to wait for a compiler.
const IS_BUILT: &str = "PHALANX_TEST_IS_BUILT";

fn example_runs(shell: &Shell) -> Verdict {
    let mut n_failed = 0;
    let mut verdict = stage::time(|| {
        let (n_passed, failed) = examples::run(shell, Profile::Test)?;
        n_failed = failed.len();
        let names: String = failed.iter().map(|name| format!("test {name} ... FAILED\n")).collect();
        Ok(format!("{names}test result: {n_passed} passed; {n_failed} failed"))
    });
    if n_failed > 0 {
        verdict.failure = Some(format!("{n_failed} examples failed"));
    }
    verdict
}

/// The tests of the Python package. Where there is no Python to test it with, all of them are skipped, and the end says so.
fn python_tests(
    shell: &Shell,
    environment: Result<python::Environment, Missing>,
) -> (Verdict, Option<python::Environment>) {
    let environment = match environment {
        Ok(environment) => environment,
        Err(missing) => {
            let why = match missing {
                Missing::Python(why) => why,
                Missing::Failed(why) => format!("its packages cannot be installed ({})", first_line(&why)),
            };
            let skipped =
                skips::Skips { n: skips::python_tests(&shell.root), why: vec![format!("Python: {why}")] };
            return (Verdict { skips: skipped, ..Verdict::default() }, None);
        }
    };
    let start = std::time::Instant::now();
    let mut verdict = match python::install_built(shell, &environment) {
        Ok(()) => python::test(shell, &environment),
        Err(why) => Verdict::failed(why),
    };
    verdict.took = start.elapsed();
    if !environment.has_torch {
        verdict.skips.why.push("torch: it is not installed and cannot be".to_string());
    }
    (verdict, Some(environment))
}

/// Cargo writes into our pipe and would leave its colours out.
fn with_colour(mut command: Command) -> Command {
    if std::io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command
}

/// What this machine cannot do, and what that means.
fn notes(has_nextest: bool, has_mpirun: bool) {
    if !has_nextest {
        eprintln!(
            "note: cargo-nextest is not installed; `cargo test` runs the tests, without a deadline for each. \
             `cargo install --locked cargo-nextest` brings it."
        );
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("note: not root; tests between network namespaces skip themselves and say so.");
    }
    if !has_mpirun {
        eprintln!("note: mpirun is not installed (Debian: openmpi-bin); tests under it skip themselves.");
    }
    eprintln!(
        "note: cargo fetches the crates of Cargo.lock if they are not here yet; packages for the Python tests go into the user's cache, and are announced."
    );
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
