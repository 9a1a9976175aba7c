//! `cargo xtask`: the project's own commands. Each is one module; this file only chooses.

mod bench;
mod check;
mod counts;
mod demo;
mod examples;
mod process;
mod stage;
mod test;
mod tidy;

use process::Shell;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  check          format, tidy, lints and unit tests, cheapest first; stops at the first failure
  test           everything that must hold: check, integration tests, examples, doc tests
  tidy [--fix]   what a machine can check of the conventions; --fix renews generated parts of ARCHITECTURE.md
  demo           four ranks reduce the gradients of a ResNet-50 on this machine
  bench [...]    measures Phalanx against Open MPI, Gloo and the machine's floor; `bench --help` says more
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let shell = match Shell::new() {
        Ok(shell) => shell,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    };
    let done = match command.as_str() {
        "check" => check::run(&shell),
        "test" => test::run(&shell),
        "tidy" => tidy::run(&shell, rest.iter().any(|a| a == "--fix")),
        "demo" => demo::run(&shell),
        "bench" => bench::run(&shell, &rest),
        "" | "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("no command {other:?}\n\n{HELP}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
