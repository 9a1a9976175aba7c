//! `phalanx bench`: measures the collectives on this machine and checks every result.
//!
//! A rank of a world measures; otherwise the command starts a world of its own.

mod ddl;
mod engine;
mod fused;
mod measure;
mod memory;
mod options;
mod report;
mod sample;
mod traffic;

pub use options::{BenchArgs, bytes};

use measure::Budget;
use options::Case;
use phalanx_collective::{Communicator, Error};
use phalanx_core::DType;
use report::{BenchReport, Row};
use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

pub fn main(args: &BenchArgs) -> ExitCode {
    let cases = match args.cases() {
        Ok(cases) => cases,
        Err(why) => {
            eprintln!("phalanx bench: {why}");
            return ExitCode::from(2);
        }
    };
    if !in_a_world() {
        // What other hosts have is theirs to say.
        if !args.hosts.any()
            && let Err(shortage) = memory::check(&cases, args.np, args.np)
        {
            eprintln!("phalanx bench: {shortage}");
            return ExitCode::from(2);
        }
        return start_world(args);
    }
    match run(args, &cases) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("phalanx bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Any launcher's words are a world, also a world of one that was asked for.
fn in_a_world() -> bool {
    let var = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    phalanx_net::discover::discover(&var, 0).map_or(true, |identity| identity.source != "nobody")
}

/// Starts `phalanx run -- phalanx bench` with the same arguments.
fn start_world(args: &BenchArgs) -> ExitCode {
    let own = &args.hosts.own;
    let mut command = Command::new(&own.exe);
    command.args(["run", "--np", &args.np.to_string(), "--tag-output", "never"]);
    if !args.no_bind {
        command.arg("--bind");
    }
    command.args(args.hosts.words());
    if let Some(interface) = &args.interface {
        command.args(["--interface", interface]);
    }
    command.args(["--itself", "--"]).args(&own.args);
    // Becomes the launcher, so that signals and exit codes are the launcher's own.
    let error = command.exec();
    eprintln!("phalanx bench: cannot start {}: {error}", own.exe.display());
    ExitCode::FAILURE
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(transparent)]
    Collective(#[from] Error),
    #[error(transparent)]
    Engine(#[from] phalanx_collective::engine::EngineError),
    #[error(transparent)]
    Ddl(#[from] phalanx_collective::ddl::DdlError),
    #[error(transparent)]
    Memory(#[from] memory::MemoryShortage),
}

fn run(args: &BenchArgs, cases: &[Case]) -> Result<(), BenchError> {
    if args.fused {
        return fused::run(args.seconds, args.json);
    }
    if args.ddl {
        let sizes: Vec<u64> = cases.iter().map(|case| case.bytes).collect();
        return ddl::run(&sizes, args.calls, args.json);
    }
    let mut comm = Communicator::from_env()?;
    if args.engine {
        return engine::run(comm, args.seconds, args.json);
    }
    let lead = comm.rank().index() == 0;
    let n_local = comm.topology().neighbours(comm.rank()).len() as u32;
    memory::check(cases, comm.size(), n_local)?;
    if lead {
        args.roundings(cases).iter().for_each(|said| eprintln!("note: {said}"));
    }
    let mut table = BenchReport::new(args.json, lead, cases.len());
    let budget = Budget { seconds: args.seconds, calls: args.calls };
    for case in cases {
        if let Some(measured) = measure(&mut comm, case, budget)? {
            table.row(&Row::new(&comm, case, &measured, args.traffic));
        } else if lead {
            eprintln!("skipped: {} of {} bytes has less than one element per rank", case.op, case.bytes);
        }
    }
    table.end();
    Ok(())
}

fn measure(comm: &mut Communicator, case: &Case, budget: Budget) -> Result<Option<measure::Measured>, Error> {
    use half::{bf16, f16};
    match case.dtype {
        DType::U8 => measure::measure::<u8>(comm, case, budget),
        DType::I8 => measure::measure::<i8>(comm, case, budget),
        DType::U16 => measure::measure::<u16>(comm, case, budget),
        DType::I16 => measure::measure::<i16>(comm, case, budget),
        DType::I32 => measure::measure::<i32>(comm, case, budget),
        DType::I64 => measure::measure::<i64>(comm, case, budget),
        DType::F16 => measure::measure::<f16>(comm, case, budget),
        DType::BF16 => measure::measure::<bf16>(comm, case, budget),
        DType::F32 => measure::measure::<f32>(comm, case, budget),
        DType::F64 => measure::measure::<f64>(comm, case, budget),
        DType::Bool => measure::measure::<bool>(comm, case, budget),
    }
}
