//! `--nnodes N --node-rank R --rdzv PLACE`: the same command is started on each host, and these launchers become one job.
//!
//! Node 0's launcher decides everything ([`gather`]); the others ([`follow`]) start the ranks of their host for it, as agents that connect
//! instead of being started. Each launcher prints the output of its own host's ranks, and all end with the same report and exit code.
//! This file reads the flags.

mod follow;
mod gather;
mod message;

use crate::cli::RunArgs;
pub use follow::follow;
pub use gather::{Gathered, gather};
pub use message::{FromNode, ToNode};
use phalanx_net::{arena::MAX_LOCAL, nodes::NodePlace};

/// This launcher among those of the other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFlags {
    pub n_nodes: u32,
    pub me: u32,
    pub place: NodePlace,
}

/// Flags that cannot act together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodesError {
    #[error("{flag} says which of several hosts this is; give --nnodes N as well")]
    NoNumber { flag: &'static str },
    #[error("--nnodes 0: a job has at least one host; write e.g. --nnodes 2")]
    NoNodes,
    #[error("--nnodes {n_nodes} needs --node-rank R: the number of this host, from 0 to {}", n_nodes - 1)]
    NoRank { n_nodes: u32 },
    #[error("--node-rank {me}: with --nnodes {n_nodes} hosts have the numbers 0 to {}", n_nodes - 1)]
    RankTooHigh { me: u32, n_nodes: u32 },
    #[error("--nnodes {n_nodes} needs --rdzv: where the hosts meet, e.g. --rdzv HOST-OF-NODE-0:29500")]
    NoPlace { n_nodes: u32 },
    #[error(
        "--rdzv {text:?} is no place to meet: {why}; write host:port, etcd://host:2379/job or file:/directory"
    )]
    NotAPlace { text: String, why: String },
    #[error(
        "-np {np}: one host has at most {most} ranks, and -np counts those of this host; lower it, or use more hosts"
    )]
    TooMany { np: u32, most: usize },
    #[error(
        "{flag} starts other hosts from this one, with --nnodes every host is started by itself; leave one of the two out"
    )]
    Both { flag: &'static str },
    #[error("-np 0: every host has at least one rank; write e.g. -np 4")]
    NoRanks,
    #[error(
        "--interface says where node 0 serves; give it there, and PHALANX_INTERFACE for the ranks of this host"
    )]
    Interface,
    #[error("--servers cannot be used with --nnodes; name the hosts with -H instead")]
    Servers,
}

