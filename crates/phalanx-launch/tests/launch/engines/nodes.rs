//! `phalanx run --nnodes`: the same command on each host, which nothing starts from another.

use super::{
    Site, WORK,
    boards::{SECRET, etcd},
};
use crate::launch::{
    netns::{Hosts, binary, many_sizes},
    support::{DEADLINE, Done, Running, TempDir, eventually, finish, is_alive, kill},
};
use std::{fs, process::Command};

const AT: &str = "10.78.0.1:29500";

/// The launcher of a node; nodes are numbered as hosts are, and the last host has all that are left.
fn node(site: &Site, n_nodes: u32, me: u32, place: &str, flags: &[&str], program: &[&str]) -> Command {
    let host = (me as usize).min(1);
    let mut command = site.command_on(host, &binary());
    command.args(["run", "--nnodes", &n_nodes.to_string(), "--node-rank", &me.to_string(), "--rdzv", place]);
    command.args(flags).arg("--").args(program).env_remove("PHALANX_LOG").env("PHALANX_SECRET", SECRET);
    command
}

/// Two nodes with two ranks each, to their ends.
fn pair(site: &Site, place: &str, flags: &[&str], program: &[&str]) -> [Done; 2] {
    let flags = [&["-np", "2", "--start-timeout", "20"], flags].concat();
    let start = |me| Running::start(&mut node(site, 2, me, place, &flags, program));
    // Node 1 comes first: it waits.
    let (one, zero) = (start(1), start(0));
    [zero.finish(), one.finish()]
}

/// Nothing of the job is left on any host.
fn assert_clean(site: &Site, but: &[u32]) {
    let left = || (0..2).flat_map(|host| site.hosts.pids(host)).filter(|pid| !but.contains(pid)).count();
    eventually(DEADLINE, "the end of everything on both hosts", || left() == 0);
}

/// The launcher's own process, below what gave it its host.
fn launcher(site: &Site, host: usize) -> u32 {
    let is_launcher = |pid: &u32| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.starts_with(&format!("{}\0run\0", binary()))
    };
    site.hosts.pids(host).into_iter().find(is_launcher).expect("a launcher runs there")
}

/// Ranks that say who they are and work until they are interrupted.
fn long_work() -> String {
    let (binary, sizes) = (binary(), many_sizes());
    format!("echo $PHALANX_RANK $$; exec {binary} bench --json --seconds 0.2 --sizes {sizes} >/dev/null")
}

/// Two launchers whose ranks work, and the processes of the four ranks.
fn at_work(site: &Site) -> ([Running; 2], Vec<u32>) {
    let work = long_work();
    let start = |me| {
        let flags = ["-np", "2", "--start-timeout", "20"];
        Running::start(&mut node(site, 2, me, AT, &flags, &["sh", "-c", &work]))
    };
    let mut nodes = [start(0), start(1)];
    let mut ranks = vec![0; 4];
    for running in &mut nodes {
        for _ in 0..2 {
            let line = running.line();
            let numbers: Vec<u32> = line.split(' ').filter_map(|w| w.parse().ok()).collect();
            ranks[numbers[0] as usize] = numbers[1];
        }
    }
    (nodes, ranks)
}

fn assert_worked(site: &Site, [zero, one]: &[Done; 2]) {
    assert_eq!((zero.code, one.code), (Some(0), Some(0)), "{zero:?} {one:?}");
    // Rank 0 prints on its own host, and nobody elsewhere repeats it.
    assert_eq!(zero.stdout.matches("\"transport\":\"shm+tcp\"").count(), 2, "{zero:?}");
    assert_eq!(one.stdout, "", "{one:?}");
    assert!(!site.home.0.join(".phalanx").exists(), "a key was made");
}

