//! Reads rank, size and meeting point from the environment variables of a launcher.
//!
//! - DISC-1: the nearest launcher wins: ours, torchrun, horovodrun, Open MPI, PMI (MPICH, Intel MPI), Slurm, Kubernetes.
//! - DISC-2: a partly set source without a complete one, and two sources that disagree, are errors that show both.
//! - DISC-3: Slurm counts only inside a step (`SLURM_STEP_ID` a number): an sbatch script has started nothing yet.

use phalanx_core::Rank;

/// What the environment says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub rank: Rank,
    pub n_ranks: u32,
    /// Which launcher said so.
    pub source: &'static str,
    pub meeting: Meeting,
}

/// Where the ranks of a world find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// A world of one needs nobody.
    Alone,
    /// A hub serves there (comma-separated `ip:port` or `host:port`).
    Hub(Vec<String>),
    /// Rank 0 serves: on this host (or on loopback where all ranks share one), on a port derived from the job's name.
    RankZero { host: Option<String>, job: String },
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
}

/// More ranks than any world has: a larger number is a mistake, and every rank would make room for it.
const MAX_RANKS: u32 = 1 << 16;

/// Names under which a launcher tells rank and size.
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

type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads the environment. `parent` is the parent's process id: ranks of one host without any job name share it.
pub fn discover(var: Vars<'_>, parent: u32) -> Result<Identity, DiscoverError> {
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
        (Some((launcher, rank, n_ranks)), _) => {
            let meeting = meeting(launcher, n_ranks, var, parent)?;
            Ok(Identity { rank, n_ranks, source: launcher.name, meeting })
        }
        (None, Some(error)) => Err(error),
        (None, None) => {
            Ok(Identity { rank: Rank::ZERO, n_ranks: 1, source: "nobody", meeting: Meeting::Alone })
        }
    }
}

