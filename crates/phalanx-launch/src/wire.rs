//! The protocol between the launcher and its agents: [`phalanx_net::frame`] messages on an agent's stdin and stdout.
//!
//! - WIRE-1: the job's secret travels only in [`ToAgent::Prepare`], through a pipe; its `Debug` form hides it.
//!
//! An agent sends [`ToLauncher::Hello`] before it reads anything, so that different versions are detected before a message is
//! misread. Before that it writes [`START`], so that the launcher finds the first message behind what a login script printed. [`ToLauncher::Exited`] may overtake a rank's last output; [`ToLauncher::Closed`] never does.

use phalanx_core::Rank;
pub use phalanx_net::ending::Ending;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest message either side accepts. Environments are the largest: the kernel itself allows a few MiB.
pub const CAP: usize = 16 << 20;

/// What an agent writes before its first message: a login script may have printed anything before, but not this.
pub const START: &[u8] = b"\0phalanx-agent\0";

/// From the launcher to an agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToAgent {
    /// Check that the ranks could start here; answered by `Ready` or `Refused`.
    Prepare(Box<Prepare>),
    /// Start the ranks.
    Go,
    /// Send a signal to every rank that still runs.
    Signal(JobSignal),
    /// What the launcher read for the ranks that read here; the next comes when each of them has said [`ToLauncher::Taken`].
    Input(Vec<u8>),
    /// Nothing more to read will come.
    InputEnded,
    /// The job is over: end what is left of it and leave.
    End,
}

/// Everything an agent needs to start its ranks.
#[derive(Debug, Serialize, Deserialize)]
pub struct Prepare {
    pub secret: Hidden,
    pub cwd: Vec<u8>,
    pub argv: Vec<Vec<u8>>,
    /// Laid over the agent's own environment, in order.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    pub ranks: Vec<RankStart>,
    /// Whether each rank gets its own cores.
    pub bind: bool,
}

/// One rank to start and what only it is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankStart {
    pub rank: Rank,
    /// Its own command, where it does not run that of all.
    pub argv: Option<Vec<Vec<u8>>>,
    /// Whether it reads what the launcher reads.
    pub reads: bool,
    /// The cores that a rank file names.
    pub cores: Option<NamedCores>,
    pub env: Vec<(String, String)>,
}

/// The cores of one rank, and where they are named: a file and a line, for the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCores {
    pub place: String,
    pub spans: Vec<CoreSpan>,
}

/// Cores from `first` to `last`; of one socket, where one is named: then they are counted in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreSpan {
    pub socket: Option<u32>,
    pub first: u32,
    /// `None`: up to the last core that there is.
    pub last: Option<u32>,
}

/// From an agent to the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToLauncher {
    Hello {
        version: String,
    },
    Ready {
        cores: u32,
    },
    Refused(StartRefusal),
    Started {
        rank: Rank,
        pid: u32,
    },
    /// The rank has in its stdin what was last read, or has none any more.
    Taken {
        rank: Rank,
    },
    Output {
        rank: Rank,
        stream: OutputStream,
        bytes: Vec<u8>,
    },
    /// The stream ended: all of its output was said before.
    Closed {
        rank: Rank,
        stream: OutputStream,
    },
    Exited {
        rank: Rank,
        ending: Ending,
    },
    /// Slurm asked everything on this host to end: ranks have SIGTERM already.
    AskedToEnd,
    /// No process of the job is left on this host and all output was said.
    Done,
}

/// Why an agent cannot start its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StartRefusal {
    #[error("the working directory {path} does not exist ({why})")]
    NoDirectory { path: String, why: String },
    #[error("command not found: {program}")]
    NotFound { program: String },
    #[error("{program} exists, but the interpreter named in its first line does not")]
    NoInterpreter { program: String },
    #[error("{program} cannot be executed ({why})")]
    NotExecutable { program: String, why: String },
    #[error("the system refused to start rank {rank} ({why})")]
    Spawn { rank: Rank, why: String },
    #[error("{place}: rank {rank} is to run on {core}, which is not there; ranks may use cores {have}")]
    NoCore { place: String, rank: Rank, core: String, have: String },
    #[error(
        "{n_ranks} ranks need {needed} {what}, but {left} are left there: {limit}; \
         raise that limit, lower -np, or spread the ranks over more hosts"
    )]
    NoRoom { n_ranks: u32, needed: u64, what: String, left: u64, limit: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// The signals a launcher may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobSignal {
    Int,
    Term,
    Kill,
    Usr1,
    Usr2,
}

impl JobSignal {
    /// What the kernel calls it.
    pub const fn number(self) -> i32 {
        match self {
            JobSignal::Int => 2,
            JobSignal::Term => 15,
            JobSignal::Kill => 9,
            JobSignal::Usr1 => 10,
            JobSignal::Usr2 => 12,
        }
    }
}

/// Secret bytes that no log can show.
#[derive(Clone, Serialize, Deserialize)]
pub struct Hidden(pub [u8; phalanx_net::secret::LEN]);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_the_secret() {
        let prepare = Prepare {
            secret: Hidden([7; 32]),
            cwd: vec![],
            argv: vec![],
            env: vec![],
            ranks: vec![],
            bind: false,
        };
        let shown = format!("{:?}", ToAgent::Prepare(Box::new(prepare)));
        assert!(shown.contains("secret: Hidden(..)"), "WIRE-1: {shown}");
    }

    #[test]
    fn output_survives_the_frame() {
        let up = ToLauncher::Output { rank: Rank(3), stream: OutputStream::Stderr, bytes: vec![0, 255, 10] };
        let bytes = phalanx_net::frame::encode(&up).unwrap();
        let back: ToLauncher = phalanx_net::frame::read(&mut bytes.as_slice(), CAP).unwrap().unwrap();
        assert!(
            matches!(back, ToLauncher::Output { rank: Rank(3), stream: OutputStream::Stderr, bytes } if bytes == [0, 255, 10])
        );
    }
}
