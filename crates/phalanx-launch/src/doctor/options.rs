//! The flags of `phalanx doctor`.

use crate::cli::{HostArgs, seconds};
use clap::Args;
use std::time::Duration;

/// The exit code is 1 if a problem was found that would keep a job from running.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub hosts: HostArgs,

    /// Seconds to wait for each host's answer, and for each pair of hosts to connect
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "10")]
    pub timeout: Duration,

    /// Also measure inside the hosts of -H, with as many ranks as each has slots, and suggest a shape for --tiers; with a shape, say
    /// whether it fits
    #[arg(long, value_name = "SHAPE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub topology: Option<String>,

    /// Print one JSON object per finding
    #[arg(long)]
    pub json: bool,

    /// Be a rank of the world that another doctor started to measure the network
    #[arg(long, hide = true)]
    pub as_rank: bool,
}
