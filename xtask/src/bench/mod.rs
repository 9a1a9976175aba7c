//! `cargo xtask bench`: Phalanx against its peers and the machine's limits, measured in one run.
//!
//! Rounds of all of them are interleaved and medians over the rounds compared: machines are noisy, and what slows one
//! round down should slow all of them down alike.

mod asked;
mod engines;
mod figures;
mod frameworks;
mod goals;
mod graph;
mod machine;
mod net;
mod options;
mod ours;
mod page;
mod parallax;
mod peers;
mod row;
mod session;
mod table;
mod topology;
mod torch;
mod wires;

use crate::process::{Output, Shell};
use options::Options;
use peers::Peers;
use row::{Samples, What};
use std::{fs, time::Duration};

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    match args.split_first() {
        Some((first, rest)) if first == "torch" => return torch::run(shell, rest),
        Some((first, rest)) if first == "graph" => return graph::run(shell, rest),
        Some((first, rest)) if first == "engines" => return engines::run(shell, rest),
        Some((first, rest)) if first == "frameworks" => return frameworks::run(shell, rest),
        Some((first, rest)) if first == "parallax" => return parallax::run(shell, rest),
        Some((first, rest)) if first == "topology" => return topology::run(shell, rest),
        Some((first, rest)) if first == "session" => return session::run(shell, rest),
        _ => {}
    }
    let Some(options) = Options::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let command = format!("cargo xtask bench {}", args.join(" ")).trim_end().to_string();
    eprintln!("building phalanx and the peers ...");
    let mut build = shell.cargo("build --release --package phalanx-launch --quiet");
    shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    let mut peers = Peers::build(shell, &options)?;

    let mut samples = Samples::default();
    for round in 1..=options.rounds {
        for &np in &options.np {
            for what in [What::Allreduce, What::Others, What::Half] {
                eprintln!("round {round} of {}, {np} ranks, {} ...", options.rounds, what.name());
                let memory = peers.memory(shell, np, what, &options, &mut samples);
                peers.excuse(shell, "the limits of memory", memory)?;
                let handmade = peers.handmade(shell, np, what, &options, &mut samples);
                peers.excuse(shell, "the hand-made allreduce", handmade)?;
                let openmpi = peers.openmpi(shell, np, what, &options, &mut samples);
                peers.excuse(shell, "Open MPI", openmpi)?;
                ours::measure(shell, np, what, &options, &mut samples)?;
                let gloo = peers.gloo(shell, np, what, &options, &mut samples);
                peers.excuse(shell, "Gloo", gloo)?;
            }
        }
    }
    if options.net {
        net::measure(shell, &mut peers, &options, &mut samples)?;
    }

    let tables = table::all(&samples, &options.np, options.net);
    for table in &tables {
        println!("\n{}\n{}", table.title, table.text());
    }
    if let Some(out) = &options.out {
        // Where this machine keeps its python is nobody's business.
        let private = options.python.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
        let command = if private.is_empty() { command } else { command.replace(&private, "python3") };
        let page = page::write(&command, &machine::describe(shell), &peers.notes, &tables);
        fs::write(shell.root.join(out), page).map_err(|e| format!("cannot write {}: {e}", out.display()))?;
        eprintln!("\nwritten to {}", out.display());
    }
    Ok(())
}
