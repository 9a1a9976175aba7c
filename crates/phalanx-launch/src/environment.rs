//! Which environment variables reach a rank. Pure: names and values in, names and values out.
//!
//! - ENV-1: no variable in which another launcher stores rank or size reaches a rank, unless the user asks for it with
//!   `-x`: otherwise a rank could join the job that surrounds this one.
//! - ENV-2: the launcher passes no variable named `PHALANX_SECRET*` to a rank; the agent adds the descriptor's number.

use crate::place::{Assignment, WorldPlan};
use phalanx_core::{Rank, TaskRole};
use serde_json::json;
use std::net::SocketAddr;

/// Names the descriptor from which a rank reads the job's secret.
pub const SECRET_FD: &str = "PHALANX_SECRET_FD";

/// What belongs to the machine, login or terminal where it was set and would be wrong on another host.
const STAYS_HERE: &[&str] = &[
    "_",
    "COLUMNS",
    "DISPLAY",
    "HOME",
    "HOSTNAME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LINES",
    "LOGNAME",
    "LS_COLORS",
    "MAIL",
    "OLDPWD",
    "PHALANX_HOST_ID",
    "PWD",
    "SHELL",
    "SHLVL",
    "SLURMD_NODENAME",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_NODEID",
    "SLURM_PRIO_PROCESS",
    "SLURM_TASK_PID",
    "SLURM_UMASK",
    "TERM",
    "TMPDIR",
    "USER",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
];
const STAYS_HERE_PREFIXES: &[&str] = &[
    "BASH_FUNC_",
    "DBUS_",
    "SLURM_CPU_BIND",
    "SLURM_LAUNCH_NODE_",
    "SLURM_SRUN_",
    "SLURM_TOPOLOGY_",
    "SSH_",
    "TERM_",
    "XDG_",
];

/// By what other launchers tell a process its rank.
const FOREIGN: &[&str] = &[
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_HOSTNAME",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "JOB_COMPLETION_INDEX",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_HOST",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "PHALANX_CORES",
    "PHALANX_ROLE",
    "PHALANX_SERVERS",
    "PS_HOSTS",
    "RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "SLURM_GTIDS",
    "SLURM_LOCALID",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_TASKS_PER_NODE",
    "TASK_INDEX",
    "TF_CONFIG",
    "WORKER_HOSTS",
    "WORLD_SIZE",
];
const FOREIGN_PREFIXES: &[&str] = &[
    "HOROVOD_GLOO_RENDEZVOUS_",
    "OMPI_COMM_",
    "OMPI_UNIVERSE_",
    "PMIX_",
    "PMI_",
    "SLURM_STEP",
    "TORCHELASTIC_",
];

/// What a rank gets unless its environment says otherwise. Torch then takes tensors of 2 MB and more in huge pages; without them the system
/// fills every gradient that is made anew page by page, which takes up to half of a step.
pub const DEFAULTS: &[(&str, &str)] = &[("THP_MEM_ALLOC_ENABLE", "1")];

/// Whether the variable must not reach a rank from anybody's environment.
pub fn is_foreign(name: &[u8]) -> bool {
    name.starts_with(b"PHALANX_SECRET") || is_listed(name, FOREIGN, FOREIGN_PREFIXES)
}

/// Whether the variable goes along to another host.
pub fn travels(name: &[u8]) -> bool {
    !is_foreign(name) && !is_listed(name, STAYS_HERE, STAYS_HERE_PREFIXES)
}

fn is_listed(name: &[u8], names: &[&str], prefixes: &[&str]) -> bool {
    names.iter().any(|n| n.as_bytes() == name) || prefixes.iter().any(|p| name.starts_with(p.as_bytes()))
}

/// What only this rank is told: who it is and where the ranks meet.
pub fn of_rank(place: &Assignment, host: &str, meeting: &[SocketAddr]) -> Vec<(String, String)> {
    let meeting = meeting.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let numbers = [
        ("PHALANX_RANK", place.rank.0),
        ("PHALANX_SIZE", place.size),
        ("PHALANX_SERVERS", place.n_servers),
        ("PHALANX_LOCAL_RANK", place.local_rank),
        ("PHALANX_LOCAL_SIZE", place.local_size),
        ("PHALANX_CROSS_RANK", place.cross_rank),
        ("PHALANX_CROSS_SIZE", place.cross_size),
        ("PHALANX_LAUNCHER", 1),
        // Otherwise Python keeps lines back until the rank ends, and a killed one takes them with it.
        ("PYTHONUNBUFFERED", 1),
    ];
    let mut env: Vec<_> = numbers.map(|(name, value)| (name.to_string(), value.to_string())).into();
    env.push(("PHALANX_HOSTNAME".to_string(), host.to_string()));
    env.push(("PHALANX_RENDEZVOUS".to_string(), meeting));
    env.push(("PHALANX_ROLE".to_string(), place.role.to_string()));
    env
}

