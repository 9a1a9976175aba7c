//! `cargo xtask`: the project's own commands. Each is one module; this file only chooses.

mod bench;
mod book;
mod check;
mod counts;
mod demo;
mod dist;
mod engines;
mod examples;
mod frameworks;
mod fuzz;
mod lint;
mod process;
mod profile;
mod python;
mod stage;
mod test;
mod tidy;
mod wheel;

use process::Shell;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  check          format, tidy, lints and unit tests, cheapest first; stops at the first failure
  test           everything that must hold: check, integration tests, examples, doc tests, the Python package;
                 --with tensorflow,jax installs these first; where they are, their tests run anyway
  tidy           what a machine can check of the conventions; --fix renews the generated pages of docs/
  demo           two processes train LeNet on handwritten digits, and get the bits that one process gets
  demo gradients four ranks reduce the gradients of a ResNet-50 on this machine
  demo torch     two ranks train on handwritten digits with PyTorch, and get what one process gets
  python         builds and installs the Python package into an environment of this clone, and says where it is
  book           the pages of docs/ as a book with search, in target/book; --open shows it
  wheel          release wheels of the package and of Horovod's names, tried out with every Python here
  engines        the tests under the engines of clusters that are here (MPI, Slurm, etcd); --install brings those that are not
  fuzz [TARGET]  feeds made-up bytes to everything that takes bytes from outside, for --seconds N each
  dist           a tarball with the command, the library for C and what finds it, and completions
  bench [...]    measures Phalanx against Open MPI, Gloo and the machine's limits; `bench --help` says more
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
    let has_own_help = ["bench", "engines", "fuzz"].contains(&command.as_str());
    let asks_for_help = !has_own_help && rest.iter().any(|word| word == "--help" || word == "-h");
    let bare = |run: fn(&Shell) -> Result<(), String>| match rest.first() {
        None => run(&shell),
        Some(word) => Err(format!("{command} takes no options, got {word:?}")),
    };
    let done = match command.as_str() {
        _ if asks_for_help => {
            print!("{HELP}");
            Ok(())
        }
        "check" => bare(check::run),
        "test" => test::run(&shell, &rest),
        "tidy" => tidy_with(&shell, &rest),
        "demo" => demo::run(&shell, &rest),
        "bench" => bench::run(&shell, &rest),
        "book" => book::run(&shell, &rest),
        "python" => bare(python::prepare),
        "wheel" => bare(wheel::run),
        "dist" => bare(dist::run),
        "engines" => engines::run(&shell, &rest),
        "fuzz" => fuzz::run(&shell, &rest),
        "" | "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("no command {other:?}\n\n{HELP}")),
    };
    let (said, code) = ending(done, shell.signal());
    if let Some(said) = said {
        eprintln!("xtask: {said}");
    }
    ExitCode::from(code)
}

fn tidy_with(shell: &Shell, flags: &[String]) -> Result<(), String> {
    if let Some(other) = flags.iter().find(|f| *f != "--fix") {
        return Err(format!("tidy knows --fix, not {other:?}"));
    }
    if !flags.is_empty() {
        tidy::renew(shell)?;
    }
    tidy::run(shell)
}

/// What to say and the code to exit with. Who interrupts us knows why nothing came of it and needs no advice.
fn ending(done: Result<(), String>, signal: Option<u8>) -> (Option<String>, u8) {
    match (done, signal) {
        (Ok(()), _) => (None, 0),
        (Err(_), Some(signal)) => (Some("interrupted".into()), 128 + signal),
        (Err(why), None) => (Some(why), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_is_no_failure() {
        let failure =
            || Err("phalanx exit status: 143\n  `phalanx doctor` looks for what is missing".to_string());
        assert_eq!(ending(failure(), Some(2)), (Some("interrupted".into()), 130));
        assert_eq!(ending(failure(), Some(15)), (Some("interrupted".into()), 143));
        assert_eq!(ending(failure(), None).1, 1);
        assert_eq!(ending(Ok(()), Some(2)), (None, 0), "it came too late to matter");
    }
}
