//! What an allocation of Slurm says about a job: its hosts and slots, and how `srun` reaches them. Pure: variables in, decisions out.
//!
//! - SLURM-1: slots are the tasks that were asked for (`SLURM_TASKS_PER_NODE`). Inside a step that variable counts the step's tasks, not the
//!   allocation's, so slots are the CPUs (`SLURM_JOB_CPUS_PER_NODE`) divided by `SLURM_CPUS_PER_TASK`; also where it is missing.
//! - SLURM-2: no variable that `srun` reads as an option reaches the `srun` that starts an agent: what the user wants for programs
//!   (`SLURM_LABELIO`, `SLURM_NTASKS_PER_NODE`, `SLURM_CPU_BIND`) would change or refuse the agent. A secret does not either: `srun` would
//!   send it along.
//! - SLURM-3: a rank of `phalanx run`, and a task among several of a step, takes no hosts from the allocation: each would take all of them.

use crate::hosts::HostSlots;
use phalanx_net::{
    discover::is_srun_step,
    hostlist::{self, ListError},
};
use std::{collections::BTreeSet, time::Duration};

/// Where slots came from, when it was an allocation.
pub const SOURCE: &str = "the Slurm allocation";

/// The hosts of a Slurm job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub job: String,
    pub hosts: Vec<HostSlots>,
    /// The variables that said so.
    pub told_by: [&'static str; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlurmError {
    #[error("SLURM_JOB_ID is set, but {missing} is not: {ADVICE}")]
    Half { missing: &'static str },
    #[error("SLURM_JOB_ID={value:?} is not the number of a job: {ADVICE}")]
    BadJob { value: String },
    #[error("{name}={value:?} cannot be read, {why}; {ADVICE}")]
    List { name: &'static str, value: String, why: ListError },
    #[error("{name}={value:?} names {host} twice; {ADVICE}")]
    Twice { name: &'static str, value: String, host: String },
    #[error("{name}={value:?} counts {n_counts} hosts, but SLURM_JOB_NODELIST names {n_hosts}; {ADVICE}")]
    Counts { name: &'static str, value: String, n_counts: usize, n_hosts: usize },
    #[error("SLURM_CPUS_PER_TASK={value:?} is not a number from 1; {ADVICE}")]
    BadCpus { value: String },
    #[error(
        "this job of Slurm has {n} components, and hosts are taken from a job of one only; name them with -H"
    )]
    Components { n: String },
    #[error(
        "srun started this `phalanx run` as task {task} of {n_tasks}, and each of them would start a whole job: \
         write `phalanx run COMMAND` without srun, or `srun COMMAND` without phalanx run \
         (-H localhost:N starts a job of N ranks in each task)"
    )]
    Task { task: String, n_tasks: u32 },
}

const ADVICE: &str = "name the hosts with -H, e.g. -H localhost:4 for this machine alone";

type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The allocation whose hosts a job here takes; `None` where there is none (SLURM-3).
pub fn allocation(var: Vars<'_>) -> Result<Option<Allocation>, SlurmError> {
    let var = &|name: &str| var(name).filter(|value| !value.is_empty());
    let Some(job) = var("SLURM_JOB_ID").or_else(|| var("SLURM_JOBID")) else { return Ok(None) };
    if var("PHALANX_RANK").is_some() || var("PHALANX_LAUNCHER").is_some() {
        return Ok(None);
    }
    let n_tasks = var("SLURM_STEP_NUM_TASKS").or_else(|| var("SLURM_NTASKS"));
    let n_tasks = n_tasks.and_then(|n| n.trim().parse().ok()).filter(|_| is_srun_step(var));
    if let (Some(n_tasks @ 2..), Some(task)) = (n_tasks, var("SLURM_PROCID")) {
        return Err(SlurmError::Task { task, n_tasks });
    }
    read(job, var).map(Some)
}

