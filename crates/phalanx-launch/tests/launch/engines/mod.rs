//! The launchers that clusters have, for real: ranks on two hosts that are network namespaces, with no flags of ours. Each test needs root, iproute2
//! and a Debian package; without them it says so and is skipped.

mod beside_mpi;
mod boards;
mod hydra;
mod nodes;
mod open_mpi;
mod slurm;
mod slurm_ends;
mod slurm_jobs;
mod ssh;

use super::{
    netns::{Hosts, binary, inside, many_sizes},
    support::{DEADLINE, Done, Running, TempDir, eventually, is_alive, phalanx},
};
use std::{
    fs,
    process::{Command, Stdio},
};

/// Two hosts, a home without a key, and a remote shell between the hosts.
struct Site {
    hosts: Hosts,
    home: TempDir,
}

/// What every rank runs: a few collectives, reported by rank 0.
const WORK: [&str; 6] = ["bench", "--json", "--sizes", "4,64K", "--seconds", "0.02"];

impl Site {
    /// `None` where a program or root is missing, after saying which.
    fn open(tag: &str, needs: &[(&str, &str)]) -> Option<Site> {
        for (program, package) in needs {
            let there = Command::new("sh")
                .args(["-c", &format!("command -v {program}")])
                .stdout(Stdio::null())
                .status();
            if !there.is_ok_and(|s| s.success()) {
                eprintln!("skipped: there is no {program} here; the Debian package {package} has it");
                return None;
            }
        }
        let hosts = Hosts::pair(tag, false)?;
        let home = TempDir::new();
        let names = &hosts.names;
        // Called like ssh: options, the host, a command for a shell.
        let script = format!(
            "while [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
             case $host in 10.78.0.1) ns={};; 10.78.0.2) ns={};; *) echo \"no host $host\" >&2; exit 255;; esac\n\
             exec nsenter --net=/run/netns/$ns unshare --uts sh -c \"hostname $ns; $*\"",
            names[0], names[1]
        );
        home.script("rsh", &script);
        Some(Site { hosts, home })
    }

    /// A command on the first host, in an environment without ranks and keys.
    fn command(&self, program: &str) -> Command {
        self.command_on(0, program)
    }

    /// The same on any host.
    fn command_on(&self, host: usize, program: &str) -> Command {
        let name = &self.hosts.names[host];
        let mut command = inside(name);
        command.args(["unshare", "--uts", "sh", "-c", "hostname \"$0\"; exec \"$@\"", name, program]);
        for (name, value) in phalanx(&[]).get_envs() {
            if value.is_none() {
                command.env_remove(name);
            }
        }
        command.env("HOME", &self.home.0).env("PHALANX_LOG", "phalanx_net=info").stdin(Stdio::null());
        command
    }

    /// Where ranks write their errors, with their number behind it: several that write to one pipe interrupt each other.
    fn words(&self) -> String {
        self.home.path("words")
    }

    /// How many ranks wrote this there.
    fn n_said(&self, text: &str) -> usize {
        let words =
            (0..4).map(|rank| fs::read_to_string(format!("{}.{rank}", self.words())).unwrap_or_default());
        words.filter(|words| words.contains(text)).count()
    }

    /// The first that gave up said why; the launcher may have ended the others meanwhile.
    fn assert_one_said(&self, text: &str) {
        assert!(self.n_said(text) > 0, "RDZV-3: no rank said {text:?}");
    }

    /// A command for ranks of which one will be killed: each says who it is, works for long, and writes its errors to [`words`](Self::words). Launchers
    /// end the others with SIGTERM; so that they can say what they know, they do not heed it. `rank` is the launcher's variable.
    fn long_work(&self, rank: &str) -> Vec<String> {
        let told = format!("trap '' TERM; echo rank ${rank} is $$; exec \"$@\" 2>\"$0.${rank}\"");
        let work = ["bench", "--json", "--seconds", "0.2", "--sizes"].map(String::from);
        let mut words = vec!["sh".into(), "-c".into(), told, self.words(), binary()];
        words.extend(work.into_iter().chain([many_sizes()]));
        words
    }

    fn assert_nothing_is_left(&self, pids: &[u32]) {
        eventually(DEADLINE, "all ranks have ended", || pids.iter().all(|&pid| !is_alive(pid)));
        let left = || (0..2).map(|host| self.hosts.pids(host).len()).sum::<usize>();
        eventually(DEADLINE, "no process is left on a host", || left() == 0);
    }

    /// Four ranks ran on two hosts, met there, and nobody made a key.
    fn assert_worked(&self, done: &Done, met: &str) {
        assert_eq!(done.code, Some(0), "{done:?}");
        assert_eq!(done.stdout.matches("\"transport\":\"shm+tcp\"").count(), 2, "{done:?}");
        let formed = done.stderr.lines().filter(|l| l.contains("world formed") && l.contains("hosts=2"));
        assert_eq!(formed.filter(|l| l.contains(met)).count(), 4, "{met}: {done:?}");
        assert!(!self.home.0.join(".phalanx").exists(), "a key was made");
    }
}

/// The processes of the ranks of [`Site::long_work`], once all of them work.
fn at_work(job: &mut Running) -> [u32; 4] {
    let (mut pids, mut n_rows) = ([0; 4], 0);
    while n_rows < 2 || pids.contains(&0) {
        let line = job.line();
        n_rows += usize::from(line.contains("\"bytes\":"));
        if let [_, rank, _, pid] = line.split(' ').collect::<Vec<_>>()[..] {
            pids[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
        }
    }
    pids
}
