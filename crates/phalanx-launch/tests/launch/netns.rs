//! Hosts as network namespaces, joined by a cable or a switch: real TCP between them, and cables that can be cut.
//! Needs root; skipped with a message otherwise.

mod apart;
#[path = "../../../phalanx-collective/tests/processes/crowd.rs"]
mod crowd;
mod doctor;
mod overheard;
mod stranger;
mod tiers;

use crate::launch::support::{Running, finish, phalanx};
use std::{
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

/// Namespaces that go away with the value.
pub struct Hosts {
    pub names: Vec<String>,
}

fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).output().is_ok_and(|o| o.status.success())
}

pub fn inside(host: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{host}"));
    command
}

impl Hosts {
    /// Two hosts with a cable between them. `tag` keeps the tests of one process apart.
    pub fn pair(tag: &str, v6: bool) -> Option<Hosts> {
        let hosts = Hosts::named(tag, &["a", "b"]);
        let (a, b) = (hosts.names[0].as_str(), hosts.names[1].as_str());
        let addresses = if v6 { ["fd77::1/64", "fd77::2/64"] } else { ["10.78.0.1/24", "10.78.0.2/24"] };
        let made = hosts.add()
            && ip(&["-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b])
            && hosts.names.iter().zip(addresses).all(|(n, address)| connect(n, address));
        hosts.if_made(made)
    }

    /// Hosts on one switch, which is a namespace of its own, the last.
    pub fn bridged(tag: &str, n: usize) -> Option<Hosts> {
        let sides = ["a", "b", "c", "d"];
        let hosts = Hosts::named(tag, &[&sides[..n], &["s"]].concat());
        let switch = hosts.names[n].as_str();
        let plug = |i: usize| {
            let (host, port) = (hosts.names[i].as_str(), format!("port{i}"));
            ip(&["-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns", switch])
                && ip(&["-n", switch, "link", "set", &port, "master", "br0", "up"])
                && connect(host, &format!("10.78.0.{}/24", i + 1))
        };
        let made = hosts.add()
            && ip(&["-n", switch, "link", "add", "br0", "type", "bridge"])
            && ip(&["-n", switch, "link", "set", "br0", "up"])
            && (0..n).all(plug);
        hosts.if_made(made)
    }

    fn named(tag: &str, sides: &[&str]) -> Hosts {
        Hosts { names: sides.iter().map(|s| format!("px{}{tag}{s}", std::process::id())).collect() }
    }

    fn add(&self) -> bool {
        self.names.iter().all(|n| ip(&["netns", "add", n]))
    }

    /// The processes on a host.
    pub fn pids(&self, host: usize) -> Vec<u32> {
        let listed = Command::new("ip").args(["netns", "pids", &self.names[host]]).output();
        let text = String::from_utf8(listed.expect("ip runs").stdout).expect("numbers");
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    fn if_made(self, made: bool) -> Option<Hosts> {
        if !made {
            eprintln!("skipped: network namespaces need root and iproute2");
        }
        made.then_some(self)
    }

    /// A job that `phalanx run` starts inside the first host, with a number of ranks on each of the first two.
    fn command(&self, n_ranks: [u32; 2], program: &[&str]) -> Command {
        let (np, [on_a, on_b]) = ((n_ranks[0] + n_ranks[1]).to_string(), n_ranks);
        let hosts = format!("{}:{on_a},{}:{on_b}", self.names[0], self.names[1]);
        let inner = phalanx(&[]);
        let mut command = inside(&self.names[0]);
        command.arg(inner.get_program());
        command.args(["run", "-np", &np, "-H", &hosts, "--rsh", "nsenter --net=/run/netns/{host}", "--"]);
        command.args(program);
        for (name, value) in inner.get_envs() {
            if value.is_none() {
                command.env_remove(name);
            }
        }
        command
    }

    /// The same with our own binary as the program.
    fn phalanx(&self, n_ranks: [u32; 2], args: &[&str]) -> Command {
        self.command(n_ranks, &[&[binary().as_str()], args].concat())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn connect(host: &str, address: &str) -> bool {
    ip(&["-n", host, "addr", "add", address, "dev", "eth0", "nodad"])
        && ip(&["-n", host, "link", "set", "lo", "up"])
        && ip(&["-n", host, "link", "set", "eth0", "up"])
}

pub fn binary() -> String {
    phalanx(&[]).get_program().to_string_lossy().into_owned()
}

/// The same command with its errors among its output, so that a test hears them as they come.
fn aloud(command: &Command) -> Command {
    let mut loud = Command::new("sh");
    loud.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, _) in command.get_envs().filter(|(_, value)| value.is_none()) {
        loud.env_remove(name);
    }
    loud
}

/// Where anything in a namespace listens.
pub fn listening(host: &str) -> Vec<SocketAddr> {
    let sockets = inside(host).args(["cat", "/proc/net/tcp", "/proc/net/tcp6"]).output().expect("cat runs");
    let text = String::from_utf8_lossy(&sockets.stdout).into_owned();
    let listening = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    let listening = listening.filter(|words| words.get(3) == Some(&"0A"));
    listening.map(|words| address(words[1])).collect()
}

/// `0100007F:1F90` as an address: groups of four bytes in the machine's order.
fn address(text: &str) -> SocketAddr {
    let (ip, port) = text.split_once(':').expect("an address has a port");
    let groups = ip.as_bytes().chunks(8).map(|g| std::str::from_utf8(g).expect("the kernel writes ASCII"));
    let bytes: Vec<u8> =
        groups.flat_map(|g| u32::from_str_radix(g, 16).expect("hex").to_ne_bytes()).collect();
    let port = u16::from_str_radix(port, 16).expect("hex");
    match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(v4) => (v4, port).into(),
        Err(_) => (<[u8; 16]>::try_from(bytes.as_slice()).expect("an IPv6 address"), port).into(),
    }
}

/// Enough that a benchmark of them all outlasts its test.
pub fn many_sizes() -> String {
    (1..200).map(|i| (4 * i).to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn two_by_two_ranks_run_every_collective_between_two_namespaces() {
    for (tag, v6) in [("f", false), ("s", true)] {
        let Some(hosts) = Hosts::pair(tag, v6) else { return };
        let args = ["bench", "--json", "--op", "all", "--sizes", "4,64K,1M", "--seconds", "0.05"];
        let done = finish(&mut hosts.phalanx([2, 2], &args));
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
        inside(host).args(["sh", "-c", &script]).output().is_ok_and(|o| o.status.success())
    }
}

/// Pairs of hosts that exist at the same time: their jobs are busy until they are cut apart.
const N_CUTS_AT_ONCE: usize = 8;

/// Cuts off the second host of a job of three ranks, and returns how long each rank of the first took to name the one there.
fn cut_off(cut: Cut, case: usize) -> Vec<Duration> {
    let Some(hosts) = Hosts::pair(&format!("{}{case}", cut as u8), false) else { return Vec::new() };
    // Agents talk to the launcher through pipes, which no cut of the network severs. So that nobody learns through them what only
    // the network can tell, the process of the rank that is cut off outlives its failure.
    let stay = r#""$@"; code=$?; [ $PHALANX_RANK = 2 ] && exec tail -f /dev/null; exit $code"#;
    let (binary, sizes) = (binary(), many_sizes());
    let work = ["bench", "--json", "--seconds", "0.2", "--sizes", &sizes];
    let program = [&["sh", "-c", stay, "sh", &binary], &work[..]].concat();
    let mut job = Running::start(&mut aloud(&hosts.command([2, 1], &program)));
    let first = job.line();
    assert!(first.contains("\"bytes\":4,"), "{first}");
    // A fifth of a second a line: not all cuts shall come at the same moment between two beats of the hub.
    (0..case % 5).for_each(|_| drop(job.line()));
    let start = Instant::now();
    if !cut.apply(&hosts.names[1]) {
        eprintln!("skipped {cut:?}: nft is not here or refuses");
        return Vec::new();
    }
    let mut unheard = vec![format!("{}:0 |", hosts.names[0]), format!("{}:1 |", hosts.names[0])];
    let mut times = Vec::new();
    while !unheard.is_empty() {
        let line = job.line();
        let Some(i) = unheard.iter().position(|prefix| line.starts_with(prefix)) else { continue };
        if !line.contains("{\"op\":") {
            times.push(start.elapsed());
            assert!(line.contains("rank 2 is lost"), "{cut:?}: {line}");
            unheard.remove(i);
        }
    }
    let done = job.finish();
    assert_ne!(done.code, Some(0), "{cut:?}: {done:?}");
    times
}

#[test]
fn a_host_cut_off_in_any_way_has_its_rank_named_by_all_others() {
    let n = crowd::setting("PHALANX_TEST_CUTS", 2);
    for cut in [Cut::LinkDown, Cut::Silent, Cut::OneWay] {
        let cases: Vec<usize> = (0..n).collect();
        crowd::run(&format!("{cut:?}"), N_CUTS_AT_ONCE, &cases, |&case| cut_off(cut, case));
    }
}
