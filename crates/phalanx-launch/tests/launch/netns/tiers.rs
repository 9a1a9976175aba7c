//! A rank that dies in a tier: twelve ranks of three hosts, in the shape 4x3, all of whom name it.

use super::{Hosts, binary, inside, many_sizes};
use crate::launch::support::{Running, kill, phalanx};
use std::process::Command;

/// Three hosts of four ranks. Each says who it is, and then reduces vectors of these sizes in the shape 4x3.
fn job(hosts: &Hosts, sizes: &str) -> Command {
    let list = hosts.names[..3].iter().map(|name| format!("{name}:4")).collect::<Vec<_>>().join(",");
    let work = format!(
        "echo $PHALANX_RANK $$; exec {} bench --json --seconds 0.2 --sizes {sizes} >/dev/null",
        binary()
    );
    let mut command = inside(&hosts.names[0]);
    command.args([binary().as_str(), "run", "-np", "12", "-H", &list, "--tiers", "4x3"]);
    command.args(["--rsh", "nsenter --net=/run/netns/{host}", "--", "sh", "-c", &work]);
    for (name, _) in phalanx(&[]).get_envs().filter(|(_, value)| value.is_none()) {
        command.env_remove(name);
    }
    command
}

/// What a host has sent.
fn sent(host: &str) -> u64 {
    let shown = inside(host).args(["cat", "/proc/net/dev"]).output().expect("cat runs");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = text.lines().find(|l| l.trim_start().starts_with("eth0:")).expect("a host has a cable");
    line.split_whitespace().nth(9).and_then(|bytes| bytes.parse().ok()).expect("a number of bytes")
}

/// Kills a rank of the second or third host once its host has sent this much; all others name it.
fn killed(hosts: &Hosts, sizes: &str, victim: usize, after: u64) {
    let mut job = Running::start(&mut job(hosts, sizes));
    let lines: Vec<String> = (0..12).map(|_| job.line()).collect();
    let says = format!("| {victim} ");
    let line = lines.iter().find(|l| l.contains(&says)).unwrap_or_else(|| panic!("{lines:?}"));
    let pid: u32 = line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a process number");
    let host = &hosts.names[victim / 4];
    let begun = sent(host);
    crate::launch::support::eventually(crate::launch::support::DEADLINE, "traffic", || {
        sent(host) > begun + after
    });
    kill(pid, "KILL");
    let done = job.finish();
    assert_eq!(done.code, Some(137), "{done:?}");
    for rank in (0..12).filter(|rank| *rank != victim) {
        let prefix = format!("{}:{rank} |", hosts.names[rank / 4]);
        let named = done
            .stderr
            .lines()
            .any(|l| l.trim_start().starts_with(&prefix) && l.contains(&format!("rank {victim} ")));
        assert!(named, "rank {rank} does not name rank {victim} of {sizes}: {}", done.stderr);
    }
}

/// Vectors of up to 16 KB go through the leader of each host: rank 5 only ever waits and is awaited in the arena of its host, rank 8, a leader, also
/// between hosts.
#[test]
fn a_rank_killed_inside_a_host_or_between_hosts_is_named_by_the_eleven_others() {
    let Some(hosts) = Hosts::bridged("t", 3) else { return };
    for victim in [5, 8] {
        killed(&hosts, &many_sizes(), victim, 50_000);
    }
}

/// At 20 Mbit/s 16 MB are between hosts for nine seconds: the rank is killed in the midst of them.
#[test]
fn a_rank_killed_while_shares_travel_between_hosts_is_named_by_the_eleven_others() {
    let Some(hosts) = Hosts::bridged("u", 3) else { return };
    for host in &hosts.names[..3] {
        let limit =
            ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "20mbit", "burst", "64kb"];
        let made = inside(host).args(limit).args(["latency", "200ms"]).output();
        if !made.is_ok_and(|m| m.status.success()) {
            eprintln!("skipped: tc cannot limit a cable here; the Debian package iproute2 has it");
            return;
        }
    }
    killed(&hosts, "16M", 6, 2_000_000);
}