fn read(job: String, var: Vars<'_>) -> Result<Allocation, SlurmError> {
    // It becomes a word of a command.
    if job.is_empty() || !job.bytes().all(|b| b.is_ascii_digit()) {
        return Err(SlurmError::BadJob { value: job });
    }
    if let Some(n) = var("SLURM_HET_SIZE").filter(|n| n.trim() != "1") {
        return Err(SlurmError::Components { n });
    }
    let list = "SLURM_JOB_NODELIST";
    let value = var(list).or_else(|| var("SLURM_NODELIST")).ok_or(SlurmError::Half { missing: list })?;
    let names =
        hostlist::hosts(&value).map_err(|why| SlurmError::List { name: list, value: value.clone(), why })?;
    let mut seen = BTreeSet::new();
    if let Some(host) = names.iter().find(|name| !seen.insert(name.as_str())) {
        return Err(SlurmError::Twice { name: list, value, host: host.clone() });
    }
    let (name, counts, each) = slots(var)?;
    let all =
        hostlist::counts(&counts).map_err(|why| SlurmError::List { name, value: counts.clone(), why })?;
    let (n_counts, n_hosts) = (all.len(), names.len());
    if n_counts != n_hosts {
        return Err(SlurmError::Counts { name, value: counts, n_counts, n_hosts });
    }
    let hosts = names.into_iter().zip(all).map(|(name, n)| HostSlots { name, slots: (n / each).max(1) });
    Ok(Allocation { job, hosts: hosts.collect(), told_by: [list, name] })
}

/// Which variable counts, what it says, and how many of what it counts make one slot (SLURM-1).
fn slots(var: Vars<'_>) -> Result<(&'static str, String, u32), SlurmError> {
    let (tasks, cpus) = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE");
    if let Some(value) = var(tasks).filter(|_| !is_srun_step(var)) {
        return Ok((tasks, value, 1));
    }
    let value = var(cpus).ok_or(SlurmError::Half { missing: cpus })?;
    let each = match var("SLURM_CPUS_PER_TASK") {
        None => 1,
        Some(value) => {
            let each = value.trim().parse().ok().filter(|&n: &u32| n > 0);
            each.ok_or(SlurmError::BadCpus { value })?
        }
    };
    Ok((cpus, value, each))
}

impl Allocation {
    pub fn has(&self, host: &str) -> bool {
        self.hosts.iter().any(|h| h.name == host)
    }

    /// The remote shell: a step of one task on one host, beside whatever else runs in the allocation. It has all CPUs of the allocation there;
    /// the agent shares them out.
    pub fn srun(&self) -> Vec<String> {
        let words = "srun --overlap -N1 -n1 -w {host} --mpi=none --cpu-bind=none --kill-on-bad-exit=0 --export=ALL --unbuffered --quiet";
        let mut words: Vec<String> = words.split(' ').map(str::to_string).collect();
        words.insert(1, format!("--jobid={}", self.job));
        words
    }
}

/// How long a launcher waits until it passes on a SIGTERM that came from Slurm. Slurm sends it to every process of the job, on other hosts maybe
/// later; ranks must not get it twice, because the second one means "at once".
pub const TERM_AFTER: Duration = Duration::from_secs(1);

