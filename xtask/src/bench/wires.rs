//! Hosts as network namespaces in racks: a switch for each rack, a cable between the switches, token buckets at both ends of every cable. Everything
//! goes with the value.

use crate::process::{Output, Shell};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

pub const INTERFACE: &str = "eth0";
const SHORT: Duration = Duration::from_secs(20);

/// Bytes of an interface.
struct Carried {
    sent: u64,
    received: u64,
}

/// One end of a cable: where it is and what it is called there.
type End = (String, String);

pub struct Wires<'a> {
    shell: &'a Shell,
    pub hosts: Vec<String>,
    switches: Vec<String>,
    /// Both ends of each host's cable, and of the cable between racks.
    host_ends: Vec<[End; 2]>,
    uplink: Option<[End; 2]>,
    /// Called like ssh, it runs a command on a host given by name or address.
    pub enter: PathBuf,
    /// A home without a key; sessions of Open MPI are there, too.
    home: PathBuf,
}

impl<'a> Wires<'a> {
    /// One or two racks, each with its number of hosts.
    pub fn new(shell: &'a Shell, tag: &str, racks: &[u32]) -> Result<Wires<'a>, String> {
        let name = |what: &str, i: usize| format!("pht{}{tag}{what}{i}", std::process::id());
        let n_hosts = racks.iter().sum::<u32>() as usize;
        let folder = std::env::temp_dir();
        let mut wires = Wires {
            shell,
            hosts: (0..n_hosts).map(|i| name("h", i)).collect(),
            switches: (0..racks.len()).map(|i| name("s", i)).collect(),
            host_ends: Vec::new(),
            uplink: None,
            enter: folder.join(name("enter", 0)),
            home: folder.join(name("home", 0)),
        };
        // From here on it is dropped, and everything removed, whatever fails.
        fs::create_dir_all(&wires.home).map_err(|e| format!("cannot make {}: {e}", wires.home.display()))?;
        wires.write_enter()?;
        for switch in &wires.switches {
            wires.ip(&format!("netns add {switch}"))?;
            wires.ip(&format!("-n {switch} link add br0 type bridge"))?;
            wires.ip(&format!("-n {switch} link set br0 up"))?;
        }
        let racks = racks.iter().enumerate().flat_map(|(rack, &n)| (0..n).map(move |_| rack));
        for (i, rack) in racks.enumerate() {
            let (host, switch, port) =
                (wires.hosts[i].clone(), wires.switches[rack].clone(), format!("port{i}"));
            wires.ip(&format!("netns add {host}"))?;
            wires.ip(&format!("-n {switch} link add {port} type veth peer name {INTERFACE} netns {host}"))?;
            wires.ip(&format!("-n {switch} link set {port} master br0 up"))?;
            wires.ip(&format!("-n {host} addr add {}/24 dev {INTERFACE}", address(i)))?;
            wires.ip(&format!("-n {host} link set {INTERFACE} up"))?;
            wires.ip(&format!("-n {host} link set lo up"))?;
            wires.host_ends.push([(host, INTERFACE.into()), (switch, port)]);
        }
        if let [a, b] = &wires.switches[..] {
            wires.ip(&format!("-n {a} link add uplink type veth peer name uplink netns {b}"))?;
            wires.ip(&format!("-n {a} link set uplink master br0 up"))?;
            wires.ip(&format!("-n {b} link set uplink master br0 up"))?;
            wires.uplink = Some([a, b].map(|switch| (switch.clone(), "uplink".to_string())));
        }
        Ok(wires)
    }

    fn ip(&self, args: &str) -> Result<(), String> {
        let mut command = self.shell.command("ip");
        command.args(args.split_whitespace());
        self.shell.must(&mut command, Output::Kept, SHORT).map(drop)
    }

    fn write_enter(&self) -> Result<(), String> {
        let cases =
            self.hosts.iter().enumerate().map(|(i, host)| format!("{host}|{}) ns={host};;\n", address(i)));
        let text = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\ncase $host in\n{}\
             *) echo \"no host $host\" >&2; exit 255;;\nesac\n\
             exec nsenter --net=/run/netns/$ns unshare --uts sh -c \"hostname $ns; exec $*\"\n",
            cases.collect::<String>()
        );
        fs::write(&self.enter, text)
            .and_then(|()| fs::set_permissions(&self.enter, fs::Permissions::from_mode(0o700)))
            .map_err(|e| format!("cannot write {}: {e}", self.enter.display()))
    }

    /// Token buckets at both ends: of every host's cable, and of the one between racks.
    pub fn limit(&self, host_rate: &str, uplink_rate: &str) -> Result<(), String> {
        let hosts = self.host_ends.iter().flatten().map(|end| (end, host_rate));
        for ((place, device), rate) in hosts.chain(self.uplink.iter().flatten().map(|end| (end, uplink_rate)))
        {
            let mut tc = self.shell.command("tc");
            tc.args(["-n", place, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate]);
            tc.args(["burst", "128kb", "latency", "200ms"]);
            self.shell.must(&mut tc, Output::Kept, SHORT)?;
        }
        Ok(())
    }

    /// As fast as it goes.
    pub fn unlimit(&self) -> Result<(), String> {
        for (place, device) in self.host_ends.iter().flatten().chain(self.uplink.iter().flatten()) {
            let mut tc = self.shell.command("tc");
            tc.args(["-n", place, "qdisc", "del", "dev", device, "root"]);
            self.shell.must(&mut tc, Output::Kept, SHORT)?;
        }
        Ok(())
    }

    /// `name:4,name:4`, or with addresses.
    pub fn list(&self, each: u32, by_address: bool) -> String {
        let name = |(i, host): (usize, &String)| match by_address {
            true => format!("{}:{each}", address(i)),
            false => format!("{host}:{each}"),
        };
        self.hosts.iter().enumerate().map(name).collect::<Vec<_>>().join(",")
    }

    /// A program on one of the hosts.
    pub fn on(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let name = &self.hosts[host];
        let mut command = self.shell.command("nsenter");
        command.arg(format!("--net=/run/netns/{name}"));
        command.args(["unshare", "--uts", "sh", "-c", "hostname \"$0\"; exec \"$@\"", name]).arg(program);
        command.env("HOME", &self.home).env("TMPDIR", &self.home);
        command
    }

    /// Ends what still runs on the hosts, and says how many processes that were.
    pub fn clear(&self) -> Result<usize, String> {
        let mut n_ended = 0;
        for host in &self.hosts {
            let mut command = self.shell.command("ip");
            let pids = self.shell.must(command.args(["netns", "pids", host]), Output::Kept, SHORT)?.stdout;
            for pid in pids.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)) {
                // One that has ended by itself is gone, too.
                n_ended += usize::from(kill_process(pid, Signal::KILL).is_ok());
            }
        }
        Ok(n_ended)
    }

    /// What the interfaces of the hosts have sent so far.
    pub fn sent(&self) -> Result<Vec<u64>, String> {
        self.hosts.iter().map(|host| Ok(self.carried(host)?.sent)).collect()
    }

    /// What all of them have sent and received so far.
    pub fn both_ways(&self) -> Result<u64, String> {
        let carried = self.hosts.iter().map(|host| self.carried(host));
        carried.map(|carried| carried.map(|c| c.sent + c.received)).sum()
    }

    fn carried(&self, host: &str) -> Result<Carried, String> {
        let mut ip = self.shell.command("ip");
        ip.args(["-n", host, "-s", "-j", "link", "show", "dev", INTERFACE]);
        let said = self.shell.must(&mut ip, Output::Kept, SHORT)?.stdout;
        let found: serde_json::Value =
            serde_json::from_str(&said).map_err(|e| format!("ip says {said:?}: {e}"))?;
        let bytes =
            |way: &str| found[0]["stats64"][way]["bytes"].as_u64().ok_or_else(|| format!("ip says {said:?}"));
        Ok(Carried { sent: bytes("tx")?, received: bytes("rx")? })
    }
}

/// Removes namespaces. What does not exist needs no removing.
pub fn remove_namespaces<'a>(names: impl IntoIterator<Item = &'a String>) {
    for name in names {
        // Not through the shell, which starts nothing after Ctrl-C.
        let mut command = Command::new("ip");
        command.args(["netns", "del", name]);
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

pub fn address(host: usize) -> String {
    format!("10.197.0.{}", host + 10)
}

impl Drop for Wires<'_> {
    fn drop(&mut self) {
        remove_namespaces(self.hosts.iter().chain(&self.switches));
        let _ = fs::remove_file(&self.enter);
        let _ = fs::remove_dir_all(&self.home);
    }
}
