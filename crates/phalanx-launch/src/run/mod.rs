//! `phalanx run`: starts a command as the ranks of one world, on this machine and others.
//!
//! Pure decisions: [`crate::hosts`], [`crate::place`], [`crate::environment`], [`policy`], [`lines`], [`prefix`],
//! [`report`], [`describe`], [`failures`], [`reach`], [`route`], [`screen`], [`script`]. Threads: one reader and one writer per agent, one that prints,
//! one that reads stdin, one that takes signals; the main thread ([`job`]) decides.

mod agents;
mod describe;
mod error;
mod failures;
mod files;
mod input;
mod job;
mod lines;
mod meeting;
mod nodes;
mod noise;
mod policy;
mod prefix;
mod printer;
mod rank_limits;
mod reach;
mod report;
mod route;
mod screen;
mod script;
mod setup;
mod signals;
mod ssh;
mod verdict;

use crate::{cli::RunArgs, wire::ToLauncher};
use agents::Gone;
pub use error::LaunchError;
use nodes::{Gathered, NodeFlags, ToNode};
use phalanx_core::Rank;
use phalanx_net::{hub::message::Words, nodes::NodeLine};
use policy::EndCause;
use printer::Tails;
pub use reach::JobHosts;
pub use route::Route;
pub use setup::{exes, here};
use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

/// What the main thread learns. Few for each host and rank: output goes straight to the printer.
#[derive(Debug)]
pub enum News {
    Said {
        host: usize,
        up: ToLauncher,
    },
    Gone {
        host: usize,
        gone: Gone,
    },
    Signal(i32),
    /// What was read for the ranks; nothing is the end of it.
    Input(Vec<u8>),
    OutputClosed,
    /// What a rank says to people, through the meeting point.
    Words {
        rank: Rank,
        words: Words,
    },
    Printed(Tails),
    /// Only for the launcher of another host than node 0's: what that one says, or its end.
    FromNodeZero(Option<ToNode>),
}

/// Runs the job and returns the code to exit with.
pub fn main(args: &RunArgs) -> ExitCode {
    let meet = |flags: &NodeFlags| nodes::gather(args, flags);
    let flags = match NodeFlags::of(args, std::env::var("PHALANX_RENDEZVOUS").ok()) {
        Ok(flags) => flags,
        Err(error) => return ExitCode::from(said(Err(vec![error.into()])).0),
    };
    if let Some(flags) = flags.as_ref().filter(|flags| flags.me > 0) {
        let followed = nodes::follow(args, flags);
        return ExitCode::from(said(followed.map(|code| (code, String::new())).map_err(|e| vec![e])).0);
    }
    let gathered = match flags.as_ref().map(meet).transpose() {
        Ok(gathered) => gathered,
        Err(error) => return ExitCode::from(said(Err(vec![error])).0),
    };
    let companions = gathered.iter().flat_map(|gathered| &gathered.companions);
    let lines: Vec<NodeLine> = companions.map(|companion| companion.line.clone()).collect();
    let (code, text) = said(run(args, gathered.as_ref()));
    Gathered::part(&lines, code, &text);
    ExitCode::from(code)
}

/// Tells of errors; returns the code to exit with, and what was told at the end.
fn said(ended: Result<(u8, String), Vec<LaunchError>>) -> (u8, String) {
    ended.unwrap_or_else(|errors| {
        let text: String = errors.iter().map(|error| format!("phalanx: {error}\n")).collect();
        tell(&text);
        (errors.first().map_or(1, LaunchError::exit_code), text)
    })
}

/// The exit code and the report.
fn run(args: &RunArgs, gathered: Option<&Gathered>) -> Result<(u8, String), Vec<LaunchError>> {
    let mut job = setup::start(args, gathered).map_err(|error| vec![error])?;
    if let Err(errors) = job.gather(args.start_timeout) {
        job.dismiss();
        return Err(errors);
    }
    if args.verbose {
        let cores: Vec<u32> = job.hosts.iter().map(|h| h.cores).collect();
        tell(&describe::cores(&job.plan, &cores));
    }
    let mut policy = match job.supervise() {
        Ok(policy) => policy,
        Err(error) => {
            job.dismiss();
            return Err(vec![error]);
        }
    };
    let after = job.started.elapsed();
    let cut_short = job.finish(policy.cause());
    job.ask_ranks_who_was_first(&mut policy);
    let report = job.report(&policy);
    tell(&report);
    if let Some((path, verdict)) = args.verdict.as_ref().zip(verdict::of(policy.cause()))
        && let Err(why) = std::fs::write(path, verdict.to_string())
    {
        tell(&format!("phalanx: cannot write {}: {why}; check --verdict\n", path.display()));
    }
    let code = match (policy.cause(), cut_short) {
        (EndCause::Success, Some(signal)) => EndCause::Asked(signal).exit_code(),
        (cause, _) => {
            if cause == EndCause::Success && args.verbose {
                tell(&format!("phalanx: all ranks succeeded after {}\n", seconds(after)));
            }
            cause.exit_code()
        }
    };
    Ok((code, report))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Writes to stderr; a closed one is no reason to fail.
fn tell(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
