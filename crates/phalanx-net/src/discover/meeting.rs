//! Where the ranks of a world meet, as the environment has it. Pure.
//!
//! - DISC-5: the first of these counts: `PHALANX_RENDEZVOUS`; loopback, if all ranks are on one host; the address that torchrun or
//!   horovodrun tells; the board that the launcher offers: PMIx (`PMIX_NAMESPACE` and
//!   `PMIX_RANK`), then PMI (`PMI_FD`); the first node of a Slurm step; pod 0 of a Kubernetes
//!   indexed job.
//! - DISC-6: `srun --mpi=pmi2` offers both PMI and nodes. With a secret in the environment ranks meet at the first node, and PMI is left to
//!   MPI; without one they meet through PMI 2.

use super::{DiscoverError, Launcher, is_srun_step};
use crate::{hostlist, task::Vars};
use phalanx_core::Rank;
use std::fmt;

/// Where the ranks of a world find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// A world of one needs nobody.
    Alone,
    /// A hub serves there (`ip:port` or `host:port`).
    Hub(Vec<String>),
    /// Rank 0 serves: on these hosts (on loopback where there are none, because all ranks share one), each with a port or on ports that are
    /// derived from the job's name.
    RankZero { hosts: Vec<String>, job: String },
    /// Rank 0 serves, and tells the others on a board where.
    Board(BoardAddress),
    /// Rank 0 serves in the pod with index 0 of this pod's Kubernetes job.
    Pod { pod: String, index: u32 },
}

/// A board where ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardAddress {
    /// PMIx, through the launcher's library.
    Pmix,
    /// A name in etcd.
    Etcd { endpoints: Vec<String>, job: String },
    /// A directory that all hosts have.
    File { dir: String },
    /// PMI 1 over an inherited socket.
    Pmi1 { fd: i32 },
    /// PMI 2 over an inherited socket, for this job.
    Pmi2 { fd: i32, job: String },
}

impl fmt::Display for BoardAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoardAddress::Pmix => f.write_str("PMIx"),
            BoardAddress::Etcd { endpoints, job } => write!(f, "etcd://{}/{job}", endpoints.join(",")),
            BoardAddress::File { dir } => write!(f, "file:{dir}"),
            BoardAddress::Pmi1 { .. } => f.write_str("PMI 1"),
            BoardAddress::Pmi2 { .. } => f.write_str("PMI 2"),
        }
    }
}

/// Ends the sentence "ranks meet ...".
impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Meeting::Alone => f.write_str("nowhere: there is one"),
            Meeting::Hub(addresses) => write!(f, "at the launcher's address {}", addresses.join(", ")),
            Meeting::RankZero { hosts, .. } if hosts.is_empty() => {
                f.write_str("on loopback: all are on one host")
            }
            Meeting::RankZero { hosts, .. } => write!(f, "at rank 0's address {}", hosts.join(", ")),
            Meeting::Board(board) => write!(f, "through {board}"),
            Meeting::Pod { .. } => f.write_str("in pod 0 of this job"),
        }
    }
}

/// The text as it may be shown: what stands before an `@` could be a password.
pub(crate) fn without_password(text: &str) -> String {
    let begin = text.find("://").map_or(0, |at| at + 3);
    match text[begin..].rfind('@') {
        Some(at) => format!("{}...{}", &text[..begin], &text[begin + at..]),
        None => text.to_string(),
    }
}

