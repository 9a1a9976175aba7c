//! `srun`, with a Slurm of the test's own: munge, a controller, and a daemon on each host.

use super::{Site, WORK};
use crate::launch::{
    netns::binary,
    support::{DEADLINE, Running, TempDir, eventually, finish},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
};

const NEEDS: [(&str, &str); 5] = [
    ("munged", "munge"),
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("srun", "slurm-client"),
    ("sinfo", "slurm-client"),
];

/// Daemons that end with the value.
pub struct Slurm {
    pub site: Site,
    pub dir: TempDir,
    daemons: Vec<Child>,
}

impl Slurm {
    /// `also` are programs that the test needs besides, with their packages.
    pub fn start(tag: &str, also: &[(&str, &str)]) -> Option<Slurm> {
        let site = Site::open(tag, &[&NEEDS, also].concat())?;
        let dir = TempDir::new();
        fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o755)).expect("the directory is ours");
        let mut slurm = Slurm { site, dir, daemons: Vec::new() };
        slurm.munge();
        let names = slurm.site.hosts.names.clone();
        for name in &names {
            for folder in [format!("spool-{name}"), format!("tmp-{name}"), "state".into()] {
                fs::create_dir_all(slurm.dir.0.join(folder)).expect("a directory");
            }
            // Each host has a directory for PMIx: they share everything else of this machine.
            slurm.dir.write(&format!("{name}.conf"), &slurm.conf(name));
        }
        slurm.dir.write(
            "hosts",
            &format!("127.0.0.1 localhost\n10.78.0.1 {}\n10.78.0.2 {}\n", names[0], names[1]),
        );
        slurm.daemon(&names[0], &["slurmctld", "-D"]);
        for name in &names {
            slurm.daemon(name, &["slurmd", "-D", "-N", name]);
        }
        eventually(DEADLINE, "both nodes are idle", || {
            let nodes = finish(slurm.command("sinfo").args(["-h", "-N", "-o", "%T"]));
            nodes.stdout.lines().filter(|state| *state == "idle").count() == 2
        });
        Some(slurm)
    }

    fn munge(&mut self) {
        let key = self.dir.write("munge.key", &format!("{:?}", std::time::SystemTime::now()).repeat(8));
        fs::set_permissions(key, fs::Permissions::from_mode(0o400)).expect("the key is ours");
        let flag = |name: &str, file: &str| format!("--{name}={}", self.dir.path(file));
        let flags = [
            flag("key-file", "munge.key"),
            flag("socket", "munge.sock"),
            flag("pid-file", "munged.pid"),
            flag("seed-file", "munge.seed"),
            flag("log-file", "munged.log"),
        ];
        let munged = Command::new("munged")
            .args(["--foreground", "--force"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.daemons.push(munged.expect("munged starts"));
        eventually(DEADLINE, "munged listens", || self.dir.0.join("munge.sock").exists());
    }

    fn conf(&self, node: &str) -> String {
        let dir = self.dir.0.display();
        let names = &self.site.hosts.names;
        format!(
            "ClusterName=phalanx\nSlurmctldHost={}(10.78.0.1)\nAuthType=auth/munge\nAuthInfo=socket={dir}/munge.sock\nCredType=cred/munge\n\
             MpiDefault=none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nReturnToService=2\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool-%n\nTmpFS={dir}/tmp-{node}\nSlurmctldPidFile={dir}/ctld.pid\n\
             SlurmdPidFile={dir}/slurmd-%n.pid\nSlurmctldLogFile={dir}/ctld.log\nSlurmdLogFile={dir}/slurmd-%n.log\n\
             AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\nKillWait=8\n\
             DebugFlags=NO_CONF_HASH\n\
             NodeName={} NodeAddr=10.78.0.1 CPUs=2 State=UNKNOWN\nNodeName={} NodeAddr=10.78.0.2 CPUs=2 State=UNKNOWN\n\
             PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            names[0], names[0], names[1]
        )
    }

    /// A command on a host, with the names of both hosts in `/etc/hosts`.
    fn at(&self, host: &str, args: &[&str]) -> Command {
        let mut command = crate::launch::netns::inside(host);
        let enter = "hostname \"$0\"; mount --bind \"$1\" /etc/hosts; shift; exec \"$@\"";
        command
            .args(["unshare", "--uts", "--mount", "sh", "-c", enter, host, &self.dir.path("hosts")])
            .args(args);
        command.env("SLURM_CONF", self.dir.path(&format!("{host}.conf"))).stdin(Stdio::null());
        command
    }

    fn daemon(&mut self, host: &str, args: &[&str]) {
        let child = self.at(host, args).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.daemons.push(child.expect("a daemon starts"));
    }

    /// A command of Slurm on the first host, for ranks without a key.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.site.command(program);
        command.env("SLURM_CONF", self.dir.path(&format!("{}.conf", self.site.hosts.names[0])));
        command
    }

    fn srun(&self, args: &[&str]) -> Command {
        let mut command = self.command("srun");
        command.args(["-Q", "-N2", "-n4", "--kill-on-bad-exit=1"]).args(args).arg(binary()).args(WORK);
        command
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // They end their own children when they are asked to end.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn srun_with_every_kind_of_pmi_needs_nothing() {
    let Some(slurm) = Slurm::start("s", &[]) else { return };
    for (mpi, met) in [("--mpi=pmi2", "through PMI 2"), ("--mpi=pmix", "through PMIx")] {
        let done = finish(&mut slurm.srun(&[mpi]));
        slurm.site.assert_worked(&done, met);
    }
    // DISC-6: with a secret PMI 2 is left to MPI, and the step's first node is where ranks meet.
    let first = format!("at rank 0's address {}", slurm.site.hosts.names[0]);
    for mpi in ["--mpi=pmi2", "--mpi=none"] {
        let mut given = slurm.srun(&[mpi]);
        let done = finish(given.env("PHALANX_SECRET", "correct horse battery staple"));
        slurm.site.assert_worked(&done, &first);
    }
    let mut late = slurm.command("srun");
    let wait = "[ $SLURM_PROCID = 2 ] && exec tail -f /dev/null; exec \"$@\" 2>\"$0.$SLURM_PROCID\"";
    late.args([
        "-Q",
        "-N2",
        "-n4",
        "--mpi=pmi2",
        "--kill-on-bad-exit=1",
        "sh",
        "-c",
        wait,
        &slurm.site.words(),
    ])
    .arg(binary())
    .args(WORK);
    let done = Running::start(late.env("PHALANX_START_TIMEOUT", "1")).finish();
    assert_ne!(done.code, Some(0), "{done:?}");
    slurm.site.assert_one_said("cannot meet the other ranks through PMI 2: waited 1.0 s for all ranks");
}
