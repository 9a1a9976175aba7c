//! Reads rank, size and meeting point from the environment variables of a launcher.
//!
//! - DISC-1: the nearest launcher wins: ours, a cluster that `TF_CONFIG` or `JOB_NAME` describes ([`crate::task`]), torchrun, horovodrun,
//!   Open MPI, PMI (MPICH, Intel MPI), Slurm, Kubernetes.
//! - DISC-2: a partly set source without a complete one, and two sources that disagree, are errors that show both.
//! - DISC-3: Slurm counts only inside a step that `srun` started ([`is_srun_step`]): an sbatch script, or the shell of an interactive
//!   `salloc`, has started nothing yet.
//!   So is an empty value where a rank's number or the size of its world belongs: it is a script's variable that was not set.
//! - DISC-4: an evaluator (`PHALANX_ROLE`, or a task of that type) is alone in its world, whatever else is set; rank 0 is never a server.

pub(crate) mod meeting;

pub(crate) use meeting::told;
pub use meeting::{BoardAddress, Meeting};

use crate::{
    hostlist::ListError,
    task::{TaskError, TaskSpec, Vars, of_cluster_vars},
};
use phalanx_core::{Rank, TaskRole, UnknownRole};

/// What the environment says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub rank: Rank,
    pub n_ranks: u32,
    /// The number of the launcher's last ranks that stay out of this world.
    pub n_aside: u32,
    pub role: TaskRole,
    /// Which launcher said so.
    pub source: &'static str,
    pub meeting: Meeting,
}

impl Identity {
    /// A worker of a world that the caller knows.
    pub fn worker(rank: Rank, n_ranks: u32, meeting: Meeting) -> Identity {
        Identity { rank, n_ranks, n_aside: 0, role: TaskRole::Worker, source: "caller", meeting }
    }

    /// A world of one.
    pub fn alone() -> Identity {
        Identity { source: "nobody", ..Identity::worker(Rank::ZERO, 1, Meeting::Alone) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    #[error(
        "{source_name} is only partly set: {found} is set, {missing} is not; set both, or neither for a world of one rank"
    )]
    Half { source_name: &'static str, found: String, missing: &'static str },
    #[error(
        "two launchers disagree: {a} says rank {a_rank} of {a_size}, {b} says rank {b_rank} of {b_size}; unset one of them"
    )]
    Contradiction { a: &'static str, a_rank: Rank, a_size: u32, b: &'static str, b_rank: Rank, b_size: u32 },
    #[error("{name} is set and empty: give it a value, or unset it for a world of one rank")]
    Empty { name: &'static str },
    #[error("{name}={value:?} is not a number")]
    NotANumber { name: &'static str, value: String },
    #[error(
        "{source_name} says rank {rank} of {size}: a rank is smaller than the size of its world, which is at most {MAX_RANKS}"
    )]
    OutOfRange { source_name: &'static str, rank: u64, size: u64 },
    #[error(
        "{source_name} started {n_ranks} ranks on several hosts but does not say where they meet; set PHALANX_RENDEZVOUS=host:port to an address of rank 0's host, the same on every rank"
    )]
    NowhereToMeet { source_name: &'static str, n_ranks: u32 },
    #[error(
        "PHALANX_RENDEZVOUS={value:?} is not a meeting point: {why}; write host:port[,host:port], etcd://host:port/job or file:/directory"
    )]
    NotAMeeting { value: String, why: String },
    #[error(
        "{name}={value:?} is not a list of hosts, {why}; set PHALANX_RENDEZVOUS=host:port to say where ranks meet"
    )]
    NodeList { name: &'static str, value: String, why: ListError },
    #[error("PHALANX_ROLE={0}")]
    Role(#[from] UnknownRole),
    #[error(
        "PHALANX_ROLE=server on rank 0: workers are numbered first, so give the servers the highest ranks"
    )]
    ServerFirst,
    #[error(
        "PHALANX_ROLE={role} on rank {rank}, but the last {n_servers} of {n_ranks} ranks are servers by PHALANX_SERVERS; make both say the same"
    )]
    Servers { role: TaskRole, rank: Rank, n_servers: u32, n_ranks: u32 },
    #[error(
        "PHALANX_ROLE=server, but PHALANX_SERVERS is not set; set it to the number of servers, the same on every rank"
    )]
    ServersUnknown,
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// More ranks than any world has: a larger number is a mistake, and every rank would make room for it.
const MAX_RANKS: u32 = 1 << 16;

