//! `mpirun` of Open MPI.

use super::{Site, WORK, at_work};
use crate::launch::{
    netns::{binary, inside},
    support::{Running, finish, kill},
};
use std::process::Command;

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
    let mut command = mpirun(&site, "10.78.0.1:2,10.78.0.2:2");
    let mut job =
        Running::start(command.args(site.long_work("OMPI_COMM_WORLD_RANK")).env("PHALANX_LOG", "off"));
    let pids = at_work(&mut job);
    kill(pids[1], "KILL");
    let done = job.finish();
    assert_eq!(done.code, Some(137), "{done:?}");
    assert_eq!(site.n_said("rank 1 is lost"), 3, "{done:?}");
    site.assert_nothing_is_left(&pids);
    assert!(inside(&site.hosts.names[0]).arg("true").status().is_ok());
}
