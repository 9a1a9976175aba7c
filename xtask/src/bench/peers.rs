//! The peers: built from `benches/peers` where the machine has what they need, and run with the same sizes.

use super::{
    goals::SIZES,
    options::Options,
    row::{Samples, What},
};
use crate::process::{Output, Shell};
use std::{fs, path::PathBuf, process::Command, time::Duration};

const BUILD_LIMIT: Duration = Duration::from_secs(120);
const RUN_LIMIT: Duration = Duration::from_secs(600);
/// The largest size that is measured.
const MAX_BYTES: &str = "67108864";

/// What could be built, and what is to be said about the rest.
pub struct Peers {
    /// The limits inside a host and between hosts.
    pub memory: Option<PathBuf>,
    pub streams: Option<PathBuf>,
    pub handmade: Option<PathBuf>,
    pub handmade_tcp: Option<PathBuf>,
    pub openmpi: Option<PathBuf>,
    pub python: Option<PathBuf>,
    pub folder: PathBuf,
    pub notes: Vec<String>,
}

impl Peers {
    pub fn build(shell: &Shell, options: &Options) -> Result<Peers, String> {
        let folder = shell.root.join("benches").join("peers");
        let made = shell.target().join("peers");
        fs::create_dir_all(&made).map_err(|e| format!("cannot create {}: {e}", made.display()))?;
        let mut peers = Peers {
            memory: None,
            streams: None,
            handmade: None,
            handmade_tcp: None,
            openmpi: None,
            python: None,
            folder,
            notes: Vec::new(),
        };
        let compile = |compiler: &str, source: &str, name: &str| {
            let program = made.join(name);
            let source = shell.root.join("benches").join("peers").join(source);
            let mut command = shell.command(compiler);
            command.args(["-O3", "-march=native", "-pthread", "-o"]).arg(&program).arg(source);
            shell.must(&mut command, Output::Kept, BUILD_LIMIT).map(|_| program)
        };
        let mut plain = |source: &str, name: &str| match compile("gcc", source, name) {
            Ok(program) => Some(program),
            Err(why) => {
                peers.note(format!("no {name}: {why} (Debian: gcc)"));
                None
            }
        };
        let (memory, streams) = (plain("memory.c", "memory"), plain("tcpstreams.c", "tcpstreams"));
        let [handmade, handmade_tcp] = ["handmade", "handmade_tcp"]
            .map(|name| if options.wants("handmade") { plain(&format!("{name}.c"), name) } else { None });
        peers = Peers { memory, streams, handmade, handmade_tcp, ..peers };
        if options.wants("openmpi") {
            let found =
                ["mpicc.openmpi", "mpicc"].into_iter().find_map(|cc| compile(cc, "mpi_bench.c", "mpi").ok());
            match found {
                Some(program) => peers.openmpi = Some(program),
                None => peers.note("no Open MPI: install the Debian packages openmpi-bin and libopenmpi-dev"),
            }
        }
        if options.wants("gloo") {
            match &options.python {
                None => peers.note("no Gloo: name a python that has torch with --python or PEER_PYTHON"),
                Some(python)
                    if shell.works(shell.command(python).args(["-c", "import torch.distributed"])) =>
                {
                    peers.python = Some(python.clone());
                }
                Some(python) => {
                    peers.note(format!("no Gloo: {} cannot import torch.distributed", python.display()));
                }
            }
        }
        Ok(peers)
    }

    /// A peer that fails is written down and the measurement goes on, unless it was to stop.
    pub fn excuse(&mut self, shell: &Shell, who: &str, result: Result<(), String>) -> Result<(), String> {
        match result {
            Err(why) if !shell.interrupted() => {
                let last = why.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                self.note(format!("{who} failed: {} ... {last}", why.lines().next().unwrap_or_default()));
                Ok(())
            }
            other => other,
        }
    }

    fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        eprintln!("note: {note}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// What plain copies and additions reach with as many threads as ranks.
    pub fn memory(
        &self,
        shell: &Shell,
        np: u32,
        what: What,
        options: &Options,
        samples: &mut Samples,
    ) -> Result<(), String> {
        match &self.memory {
            Some(program) if what == What::Allreduce => {
                let mut command = shell.command(program);
                command.args([np.to_string(), options.seconds.to_string()]);
                command.args(SIZES.map(|bytes| bytes.to_string()));
                take(shell, command, samples)
            }
            _ => Ok(()),
        }
    }

    pub fn handmade(
        &self,
        shell: &Shell,
        np: u32,
        what: What,
        options: &Options,
        samples: &mut Samples,
    ) -> Result<(), String> {
        match &self.handmade {
            Some(program) if what == What::Allreduce => {
                let mut command = shell.command(program);
                command.args([np.to_string(), options.seconds.to_string()]).env("MAXB", MAX_BYTES);
                take(shell, command, samples)
            }
            _ => Ok(()),
        }
    }

    pub fn openmpi(
        &self,
        shell: &Shell,
        np: u32,
        what: What,
        options: &Options,
        samples: &mut Samples,
    ) -> Result<(), String> {
        let Some(program) = &self.openmpi else { return Ok(()) };
        let mut command = shell.command("mpirun");
        command
            .args(["--allow-run-as-root", "--oversubscribe", "-np", &np.to_string()])
            .arg(program)
            .args([what.name(), &options.seconds.to_string()])
            .env("PEER", "openmpi")
            .env("PIN", "1")
            .env("MAXB", MAX_BYTES);
        take(shell, command, samples)
    }

    pub fn gloo(
        &self,
        shell: &Shell,
        np: u32,
        what: What,
        options: &Options,
        samples: &mut Samples,
    ) -> Result<(), String> {
        let Some(python) = &self.python else { return Ok(()) };
        let mut command = shell.command(self.folder.join("spawn.sh"));
        command
            .arg(np.to_string())
            .arg(python)
            .arg(self.folder.join("torch_bench.py"))
            .args([what.name(), &options.seconds.to_string()])
            .env("PEER", "gloo")
            .env("TMO", RUN_LIMIT.as_secs().to_string())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("MAXB", MAX_BYTES);
        take(shell, command, samples)
    }
}

/// Runs a peer and takes its rows.
pub fn take(shell: &Shell, mut command: Command, samples: &mut Samples) -> Result<(), String> {
    let done = shell.must(&mut command, Output::Kept, RUN_LIMIT)?;
    match samples.add_tsv(&done.stdout) {
        0 => Err(format!("{} printed no rows:\n{}", command.get_program().to_string_lossy(), done.text)),
        _ => Ok(()),
    }
}
