//! Boards that the user names: etcd and a directory. The ranks are started by hand, two on each host.

use super::{Site, WORK};
use crate::launch::{
    netns::{binary, inside, listening},
    support::{DEADLINE, Done, Running, eventually, finish, kill, phalanx, wait},
};
use std::{
    fs,
    process::{Child, Command, Stdio},
};

pub const SECRET: &str = "correct horse battery staple";

fn rank(site: &Site, rank: usize, rendezvous: &str) -> Command {
    let mut command = inside(&site.hosts.names[rank / 2]);
    command.arg(binary()).args(WORK);
    for (name, value) in phalanx(&[]).get_envs() {
        if value.is_none() {
            command.env_remove(name);
        }
    }
    command.envs([
        ("PHALANX_RANK", rank.to_string().as_str()),
        ("PHALANX_SIZE", "4"),
        ("PHALANX_RENDEZVOUS", rendezvous),
    ]);
    command.env("HOME", &site.home.0).env("PHALANX_LOG", "phalanx_net=info").stdin(Stdio::null());
    command
}

/// All ranks, to their ends; their output together.
fn run(site: &Site, rendezvous: &str) -> Done {
    let start = |r| Running::start(rank(site, r, rendezvous).env("PHALANX_SECRET", SECRET));
    let ranks: Vec<Running> = (0..4).map(start).collect();
    let mut all = Done { code: Some(0), stdout: String::new(), stderr: String::new() };
    for done in ranks.into_iter().map(Running::finish) {
        all.code = all.code.filter(|_| done.code == Some(0));
        all.stdout += &done.stdout;
        all.stderr += &done.stderr;
    }
    all
}