fn read(launcher: &Launcher, var: Vars<'_>) -> Result<Option<(Rank, u32)>, DiscoverError> {
    if launcher.name == "Slurm" && var("SLURM_STEP_ID").is_none_or(|id| id.parse::<u32>().is_err()) {
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

fn meeting(launcher: &Launcher, n_ranks: u32, var: Vars<'_>, parent: u32) -> Result<Meeting, DiscoverError> {
    if n_ranks == 1 {
        return Ok(Meeting::Alone);
    }
    if let Some(addresses) = var("PHALANX_RENDEZVOUS") {
        let addresses: Vec<String> = addresses.split(',').map(|a| a.trim().to_string()).collect();
        // Our launcher serves the hub itself; anybody else's address is a place where rank 0 shall serve it.
        if var("PHALANX_LAUNCHER").is_some() {
            return Ok(Meeting::Hub(addresses));
        }
        return Ok(Meeting::RankZero { host: addresses.into_iter().next(), job: String::new() });
    }
    let alone_on_host = launcher
        .local_size
        .and_then(var)
        .and_then(|size| size.trim().parse::<u32>().ok())
        .is_some_and(|local| local == n_ranks);
    let host = match launcher.name {
        "torchrun" => var("MASTER_ADDR"),
        "horovodrun" => var("HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        "Slurm" => {
            var("SLURM_STEP_NODELIST").or_else(|| var("SLURM_NODELIST")).and_then(|list| first_host(&list))
        }
        _ => None,
    };
    if !alone_on_host && host.is_none() {
        return Err(DiscoverError::NowhereToMeet { source_name: launcher.name, n_ranks });
    }
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
    let host = if alone_on_host { None } else { host };
    Ok(Meeting::RankZero { host, job: format!("{} {}", launcher.name, job.join(" ")) })
}

/// The first host of a Slurm host list such as `n[0-1,05-07],m3`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let prefix = &list[..end];
    if !list[end..].starts_with('[') {
        return (!prefix.is_empty()).then(|| prefix.to_string());
    }
    let inside = &list[end + 1..];
    let stop = inside.find([',', '-', ']'])?;
    let close = inside.find(']')?;
    let suffix = &inside[close + 1..];
    let suffix = &suffix[..suffix.find(',').unwrap_or(suffix.len())];
    Some(format!("{prefix}{}{suffix}", &inside[..stop]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Identity, DiscoverError> {
        discover(&|name| pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string()), 7)
    }

    #[test]
    fn nothing_is_a_world_of_one() {
        let alone = with(&[]).unwrap();
        assert_eq!((alone.rank, alone.n_ranks, alone.meeting), (Rank(0), 1, Meeting::Alone));
    }

    #[test]
    fn our_launcher_tells_where_its_hub_is() {
        let env = [
            ("PHALANX_RANK", "1"),
            ("PHALANX_SIZE", "2"),
            ("PHALANX_LAUNCHER", "1"),
            ("PHALANX_RENDEZVOUS", "10.0.0.1:5, [::1]:6"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "9"),
            ("SLURM_STEP_ID", "0"),
        ];
        let identity = with(&env).unwrap();
        assert_eq!((identity.source, identity.rank), ("phalanx", Rank(1)), "DISC-1");
        assert_eq!(identity.meeting, Meeting::Hub(vec!["10.0.0.1:5".into(), "[::1]:6".into()]));
    }

    #[test]
    fn every_known_launcher_is_understood() {
        let open_mpi = with(&[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "77"),
        ]);
        let place = Meeting::RankZero { host: None, job: "Open MPI 77".into() };
        assert_eq!(open_mpi, Ok(Identity { rank: Rank(3), n_ranks: 4, source: "Open MPI", meeting: place }));
        let hydra = with(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")]).unwrap();
        assert_eq!(hydra.meeting, Meeting::RankZero { host: None, job: "PMI parent 7".into() });
        let torchrun = with(&[
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "29500"),
        ]);
        let place = Meeting::RankZero { host: Some("a".into()), job: "torchrun a 29500".into() };
        assert_eq!(torchrun.unwrap().meeting, place);
    }

    #[test]
    fn ranks_started_by_hand_with_horovods_names_share_a_job_whatever_their_parents() {
        let env = [
            ("HOROVOD_RANK", "1"),
            ("HOROVOD_SIZE", "2"),
            ("HOROVOD_LOCAL_SIZE", "2"),
            ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.9"),
            ("HOROVOD_GLOO_RENDEZVOUS_PORT", "7000"),
        ];
        let job = "horovodrun 10.0.0.9 7000".to_string();
        assert_eq!(
            with(&env).unwrap().meeting,
            Meeting::RankZero { host: None, job: job.clone() },
            "one host meets on loopback"
        );
        let spread = [env[0], env[1], env[3], env[4]];
        assert_eq!(
            with(&spread).unwrap().meeting,
            Meeting::RankZero { host: Some("10.0.0.9".into()), job },
            "several meet where the address says"
        );
    }

    #[test]
    fn slurm_counts_only_inside_a_step() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_ID", "batch")];
        assert_eq!(with(&batch).unwrap().source, "nobody", "DISC-3");
        let step = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_JOB_ID", "12"),
            ("SLURM_STEP_NODELIST", "n[05-07,9],m"),
        ];
        let place = Meeting::RankZero { host: Some("n05".into()), job: "Slurm 12 0".into() };
        assert_eq!(with(&step).unwrap().meeting, place);
    }

    #[test]
    fn half_set_and_contradicting_sources_show_both_sides() {
        let half = with(&[("RANK", "1"), ("WORLD_SIZE", "2")]).unwrap_err().to_string();
        assert!(half.contains("torchrun") && half.contains("LOCAL_RANK"), "DISC-2: {half}");
        let both = with(&[
            ("PHALANX_RANK", "0"),
            ("PHALANX_SIZE", "2"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ]);
        let both = both.unwrap_err().to_string();
        assert!(both.contains("phalanx says rank 0 of 2, Open MPI says rank 1 of 4"), "DISC-2: {both}");
    }

    #[test]
    fn nonsense_numbers_are_named() {
        let error = with(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).unwrap_err();
        assert_eq!(error.to_string(), "PMI_RANK=\"x\" is not a number");
        let error = with(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]).unwrap_err();
        assert!(error.to_string().contains("rank 2 of 2"));
    }

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [("a,b", "a"), ("n[0-3]", "n0"), ("n[05-07,9]-ib,m", "n05-ib"), ("x", "x")] {
            assert_eq!(first_host(list).as_deref(), Some(first));
        }
        assert_eq!(first_host(""), None);
    }
}
