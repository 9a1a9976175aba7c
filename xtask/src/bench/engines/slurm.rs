//! A Slurm of the benchmark's own on the two hosts: munge, a controller, a daemon on each. It ends with the value.

use crate::{
    bench::net::{ADDRESSES, Pair},
    process::{Output, Shell},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const READY: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub struct Slurm {
    dir: PathBuf,
    names: [String; 2],
    daemons: Vec<Child>,
}

impl Slurm {
    /// Or what is missing.
    pub fn start(shell: &Shell, pair: &Pair) -> Result<Slurm, String> {
        for program in ["munged", "slurmctld", "slurmd", "srun", "sinfo"] {
            let mut look = shell.command("sh");
            if !shell.works(look.args(["-c", &format!("command -v {program}")])) {
                return Err(format!("there is no {program}"));
            }
        }
        let dir = std::env::temp_dir().join(format!("phalanx-bench-{}-slurm", std::process::id()));
        let mut slurm = Slurm { dir, names: pair.names.clone(), daemons: Vec::new() };
        slurm.prepare().map_err(|e| format!("{}: {e}", slurm.dir.display()))?;
        let path = |name: &str| slurm.dir.join(name).display().to_string();
        let munged = Command::new("munged")
            .args(["--foreground", "--force", &format!("--key-file={}", path("munge.key"))])
            .args([format!("--socket={}", path("munge.sock")), format!("--pid-file={}", path("munged.pid"))])
            .args([
                format!("--seed-file={}", path("munge.seed")),
                format!("--log-file={}", path("munged.log")),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        slurm.daemons.push(munged.map_err(|e| format!("munged: {e}"))?);
        let socket = slurm.dir.join("munge.sock");
        until("munged listens", || socket.exists())?;
        let [first, _] = pair.names.clone();
        slurm.daemon(&first, &["slurmctld", "-D"])?;
        for name in pair.names.clone() {
            slurm.daemon(&name, &["slurmd", "-D", "-N", &name])?;
        }
        until("both nodes are idle", || {
            let mut sinfo = pair.inside(shell, "sinfo");
            sinfo.args(["-h", "-N", "-o", "%T"]).env("SLURM_CONF", slurm.conf());
            let said = shell.run(&mut sinfo, Output::Kept, READY).map(|done| done.stdout).unwrap_or_default();
            said.lines().filter(|state| *state == "idle").count() == 2
        })?;
        Ok(slurm)
    }

    /// For commands on the first host.
    pub fn conf(&self) -> PathBuf {
        self.dir.join(format!("{}.conf", self.names[0]))
    }

    fn prepare(&self) -> std::io::Result<()> {
        fs::create_dir_all(self.dir.join("state"))?;
        fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o755))?;
        let key = self.dir.join("munge.key");
        fs::write(&key, format!("{:?}", std::time::SystemTime::now()).repeat(8))?;
        fs::set_permissions(key, fs::Permissions::from_mode(0o400))?;
        let (dir, [a, b], [address_a, address_b]) = (self.dir.display(), &self.names, ADDRESSES);
        for name in &self.names {
            fs::create_dir_all(self.dir.join(format!("spool-{name}")))?;
            // Each host has a directory for PMIx: they share everything else of this machine.
            fs::create_dir_all(self.dir.join(format!("tmp-{name}")))?;
            let conf = format!(
                "ClusterName=phalanx\nSlurmctldHost={a}({address_a})\nAuthType=auth/munge\nAuthInfo=socket={dir}/munge.sock\n\
                 CredType=cred/munge\nMpiDefault=none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
                 SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nReturnToService=2\nSlurmUser=root\nSlurmdUser=root\n\
                 StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool-%n\nTmpFS={dir}/tmp-{name}\nSlurmctldPidFile={dir}/ctld.pid\n\
                 SlurmdPidFile={dir}/slurmd-%n.pid\nSlurmctldLogFile={dir}/ctld.log\nSlurmdLogFile={dir}/slurmd-%n.log\n\
                 AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\nKillWait=2\n\
                 DebugFlags=NO_CONF_HASH\nNodeName={a} NodeAddr={address_a} CPUs=2 State=UNKNOWN\n\
                 NodeName={b} NodeAddr={address_b} CPUs=2 State=UNKNOWN\n\
                 PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
            );
            fs::write(self.dir.join(format!("{name}.conf")), conf)?;
        }
        let hosts = format!("127.0.0.1 localhost\n{address_a} {a}\n{address_b} {b}\n");
        fs::write(self.dir.join("hosts"), hosts)
    }

    fn daemon(&mut self, host: &str, args: &[&str]) -> Result<(), String> {
        let enter = "hostname \"$0\"; mount --bind \"$1\" /etc/hosts; shift; exec \"$@\"";
        let child = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{host}"))
            .args(["unshare", "--uts", "--mount", "sh", "-c", enter, host])
            .arg(self.dir.join("hosts"))
            .args(args)
            .env("SLURM_CONF", self.dir.join(format!("{host}.conf")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.daemons.push(child.map_err(|e| format!("{}: {e}", args[0]))?);
        Ok(())
    }
}

/// Asks again and again: nobody tells.
fn until(what: &str, mut yes: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + READY;
    while !yes() {
        if Instant::now() >= deadline {
            return Err(format!("{what}: not within {} s", READY.as_secs()));
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
    Ok(())
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // They end their own children when they are asked to end.
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(daemon),
                rustix::process::Signal::TERM,
            );
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
