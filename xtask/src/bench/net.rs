//! Between two hosts: network namespaces joined by a cable of their own, which go when the measurement ends, however it does.

use super::{
    goals::NET_SIZES,
    options::Options,
    peers::{self, Peers},
    row::Samples,
    table::size,
    wires::remove_namespaces,
};
use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(600);
pub const INTERFACE: &str = "cable0";
pub const ADDRESSES: [&str; 2] = ["10.199.0.1", "10.199.0.2"];
/// Nothing else listens in a fresh namespace.
const PORT: &str = "29400";

/// All rounds of everybody.
pub fn measure(
    shell: &Shell,
    peers: &mut Peers,
    options: &Options,
    samples: &mut Samples,
) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("note: --net needs root to make network namespaces; skipped");
        return Ok(());
    }
    let pair = Pair::new(shell)?;
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}, between two namespaces ...", options.rounds);
        let seconds = options.seconds.to_string();
        if let Some(program) = &peers.streams {
            let streams = peers::take(shell, pair.plain(shell, program, &seconds, "net-streams"), samples);
            peers.excuse(shell, "two TCP streams between namespaces", streams)?;
        }
        if let Some(program) = &peers.handmade_tcp {
            let handmade = peers::take(shell, pair.plain(shell, program, &seconds, "net-handmade"), samples);
            peers.excuse(shell, "the hand-made allreduce between namespaces", handmade)?;
        }
        if let Some(program) = &peers.openmpi {
            let openmpi = peers::take(shell, pair.openmpi(shell, program, &seconds), samples);
            peers.excuse(shell, "Open MPI between namespaces", openmpi)?;
        }
        // As fast as the others, who encrypt nothing; then as it is by default.
        pair.ours(shell, &seconds, "never", "net", samples)?;
        pair.ours(shell, &seconds, "auto", "net-tls", samples)?;
        if let Some(python) = &peers.python {
            let script = r#"run() { exec nsenter --net="/run/netns/$2" env RANK="$1" LOCAL_RANK=0 "$PROGRAM" "$BENCH" net "$SECONDS_EACH"; }"#;
            let mut command = pair.both(shell, script);
            command
                .env("PROGRAM", python)
                .env("BENCH", peers.folder.join("torch_bench.py"))
                .env("SECONDS_EACH", &seconds)
                .env("PEER", "net-gloo")
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env("OMP_NUM_THREADS", "1");
            let gloo = peers::take(shell, command, samples);
            peers.excuse(shell, "Gloo between namespaces", gloo)?;
        }
    }
    Ok(())
}

/// Two namespaces and the cable between them.
pub struct Pair {
    pub names: [String; 2],
    /// Runs a command on a "host" given by name or address, on a core of its own.
    pub remote_shell: PathBuf,
}

