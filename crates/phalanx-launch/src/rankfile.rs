//! `phalanx rankfile`: writes which rank runs on which host and cores, in the format that Open MPI's mpirun and `phalanx run` read with `-rf`.
//!
//! Ranks are numbered host by host, as the shape counts them, so that the first tier is a host.

mod read;

pub use read::{BadRankFile, RankFile};

use clap::Args;
use phalanx_core::Tiers;
use std::{
    fmt::Write as _,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  phalanx rankfile 4x3 h1,h2,h3 -o 4x3.rf\n  phalanx rankfile 4x8x2 $(seq -s, -f node%g 16) --cores 32\n  phalanx run -rf 4x3.rf python train.py\n  mpirun -n 12 -rf 4x3.rf python train.py"
)]
pub struct RankfileArgs {
    /// Shape of the network, ranks of a host first, e.g. 4x3
    #[arg(value_name = "SHAPE")]
    pub shape: String,

    /// Hosts, nearest first: as many as the other numbers of the shape multiply to
    #[arg(value_name = "HOST,HOST", value_delimiter = ',', required = true)]
    pub hosts: Vec<String>,

    /// Cores of each host, which its ranks share evenly [default: one core a rank]
    #[arg(long, value_name = "N")]
    pub cores: Option<u32>,

    /// Write to this file instead of the terminal
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What is wrong with the arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankfileError {
    #[error("{0}")]
    Shape(#[from] phalanx_core::topology::TopologyError),
    #[error("shape {shape} has {want} hosts of {each} ranks, but {have} hosts are given")]
    Hosts { shape: String, want: usize, each: u32, have: usize },
    #[error("host {0:?} is given twice")]
    Twice(String),
    #[error("host {0:?} is not a name: write hosts as in h1,h2,h3")]
    BadHost(String),
    #[error("{cores} cores are fewer than the {each} ranks of a host")]
    Cores { cores: u32, each: u32 },
}

pub fn main(args: &RankfileArgs) -> ExitCode {
    let text = match written(&args.shape, &args.hosts, args.cores) {
        Ok(text) => text,
        Err(why) => {
            eprintln!("phalanx rankfile: {why}");
            return ExitCode::from(2);
        }
    };
    let done = match &args.output {
        Some(path) => std::fs::write(path, text),
        None => io::stdout().write_all(text.as_bytes()),
    };
    match done {
        // A reader that went away has read enough.
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("phalanx rankfile: cannot write the rank file: {why}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The rank file of these hosts.
pub fn written(shape: &str, hosts: &[String], cores: Option<u32>) -> Result<String, RankfileError> {
    let tiers: Tiers = shape.parse()?;
    let each = tiers.dims()[0];
    let want = (tiers.n_ranks() / each) as usize;
    for (i, host) in hosts.iter().enumerate() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if host.is_empty() || !host.chars().all(is_name) {
            return Err(RankfileError::BadHost(host.clone()));
        }
        if hosts[..i].contains(host) {
            return Err(RankfileError::Twice(host.clone()));
        }
    }
    if hosts.len() != want {
        return Err(RankfileError::Hosts { shape: tiers.to_string(), want, each, have: hosts.len() });
    }
    let cores = cores.unwrap_or(each);
    if cores < each {
        return Err(RankfileError::Cores { cores, each });
    }
    let mut text = String::new();
    for rank in 0..tiers.n_ranks() {
        let (host, local) = (&hosts[(rank / each) as usize], rank % each);
        let (from, to) = (local * cores / each, (local + 1) * cores / each - 1);
        let slot = if from == to { from.to_string() } else { format!("{from}-{to}") };
        // A String takes everything.
        let _ = writeln!(text, "rank {rank}={host} slot={slot}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shape: &str, hosts: &str, cores: Option<u32>) -> Result<String, String> {
        let hosts: Vec<String> = hosts.split(',').map(str::to_string).collect();
        written(shape, &hosts, cores).map_err(|e| e.to_string())
    }

    #[test]
    fn ranks_go_host_by_host_and_share_its_cores() {
        let text = of("2x2", "a,b", Some(5)).unwrap();
        assert_eq!(text, "rank 0=a slot=0-1\nrank 1=a slot=2-4\nrank 2=b slot=0-1\nrank 3=b slot=2-4\n");
        assert_eq!(of("1x2", "a,b", None).unwrap(), "rank 0=a slot=0\nrank 1=b slot=0\n");
        assert_eq!(of("4x3", "h1,h2,h3", None).unwrap().lines().nth(11), Some("rank 11=h3 slot=3"));
    }

    #[test]
    fn what_does_not_fit_is_said_with_the_numbers() {
        for (shape, hosts, cores, says) in [
            ("4x3", "a,b", None, "shape 4x3 has 3 hosts of 4 ranks, but 2 hosts are given"),
            ("4x2", "a,a", None, "host \"a\" is given twice"),
            ("4x2", "a,b c", None, "host \"b c\" is not a name: write hosts as in h1,h2,h3"),
            ("4x1", "a", Some(3), "3 cores are fewer than the 4 ranks of a host"),
            (
                "4x",
                "a",
                None,
                "\"4x\" is not a shape like 8, 4x3 or 4x8x2 (one to four positive numbers joined by x)",
            ),
        ] {
            assert_eq!(of(shape, hosts, cores).unwrap_err(), says);
        }
    }
}