/// Whether the variable stays away from the `srun` that starts an agent (SLURM-2).
pub fn is_hidden_from_srun(name: &str) -> bool {
    // Which cluster and job this is, and who we are to it.
    const KEPT: [&str; 7] = [
        "SLURM_CLUSTERS",
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_JOBID",
        "SLURM_JOB_ID",
        "SLURM_JWT",
        "SLURM_WORKING_CLUSTER",
    ];
    let is_option = name.starts_with("SLURM_") || name.starts_with("SRUN_");
    is_option && !KEPT.contains(&name) || name.starts_with("PHALANX_SECRET") || name == "PHALANX_HOST_ID"
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: [(&str, &str); 4] = [
        ("SLURM_JOB_ID", "12"),
        ("SLURM_JOB_NODELIST", "n[08-10],m"),
        ("SLURM_TASKS_PER_NODE", "2(x3),1"),
        ("SLURM_JOB_CPUS_PER_NODE", "8(x3),4"),
    ];

    /// `more` comes before what a batch script has.
    fn with(more: &[(&str, &str)]) -> Result<Option<Allocation>, String> {
        let all = [more, &BATCH].concat();
        let var = |name: &str| all.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string());
        allocation(&var).map_err(|error| error.to_string())
    }

    fn slots(more: &[(&str, &str)]) -> String {
        let hosts = with(more).unwrap().unwrap().hosts;
        hosts.iter().map(|h| format!("{}:{}", h.name, h.slots)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn hosts_and_slots_are_those_of_the_allocation() {
        assert_eq!(slots(&[]), "n08:2 n09:2 n10:2 m:1");
        assert_eq!(with(&[]).unwrap().unwrap().told_by, ["SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"]);
        assert_eq!(slots(&[("SLURM_TASKS_PER_NODE", "")]), "n08:8 n09:8 n10:8 m:4", "SLURM-1");
        // `srun --pty bash`: the step has one task on one host.
        let shell = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_TASKS_PER_NODE", "1"),
            ("SLURM_CPUS_PER_TASK", "3"),
        ];
        assert_eq!(slots(&shell), "n08:2 n09:2 n10:2 m:1", "SLURM-1");
        // An interactive salloc: a step of another kind, with the counts of the allocation.
        let salloc = [("SLURM_STEP_ID", "4294967290"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "7")];
        assert_eq!(slots(&salloc), "n08:2 n09:2 n10:2 m:1");
    }

    #[test]
    fn without_an_allocation_and_inside_a_rank_there_is_none() {
        assert_eq!(with(&[("SLURM_JOB_ID", "")]), Ok(None));
        assert_eq!(with(&[("PHALANX_RANK", "3")]), Ok(None), "SLURM-3");
        assert_eq!(with(&[("PHALANX_LAUNCHER", "1")]), Ok(None), "SLURM-3");
    }

    #[test]
    fn a_task_among_several_starts_no_job_on_all_hosts() {
        let task = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4")];
        let error = with(&task).unwrap_err();
        assert!(
            error.starts_with("srun started this `phalanx run` as task 1 of 4, and each"),
            "SLURM-3: {error}"
        );
        let batch = [("SLURM_STEP_ID", "batch"), task[1], task[2]];
        assert!(with(&batch).unwrap().is_some(), "a batch script is no task");
    }

    #[test]
    fn errors_name_the_variable_and_the_place() {
        for (more, want) in [
            (
                ("SLURM_JOB_NODELIST", "n[8-"),
                "SLURM_JOB_NODELIST=\"n[8-\" cannot be read, at character 5: a number is missing; name",
            ),
            (("SLURM_JOB_NODELIST", "a,b,a,c"), "SLURM_JOB_NODELIST=\"a,b,a,c\" names a twice"),
            (
                ("SLURM_JOB_NODELIST", "n[1-99999999]"),
                "SLURM_JOB_NODELIST=\"n[1-99999999]\" cannot be read, at character 1: it names more than 65536",
            ),
            (
                ("SLURM_TASKS_PER_NODE", "2(x3)"),
                "SLURM_TASKS_PER_NODE=\"2(x3)\" counts 3 hosts, but SLURM_JOB_NODELIST names 4",
            ),
            (
                ("SLURM_TASKS_PER_NODE", "2(x3),0"),
                "SLURM_TASKS_PER_NODE=\"2(x3),0\" cannot be read, at character 7: a count is",
            ),
            (("SLURM_JOB_ID", "12 --uid=0"), "SLURM_JOB_ID=\"12 --uid=0\" is not the number of a job"),
            (("SLURM_HET_SIZE", "2"), "this job of Slurm has 2 components"),
        ] {
            let error = with(&[more]).unwrap_err();
            assert!(error.starts_with(want), "{more:?}: {error}");
        }
        let half = [("SLURM_JOB_NODELIST", "")];
        assert!(with(&half).unwrap_err().starts_with("SLURM_JOB_ID is set, but SLURM_JOB_NODELIST is not"));
        let half = [("SLURM_TASKS_PER_NODE", ""), ("SLURM_JOB_CPUS_PER_NODE", "")];
        assert!(
            with(&half).unwrap_err().contains("but SLURM_JOB_CPUS_PER_NODE is not: name the hosts with -H")
        );
        let cpus = [("SLURM_TASKS_PER_NODE", ""), ("SLURM_CPUS_PER_TASK", "0")];
        assert!(with(&cpus).unwrap_err().starts_with("SLURM_CPUS_PER_TASK=\"0\" is not a number from 1"));
    }

    #[test]
    fn srun_gets_neither_options_from_the_environment_nor_a_secret() {
        for name in [
            "SLURM_LABELIO",
            "SLURM_NTASKS_PER_NODE",
            "SRUN_CPUS_PER_TASK",
            "PHALANX_SECRET",
            "PHALANX_SECRET_FILE",
        ] {
            assert!(is_hidden_from_srun(name), "SLURM-2: {name}");
        }
        for name in ["SLURM_CONF", "PATH", "PHALANX_LOG", "SLURMD_NODENAME"] {
            assert!(!is_hidden_from_srun(name), "{name}");
        }
    }
}
