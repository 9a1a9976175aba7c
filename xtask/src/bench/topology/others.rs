//! The others on the same hosts: Open MPI's algorithms, MPICH, Gloo through torch. Each is measured as `phalanx bench --calls` measures.

use super::ours::{CALLS, SECONDS, openmpi};
use crate::{
    bench::{
        figures::Figures,
        wires::{INTERFACE, Wires, address},
    },
    process::{Output, Shell},
};
use std::{fs, path::PathBuf, process::Command, time::Duration};

const COMPILE_LIMIT: Duration = Duration::from_secs(60);
/// One that takes longer is not started again.
const OTHERS_LIMIT: Duration = Duration::from_secs(75);
/// Nothing else listens in a fresh namespace.
const PORT: &str = "29400";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// What Open MPI chooses.
    OpenMpi,
    Ring,
    /// The same with ranks dealt to the hosts in turn.
    RingDealt,
    /// Open MPI's own algorithm for several ranks a host.
    Han,
    Mpich,
    Gloo,
}

impl Other {
    pub const ALL: [Other; 6] =
        [Other::OpenMpi, Other::Ring, Other::RingDealt, Other::Han, Other::Mpich, Other::Gloo];

    pub fn name(self) -> &'static str {
        match self {
            Other::OpenMpi => "Open MPI",
            Other::Ring => "Open MPI, ring",
            Other::RingDealt => "Open MPI, ring, --map-by node",
            Other::Han => "Open MPI, han",
            Other::Mpich => "MPICH",
            Other::Gloo => "Gloo",
        }
    }
}

/// What could be built.
pub struct Others<'a> {
    shell: &'a Shell,
    openmpi: Option<PathBuf>,
    mpich: Option<PathBuf>,
    python: Option<PathBuf>,
    failed: Vec<Other>,
    pub notes: Vec<String>,
}

