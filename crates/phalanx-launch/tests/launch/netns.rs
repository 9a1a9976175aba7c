//! Two hosts as two network namespaces joined by a veth pair: real TCP between them, and cables that can be cut.
//! Needs root; skipped with a message otherwise.

use crate::support::{Running, finish, phalanx};
use std::{process::Command, time::Instant};

/// Two namespaces that go away with the value.
struct TwoHosts {
    a: String,
    b: String,
}

fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).output().is_ok_and(|o| o.status.success())
}

impl TwoHosts {
    /// `tag` keeps the tests of one process apart.
    fn new(tag: &str, v6: bool) -> Option<TwoHosts> {
        let name = |side: &str| format!("px{}{tag}{side}", std::process::id());
        let hosts = TwoHosts { a: name("a"), b: name("b") };
        let (a, b) = (hosts.a.as_str(), hosts.b.as_str());
        let addresses = if v6 { ["fd77::1/64", "fd77::2/64"] } else { ["10.78.0.1/24", "10.78.0.2/24"] };
        let made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&["-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b])
            && ip(&["-n", a, "addr", "add", addresses[0], "dev", "eth0", "nodad"])
            && ip(&["-n", b, "addr", "add", addresses[1], "dev", "eth0", "nodad"])
            && [a, b].iter().all(|n| {
                ip(&["-n", n, "link", "set", "lo", "up"]) && ip(&["-n", n, "link", "set", "eth0", "up"])
            });
        if !made {
            eprintln!("skipped: network namespaces need root and iproute2");
            return None;
        }
        Some(hosts)
    }

    /// `phalanx` with these arguments inside the first host, with ranks on both.
    fn command(&self, np: &str, slots: &str, args: &[&str]) -> Command {
        let hosts = format!("{}:{slots},{}:{slots}", self.a, self.b);
        let inner = phalanx(&[]);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.a)).arg(inner.get_program());
        command.args(["run", "-np", np, "-H", &hosts, "--rsh", "nsenter --net=/run/netns/{host}", "--"]);
        command.arg(inner.get_program()).args(args);
        for (name, value) in inner.get_envs() {
            if value.is_none() {
                command.env_remove(name);
            }
        }
        command
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.a]);
        ip(&["netns", "del", &self.b]);
    }
}

#[test]
fn two_by_two_ranks_run_every_collective_between_two_namespaces() {
    for (tag, v6) in [("f", false), ("s", true)] {
        let Some(hosts) = TwoHosts::new(tag, v6) else { return };
        let args = ["bench", "--json", "--op", "all", "--sizes", "4,64K,1M", "--seconds", "0.05"];
        let done = finish(&mut hosts.command("4", "2", &args));
        assert_eq!(done.code, Some(0), "v6 {v6}: {done:?}");
        let rows = done.stdout.lines().filter(|l| l.contains("\"transport\":\"shm+tcp\""));
        assert!(rows.count() >= 20, "{done:?}");
    }
}

/// Ways to take the second host off the network.
#[derive(Clone, Copy, Debug)]
enum Cut {
    LinkDown,
    Silent,
    OneWay,
}

impl Cut {
    fn apply(self, host: &str) -> bool {
        let drop =
            |hook: &str| format!("chain {hook} {{\ntype filter hook {hook} priority 0; policy drop;\n}}\n");
        let rules = match self {
            Cut::LinkDown => return ip(&["-n", host, "link", "set", "eth0", "down"]),
            Cut::Silent => format!("table inet cut {{\n{}{}}}\n", drop("input"), drop("output")),
            Cut::OneWay => format!("table inet cut {{\n{}}}\n", drop("input")),
        };
        let script = format!("echo '{rules}' | nft -f -");
        let nft = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{host}"))
            .args(["sh", "-c", &script])
            .output();
        nft.is_ok_and(|o| o.status.success())
    }
}

#[test]
fn a_host_cut_off_in_any_way_ends_the_job_with_its_rank_named() {
    for (i, cut) in [Cut::LinkDown, Cut::Silent, Cut::OneWay].into_iter().enumerate() {
        let Some(hosts) = TwoHosts::new(&i.to_string(), false) else { return };
        // The first line says that data flow; the second size would go on for long after it.
        let args = ["bench", "--json", "--sizes", "4,1M", "--seconds", "20"];
        let mut job = Running::start(&mut hosts.command("2", "1", &args));
        let first = job.line();
        assert!(first.contains("\"bytes\":4"), "{first}");
        if !cut.apply(&hosts.b) {
            eprintln!("skipped {cut:?}: nft is not here or refuses");
            continue;
        }
        let start = Instant::now();
        let done = job.finish();
        eprintln!("{cut:?}: the job ended {:.1} s after the cut", start.elapsed().as_secs_f64());
        assert_ne!(done.code, Some(0), "{cut:?}: {done:?}");
        assert!(done.stderr.contains("rank 1 is lost"), "{cut:?}: {done:?}");
    }
}
