//! `mpiexec` of MPICH.

use super::{Site, WORK, at_work};
use crate::launch::{
    netns::binary,
    support::{Running, finish, kill},
};
use std::process::Command;

pub const NEEDS: [(&str, &str); 1] = [("mpiexec.hydra", "mpich")];

pub fn mpiexec(site: &Site, hosts: &str) -> Command {
    let mut command = site.command("mpiexec.hydra");
    let rsh = site.home.path("rsh");
    command.args(["-launcher", "ssh", "-launcher-exec", &rsh, "-iface", "eth0", "-hosts", hosts, "-n", "4"]);
    command
}

#[test]
fn mpiexec_on_two_hosts_needs_nothing() {
    let Some(site) = Site::open("h", &NEEDS) else { return };
    // Rank 0 is on the launcher's host, and on the other one.
    for hosts in ["10.78.0.1:2,10.78.0.2:2", "10.78.0.2:2,10.78.0.1:2"] {
        let done = finish(mpiexec(&site, hosts).arg(binary()).args(WORK));
        site.assert_worked(&done, "through PMI 1");
        assert!(!done.stdout.contains("BAD TERMINATION"), "RDZV-4: {done:?}");
    }
}

#[test]
fn a_given_secret_is_used_and_ranks_on_one_host_need_no_board() {
    let Some(site) = Site::open("g", &NEEDS) else { return };
    let mut given = mpiexec(&site, "10.78.0.1:2,10.78.0.2:2");
    given.env("PHALANX_SECRET", "correct horse battery staple");
    site.assert_worked(&finish(given.arg(binary()).args(WORK)), "through PMI 1");
    let mut lone = mpiexec(&site, "10.78.0.1:4");
    let done = finish(lone.env("PHALANX_SECRET", "correct horse battery staple").arg(binary()).args(WORK));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.stderr.matches("on loopback").count(), 4, "DISC-5: {done:?}");
}

#[test]
fn a_rank_that_is_killed_under_mpiexec_is_named_by_hydra_and_nothing_is_left() {
    let Some(site) = Site::open("z", &NEEDS) else { return };
    let mut command = mpiexec(&site, "10.78.0.1:2,10.78.0.2:2");
    let mut job = Running::start(command.args(site.long_work("PMI_RANK")).env("PHALANX_LOG", "off"));
    let pids = at_work(&mut job);
    kill(pids[1], "KILL");
    let done = job.finish();
    // On one host hydra's code is the signal; with two it mixes in how the other host's ranks end.
    assert!(done.code.is_some_and(|code| code != 0), "{done:?}");
    let named = format!("PID {} RUNNING AT 10.78.0.1\n=   EXIT CODE: 9\n", pids[1]);
    assert!(done.stdout.contains("BAD TERMINATION") && done.stdout.contains(&named), "{done:?}");
    // Hydra kills the other ranks at once: they may or may not have said who was lost.
    site.assert_nothing_is_left(&pids);
}

#[test]
fn a_rank_that_does_not_come_is_waited_for_no_longer_than_the_deadline() {
    let Some(site) = Site::open("w", &NEEDS) else { return };
    let mut command = mpiexec(&site, "10.78.0.1:2,10.78.0.2:2");
    let wait = "[ $PMI_RANK = 3 ] && exec tail -f /dev/null; exec \"$@\" 2>\"$0.$PMI_RANK\"";
    command
        .env("PHALANX_START_TIMEOUT", "1")
        .args(["sh", "-c", wait, &site.words()])
        .arg(binary())
        .args(WORK);
    let done = Running::start(&mut command).finish();
    assert_ne!(done.code, Some(0), "{done:?}");
    site.assert_one_said("cannot meet the other ranks through PMI 1: waited 1.0 s for all ranks");
}