impl<'a> Others<'a> {
    pub fn build(shell: &'a Shell, python: Option<PathBuf>) -> Others<'a> {
        let mut others =
            Others { shell, openmpi: None, mpich: None, python: None, failed: Vec::new(), notes: Vec::new() };
        others.openmpi = others.compile("mpicc.openmpi", "openmpi-bin and libopenmpi-dev");
        others.mpich = others.compile("mpicc.mpich", "mpich and libmpich-dev");
        match python {
            Some(python) if shell.works(shell.command(&python).args(["-c", "import torch.distributed"])) => {
                others.python = Some(python);
            }
            Some(python) => {
                others.note(format!("no Gloo: {} cannot import torch.distributed", python.display()));
            }
            None => others.note("no Gloo: name a python that has torch with --python or PEER_PYTHON"),
        }
        others
    }

    fn compile(&mut self, compiler: &str, packages: &str) -> Option<PathBuf> {
        let made = self.shell.target().join("peers");
        fs::create_dir_all(&made).ok()?;
        let program = made.join(format!("mpi_bench.{compiler}"));
        let source = self.shell.root.join("benches/peers/mpi_bench.c");
        let mut command = self.shell.command(compiler);
        command.args(["-O3", "-march=native", "-pthread", "-o"]).arg(&program).arg(source);
        match self.shell.must(&mut command, Output::Kept, COMPILE_LIMIT) {
            Ok(_) => Some(program),
            Err(_) => {
                self.note(format!("no {compiler}: install the Debian packages {packages}"));
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

    /// One that fails is written down, and the measurement goes on, unless it was to stop.
    pub fn excuse(&mut self, who: &str, result: Result<(), String>) -> Result<(), String> {
        match result {
            Err(why) if !self.shell.interrupted() => {
                let last = why.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                self.note(format!("{who} failed: {} ... {last}", why.lines().next().unwrap_or_default()));
                Ok(())
            }
            other => other,
        }
    }

    /// Measures one, if it is here and has not failed before.
    pub fn try_one(
        &mut self,
        wires: &Wires<'_>,
        each: u32,
        figures: &mut Figures,
        other: Other,
        sizes: &[u64],
    ) -> Result<(), String> {
        if self.failed.contains(&other) {
            return Ok(());
        }
        let measured = self.measure(wires, each, figures, other, sizes);
        if measured.is_err() {
            self.failed.push(other);
        }
        self.excuse(other.name(), measured)
    }

    /// Runs one at these sizes; adds times and what the fullest interface sent, of the vectors.
    fn measure(
        &self,
        wires: &Wires<'_>,
        each: u32,
        figures: &mut Figures,
        other: Other,
        sizes: &[u64],
    ) -> Result<(), String> {
        let Some(mut command) = self.command(wires, each, other, sizes) else { return Ok(()) };
        let before = wires.sent()?;
        let done = match other {
            // Its ranks leave without MPI_Finalize, which hydra calls a failure; all rows must be there below.
            Other::Mpich => self.shell.run(&mut command, Output::Kept, OTHERS_LIMIT)?,
            _ => self.shell.must(&mut command, Output::Kept, OTHERS_LIMIT)?,
        };
        let after = wires.sent()?;
        if other == Other::Mpich {
            // A rank that hydra forgot would take a core from all that is measured after it.
            let n_ended = wires.clear()?;
            eprintln!("{n_ended} processes of MPICH were still there");
        }
        let rows: Vec<(u64, f64, f64)> = done.stdout.lines().filter_map(row).collect();
        if rows.len() != sizes.len() {
            return Err(format!("printed {} of {} rows:\n{}", rows.len(), sizes.len(), done.text));
        }
        let sent = after.iter().zip(&before).map(|(a, b)| a - b).max().unwrap_or(0) as f64;
        let vectors: f64 = rows.iter().map(|(bytes, _, calls)| *bytes as f64 * calls).sum();
        figures.add("A nic share", other.name(), sent / vectors);
        for (bytes, us, _) in rows {
            figures.add(&format!("A by host us {bytes}"), other.name(), us);
        }
        Ok(())
    }

    fn command(&self, wires: &Wires<'_>, each: u32, other: Other, sizes: &[u64]) -> Option<Command> {
        let n_ranks = (wires.hosts.len() as u32 * each).to_string();
        let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
        let mut command = match other {
            Other::Gloo => return self.gloo(wires, each, &sizes),
            Other::Mpich => {
                let program = self.mpich.as_ref()?;
                let mut command = wires.on(0, "mpiexec.hydra");
                command.args(["-launcher", "ssh", "-launcher-exec"]).arg(&wires.enter);
                command.args(["-iface", INTERFACE, "-hosts", &wires.list(each, true), "-n", &n_ranks]);
                // Namespaces are one machine: without these two, ranks of different hosts would find each other's memory.
                command
                    .env("UCX_TLS", "tcp,self")
                    .env("UCX_NET_DEVICES", INTERFACE)
                    .env("FI_PROVIDER", "tcp");
                // Its MPI_Finalize does not return between hosts.
                command.env("MPI_BENCH_LEAVES", "1").env("FI_TCP_IFACE", INTERFACE).arg(program);
                command
            }
            _ => {
                let program = self.openmpi.as_ref()?;
                let mut command = openmpi(wires, &n_ranks, each);
                let ring = [
                    "--mca",
                    "coll_tuned_use_dynamic_rules",
                    "1",
                    "--mca",
                    "coll_tuned_allreduce_algorithm",
                    "4",
                ];
                match other {
                    Other::Ring => drop(command.args(ring)),
                    Other::RingDealt => drop(command.args(ring).args(["--map-by", "node"])),
                    // Its pipelined allreduce ends with a segmentation fault in 4.1.4.
                    Other::Han => drop(command.args([
                        "--mca",
                        "coll_han_priority",
                        "100",
                        "--mca",
                        "coll_han_use_simple_allreduce",
                        "1",
                    ])),
                    _ => {}
                }
                command.arg(program);
                command
            }
        };
        command.args(["calls", SECONDS, CALLS]).args(sizes);
        Some(command)
    }

    /// One process for each rank, in its host's namespace.
    fn gloo(&self, wires: &Wires<'_>, each: u32, sizes: &[String]) -> Option<Command> {
        let python = self.python.as_ref()?;
        let bench = self.shell.root.join("benches/peers/torch_bench.py");
        let mut script =
            "run() { rank=$1 host=$2; shift 2; RANK=$rank nsenter --net=/run/netns/$host \"$@\"; }\n"
                .to_string();
        let ranks = wires.hosts.iter().flat_map(|host| (0..each).map(move |_| host)).enumerate();
        for (rank, host) in ranks {
            script += &format!("run {rank} {host} \"$@\" & all=\"$all $!\"\n");
        }
        script += "for one in $all; do wait $one || exit 1; done\n";
        let mut command = self.shell.command("sh");
        command
            .args(["-c", &script, "sh"])
            .arg(python)
            .arg(bench)
            .args(["calls", SECONDS, CALLS])
            .args(sizes);
        command
            .env("WORLD_SIZE", (wires.hosts.len() as u32 * each).to_string())
            .env("MASTER_ADDR", address(0))
            .env("MASTER_PORT", PORT)
            .env("GLOO_SOCKET_IFNAME", INTERFACE)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("OMP_NUM_THREADS", "1");
        Some(command)
    }
}

/// Bytes, microseconds and calls of `peer np op dtype bytes median_us min_us algbw calls`.
fn row(line: &str) -> Option<(u64, f64, f64)> {
    let words: Vec<&str> = line.split('\t').collect();
    let [_, _, "allreduce", _, bytes, median, _, _, calls] = words[..] else { return None };
    Some((bytes.parse().ok()?, median.parse().ok()?, calls.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_others_carry_their_calls() {
        assert_eq!(row("mpi\t12\tallreduce\tf32\t4096\t3.5\t3.0\t0.1\t20"), Some((4096, 3.5, 20.0)));
        assert_eq!(row("mpi\t12\tallreduce\tf32\t4096\t3.5\t3.0\t0.1"), None);
        assert_eq!(row("WRONG"), None);
    }
}
