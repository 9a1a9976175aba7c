//! Hosts that have less in common than one would like: their clocks, their users' homes.

use super::{Hosts, inside};
use crate::launch::support::{Done, Running, TempDir, phalanx};
use std::process::{Command, Stdio};

const SECRET: &str = "correct horse battery staple";
/// Interposed before the C library: the time of day is an hour later than it is; intervals are what they are.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static const time_t ahead = 3600;
int clock_gettime(clockid_t id, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, at);
    if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead;
    return code;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"#;

/// A rank that somebody starts by hand on one of two hosts.
fn rank(hosts: &Hosts, rank: usize) -> Command {
    let binary = phalanx(&[]);
    let mut command = inside(&hosts.names[rank]);
    command.arg("env").arg("--").arg(binary.get_program());
    command.args(["bench", "--json", "--op", "allreduce", "--sizes", "64K", "--seconds", "0.01"]);
    binary.get_envs().filter(|(_, value)| value.is_none()).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command.env("PHALANX_RANK", rank.to_string()).env("PHALANX_SIZE", "2").stdin(Stdio::null());
    command
}

fn both(commands: [Command; 2]) -> [Done; 2] {
    commands.map(|mut command| Running::start(&mut command)).map(Running::finish)
}

#[test]
fn ranks_whose_clocks_are_an_hour_apart_work_encrypted_as_ever() {
    let dir = TempDir::new();
    let (source, library) = (dir.write("clock.c", CLOCK), dir.path("clock.so"));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source, "-ldl"]).output();
    if !built.as_ref().is_ok_and(|b| b.status.success()) {
        eprintln!("skipped: there is no C compiler here; the Debian package gcc has it: {built:?}");
        return;
    }
    // Or the test would prove nothing.
    let seconds = |ahead: bool| -> u64 {
        let mut date = Command::new("date");
        date.arg("+%s").envs(ahead.then_some(("LD_PRELOAD", &library)));
        String::from_utf8_lossy(&date.output().expect("date runs").stdout).trim().parse().expect("seconds")
    };
    let (there, here) = (seconds(true), seconds(false));
    assert!(there > here + 3000, "the clock that was moved says {there}, the other one {here}");
    let Some(hosts) = Hosts::pair("k", false) else { return };
    for ahead in 0..2 {
        let ranks = [0, 1].map(|i| {
            let mut command = rank(&hosts, i);
            command.env("PHALANX_SECRET", SECRET).env("PHALANX_RENDEZVOUS", "10.78.0.1:29556");
            command.env("PHALANX_LOG", "phalanx_net=info").env("PHALANX_ENCRYPT", "auto");
            if i == ahead {
                command.env("LD_PRELOAD", &library);
            }
            command
        });
        let done = both(ranks);
        assert!(done.iter().all(|d| d.code == Some(0)), "rank {ahead} is ahead: {done:?}");
        assert!(done.iter().all(|d| d.stderr.contains("encrypted=true")), "rank {ahead} is ahead: {done:?}");
    }
}

#[test]
fn ranks_without_a_common_home_are_told_what_to_do() {
    let Some(hosts) = Hosts::pair("h", false) else { return };
    let homes = [TempDir::new(), TempDir::new()];
    // As under plain srun: the nodes are known, and no secret was given.
    let start = |secret: Option<&str>| {
        both([0, 1].map(|i| {
            let mut command = rank(&hosts, i);
            command.env("PHALANX_RENDEZVOUS", "10.78.0.1").env("PHALANX_START_TIMEOUT", "3");
            command.env("HOME", &homes[i].0).envs(secret.map(|s| ("PHALANX_SECRET", s)));
            command
        }))
    };
    let [zero, one] = start(None);
    assert!(zero.code == Some(1) && zero.stderr.contains("missing ranks 1"), "{zero:?}");
    let key = homes[1].path(".phalanx/secret");
    assert!(one.code == Some(1) && one.stderr.contains(&key), "{one:?}");
    assert!(one.stderr.contains("if hosts have no common home, put the same file there"), "{one:?}");
    assert!(one.stderr.contains("set PHALANX_SECRET to the same random text"), "{one:?}");
    assert!(start(Some(SECRET)).iter().all(|done| done.code == Some(0)), "it helps to do so");
}