/// Names under which a launcher tells rank and size.
#[derive(Debug, PartialEq, Eq)]
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// Also needed before the pair counts.
    also: Option<&'static str>,
    local_size: Option<&'static str>,
    /// Started below other launchers, so its numbers may differ from theirs.
    outer: bool,
}

const LAUNCHERS: &[Launcher] = &[
    Launcher {
        name: "phalanx",
        rank: "PHALANX_RANK",
        size: "PHALANX_SIZE",
        also: None,
        local_size: Some("PHALANX_LOCAL_SIZE"),
        outer: false,
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        also: Some("LOCAL_RANK"),
        local_size: Some("LOCAL_WORLD_SIZE"),
        outer: false,
    },
    Launcher {
        name: "horovodrun",
        rank: "HOROVOD_RANK",
        size: "HOROVOD_SIZE",
        also: None,
        local_size: Some("HOROVOD_LOCAL_SIZE"),
        outer: false,
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        also: None,
        local_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        outer: false,
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        also: None,
        local_size: Some("MPI_LOCALNRANKS"),
        outer: false,
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        also: None,
        local_size: None,
        outer: true,
    },
    Launcher {
        name: "Kubernetes",
        rank: "JOB_COMPLETION_INDEX",
        size: "PHALANX_SIZE",
        also: None,
        local_size: None,
        outer: true,
    },
];

/// What a launcher says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub source: &'static str,
    pub rank: Rank,
    pub n_ranks: u32,
    pub role: TaskRole,
    /// How many of the ranks are servers, where it is told.
    pub n_servers: Option<u32>,
    launcher: Option<&'static Launcher>,
}

/// Reads the environment. `parent` is the parent's process id: ranks of one host without any job name share it.
pub fn discover(var: Vars<'_>, parent: u32) -> Result<Identity, DiscoverError> {
    let raw = var;
    let var = &|name: &str| var(name).filter(|value| !value.is_empty() || name == "TF_CONFIG");
    no_empty(&LAUNCHERS[0], raw)?;
    let (told, cluster) = sources(var)?;
    if let (None | Some(Numbers { launcher: Some(_), .. }), Some(task)) = (&told, &cluster)
        && told.as_ref().is_none_or(|told| told.source != "phalanx")
    {
        return task.identity(var, parent);
    }
    let Some(told) = told else {
        LAUNCHERS.iter().try_for_each(|launcher| no_empty(launcher, raw))?;
        return Ok(Identity::alone());
    };
    let Numbers { source, rank, n_ranks, role, launcher, .. } = told;
    let Some(launcher) = launcher.filter(|_| role != TaskRole::Evaluator) else {
        return Ok(Identity { role, source, ..Identity::alone() }); // DISC-4
    };
    let meeting = meeting::choose(launcher, rank, n_ranks, var, parent)?;
    Ok(Identity { rank, n_ranks, n_aside: 0, role, source, meeting })
}

/// Neither number of this launcher is set and empty (DISC-2).
fn no_empty(launcher: &Launcher, var: Vars<'_>) -> Result<(), DiscoverError> {
    let is_empty = |name: &&'static str| var(name).is_some_and(|value| value.trim().is_empty());
    match [launcher.rank, launcher.size].into_iter().find(|name| is_empty(name)) {
        Some(name) => Err(DiscoverError::Empty { name }),
        None => Ok(()),
    }
}

/// What launchers say, and the cluster of which this process is a task, if one is described. Both at once must agree (DISC-2).
pub(crate) fn sources(var: Vars<'_>) -> Result<(Option<Numbers>, Option<TaskSpec>), DiscoverError> {
    let cluster = of_cluster_vars(var)?.filter(TaskSpec::is_in_cluster);
    let told = numbers(var)?;
    if let (Some(told), Some((a_rank, task))) = (&told, cluster.as_ref().and_then(|t| Some((t.rank()?, t))))
        && told.launcher.is_some_and(|launcher| !launcher.outer)
        && told.role != TaskRole::Evaluator
        && (told.rank, told.n_ranks) != (a_rank, task.n_ranks())
    {
        return Err(DiscoverError::Contradiction {
            a: task.source(),
            a_rank,
            a_size: task.n_ranks(),
            b: told.source,
            b_rank: told.rank,
            b_size: told.n_ranks,
        });
    }
    Ok((told, cluster))
}