/// An evaluator is told how large the world is that it evaluates, but no rank.
pub fn of_evaluator(plan: &WorldPlan, host: &str) -> Vec<(String, String)> {
    let numbers = [
        ("PHALANX_SIZE", plan.n_ranks()),
        ("PHALANX_SERVERS", plan.n_servers()),
        ("PHALANX_LAUNCHER", 1),
        ("PYTHONUNBUFFERED", 1),
    ];
    let mut env: Vec<_> = numbers.map(|(name, value)| (name.to_string(), value.to_string())).into();
    env.push(("PHALANX_HOSTNAME".to_string(), host.to_string()));
    env.push(("PHALANX_ROLE".to_string(), TaskRole::Evaluator.to_string()));
    env
}

/// The process as `TF_CONFIG` describes the task of a cluster; `ports` has one for each rank.
pub fn tf_config(plan: &WorldPlan, process: Rank, ports: &[u16]) -> String {
    let (n_workers, n_ranks) = (plan.n_workers() as usize, plan.n_ranks() as usize);
    let at = |ports: &[u16]| ports.iter().map(|port| format!("localhost:{port}")).collect::<Vec<_>>();
    let (kind, index) = match plan.role(process) {
        TaskRole::Worker => ("worker", process.0),
        TaskRole::Server => ("ps", process.0 - plan.n_workers()),
        TaskRole::Evaluator => ("evaluator", 0),
    };
    let mut cluster = json!({ "worker": at(&ports[..n_workers]) });
    if plan.n_servers() > 0 {
        cluster["ps"] = at(&ports[n_workers..n_ranks]).into();
    }
    json!({ "cluster": cluster, "task": { "type": kind, "index": index } }).to_string()
}

/// The same by the names that scripts for Horovod read before they import anything.
pub fn of_rank_for_horovod(place: &Assignment, host: &str) -> Vec<(String, String)> {
    let numbers = [
        ("HOROVOD_RANK", place.rank.0),
        ("HOROVOD_SIZE", place.size - place.n_servers),
        ("HOROVOD_LOCAL_RANK", place.local_rank),
        ("HOROVOD_LOCAL_SIZE", place.local_size),
        ("HOROVOD_CROSS_RANK", place.cross_rank),
        ("HOROVOD_CROSS_SIZE", place.cross_size),
    ];
    let mut env: Vec<_> = numbers.map(|(name, value)| (name.to_string(), value.to_string())).into();
    env.push(("HOROVOD_HOSTNAME".to_string(), host.to_string()));
    env
}

/// Whether every rank gets this from the launcher, so that `-x` could not change it.
pub fn is_given_by_the_launcher(name: &[u8]) -> bool {
    const GIVEN: [&str; 14] = [
        "PHALANX_RANK",
        "PHALANX_SIZE",
        "PHALANX_ROLE",
        "PHALANX_SERVERS",
        "PHALANX_LOCAL_RANK",
        "PHALANX_LOCAL_SIZE",
        "PHALANX_CROSS_RANK",
        "PHALANX_CROSS_SIZE",
        "PHALANX_HOSTNAME",
        "PHALANX_RENDEZVOUS",
        "PHALANX_LAUNCHER",
        "PHALANX_SECRET",
        "PHALANX_SECRET_FILE",
        "PHALANX_SECRET_FD",
    ];
    GIVEN.iter().any(|given| given.as_bytes() == name)
}

/// Which of several processes of mpirun or mpiexec this is. Ranks of `phalanx run` do not have these variables.
pub fn task_of_mpi(var: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let sets = [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];
    sets.into_iter().find_map(|(rank, size)| {
        let (rank, size) = (var(rank)?, var(size)?.trim().parse::<u32>().ok()?);
        (size > 1).then(|| format!("process {rank} of {size}"))
    })
}

