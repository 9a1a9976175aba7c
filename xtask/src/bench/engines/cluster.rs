//! Two hosts and the engines that start ranks on them.

use super::slurm::Slurm;
use crate::{
    bench::net::{ADDRESSES, INTERFACE, Pair},
    process::{Done, Output, Shell},
    profile::Profile,
};
use std::{
    ffi::OsStr,
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

const COMPILE_LIMIT: Duration = Duration::from_secs(60);
/// Of anything that is started.
const RUN_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Ours,
    OpenMpi,
    Mpich,
    /// `srun` with this kind of PMI.
    Srun(&'static str),
}

pub const ENGINES: [Engine; 5] =
    [Engine::Ours, Engine::OpenMpi, Engine::Mpich, Engine::Srun("pmi2"), Engine::Srun("pmix")];

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Engine::Ours => "phalanx run",
            Engine::OpenMpi => "mpirun (Open MPI)",
            Engine::Mpich => "mpiexec (MPICH)",
            Engine::Srun("pmi2") => "srun --mpi=pmi2",
            Engine::Srun(_) => "srun --mpi=pmix",
        }
    }
}

pub struct Cluster<'a> {
    pub shell: &'a Shell,
    pub pair: &'a Pair,
    slurm: Option<Slurm>,
    has_openmpi: bool,
    has_mpich: bool,
    /// Programs of `benches/peers`, where the compiler is there.
    pub init_openmpi: Option<PathBuf>,
    pub init_mpich: Option<PathBuf>,
    pub bench_openmpi: Option<PathBuf>,
    /// A home without a key; sessions of Open MPI are there, too.
    home: PathBuf,
    pub notes: Vec<String>,
}

