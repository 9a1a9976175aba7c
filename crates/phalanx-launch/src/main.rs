//! The `phalanx` command. Each subcommand is one module; [`cli`] holds only what can be said.

mod addresses;
mod agent;
mod bench;
mod cli;
mod doctor;
mod environment;
mod hosts;
mod limits;
mod place;
mod rsh;
mod run;
mod simulate;
mod wire;

use clap::Parser;
use cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse_from(cli::with_long_flags(std::env::args_os()));
    match &cli.command {
        Command::Run(args) => run::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Simulate(args) => simulate::main(args),
        Command::Agent => agent::main(),
    }
}
