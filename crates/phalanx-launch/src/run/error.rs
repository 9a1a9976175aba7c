//! Errors that keep a job from starting. Each message says what to do.

use super::nodes::NodesError;
use crate::{
    hosts::HostError, limits::Shortage, place::PlaceError, rankfile::BadRankFile, rsh::RshError,
    slurm::SlurmError, wire::StartRefusal,
};
use phalanx_core::{ConfigError, topology::TopologyError};
use phalanx_net::{nodes::NodeError, resources::ResourceError, socket::AddressError};
use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Hosts(#[from] HostError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Rsh(#[from] RshError),
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error("cannot read host file {}: {why}", path.display())]
    HostFile { path: PathBuf, why: io::Error },
    #[error("cannot read rank file {}: {why}", path.display())]
    NoRankFile { path: PathBuf, why: io::Error },
    #[error(transparent)]
    RankFile(#[from] BadRankFile),
    #[error("cannot read resource file {}: {why}", path.display())]
    ResourceFile { path: PathBuf, why: io::Error },
    #[error(transparent)]
    Resources(#[from] ResourceError),
    #[error("{host}:{port} names a port, which only ssh is told; write the port into the template of --rsh")]
    PortOfResource { host: String, port: u16 },
    #[error("--serve is what the servers of --servers N run; write --servers N as well, or leave it out")]
    NobodyServes,
    #[error("-x {name}: not set here; write -x {name}=VALUE or leave it out")]
    Extra { name: String },
    #[error("-x {spec:?} names no variable; write -x NAME or -x NAME=VALUE")]
    NoName { spec: String },
    #[error("{flag} leads to other hosts, and none is named; give -H or --hostfile as well, or leave it out")]
    NoHosts { flag: &'static str },
    #[error("-x {name}: phalanx run itself gives it to every rank; leave it out")]
    Given { name: String },
    #[error(
        "mpirun or mpiexec started this `phalanx run` as {task}, and each of them would start a whole job: write `phalanx run COMMAND` \
         without it, or let it start COMMAND itself (-H localhost:N starts a job of N ranks in each)"
    )]
    TaskOfMpi { task: String },
    #[error(transparent)]
    Setting(#[from] ConfigError),
    #[error("cannot write {}: {why}; check --output-filename", path.display())]
    Files { path: PathBuf, why: io::Error },
    #[error(transparent)]
    Interface(AddressError),
    #[error("cannot listen on a port on which the ranks meet: {0}")]
    Port(AddressError),
    #[error("the system refused {what}: {why}")]
    System { what: &'static str, why: io::Error },
    #[error("cannot start {program:?} to reach host {host}: {why}; install it or choose another with --rsh")]
    NoRemoteShell { program: String, host: String, why: io::Error },
    #[error("cannot start ranks on host {host}: {reason}\n{}{advice}", indented(.words))]
    Unreachable { host: String, reason: String, words: Vec<String>, advice: String },
    #[error(
        "host {host} has phalanx {theirs}, this one {}: install the same build on both",
        phalanx_collective::BUILD
    )]
    OtherVersion { host: String, theirs: String },
    #[error("host {host}: {refusal}")]
    Refused { host: String, refusal: StartRefusal },
    #[error(
        "no answer from {hosts} within {seconds} s\n  try: phalanx doctor -H {hosts}   (or a longer --start-timeout)"
    )]
    StartTimeout { hosts: String, seconds: f64 },
    #[error("{flag} {rank}: the world has ranks 0 to {}; name one of them, or raise -np", n_ranks - 1)]
    NoSuchRank { flag: &'static str, rank: u32, n_ranks: u32 },
    #[error("--tiers: {0}; write a shape of as many ranks, or change -np")]
    Tiers(TopologyError),
    #[error("a world has at most {most} ranks, not {n_ranks}; lower -np")]
    LargeWorld { n_ranks: u32, most: u32 },
    #[error(
        "{n_local} ranks on host {host} are more than the {most} that one host can have; \
         lower -np, or spread them over more hosts with -H"
    )]
    CrowdedHost { host: String, n_local: usize, most: usize },
    #[error(
        "a launcher of {n_ranks} ranks needs {} open files, but {}; raise that limit or lower -np",
        shortage.needed, shortage.limit
    )]
    FewFiles { n_ranks: u32, shortage: Shortage },
    #[error(transparent)]
    NodeFlags(#[from] NodesError),
    #[error(transparent)]
    Meet(#[from] NodeError),
    #[error(
        "node rank {absent} of {n_nodes} hosts did not come to {place} within {seconds} s; \
         start the launchers there, or give a longer --start-timeout"
    )]
    AbsentNodes { absent: String, n_nodes: u32, place: String, seconds: f64 },
    #[error("the launcher of node 0 refused this one: {why}")]
    RefusedNode { why: String },
    #[error("the launcher of node 0 ({place}) is gone, so this host's ranks were ended")]
    LostNodeZero { place: String },
    #[error("ended by {} before the ranks had started", phalanx_net::ending::signal_name(*.0))]
    Asked(i32),
    #[error("ended by {} while it waited for {whom}", phalanx_net::ending::signal_name(*.signal))]
    AskedWhileWaiting { signal: i32, whom: String },
}

impl LaunchError {
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::Hosts(_)
            | LaunchError::Place(_)
            | LaunchError::Rsh(_)
            | LaunchError::Slurm(_)
            | LaunchError::Setting(_)
            | LaunchError::Given { .. }
            | LaunchError::TaskOfMpi { .. }
            | LaunchError::NoName { .. }
            | LaunchError::NoHosts { .. }
            | LaunchError::Extra { .. } => 2,
            LaunchError::HostFile { .. }
            | LaunchError::NoRankFile { .. }
            | LaunchError::RankFile(_)
            | LaunchError::ResourceFile { .. }
            | LaunchError::Resources(_)
            | LaunchError::PortOfResource { .. }
            | LaunchError::Interface(_) => 2,
            LaunchError::LargeWorld { .. }
            | LaunchError::CrowdedHost { .. }
            | LaunchError::Tiers(_)
            | LaunchError::NoSuchRank { .. }
            | LaunchError::NobodyServes => 2,
            LaunchError::Refused { refusal, .. } => match refusal {
                StartRefusal::NotFound { .. } | StartRefusal::NoInterpreter { .. } => 127,
                StartRefusal::NotExecutable { .. } => 126,
                StartRefusal::NoCore { .. } => 2,
                StartRefusal::NoDirectory { .. }
                | StartRefusal::Spawn { .. }
                | StartRefusal::NoRoom { .. } => 1,
            },
            LaunchError::Asked(signal) | LaunchError::AskedWhileWaiting { signal, .. } => {
                (128 + signal) as u8
            }
            LaunchError::NodeFlags(_) => 2,
            LaunchError::StartTimeout { .. }
            | LaunchError::AbsentNodes { .. }
            | LaunchError::Meet(NodeError::NoNodeZero { .. }) => 124,
            _ => 1,
        }
    }
}

fn indented(words: &[String]) -> String {
    words.iter().map(|line| format!("  | {line}\n")).collect()
}