impl<'a> Cluster<'a> {
    pub fn new(shell: &'a Shell, pair: &'a Pair) -> Result<Cluster<'a>, String> {
        let home = std::env::temp_dir().join(format!("phalanx-bench-{}-home", std::process::id()));
        fs::create_dir_all(&home).map_err(|e| format!("cannot make {}: {e}", home.display()))?;
        let is_here = |program: &str| {
            let mut look = shell.command("sh");
            shell.works(look.args(["-c", &format!("command -v {program}")]))
        };
        let mut cluster = Cluster {
            shell,
            pair,
            slurm: None,
            has_openmpi: is_here("mpirun.openmpi"),
            has_mpich: is_here("mpiexec.hydra"),
            init_openmpi: None,
            init_mpich: None,
            bench_openmpi: None,
            home,
            notes: Vec::new(),
        };
        if !cluster.has_openmpi {
            cluster.note("no Open MPI: install the Debian package openmpi-bin");
        }
        if !cluster.has_mpich {
            cluster.note("no MPICH: install the Debian package mpich");
        }
        cluster.init_openmpi = cluster.compile("mpicc.openmpi", "mpi_init", "libopenmpi-dev");
        cluster.init_mpich = cluster.compile("mpicc.mpich", "mpi_init", "libmpich-dev");
        cluster.bench_openmpi = cluster.compile("mpicc.openmpi", "mpi_bench", "libopenmpi-dev");
        match Slurm::start(shell, pair) {
            Ok(slurm) => cluster.slurm = Some(slurm),
            Err(why) => cluster.note(format!(
                "no Slurm: {why}; install the Debian packages munge, slurmctld, slurmd and slurm-client"
            )),
        }
        Ok(cluster)
    }

    fn compile(&mut self, compiler: &str, name: &str, package: &str) -> Option<PathBuf> {
        let made = self.shell.target().join("peers");
        fs::create_dir_all(&made).ok()?;
        let program = made.join(format!("{name}.{compiler}"));
        let source = self.shell.root.join("benches").join("peers").join(format!("{name}.c"));
        let mut command = self.shell.command(compiler);
        command.args(["-O3", "-march=native", "-pthread", "-o"]).arg(&program).arg(source);
        match self.shell.must(&mut command, Output::Kept, COMPILE_LIMIT) {
            Ok(_) => Some(program),
            Err(_) => {
                self.note(format!(
                    "{name}.c was not compiled: install the Debian package {package} for {compiler}"
                ));
                None
            }
        }
    }

    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            eprintln!("note: {note}");
            self.notes.push(note);
        }
    }

    /// A program on the first host and its core.
    fn on_first(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.pair.inside(self.shell, "unshare");
        let enter = "hostname \"$0\"; exec \"$@\"";
        command.args(["--uts", "taskset", "-c", "0", "sh", "-c", enter, &self.pair.names[0]]).arg(program);
        command.env("HOME", &self.home).env("TMPDIR", &self.home);
        command
    }

    pub fn phalanx(&self) -> PathBuf {
        self.shell.built(Profile::Release, "phalanx")
    }

    fn remote_shell(&self) -> String {
        format!("{} {{host}}", self.pair.remote_shell.display())
    }

    /// What starts a command as two ranks on each host; `None` where the engine is absent.
    pub fn two_by_two(&self, engine: Engine) -> Option<Command> {
        let addresses = ADDRESSES.map(|address| format!("{address}:2")).join(",");
        let names = self.pair.names.each_ref().map(|name| format!("{name}:2")).join(",");
        match engine {
            Engine::Ours => {
                let mut command = self.on_first(self.phalanx());
                command.args(["run", "-np", "4", "-H", &names, "--rsh", &self.remote_shell()]);
                command.args(["--tag-output", "never", "--"]);
                Some(command)
            }
            Engine::OpenMpi => self.has_openmpi.then(|| {
                let mut command = self.on_first("mpirun.openmpi");
                command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                command.args(["--mca", "plm_rsh_agent"]).arg(&self.pair.remote_shell);
                command.args([
                    "--mca",
                    "oob_tcp_if_include",
                    INTERFACE,
                    "--mca",
                    "btl_tcp_if_include",
                    INTERFACE,
                ]);
                command.args(["-H", &addresses, "-np", "4"]);
                command
            }),
            Engine::Mpich => self.has_mpich.then(|| {
                let mut command = self.on_first("mpiexec.hydra");
                command.args(["-launcher", "ssh", "-launcher-exec"]).arg(&self.pair.remote_shell);
                command.args(["-iface", INTERFACE, "-hosts", &addresses, "-n", "4"]);
                command
            }),
            Engine::Srun(pmi) => self.slurm.as_ref().map(|slurm| {
                let mut command = self.on_first("srun");
                command.env("SLURM_CONF", slurm.conf());
                command.args(["-Q", "-N2", "-n4", &format!("--mpi={pmi}"), "--kill-on-bad-exit=1"]);
                command
            }),
        }
    }

    /// `phalanx bench` of 2x2 ranks.
    pub fn bench(&self) -> Command {
        let names = self.pair.names.each_ref().map(|name| format!("{name}:2")).join(",");
        let mut command = self.on_first(self.phalanx());
        command.args(["bench", "-np", "4", "-H", &names, "--no-bind", "--json", "--op", "allreduce"]);
        command.args(["--dtype", "f32", "--rsh", &self.remote_shell()]);
        command
    }

    /// Runs it to its end; how long that took, in seconds, and what it said.
    pub fn timed(&self, mut command: Command) -> Result<(f64, Done), String> {
        let begun = Instant::now();
        let done = self.shell.must(&mut command, Output::Kept, RUN_LIMIT)?;
        Ok((begun.elapsed().as_secs_f64(), done))
    }

    /// One that fails is written down, and the measurement goes on, unless it was to stop.
    pub fn excused<T>(&mut self, who: &str, result: Result<T, String>) -> Result<Option<T>, String> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(why) if self.shell.interrupted() => Err(why),
            Err(why) => {
                let last = why.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                self.note(format!("{who} failed: {} ... {last}", why.lines().next().unwrap_or_default()));
                Ok(None)
            }
        }
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}
