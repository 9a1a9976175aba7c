//! The `phalanx` command. Each subcommand is one module; [`cli`] holds the flags.
//!
//! It is a library because two programs use it: the `phalanx` binary, and the command that the Python package installs.

mod addresses;
mod agent;
mod bench;
mod ckpt;
mod cli;
mod completions;
mod doctor;
mod ending;
mod environment;
mod hosts;
mod kube;
mod limits;
mod numbers;
mod place;
mod rankfile;
mod rsh;
mod run;
mod serve;
mod simulate;
mod slurm;
mod table;
mod trace;
mod train;
mod wire;

/// For the fuzz targets only.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads a rank file: whatever it says, it is read or refused.
    pub fn rank_file(text: &str) {
        if let Ok(file) = crate::rankfile::RankFile::parse(text, "fuzz") {
            assert!(file.ranks.iter().all(|rank| crate::hosts::is_name(&rank.host)));
            assert_eq!(file.hosts().iter().map(|host| host.slots as usize).sum::<usize>(), file.ranks.len());
        }
    }
}

use clap::Parser;
use cli::{Cli, Command, Invocation};
use phalanx_core::{Config, ConfigError};
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// Does what the arguments say. `exe` is what other processes run to get here; `args` come after its name.
pub fn main(exe: PathBuf, args: Vec<OsString>) -> ExitCode {
    let words = std::iter::once(exe.clone().into_os_string()).chain(args.iter().cloned());
    let mut cli = Cli::parse_from(cli::with_long_flags(words));
    cli.command.set_own(Invocation { exe, args });
    if let Err(error) = start_log(&cli.command) {
        eprintln!("phalanx: {error}");
        return ExitCode::from(2);
    }
    match &cli.command {
        Command::Run(args) => run::main(args),
        Command::Serve => serve::main(),
        Command::Train(args) => train::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Simulate(args) => simulate::main(args),
        Command::Trace(args) => trace::main(args),
        Command::Ckpt(args) => ckpt::main(args),
        Command::Kube(args) => kube::main(args),
        Command::Rankfile(args) => rankfile::main(args),
        Command::Completions(args) => completions::main(args),
        Command::Agent => agent::main(),
    }
}

/// What `PHALANX_LOG` asks of this process. An agent says nothing: what it writes to stderr is taken for why it ended. Doctor finds mistakes itself.
fn start_log(command: &Command) -> Result<(), ConfigError> {
    if matches!(command, Command::Agent | Command::Doctor(_)) {
        return Ok(());
    }
    let value = std::env::var_os("PHALANX_LOG").map(|v| v.to_string_lossy().into_owned());
    let config = Config::from_vars(value.map(|v| ("PHALANX_LOG".to_string(), v)))?;
    phalanx_net::log::start(config.log.as_ref());
    Ok(())
}
