//! How long it takes to start ranks that meet and end: the whole command, beside the same command with `true`.

use super::{
    Figures,
    cluster::{Cluster, ENGINES},
};
use std::process::Command;

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

/// Those of MPI take long, so they are not started in every round.
pub fn crowd(cluster: &mut Cluster<'_>, figures: &mut Figures, with_mpi: bool) -> Result<(), String> {
    let n = CROWD.to_string();
    let shell = cluster.shell;
    let ours = |cluster: &Cluster<'_>| {
        let mut command = shell.command(cluster.phalanx());
        command.args(["run", "-np", &n, "--tag-output", "never", "--"]);
        command
    };
    let openmpi = || {
        let mut command = shell.command("mpirun.openmpi");
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", &n]);
        command
    };
    let mpich = || {
        let mut command = shell.command("mpiexec.hydra");
        command.args(["-n", &n]);
        command
    };
    let with = |mut command: Command, words: &[&std::ffi::OsStr]| {
        command.args(words);
        command
    };
    let yes: &[&std::ffi::OsStr] = &["true".as_ref()];
    let phalanx = cluster.phalanx();
    let join: [&std::ffi::OsStr; 4] = ["sh".as_ref(), "-c".as_ref(), JOIN.as_ref(), phalanx.as_os_str()];
    let idle = cluster.timed(with(ours(cluster), yes)).map(|(s, _)| s);
    let met = cluster.timed(with(ours(cluster), &join));
    let met = met.and_then(|(s, done)| has_joined(CROWD, &done.stdout).map(|()| s));
    take(cluster, figures, "ours", idle, met)?;
    if let Some(init) = cluster.init_openmpi.clone().filter(|_| with_mpi) {
        let idle = cluster.timed(with(openmpi(), yes)).map(|(s, _)| s);
        let met = cluster.timed(with(openmpi(), &[init.as_os_str()])).map(|(s, _)| s);
        take(cluster, figures, "openmpi", idle, met)?;
    }
    if let Some(init) = cluster.init_mpich.clone().filter(|_| with_mpi) {
        let idle = cluster.timed(with(mpich(), yes)).map(|(s, _)| s);
        let met = cluster.timed(with(mpich(), &[init.as_os_str()])).map(|(s, _)| s);
        take(cluster, figures, "mpich", idle, met)?;
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