/// What `PHALANX_RENDEZVOUS` says.
pub(crate) fn told(var: Vars<'_>) -> Result<Option<Meeting>, DiscoverError> {
    let Some(value) = var("PHALANX_RENDEZVOUS").filter(|value| !value.is_empty()) else { return Ok(None) };
    let addresses = || value.split(',').map(|a| a.trim().to_string()).collect::<Vec<_>>();
    // Our launcher serves the hub itself; anybody else's address is a place where rank 0 shall serve it.
    if var("PHALANX_LAUNCHER").is_some() {
        return Ok(Some(Meeting::Hub(addresses())));
    }
    let failed = |why: String| DiscoverError::NotAMeeting { value: without_password(&value), why };
    if let Some(rest) = value.strip_prefix("etcd://") {
        return etcd(rest).map(|board| Some(Meeting::Board(board))).map_err(failed);
    }
    if let Some(rest) = value.strip_prefix("file:") {
        let dir = directory(rest).map_err(failed)?;
        return Ok(Some(Meeting::Board(BoardAddress::File { dir })));
    }
    if let Some((scheme, _)) = value.split_once("://") {
        return Err(failed(match scheme {
            "etcds" | "https" => "phalanx speaks to etcd without TLS, as etcd://".into(),
            _ => format!("{scheme:?} is no kind of meeting point"),
        }));
    }
    let hosts = addresses();
    hosts.iter().try_for_each(|host| is_address(host)).map_err(failed)?;
    Ok(Some(Meeting::RankZero { hosts, job: String::new() }))
}

/// A path from the root, in one spelling: what ranks prove on a board has its name in it.
fn directory(text: &str) -> Result<String, String> {
    let path = match text.strip_prefix("//") {
        Some(rest) if !rest.starts_with('/') => {
            return Err("file:// is followed by a path from the root, as in file:///directory".into());
        }
        _ => text,
    };
    if !path.starts_with('/') {
        return Err("the directory is named from the root".into());
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    Ok(format!("/{}", parts.join("/")))
}

/// A host, or a host with a port.
fn is_address(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("a host is missing".into());
    }
    let is_odd = |c: char| !c.is_ascii_alphanumeric() && !"._-:[]%".contains(c);
    if let Some(odd) = text.chars().find(|c| is_odd(*c)) {
        return Err(format!("{odd:?} is in no host's name"));
    }
    if text.split('%').next().is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()) {
        return Ok(());
    }
    match text.rsplit_once(':') {
        Some(("", _)) => Err("a host is missing".into()),
        Some((_, port)) if !port.ends_with(']') => is_port(port),
        _ => Ok(()),
    }
}

/// Whether a host that [`is_address`] has taken is followed by a port.
pub(crate) fn has_port(text: &str) -> bool {
    let is_v6 = text.split('%').next().is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok());
    !is_v6 && text.rsplit_once(':').is_some_and(|(_, port)| is_port(port).is_ok())
}

fn is_port(text: &str) -> Result<(), String> {
    match text.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err(format!("{text:?} is no port: ports are 1 to 65535")),
    }
}

/// `host:port[,host:port]/job`; the port may be left out.
fn etcd(text: &str) -> Result<BoardAddress, String> {
    let (hosts, job) = text.split_once('/').unwrap_or((text, ""));
    let named = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if job.is_empty() || job.len() > 128 || !job.chars().all(named) {
        return Err("the job's name behind the host has 1 to 128 of a-z, A-Z, 0-9, '.', '_' and '-'".into());
    }
    if hosts.contains('@') {
        return Err("phalanx sends no user and no password to etcd".into());
    }
    let hosts: Vec<&str> = hosts.split(',').map(str::trim).collect();
    hosts.iter().try_for_each(|host| is_address(host))?;
    let with_port = |host: &&str| {
        let is_v6_alone = host.ends_with(']') || host.parse::<std::net::Ipv6Addr>().is_ok();
        if host.contains(':') && !is_v6_alone { host.to_string() } else { format!("{host}:2379") }
    };
    Ok(BoardAddress::Etcd { endpoints: hosts.iter().map(with_port).collect(), job: job.to_string() })
}