impl NodeFlags {
    /// `None` where this launcher is the only one. `told` is what `PHALANX_RENDEZVOUS` says.
    pub fn of(args: &RunArgs, told: Option<String>) -> Result<Option<NodeFlags>, NodesError> {
        let Some(n_nodes) = args.nnodes else {
            let flags = [("--node-rank", args.node_rank.is_some()), ("--rdzv", args.rdzv.is_some())];
            return match flags.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(NodesError::NoNumber { flag }),
                None => Ok(None),
            };
        };
        let hosts = &args.hosts;
        let elsewhere = [
            ("-H", hosts.list.is_some()),
            ("--hostfile", hosts.file.is_some()),
            ("--resource-info", hosts.resource_info.is_some()),
            ("--slots-per-host", hosts.slots_per_host.is_some()),
            ("--rsh", hosts.rsh.is_some()),
            ("--remote-exe", hosts.remote_exe.is_some()),
        ];
        if let Some((flag, _)) = elsewhere.into_iter().find(|(_, given)| *given) {
            return Err(NodesError::Both { flag });
        }
        if args.servers > 0 {
            return Err(NodesError::Servers);
        }
        let me = match (n_nodes, args.node_rank) {
            (0, _) => return Err(NodesError::NoNodes),
            (1, None) => 0,
            (_, None) => return Err(NodesError::NoRank { n_nodes }),
            (_, Some(me)) if me >= n_nodes => return Err(NodesError::RankTooHigh { me, n_nodes }),
            (_, Some(me)) => me,
        };
        if args.np == Some(0) {
            return Err(NodesError::NoRanks);
        }
        if let Some(np) = args.np.filter(|np| *np as usize > MAX_LOCAL) {
            return Err(NodesError::TooMany { np, most: MAX_LOCAL });
        }
        if me > 0 && !args.interface.is_empty() {
            return Err(NodesError::Interface);
        }
        let Some(text) = args.rdzv.clone().or(told.filter(|text| !text.is_empty())) else {
            return if n_nodes == 1 { Ok(None) } else { Err(NodesError::NoPlace { n_nodes }) };
        };
        let place = NodePlace::parse(&text)
            .map_err(|why| NodesError::NotAPlace { text: phalanx_net::nodes::shown(&text), why })?;
        // A host alone has nobody to meet.
        Ok((n_nodes > 1).then_some(NodeFlags { n_nodes, me, place }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn flags(line: &str, told: Option<&str>) -> Result<Option<NodeFlags>, String> {
        let words = format!("phalanx run {line} true");
        let cli = Cli::try_parse_from(words.split_whitespace()).map_err(|e| e.to_string())?;
        let Command::Run(args) = cli.command else { panic!("{cli:?}") };
        NodeFlags::of(&args, told.map(String::from)).map_err(|e| e.to_string())
    }

    #[test]
    fn one_launcher_needs_nothing_and_several_need_a_number_and_a_place() {
        assert_eq!(flags("-n 2", Some("n0:1")), Ok(None));
        assert_eq!(flags("--nnodes 1", None), Ok(None));
        assert_eq!(flags("--nnodes 1 --node-rank 0 --rdzv n0:1", None), Ok(None));
        let place = NodePlace::At(vec!["n0:1".into()]);
        let wanted = Ok(Some(NodeFlags { n_nodes: 3, me: 2, place }));
        assert_eq!(flags("--nnodes 3 --node-rank 2 --rdzv n0:1", Some("n9:9")), wanted);
        assert_eq!(flags("--nnodes 3 --node-rank 2", Some("n0:1")), wanted);
    }

    #[test]
    fn what_cannot_act_is_refused_in_a_sentence() {
        for (line, wanted) in [
            ("--rdzv n0:1", "--rdzv says which of several hosts this is; give --nnodes N as well"),
            ("--node-rank 1", "--node-rank says which"),
            ("--nnodes 0", "at least one host"),
            ("--nnodes 2 --rdzv n0:1", "needs --node-rank R: the number of this host, from 0 to 1"),
            ("--nnodes 2 --node-rank 2 --rdzv n0:1", "hosts have the numbers 0 to 1"),
            ("--nnodes 1 --node-rank 1", "hosts have the numbers 0 to 0"),
            ("--nnodes 2 --node-rank 0", "needs --rdzv"),
            ("--nnodes 2 --node-rank 0 --rdzv http://x", "is no place to meet"),
            ("--nnodes 1 --rdzv garbage", "is no place to meet: \"garbage\" has no port"),
            ("--nnodes 2 --node-rank 0 --rdzv n0:99999", "\"99999\" is no port: ports are 1 to 65535"),
            ("--nnodes 2 --node-rank 0 --rdzv etcds://n0/j", "without TLS"),
            ("--nnodes 2 --node-rank 0 --rdzv n0:1 --np 5000", "one host has at most 1024 ranks"),
            ("--nnodes 1 --rsh ssh", "--rsh starts other hosts"),
            ("--nnodes 2 --node-rank 0 --rdzv n0:1 -H a,b", "-H starts other hosts"),
            ("--nnodes 2 --node-rank 0 --rdzv n0:1 --hostfile f", "--hostfile starts other hosts"),
            ("--nnodes 2 --node-rank 0 --rdzv n0:1 --rsh ssh", "--rsh starts other hosts"),
            ("--nnodes 2 --node-rank 0 --rdzv n0:1 --np 0", "-np 0: every host has at least one rank"),
            ("--nnodes 2 --node-rank 1 --rdzv n0:1 --interface eth0", "--interface says where node 0 serves"),
            ("--nnodes 2 --node-rank 0 --rdzv n0:1 --servers 1", "--servers cannot be used with --nnodes"),
        ] {
            let error = flags(line, None).unwrap_err();
            assert!(error.contains(wanted) && error.lines().count() == 1, "{line}: {error}");
        }
    }
}