/// A server that ends with the value.
pub struct Etcd(pub Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn etcd(site: &Site) -> Etcd {
    let host = &site.hosts.names[0];
    let mut command = inside(host);
    command.args([
        "etcd",
        "--data-dir",
        &site.home.path("etcd"),
        "--listen-client-urls",
        "http://10.78.0.1:2379",
    ]);
    command.args([
        "--advertise-client-urls",
        "http://10.78.0.1:2379",
        "--listen-peer-urls",
        "http://127.0.0.1:2380",
    ]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let etcd = Etcd(child.expect("etcd starts"));
    eventually(DEADLINE, "etcd listens", || listening(host).iter().any(|a| a.port() == 2379));
    etcd
}

#[test]
fn ranks_meet_through_etcd_and_a_dead_job_does_not_stop_the_next() {
    let Some(site) = Site::open("e", &[("etcd", "etcd-server")]) else { return };
    let _etcd = etcd(&site);
    let there = "etcd://10.78.0.1:2379/lenet";
    site.assert_worked(&run(&site, there), "through etcd://10.78.0.1:2379/lenet");
    // A rank 0 that dies while it waits leaves an entry, which goes with its lease.
    let mut dead = Running::start(rank(&site, 0, there).env("PHALANX_SECRET", SECRET));
    let is_open = || listening(&site.hosts.names[0]).iter().any(|a| ![2379, 2380].contains(&a.port()));
    eventually(DEADLINE, "rank 0 serves", is_open);
    kill(dead.pid(), "KILL");
    wait(&mut dead.child);
    site.assert_worked(&run(&site, there), "through etcd");
    let none = Running::start(&mut rank(&site, 1, there)).finish();
    assert!(
        none.code == Some(1) && none.stderr.contains("set PHALANX_SECRET to the same random text"),
        "{none:?}"
    );
    let closed =
        Running::start(rank(&site, 1, "etcd://10.78.0.2:9/x").env("PHALANX_SECRET", SECRET)).finish();
    assert!(closed.stderr.contains("10.78.0.2:9 cannot be reached"), "{closed:?}");
}

#[test]
fn an_etcd_that_ends_during_the_meeting_or_has_another_jobs_entry_is_said() {
    let Some(site) = Site::open("g", &[("etcd", "etcd-server")]) else { return };
    let server = etcd(&site);
    let there = "etcd://10.78.0.1:2379/lenet";
    let given = |r, secret: &str| {
        let mut command = rank(&site, r, there);
        command.env("PHALANX_SECRET", secret).env("PHALANX_START_TIMEOUT", "20");
        command
    };
    // Another job has taken the name: a rank that has another secret is told so.
    let other = Running::start(&mut given(0, "the secret of another job"));
    let is_open = || listening(&site.hosts.names[0]).iter().any(|a| ![2379, 2380].contains(&a.port()));
    eventually(DEADLINE, "rank 0 of the other job serves", is_open);
    let strange = finish(&mut given(1, SECRET));
    assert!(strange.stderr.contains("made with another secret; is it another job's?"), "{strange:?}");
    kill(other.pid(), "KILL");
    drop(other);

    // etcd ends while ranks wait for rank 0, which never comes.
    let waits = Running::start(rank(&site, 1, "etcd://10.78.0.1:2379/empty").env("PHALANX_SECRET", SECRET));
    let has_called = || {
        let calls = inside(&site.hosts.names[0]).args(["cat", "/proc/net/tcp"]).output().expect("cat runs");
        String::from_utf8_lossy(&calls.stdout).lines().any(|l| l.contains(":094B ") && !l.contains(" 0A "))
    };
    eventually(DEADLINE, "the rank asks etcd", has_called);
    drop(server);
    let left = waits.finish();
    assert!(left.code == Some(1) && left.stderr.contains("10.78.0.1:2379"), "{left:?}");
}

#[test]
fn ranks_meet_through_a_directory_and_leave_it_empty() {
    let Some(site) = Site::open("d", &[]) else { return };
    let dir = site.home.path("meet");
    let there = format!("file:{dir}");
    for _ in 0..2 {
        site.assert_worked(&run(&site, &there), &format!("through file:{dir}"));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "RDZV-6");
    }
    // What a job that was killed has left leads nowhere; the next one takes its place.
    let mut dead = Running::start(rank(&site, 0, &there).env("PHALANX_SECRET", SECRET));
    eventually(DEADLINE, "rank 0 has written", || fs::exists(format!("{dir}/rank0")).unwrap());
    kill(dead.pid(), "KILL");
    wait(&mut dead.child);
    let early = Running::start(rank(&site, 1, &there).env("PHALANX_SECRET", SECRET));
    let others = [0, 2, 3].map(|r| Running::start(rank(&site, r, &there).env("PHALANX_SECRET", SECRET)));
    assert!(others.into_iter().all(|r| r.finish().code == Some(0)), "RDZV-5");
    assert_eq!(early.finish().code, Some(0), "RDZV-5");
    // The same if the dead job had another secret; without a rank 0 the entry is named.
    let mut dead = Running::start(rank(&site, 0, &there).env("PHALANX_SECRET", "the secret of another job"));
    eventually(DEADLINE, "rank 0 has written", || fs::exists(format!("{dir}/rank0")).unwrap());
    kill(dead.pid(), "KILL");
    wait(&mut dead.child);
    let mut alone = rank(&site, 1, &there);
    let alone = finish(alone.env("PHALANX_SECRET", SECRET).env("PHALANX_START_TIMEOUT", "1"));
    for text in
        ["for rank 0 of this job to replace an entry where nobody answers", "made with another secret"]
    {
        assert!(alone.code == Some(1) && alone.stderr.contains(text), "RDZV-5: {alone:?}");
    }
    let early = Running::start(rank(&site, 1, &there).env("PHALANX_SECRET", SECRET));
    let others = [2, 3, 0].map(|r| Running::start(rank(&site, r, &there).env("PHALANX_SECRET", SECRET)));
    assert!(others.into_iter().all(|r| r.finish().code == Some(0)), "RDZV-5");
    assert_eq!(early.finish().code, Some(0), "RDZV-5");
    let common = Running::start(rank(&site, 1, "file:/tmp").env("PHALANX_SECRET", SECRET)).finish();
    assert!(common.code == Some(1) && common.stderr.contains("others can write /tmp"), "{common:?}");
}
