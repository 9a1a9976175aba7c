//! The `phalanx` command. Each subcommand is one module; [`cli`] holds only what can be said.
//!
//! A library, because there are two ways to it: the program of that name, and the one that a Python package installs.

mod addresses;
mod agent;
mod bench;
mod cli;
mod doctor;
mod ending;
mod environment;
mod hosts;
mod limits;
mod place;
mod rsh;
mod run;
mod simulate;
mod trace;
mod wire;

use clap::Parser;
use cli::{Cli, Command, Own};
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// Does what the arguments say. `exe` is what other processes run to get here; `args` come after its name.
pub fn main(exe: PathBuf, args: Vec<OsString>) -> ExitCode {
    let words = std::iter::once(exe.clone().into_os_string()).chain(args.iter().cloned());
    let mut cli = Cli::parse_from(cli::with_long_flags(words));
    cli.command.set_own(Own { exe, args });
    match &cli.command {
        Command::Run(args) => run::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Simulate(args) => simulate::main(args),
        Command::Trace(args) => trace::main(args),
        Command::Agent => agent::main(),
    }
}
