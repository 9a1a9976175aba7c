//! `mpirun` of Open MPI.

use super::{Site, WORK};
use crate::launch::{
    netns::{binary, inside, many_sizes},
    support::{Running, eventually, finish, is_alive, kill},
};
use std::{process::Command, time::Duration};

pub const NEEDS: [(&str, &str); 1] = [("mpirun.openmpi", "openmpi-bin")];

pub fn mpirun(site: &Site, hosts: &str) -> Command {
    let mut command = site.command("mpirun.openmpi");
    let rsh = site.home.path("rsh");
    command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "plm_rsh_agent", &rsh]);
    command.args(["--mca", "oob_tcp_if_include", "eth0", "-H", hosts, "-np", "4"]);
    // Directories of sessions go away with the test, also after a kill.
    command.env("TMPDIR", &site.home.0);
    command
}

#[test]
fn mpirun_on_two_hosts_needs_nothing() {
    let Some(site) = Site::open("o", &NEEDS) else { return };
    for hosts in ["10.78.0.1:2,10.78.0.2:2", "10.78.0.2:2,10.78.0.1:2"] {
        let done = finish(mpirun(&site, hosts).arg(binary()).args(WORK));
        site.assert_worked(&done, "through PMIx");
        assert!(!done.stderr.contains("exiting improperly"), "RDZV-4: {done:?}");
    }
}

#[test]
fn a_rank_that_is_killed_under_mpirun_is_named_by_all_others_and_nothing_is_left() {
    let Some(site) = Site::open("k", &NEEDS) else { return };
    // Open MPI ends the others with SIGTERM; so that they can say what they know, they do not heed it.
    let told =
        "trap '' TERM; echo rank $OMPI_COMM_WORLD_RANK is $$; exec \"$@\" 2>\"$0.$OMPI_COMM_WORLD_RANK\"";
    let (binary, sizes) = (binary(), many_sizes());
    let mut command = mpirun(&site, "10.78.0.1:2,10.78.0.2:2");
    command.args([
        "sh",
        "-c",
        told,
        &site.words(),
        &binary,
        "bench",
        "--json",
        "--seconds",
        "0.2",
        "--sizes",
        &sizes,
    ]);
    let mut job = Running::start(command.env("PHALANX_LOG", "off"));
    let mut pids = [0; 4];
    let mut n_rows = 0;
    while n_rows < 2 || pids.contains(&0) {
        let line = job.line();
        n_rows += usize::from(line.contains("\"bytes\":"));
        if let [_, rank, _, pid] = line.split(' ').collect::<Vec<_>>()[..] {
            pids[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
        }
    }
    kill(pids[1], "KILL");
    let done = job.finish();
    assert_eq!(done.code, Some(137), "{done:?}");
    assert_eq!(site.n_said("rank 1 is lost"), 3, "{done:?}");
    assert!(pids.iter().all(|&pid| !is_alive(pid)));
    for host in &site.hosts.names {
        let left = || Command::new("ip").args(["netns", "pids", host]).output().expect("ip runs").stdout;
        eventually(Duration::from_secs(10), "no process is left on a host", || left().is_empty());
    }
    assert!(inside(&site.hosts.names[0]).arg("true").status().is_ok());
}