/// What the nearest launcher says.
fn numbers(var: Vars<'_>) -> Result<Option<Numbers>, DiscoverError> {
    let role: TaskRole = var("PHALANX_ROLE").as_deref().unwrap_or("worker").parse()?;
    let count = |name| match var(name) {
        None => Ok(None),
        Some(value) => match value.trim().parse::<u32>() {
            Ok(n) if n <= MAX_RANKS => Ok(Some(n)),
            _ => Err(DiscoverError::NotANumber { name, value }),
        },
    };
    let n_servers = count("PHALANX_SERVERS")?;
    if role == TaskRole::Evaluator {
        let n_ranks = count("PHALANX_SIZE")?.unwrap_or(1);
        let told = Numbers { source: "phalanx", rank: Rank::ZERO, n_ranks, role, n_servers, launcher: None };
        return Ok(Some(told));
    }
    let Some((launcher, rank, n_ranks)) = nearest(var)? else { return Ok(None) };
    if (role, rank) == (TaskRole::Server, Rank::ZERO) {
        return Err(DiscoverError::ServerFirst);
    }
    if let Some(n_servers) = n_servers
        && (rank.0 >= n_ranks.saturating_sub(n_servers)) != (role == TaskRole::Server)
    {
        return Err(DiscoverError::Servers { role, rank, n_servers, n_ranks });
    }
    Ok(Some(Numbers { source: launcher.name, rank, n_ranks, role, n_servers, launcher: Some(launcher) }))
}

/// The first complete source (DISC-1).
fn nearest(var: Vars<'_>) -> Result<Option<(&'static Launcher, Rank, u32)>, DiscoverError> {
    let mut half = None;
    let mut found: Option<(&Launcher, Rank, u32)> = None;
    for launcher in LAUNCHERS {
        match read(launcher, var) {
            Ok(Some((rank, n_ranks))) => match found {
                None => found = Some((launcher, rank, n_ranks)),
                Some((near, near_rank, near_size)) => {
                    if !launcher.outer && (near_rank, near_size) != (rank, n_ranks) {
                        return Err(DiscoverError::Contradiction {
                            a: near.name,
                            a_rank: near_rank,
                            a_size: near_size,
                            b: launcher.name,
                            b_rank: rank,
                            b_size: n_ranks,
                        });
                    }
                }
            },
            Ok(None) => {}
            Err(error @ DiscoverError::Half { .. }) => half = half.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    match (found, half) {
        (None, Some(error)) => Err(error),
        (found, _) => Ok(found),
    }
}

/// Whether `srun` started this process. Steps of other kinds have no number, or one of the highest: `salloc` runs an interactive shell in step
/// 4294967290, with the number of tasks of the whole allocation.
pub fn is_srun_step(var: Vars<'_>) -> bool {
    const SPECIAL: u32 = 0xffff_fff0;
    var("SLURM_STEP_ID").and_then(|id| id.trim().parse::<u32>().ok()).is_some_and(|id| id < SPECIAL)
}

fn read(launcher: &Launcher, var: Vars<'_>) -> Result<Option<(Rank, u32)>, DiscoverError> {
    if launcher.name == "Slurm" && !is_srun_step(var) {
        return Ok(None); // DISC-3
    }
    let half = |found: &str, missing| {
        Err(DiscoverError::Half { source_name: launcher.name, found: found.to_string(), missing })
    };
    let (rank, size) = match (var(launcher.rank), var(launcher.size)) {
        (None, None) => return Ok(None),
        // The size alone belongs to another source of the same name.
        (None, Some(_)) if launcher.name == "Kubernetes" => return Ok(None),
        (Some(_), None) => return half(launcher.rank, launcher.size),
        (None, Some(_)) => return half(launcher.size, launcher.rank),
        (Some(rank), Some(size)) => (rank, size),
    };
    if let Some(also) = launcher.also
        && var(also).is_none()
    {
        return half(launcher.rank, also);
    }
    let number = |name, value: String| {
        value.trim().parse::<u64>().map_err(|_| DiscoverError::NotANumber { name, value })
    };
    let (rank, size) = (number(launcher.rank, rank)?, number(launcher.size, size)?);
    match (u32::try_from(rank), u32::try_from(size)) {
        (Ok(r), Ok(s)) if r < s && s <= MAX_RANKS => Ok(Some((Rank(r), s))),
        _ => Err(DiscoverError::OutOfRange { source_name: launcher.name, rank, size }),
    }
}

#[cfg(test)]
mod tests;