#[test]
fn two_by_two_ranks_meet_at_an_address_through_etcd_and_through_a_directory() {
    let Some(site) = Site::open("na", &[("etcd", "etcd-server")]) else { return };
    let binary = binary();
    let program = [&[binary.as_str()], &WORK[..]].concat();
    let etcd = etcd(&site);
    let meet = site.home.path("meet");
    for place in
        [AT, "10.78.0.1:29501,10.78.0.9:29501", "etcd://10.78.0.1:2379/lenet", &format!("file:{meet}")]
    {
        for _ in 0..2 {
            assert_worked(&site, &pair(&site, place, &[], &program));
        }
    }
    assert_eq!(fs::read_dir(&meet).unwrap().count(), 0, "RDZV-6");
    assert_clean(&site, &[etcd.0.id()]);
}

/// RDZV-8
#[test]
fn a_second_node_0_is_refused_through_etcd_with_host_and_process_of_the_first() {
    let Some(site) = Site::open("n0", &[("etcd", "etcd-server")]) else { return };
    let _etcd = etcd(&site);
    let place = "etcd://10.78.0.1:2379/lenet";
    let flags = ["-np", "1", "--start-timeout", "50"];
    let (words, us) = (site.words(), binary());
    let mut command = site.command_on(0, "sh");
    command.args(["-c", "exec \"$@\" 2>\"$0\"", &words, &us, "run", "--nnodes", "2", "--node-rank", "0"]);
    command.args(["--rdzv", place, "-v"]).args(flags).arg("true").env("PHALANX_SECRET", SECRET);
    let first = Running::start(&mut command);
    let is_announced = || fs::read_to_string(&words).is_ok_and(|text| text.contains("waits for the others"));
    eventually(DEADLINE, "node 0 is announced", is_announced);
    // On the other host, so that host and process are not its own.
    let mut second = site.command_on(1, &us);
    second.args(["run", "--nnodes", "2", "--node-rank", "0", "--rdzv", place]).args(flags).arg("true");
    let second = finish(second.env("PHALANX_SECRET", SECRET));
    assert_eq!(second.code, Some(1), "{second:?}");
    let named = format!(
        "node 0 of this job is already there (host {}, pid {}, since ",
        site.hosts.names[0],
        launcher(&site, 0)
    );
    assert!(second.stderr.contains(&named), "{named}: {second:?}");
    let one = finish(&mut node(&site, 2, 1, place, &flags, &["true"]));
    let first = first.finish();
    assert_eq!((one.code, first.code), (Some(0), Some(0)), "{one:?} {first:?}");
}

#[test]
fn three_hosts_with_different_numbers_of_ranks_are_numbered_in_their_order() {
    let Some(hosts) = Hosts::bridged("nb", 3) else { return };
    let site = Site { hosts, home: TempDir::new() };
    let place = format!("file:{}", site.home.path("meet"));
    let logs = site.home.path("logs");
    let show =
        "echo $PHALANX_RANK/$PHALANX_SIZE $PHALANX_LOCAL_RANK/$PHALANX_LOCAL_SIZE $PHALANX_CROSS_SIZE $FROM";
    let start = |me: usize, np: &str| {
        let mut command = site.command_on(me, &binary());
        command.args(["run", "--nnodes", "3", "--node-rank", &me.to_string(), "--rdzv", &place, "-np", np]);
        command.args(["--output-filename", &logs, "--tag-output", "never", "-x", &format!("FROM={me}")]);
        command.args(["sh", "-c", show]).env("PHALANX_SECRET", SECRET).env_remove("PHALANX_LOG");
        Running::start(&mut command)
    };
    let nodes = [start(0, "1"), start(1, "3"), start(2, "2")];
    let printed = nodes.map(|node| {
        let done = node.finish();
        assert_eq!(done.code, Some(0), "{done:?}");
        let mut lines: Vec<String> = done.stdout.lines().map(String::from).collect();
        lines.sort_unstable();
        lines
    });
    assert_eq!(printed[0], ["0/6 0/1 3 0"]);
    assert_eq!(printed[1], ["1/6 0/3 3 1", "2/6 1/3 2 1", "3/6 2/3 1 1"]);
    assert_eq!(printed[2], ["4/6 0/2 3 2", "5/6 1/2 2 2"]);
    for (rank, line) in printed.concat().iter().enumerate() {
        assert_eq!(fs::read_to_string(format!("{logs}/rank.{rank}/stdout")).unwrap(), format!("{line}\n"));
    }
}

