//! What ranks cost the machine: nothing is left behind when they die, nothing is burnt while they wait, more of them than cores work.

use crate::processes::{
    Job, Spec,
    worker::{Fault, OPS, Order},
};
use rustix::process::Pid;
use std::{collections::BTreeSet, fs, time::Duration};

/// Inodes of the process's open files and mappings whose name begins like this.
fn inodes(pid: Pid, prefix: &str) -> BTreeSet<u64> {
    let folder = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).expect("the process runs");
    let of = |path: std::path::PathBuf| {
        let name = fs::read_link(&path).ok()?.to_string_lossy().into_owned();
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).ok()?).into();
        name.starts_with(prefix).then(inode).flatten()
    };
    folder.flatten().filter_map(|entry| of(entry.path())).collect()
}

/// Inodes of all listening sockets of this network.
fn listening() -> BTreeSet<u64> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| fs::read_to_string(t).unwrap_or_default());
    let lines = tables.iter().flat_map(|t| t.lines().skip(1));
    let fields = lines.map(|l| l.split_whitespace().collect::<Vec<_>>());
    fields.filter(|f| f[3] == "0A").filter_map(|f| f[9].parse().ok()).collect()
}

/// Inodes of arenas that any process of this machine (that we may look at) maps.
fn arenas() -> BTreeSet<u64> {
    let maps = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let texts = maps.filter_map(|p| fs::read_to_string(p.path().join("maps")).ok());
    let inode = |line: &str| {
        line.contains("memfd:phalanx-arena")
            .then(|| line.split_whitespace().nth(4)?.parse::<u64>().ok())
            .flatten()
    };
    texts.flat_map(|text| text.lines().filter_map(inode).collect::<Vec<_>>()).collect()
}

fn files_in_shared_memory() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|n| n.contains("phalanx")).collect()
}

#[test]
fn nothing_is_left_when_every_rank_is_killed() {
    for (spec, shares) in
        [(Spec::new(&[4]), true), (Spec::new(&[2, 1]), true), (Spec::new(&[3]).over_tcp(), false)]
    {
        let mut job = Job::start(spec.with("PHALANX_TEST_OPS", "allreduce-large"));
        let all: Vec<usize> = (0..job.n_ranks()).collect();
        job.hear(&all, "busy");
        assert_eq!(files_in_shared_memory(), BTreeSet::new(), "MAP-1: an arena has no name");
        let pids: Vec<Pid> = all.iter().map(|&r| job.pid(r)).collect();
        let memory: BTreeSet<u64> = pids.iter().flat_map(|&p| inodes(p, "/memfd:phalanx-arena")).collect();
        let sockets: BTreeSet<u64> = pids.iter().flat_map(|&p| inodes(p, "socket:")).collect();
        let ports = |sockets: &BTreeSet<u64>| listening().intersection(sockets).count();
        assert!(
            memory.is_empty() != shares && memory.is_subset(&arenas()),
            "ranks share memory, unless over TCP"
        );
        assert_eq!(ports(&sockets), all.len(), "every rank listens for links on one port");

        for &rank in &all {
            job.kill(rank);
        }
        job.hear(&all, "ended");
        drop(job);
        assert!(arenas().is_disjoint(&memory), "MAP-1: memory goes with the last process");
        assert_eq!(ports(&sockets), 0);
        assert_eq!(files_in_shared_memory(), BTreeSet::new(), "MAP-1");
        assert!(pids.iter().all(|p| !fs::exists(format!("/proc/{}", p.as_raw_pid())).unwrap_or(true)));
    }
}

/// Time on a core that a process has used so far.
fn used(pid: Pid) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).expect("the process runs");
    // The name, in parentheses, may contain anything; user and system time are the 12th and 13th words behind it.
    let words: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks: u64 = words[11..13].iter().map(|w| w.parse::<u64>().expect("a number of ticks")).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[test]
fn ranks_that_wait_burn_no_core() {
    let window = Duration::from_secs(2);
    for spec in [Spec::new(&[4]), Spec::new(&[4]).over_tcp(), Spec::new(&[2, 2]), Spec::new(&[2])] {
        let away = Order { rank: 0, fault: Fault::Away, round: 20, delay: Duration::ZERO };
        let spec = spec.with("PHALANX_TEST_FAULTS", away.text()).with("PHALANX_TEST_ROUNDS", 25);
        let mut job = Job::start(spec.clone());
        let all: Vec<usize> = (0..job.n_ranks()).collect();
        job.hear(&all, "busy");
        job.hear(&[0], "away");
        let before: Vec<Duration> = all.iter().map(|&r| used(job.pid(r))).collect();
        job.quiet_for(window);
        for &r in &all {
            let burnt = used(job.pid(r)) - before[r];
            println!("{:?} {}: rank {r} used {burnt:?} of {window:?}", spec.hosts, spec.vars[0].1);
            assert!(burnt < window / 10, "WAIT-1: rank {r} used {burnt:?} of {window:?} while it waited");
        }
        job.dismiss(0);
        job.hear(&all, "done");
        job.finish();
    }
}

#[test]
fn worlds_of_more_ranks_than_cores_work() {
    for n in [1, 2, 3, 4, 5, 8] {
        for spec in [Spec::new(&[n]), Spec::new(&[n]).over_tcp()] {
            let spec = spec.with("PHALANX_TEST_OPS", OPS.join(",")).with("PHALANX_TEST_ROUNDS", 60);
            let mut job = Job::start(spec);
            let all: Vec<usize> = (0..job.n_ranks()).collect();
            job.hear(&all, "done");
            job.finish();
        }
    }
}
