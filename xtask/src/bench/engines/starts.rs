//! How long it takes to start ranks that meet and end: the whole command, beside the same command with `true`.

use super::{
    Figures,
    cluster::{Cluster, ENGINES},
};
use std::{ffi::OsStr, process::Command};

/// Ranks on this machine.
pub const CROWD: usize = 256;
/// Starts of each in a round: they are short.
const N_STARTS: usize = 3;

/// What our ranks do: they join the world, say so, and leave when their input ends, which some launchers keep open.
const JOIN: &str = "exec \"$0\" doctor --as-rank </dev/null";
const JOINED: &str = "\"Joined\"";

pub fn two_hosts(cluster: &mut Cluster<'_>, figures: &mut Figures) -> Result<(), String> {
    for _ in 0..N_STARTS {
        for engine in ENGINES {
            let Some(mut idle) = cluster.two_by_two(engine) else { continue };
            idle.arg("true");
            let idle = cluster.timed(idle).map(|(s, _)| s);
            let Some(idle) = cluster.excused(engine.name(), idle)? else { continue };
            let Some(mut world) = cluster.two_by_two(engine) else { continue };
            world.args(["sh", "-c", JOIN]).arg(cluster.phalanx());
            let joined = cluster.timed(world).and_then(|(s, done)| has_joined(4, &done.stdout).map(|()| s));
            if let Some(world) = cluster.excused(engine.name(), joined)? {
                figures.add("true", engine.name(), idle);
                figures.add("world", engine.name(), world);
            }
        }
    }
    Ok(())
}

fn has_joined(n: usize, said: &str) -> Result<(), String> {
    match said.matches(JOINED).count() {
        joined if joined == n => Ok(()),
        joined => Err(format!("{joined} of {n} ranks joined:\n{said}")),
    }
}

/// Adds words to a command.
fn with(mut command: Command, words: &[&OsStr]) -> Command {
    command.args(words);
    command
}

pub fn crowd(cluster: &mut Cluster<'_>, figures: &mut Figures) -> Result<(), String> {
    let phalanx = cluster.phalanx();
    let run = |words: &[&OsStr]| {
        let mut command = cluster.shell.command(&phalanx);
        command.args(["run", "-np", &CROWD.to_string(), "--tag-output", "never", "--"]);
        cluster.timed(with(command, words))
    };
    let idle = run(&["true".as_ref()]).map(|(s, _)| s);
    let met = run(&["sh".as_ref(), "-c".as_ref(), JOIN.as_ref(), phalanx.as_os_str()]);
    let met = met.and_then(|(s, done)| has_joined(CROWD, &done.stdout).map(|()| s));
    take(cluster, figures, "ours", idle, met)
}

/// These take a minute and more, so once is enough.
pub fn crowd_of_mpi(cluster: &mut Cluster<'_>, figures: &mut Figures) -> Result<(), String> {
    let n = CROWD.to_string();
    let openmpi =
        ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", &n];
    let programs = [
        ("openmpi", openmpi.as_slice(), cluster.init_openmpi.clone()),
        ("mpich", &["mpiexec.hydra", "-n", &n], cluster.init_mpich.clone()),
    ];
    for (who, launcher, program) in programs {
        let Some(program) = program else { continue };
        let run = |words: &[&OsStr]| {
            let mut command = cluster.shell.command(launcher[0]);
            command.args(&launcher[1..]);
            cluster.timed(with(command, words)).map(|(s, _)| s)
        };
        let (idle, met) = (run(&["true".as_ref()]), run(&[program.as_os_str()]));
        take(cluster, figures, who, idle, met)?;
    }
    Ok(())
}

fn take(
    cluster: &mut Cluster<'_>,
    figures: &mut Figures,
    who: &str,
    idle: Result<f64, String>,
    met: Result<f64, String>,
) -> Result<(), String> {
    let name = format!("{CROWD} ranks, {who}");
    let both = idle.and_then(|idle| met.map(|met| (idle, met)));
    if let Some((idle, met)) = cluster.excused(&name, both)? {
        figures.add("crowd true", who, idle);
        figures.add("crowd", who, met);
    }
    Ok(())
}
