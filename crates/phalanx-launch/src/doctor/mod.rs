//! `phalanx doctor`: checks this machine and other hosts for problems that would stop or slow down a job.
//!
//! Each module gathers facts in thin code and judges them in pure code.

mod encryption;
mod engine;
mod finding;
mod machine;
mod network;
mod options;
mod pair;
mod peers;
mod report;
mod settings;
mod shape;
mod sources;
mod timed;
mod tools;
mod topology;
mod trial;
mod trial_link;
mod trial_rank;

pub use options::DoctorArgs;

use finding::{Finding, Mark};
use pair::Figures;
use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    thread,
};

/// Prints what was found; fails when something would keep a job from running.
pub fn main(args: &DoctorArgs) -> ExitCode {
    if args.as_rank {
        return trial_rank::main();
    }
    // The slow ones side by side: names and programs may each take seconds to answer.
    let network = thread::spawn(network::check);
    let tools = thread::spawn(tools::check);
    let peers = match peers::check(args) {
        Ok(peers) => peers,
        Err(error) => {
            eprintln!("phalanx: {error}");
            return ExitCode::from(error.exit_code());
        }
    };
    let mut findings = machine::check();
    findings.extend(network.join().unwrap_or_default());
    findings.extend(sources::check(|name| env::var_os(name).is_some()));
    findings.extend(engine::check(|name| env::var(name).ok()));
    findings.extend(encryption::check(env::var("PHALANX_ENCRYPT").ok().filter(|v| !v.is_empty())));
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    findings.extend(settings::check(env::vars_os().map(|(name, value)| (lossy(name), lossy(value)))));
    findings.extend(tools.join().unwrap_or_default());
    findings.extend(peers);
    let shape = topology::check(args, &findings);
    findings.extend(shape);
    let text = if args.json { json(&findings) } else { page(&findings) };
    // A reader that has seen enough is no error.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::from(u8::from(findings.iter().any(|f| f.mark == Mark::Fail)))
}

fn page(findings: &[Finding]) -> String {
    let colour = io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // What is well between hosts is in the table.
    let (in_table, shown): (Vec<Finding>, Vec<Finding>) =
        findings.iter().cloned().partition(|f| f.mark == Mark::Ok && f.figures.is_some());
    let pairs: Vec<Figures> = findings.iter().filter_map(|f| f.figures.clone()).collect();
    let mut hosts: Vec<String> = Vec::new();
    for host in pairs.iter().flat_map(|p| &p.hosts) {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    let table = if hosts.is_empty() { String::new() } else { pair::table(&hosts, &pairs) + "\n" };
    let text = report::render(&shown, in_table.len(), colour);
    format!("phalanx {} on {host}\n\n{table}{text}", env!("CARGO_PKG_VERSION"))
}

fn json(findings: &[Finding]) -> String {
    let line = |finding| serde_json::to_string(finding).unwrap_or_default() + "\n";
    findings.iter().map(line).collect()
}