#[test]
fn a_rank_that_fails_anywhere_is_named_by_every_launcher_with_its_exit_code() {
    let Some(site) = Site::open("nf", &[]) else { return };
    for (rank, host) in [(3, 1), (0, 0)] {
        let script = format!(
            "[ $PHALANX_RANK = {rank} ] && {{ echo because of the moon >&2; exit 7; }}; exec sleep 1000"
        );
        let both = pair(&site, AT, &["--grace", "5"], &["sh", "-c", &script]);
        for done in &both {
            assert_eq!(done.code, Some(7), "{both:?}");
            let named = format!("phalanx: rank {rank} on {} (pid ", site.hosts.names[host]);
            assert!(done.stderr.contains(&named) && done.stderr.contains("exited with code 7"), "{both:?}");
            assert!(done.stderr.contains("because of the moon"), "{both:?}");
        }
        assert_clean(&site, &[]);
    }
    let (nodes, ranks) = at_work(&site);
    kill(ranks[2], "KILL");
    for done in nodes.map(Running::finish) {
        assert_eq!(done.code, Some(137), "{done:?}");
        assert!(
            done.stderr.contains(&format!("rank 2 on {} (pid {}) was killed", site.hosts.names[1], ranks[2])),
            "{done:?}"
        );
    }
    assert_clean(&site, &[]);
}

#[test]
fn when_one_launcher_is_killed_or_interrupted_the_others_end() {
    let Some(site) = Site::open("nk", &[]) else { return };
    // Node 1 is lost.
    let ([zero, one], _) = at_work(&site);
    kill(launcher(&site, 1), "KILL");
    let done = zero.finish();
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.stderr.contains(&format!("phalanx: lost host {} with ranks 2-3", site.hosts.names[1])),
        "{done:?}"
    );
    drop(one);
    assert_clean(&site, &[]);
    // Node 0 is lost.
    let ([zero, one], _) = at_work(&site);
    kill(launcher(&site, 0), "KILL");
    let done = one.finish();
    assert_eq!(done.code, Some(1), "NODE-4: {done:?}");
    assert!(done.stderr.contains(&format!("phalanx: the launcher of node 0 ({AT}) is gone")), "{done:?}");
    drop(zero);
    assert_clean(&site, &[]);
    for host in [0, 1] {
        let (nodes, _) = at_work(&site);
        kill(launcher(&site, host), "INT");
        for done in nodes.map(Running::finish) {
            assert_eq!(done.code, Some(130), "{host}: {done:?}");
        }
        assert_clean(&site, &[]);
    }
}

#[test]
fn hosts_that_never_come_are_named_by_those_that_do() {
    let Some(site) = Site::open("nw", &[]) else { return };
    let flags = ["-np", "1", "--start-timeout", "2"];
    let there = [0, 2].map(|me| Running::start(&mut node(&site, 4, me, AT, &flags, &["true"])));
    for done in there.map(Running::finish) {
        assert_eq!(done.code, Some(124), "{done:?}");
        let wanted =
            "node rank 1, 3 of 4 hosts did not come to 10.78.0.1:29500 within 2 s; start the launchers";
        assert!(done.stderr.contains(wanted), "{done:?}");
    }
    for place in [AT, &format!("file:{}", site.home.path("meet"))] {
        let flags = ["-np", "1", "--start-timeout", "1"];
        let alone = finish(&mut node(&site, 2, 1, place, &flags, &["true"]));
        assert_eq!(alone.code, Some(124), "NODE-2: {alone:?}");
        let wanted = format!("phalanx: no launcher of node 0 was found at {place} within 1 s");
        assert!(alone.stderr.contains(&wanted), "NODE-2: {alone:?}");
    }
    assert_clean(&site, &[]);
}