/// What `-x NAME[=VALUE]` adds; the name alone when this environment does not have it.
pub fn extra(spec: &str, here: impl Fn(&str) -> Option<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (name, value) = match spec.split_once('=') {
        Some((name, value)) => (name, Some(value.as_bytes().to_vec())),
        None => (spec, here(spec)),
    };
    match value {
        Some(value) if !name.is_empty() => Ok((name.as_bytes().to_vec(), value)),
        _ => Err(name.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;

    #[test]
    fn one_of_several_processes_of_mpi_is_known() {
        let env = |rank: &'static str, size: &'static str, n: &'static str| {
            task_of_mpi(&move |name: &str| match name {
                name if name == rank => Some("2".to_string()),
                name if name == size => Some(n.to_string()),
                _ => None,
            })
        };
        assert_eq!(env("PMI_RANK", "PMI_SIZE", "4").as_deref(), Some("process 2 of 4"));
        assert_eq!(env("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "1"), None);
        assert_eq!(env("", "", ""), None);
    }

    #[test]
    fn other_launchers_ranks_do_not_reach_ours() {
        for name in [
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "OMPI_COMM_WORLD_RANK",
            "PMI_RANK",
            "PMIX_RANK",
            "SLURM_PROCID",
            "SLURM_STEP_ID",
            "SLURM_STEPID",
            "HOROVOD_RANK",
            "TORCHELASTIC_RUN_ID",
            "JOB_COMPLETION_INDEX",
            "TF_CONFIG",
            "TASK_INDEX",
        ] {
            assert!(is_foreign(name.as_bytes()), "ENV-1: {name}");
        }
        for name in ["OMPI_MCA_btl", "HOROVOD_FUSION_THRESHOLD", "SLURM_JOB_ID", "MASTER_ADDR", "PATH"] {
            assert!(!is_foreign(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn secrets_and_logins_stay_here() {
        for name in
            ["PHALANX_SECRET", "PHALANX_SECRET_FD", "SSH_AUTH_SOCK", "PWD", "XDG_SESSION_ID", "_", "TERM"]
        {
            assert!(!travels(name.as_bytes()), "ENV-2: {name}");
        }
        for name in ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "PHALANX_LOG", "TERMINATOR"]
        {
            assert!(travels(name.as_bytes()), "{name}");
        }
        for name in ["SLURMD_NODENAME", "SLURM_NODEID", "SLURM_CPU_BIND_LIST"] {
            assert!(!travels(name.as_bytes()), "{name}");
        }
        for name in ["SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID", "SLURM_SUBMIT_DIR"] {
            assert!(travels(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_rank_is_told_who_it_is() {
        let place = Assignment {
            rank: Rank(5),
            role: TaskRole::Server,
            size: 6,
            n_servers: 2,
            local_rank: 1,
            local_size: 2,
            cross_rank: 2,
            cross_size: 3,
        };
        let env = of_rank(&place, "n2", &["10.0.0.1:70".parse().unwrap(), "[::1]:80".parse().unwrap()]);
        let value = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        assert_eq!(value("PHALANX_RANK"), Some("5"));
        assert_eq!(value("PHALANX_CROSS_SIZE"), Some("3"));
        assert_eq!(value("PHALANX_HOSTNAME"), Some("n2"));
        assert_eq!(value("PHALANX_RENDEZVOUS"), Some("10.0.0.1:70,[::1]:80"));
        assert_eq!((value("PHALANX_ROLE"), value("PHALANX_SERVERS")), (Some("server"), Some("2")));
    }

    #[test]
    fn an_evaluator_is_told_its_role_and_no_rank() {
        let hosts = parse_list("localhost:3").unwrap();
        let plan = WorldPlan::fill_with(&hosts, 3, 1, "-H").unwrap().with_evaluator(true);
        let env = of_evaluator(&plan, "n0");
        let value = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        assert_eq!(
            (value("PHALANX_ROLE"), value("PHALANX_SIZE"), value("PHALANX_RANK")),
            (Some("evaluator"), Some("3"), None)
        );
        let config = |process| tf_config(&plan, Rank(process), &[70, 71, 72]);
        let cluster = r#""cluster":{"ps":["localhost:72"],"worker":["localhost:70","localhost:71"]}"#;
        assert_eq!(config(1), format!(r#"{{{cluster},"task":{{"index":1,"type":"worker"}}}}"#));
        assert_eq!(config(2), format!(r#"{{{cluster},"task":{{"index":0,"type":"ps"}}}}"#));
        assert_eq!(config(3), format!(r#"{{{cluster},"task":{{"index":0,"type":"evaluator"}}}}"#));
    }

    #[test]
    fn extras_take_their_value_from_the_flag_or_from_here() {
        let here = |name: &str| (name == "A").then(|| b"1".to_vec());
        assert_eq!(extra("A", here), Ok((b"A".to_vec(), b"1".to_vec())));
        assert_eq!(extra("B=x=y", here), Ok((b"B".to_vec(), b"x=y".to_vec())));
        assert_eq!(extra("B=", here), Ok((b"B".to_vec(), vec![])));
        assert_eq!(extra("B", here), Err("B".to_string()));
        assert_eq!(extra("=x", here), Err(String::new()));
    }
}