/// DISC-5.
pub(super) fn choose(
    launcher: &Launcher,
    rank: Rank,
    n_ranks: u32,
    var: Vars<'_>,
    parent: u32,
) -> Result<Meeting, DiscoverError> {
    if n_ranks == 1 {
        return Ok(Meeting::Alone);
    }
    if let Some(told) = told(var)? {
        return Ok(told);
    }
    let number = |name: &str| var(name).and_then(|text| text.trim().parse::<u32>().ok());
    let is_step = launcher.name == "Slurm"
        || (launcher.name == "PMI"
            && var("MPI_LOCALNRANKS").is_none()
            && is_srun_step(var)
            && (number("SLURM_PROCID"), number("SLURM_NTASKS")) == (Some(rank.0), Some(n_ranks)));
    let job = || job(launcher, var, parent);
    let is_on_one_host = launcher.local_size.and_then(number) == Some(n_ranks)
        || (is_step && number("SLURM_STEP_NUM_NODES") == Some(1));
    if is_on_one_host {
        return Ok(Meeting::RankZero { hosts: Vec::new(), job: job() });
    }
    let host = match launcher.name {
        "torchrun" => var("MASTER_ADDR"),
        "horovodrun" => var("HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        _ => None,
    };
    if let Some(host) = host {
        return Ok(Meeting::RankZero { hosts: vec![host], job: job() });
    }
    if let Some(board) = offered(launcher, rank, is_step, var) {
        return Ok(Meeting::Board(board));
    }
    if launcher.name == "Kubernetes"
        && let Some(pod) = var("HOSTNAME").filter(|pod| pod.ends_with(&format!("-{rank}")))
    {
        return Ok(Meeting::Pod { pod, index: rank.0 });
    }
    let named = |name| Some((name, var(name)?));
    let nodes = ["SLURM_STEP_NODELIST", "SLURM_NODELIST"].into_iter().find_map(named);
    let Some((name, value)) = nodes.filter(|_| is_step) else {
        return Err(DiscoverError::NowhereToMeet { source_name: launcher.name, n_ranks });
    };
    match hostlist::first(&value) {
        Ok(host) => Ok(Meeting::RankZero { hosts: vec![host], job: job() }),
        Err(why) => Err(DiscoverError::NodeList { name, value, why }),
    }
}

/// The board that this launcher offers.
fn offered(launcher: &Launcher, rank: Rank, is_step: bool, var: Vars<'_>) -> Option<BoardAddress> {
    let speaks_pmix =
        matches!(launcher.name, "Open MPI" | "PMI" | "Slurm") && var("PMIX_NAMESPACE").is_some();
    if speaks_pmix && var("PMIX_RANK").and_then(|r| r.trim().parse().ok()) == Some(rank.0) {
        return Some(BoardAddress::Pmix);
    }
    let has_secret = || ["PHALANX_SECRET", "PHALANX_SECRET_FILE"].iter().any(|name| var(name).is_some());
    let fd = var("PMI_FD").and_then(|fd| fd.trim().parse().ok());
    match (launcher.name, fd) {
        ("PMI", Some(fd)) if !is_step => Some(BoardAddress::Pmi1 { fd }),
        // DISC-6
        ("PMI", Some(fd)) if !has_secret() => {
            let step = || Some(format!("{}.{}", var("SLURM_JOB_ID")?, var("SLURM_STEP_ID")?));
            var("PMI_JOBID").or_else(step).map(|job| BoardAddress::Pmi2 { fd, job })
        }
        _ => None,
    }
}

/// What keeps the worlds of one user apart.
fn job(launcher: &Launcher, var: Vars<'_>, parent: u32) -> String {
    let names = match launcher.name {
        "torchrun" => ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"].as_slice(),
        // Not the parent: ranks that somebody starts by hand have parents of their own.
        "horovodrun" => ["HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"].as_slice(),
        "Open MPI" => ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"].as_slice(),
        "Slurm" => ["SLURM_JOB_ID", "SLURM_STEP_ID"].as_slice(),
        _ => ["PMI_JOBID", "PMI_ID_JOB"].as_slice(),
    };
    let mut job: Vec<String> = names.iter().filter_map(|n| var(n)).collect();
    if job.is_empty() {
        job.push(format!("parent {parent}"));
    }
    format!("{} {}", launcher.name, job.join(" "))
}
