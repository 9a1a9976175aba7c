//! What the launcher of node 0 and those of the other hosts say to each other: [`NodeHello`] first, then the agents' messages and a few more.
//!
//! - NODE-3: the job's secret never travels: every launcher computes it from the one that all were given.

use crate::{
    cli::RunArgs,
    wire::{Ending, ToAgent, ToLauncher},
};
use serde::{Deserialize, Serialize};

/// The longest first message: a command line.
pub const WORDS_CAP: usize = 4 << 20;

/// What a launcher says about itself first.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodeHello {
    pub build: String,
    pub n_nodes: u32,
    pub node: u32,
    pub host_name: String,
    pub n_slots: u32,
    pub command: Vec<String>,
    /// Flags that must be the same everywhere, with their values.
    pub flags: Vec<(String, String)>,
}

/// From node 0.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToNode {
    /// This launcher cannot take part.
    Refused(String),
    /// All launchers have come.
    World {
        job: [u8; 16],
        /// Names and numbers of ranks, by node.
        hosts: Vec<(String, u32)>,
        has_evaluator: bool,
    },
    /// For the agent of that host.
    Order(Box<ToAgent>),
    /// The agent may go.
    Dismiss,
    /// The job is over, with this code and this report.
    Over { code: u8, text: String },
}

/// To node 0.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromNode {
    /// The agent said it.
    Up(ToLauncher),
    /// The agent is gone.
    Gone { done: bool, ending: Option<Ending>, words: Vec<String> },
    /// This launcher got a signal.
    Signal(i32),
    /// Nobody reads its output any more.
    OutputClosed,
}

/// The flags that node 0 carries out for all.
pub fn common_flags(args: &RunArgs) -> Vec<(String, String)> {
    let seconds =
        |time: Option<std::time::Duration>| time.map_or("none".into(), |t| format!("{} s", t.as_secs_f64()));
    let flags: [(&str, String); 6] = [
        ("--timeout", seconds(args.timeout)),
        ("--grace", seconds(args.grace)),
        ("--bind", args.bind.to_string()),
        ("--horovod", args.horovod.to_string()),
        ("--evaluator", args.evaluator.to_string()),
        ("--stdin", format!("{:?}", args.stdin)),
    ];
    flags.map(|(flag, value)| (flag.to_string(), value)).into()
}