#[test]
fn another_secret_none_and_an_address_of_another_host_are_refused() {
    let Some(site) = Site::open("ns", &[]) else { return };
    let flags = ["-np", "1", "--start-timeout", "5"];
    let zero = Running::start(&mut node(&site, 2, 0, AT, &flags, &["true"]));
    let mut other = node(&site, 2, 1, AT, &flags, &["true"]);
    let done = finish(other.env("PHALANX_SECRET", "another horse battery staple"));
    assert_eq!(done.code, Some(1), "NODE-1: {done:?}");
    assert!(done.stderr.contains("authentication failed: the peer has a different job secret"), "{done:?}");
    let zero = zero.finish();
    assert!(
        zero.code == Some(124) && zero.stderr.contains("node rank 1 of 2 hosts did not come"),
        "{zero:?}"
    );
    for me in [0, 1] {
        let done = finish(node(&site, 2, me, AT, &flags, &["true"]).env_remove("PHALANX_SECRET"));
        assert_eq!(done.code, Some(1), "{done:?}");
        for way in ["PHALANX_SECRET to the same random text", "PHALANX_SECRET_FILE", "~/.phalanx/secret"] {
            assert!(done.stderr.contains(way), "{way}: {done:?}");
        }
    }
    let done = finish(&mut node(&site, 2, 0, "10.78.0.2:29500", &flags, &["true"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("node 0 cannot listen at 10.78.0.2:29500"), "{done:?}");
    let done = finish(&mut node(&site, 2, 5, AT, &flags, &["true"]));
    assert_eq!(done.code, Some(2), "{done:?}");
}

#[test]
fn launchers_that_do_not_fit_are_refused_and_one_that_was_restarted_is_not() {
    let Some(site) = Site::open("nr", &[]) else { return };
    let start = |n_nodes, me, flags: &[&str], program: &[&str]| {
        let flags = [&["-np", "1", "--start-timeout", "30"], flags].concat();
        Running::start(&mut node(&site, n_nodes, me, AT, &flags, program))
    };
    let refused = |done: Done, why: &str| {
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(done.stderr.contains("phalanx: the launcher of node 0 refused this one: "), "{done:?}");
        assert!(done.stderr.contains(why), "{done:?}");
    };
    let zero = start(3, 0, &[], &["true"]);
    let first = start(3, 1, &["-v"], &["true"]);
    refused(start(2, 1, &[], &["true"]).finish(), "it was started with --nnodes 2, node 0 with --nnodes 3");
    refused(
        start(3, 1, &["--timeout", "9"], &["true"]).finish(),
        "--timeout differs: 9 s there, none on node 0",
    );
    // Whichever of the two came first stays, until it is killed.
    let mut both = [first, start(3, 1, &[], &["true"])];
    eventually(DEADLINE, "the end of one of two", || both.iter().any(|node| !is_alive(node.pid())));
    for node in &mut both {
        let _ = node.child.kill();
    }
    let ended = both.map(Running::finish);
    assert!(ended.iter().any(|d| d.stderr.contains("--node-rank 1 is taken by")), "{ended:?}");
    // Of two again one is refused, as soon as node 0 knows the other: only then the last host may come, or a killed one still counts.
    let again = [start(3, 1, &[], &["true"]), start(3, 1, &[], &["true"])];
    eventually(DEADLINE, "the end of one of two", || again.iter().any(|node| !is_alive(node.pid())));
    let two = start(3, 2, &[], &["sh", "-c", "exit 0"]).finish();
    assert_eq!(two.code, Some(0), "{two:?}");
    let mut codes = again.map(Running::finish).map(|done| done.code);
    codes.sort();
    assert_eq!(codes, [Some(0), Some(1)]);
    let zero = zero.finish();
    assert_eq!(zero.code, Some(0), "{zero:?}");
    assert!(zero.stderr.contains("runs another command: `sh -c exit 0`, and node 0 `true`"), "{zero:?}");
    // What one host cannot start is told everywhere.
    let nodes = [start(2, 0, &[], &["true"]), start(2, 1, &[], &["no-such-command"])];
    for done in nodes.map(Running::finish) {
        assert_eq!(done.code, Some(127), "{done:?}");
        assert!(
            done.stderr
                .contains(&format!("host {}: command not found: no-such-command", site.hosts.names[1])),
            "{done:?}"
        );
    }
    assert_clean(&site, &[]);
}
