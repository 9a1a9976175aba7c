//! `phalanx train FILE`: a job on this machine, described to the script as `TF_CONFIG` describes a cluster. It turns its flags into those of
//! `phalanx run`.

use crate::{
    agent::cores,
    cli::{Cli, Command, TrainArgs},
    run,
};
use clap::Parser;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

pub fn main(args: &TrainArgs) -> ExitCode {
    if !args.file.is_file() {
        let what = if args.file.exists() { "is not a file" } else { "does not exist" };
        eprintln!("phalanx: {} {what}; write the script that every process runs", args.file.display());
        return ExitCode::from(2);
    }
    let mut cli = Cli::parse_from(words(args, cores::n_usable().max(1)));
    cli.command.set_own(args.own.clone());
    match &cli.command {
        Command::Run(args) => run::main(args),
        other => unreachable!("the words begin with `run`: {other:?}"),
    }
}

/// The same job in the words of `phalanx run`.
fn words(args: &TrainArgs, n_cores: u32) -> Vec<OsString> {
    let n_workers = args.workers.unwrap_or(n_cores);
    let mut words: Vec<OsString> = ["phalanx", "run", "--tf-config", "--np"].map(OsString::from).into();
    words.push(n_workers.to_string().into());
    words.extend(["--servers".into(), args.servers.to_string().into()]);
    words.extend(args.evaluator.then(|| "--evaluator".into()));
    words.extend(["--".into(), as_program(&args.file).into_os_string()]);
    words.extend(args.args.iter().cloned());
    words
}

/// A file of this directory, not a program of `PATH`; scripts of Python are found by their name.
fn as_program(file: &Path) -> PathBuf {
    let is_bare = file.components().count() == 1 && file.is_relative();
    match is_bare && file.extension().is_none_or(|e| e != "py") {
        true => Path::new(".").join(file),
        false => file.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_words(line: &str) -> Result<String, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
        let Command::Train(args) = cli.command else { panic!("{cli:?}") };
        let words = words(&args, 8);
        Ok(words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_training_is_a_run_of_its_workers_and_servers() {
        let all = run_words("p train -s 2 -w 3 -e t.py -- --lr 1").unwrap();
        assert_eq!(all, "phalanx run --tf-config --np 3 --servers 2 --evaluator -- t.py --lr 1");
        let few = run_words("p train tool").unwrap();
        assert_eq!(few, "phalanx run --tf-config --np 8 --servers 0 -- ./tool", "a worker for each core");
        assert!(
            run_words("p train -w 0 t.py").unwrap_err().contains("write a whole number of workers from 1")
        );
        assert!(
            run_words("p train -s -1 t.py").unwrap_err().contains("write a whole number of servers from 0")
        );
        assert!(
            run_words("p train -w two t.py").unwrap_err().contains("write a whole number of workers from 1")
        );
    }
}