impl Pair {
    pub fn new(shell: &Shell) -> Result<Pair, String> {
        let pid = std::process::id();
        let remote_shell = std::env::temp_dir().join(format!("phalanx-bench-{pid}-enter"));
        let pair = Pair { names: [format!("phx{pid}a"), format!("phx{pid}b")], remote_shell };
        let [a, b] = &pair.names;
        // From here on `pair` is dropped, and everything removed, whatever fails.
        pair.write_remote_shell()?;
        let ip = |args: &str| {
            let mut command = shell.command("ip");
            command.args(args.split_whitespace());
            shell.must(&mut command, Output::Kept, Duration::from_secs(20)).map(drop)
        };
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("-n {a} link add {INTERFACE} type veth peer name {INTERFACE} netns {b}"))?;
        for (name, address) in pair.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} addr add {address}/24 dev {INTERFACE}"))?;
            ip(&format!("-n {name} link set {INTERFACE} up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(pair)
    }

    fn write_remote_shell(&self) -> Result<(), String> {
        let [a, b] = &self.names;
        let [address_a, address_b] = ADDRESSES;
        // Each "host" has its own name and, where there are two, its own core.
        let text = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\ncase $host in\n{a}|{address_a}) name={a} core=0;;\n\
             {b}|{address_b}) name={b} core=1;;\n*) echo \"no host $host\" >&2; exit 255;;\nesac\n\
             [ \"$(nproc --all)\" -gt 1 ] || core=0\n\
             exec nsenter --net=/run/netns/$name unshare --uts taskset -c $core sh -c \"hostname $name; exec $*\"\n"
        );
        let path = &self.remote_shell;
        fs::write(path, text)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    /// A program that runs inside the first namespace.
    pub fn inside(&self, shell: &Shell, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = shell.command("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.names[0])).arg(program);
        command
    }

    /// Calls the shell function `run RANK NAMESPACE` for both ranks at once; fails if one of them does.
    fn both(&self, shell: &Shell, function: &str) -> Command {
        let [a, b] = &self.names;
        let script = format!(
            "{function}\n(run 1 {b}) & second=$!\n(run 0 {a}); first=$?\nwait $second && exit $first"
        );
        let mut command = shell.command("sh");
        command
            .args(["-c", &script])
            .env("ADDR", ADDRESSES[0])
            .env("PORT", PORT)
            .env("MASTER_ADDR", ADDRESSES[0])
            .env("MASTER_PORT", PORT)
            .env("WORLD_SIZE", "2")
            .env("GLOO_SOCKET_IFNAME", INTERFACE)
            .env("PIN", "1");
        command
    }

    /// A program in C for both ranks, each on a core of its own. It may take the sizes or have its own.
    fn plain(&self, shell: &Shell, program: &Path, seconds: &str, peer: &str) -> Command {
        let script = r#"run() { exec nsenter --net="/run/netns/$2" env RANK="$1" "$PROGRAM" "$SECONDS_EACH" $SIZES; }"#;
        let mut command = self.both(shell, script);
        let sizes = NET_SIZES.map(|bytes| bytes.to_string()).join(" ");
        command.env("PROGRAM", program).env("SECONDS_EACH", seconds).env("SIZES", sizes).env("PEER", peer);
        command
    }

    fn openmpi(&self, shell: &Shell, program: &Path, seconds: &str) -> Command {
        let mut command = self.inside(shell, "mpirun");
        let hosts = ADDRESSES.map(|a| format!("{a}:1")).join(",");
        command
            .args(["--allow-run-as-root", "--mca", "btl", "tcp,self"])
            .args(["--mca", "btl_tcp_if_include", INTERFACE, "--mca", "oob_tcp_if_include", INTERFACE])
            .args(["--mca", "plm_rsh_agent"])
            .arg(&self.remote_shell)
            .args(["-x", "PEER", "-x", "PIN", "-H", &hosts, "-np", "2"])
            .arg(program)
            .args(["net", seconds])
            .env("PEER", "net-openmpi")
            .env("PIN", "1");
        command
    }

    fn ours(
        &self,
        shell: &Shell,
        seconds: &str,
        encrypt: &str,
        who: &str,
        samples: &mut Samples,
    ) -> Result<(), String> {
        let sizes: Vec<String> = NET_SIZES.iter().map(|&b| size(b).replace(['i', 'B', ' '], "")).collect();
        let hosts = self.names.each_ref().map(|n| format!("{n}:1")).join(",");
        let mut command = self.inside(shell, shell.built(Profile::Release, "phalanx"));
        command
            .env("PHALANX_ENCRYPT", encrypt)
            .args(["bench", "-np", "2", "-H", &hosts, "--no-bind", "--json", "--seconds", seconds])
            .args(["--op", "allreduce", "--dtype", "f32", "--sizes", &sizes.join(","), "--rsh"])
            .arg(format!("{} {{host}}", self.remote_shell.display()));
        let done = shell.must(&mut command, Output::Kept, LIMIT)?;
        match samples.add_json(who, &done.stdout) {
            0 => Err(format!("phalanx bench printed no rows:\n{}", done.text)),
            _ => Ok(()),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        remove_namespaces(&self.names);
        let _ = fs::remove_file(&self.remote_shell);
    }
}
