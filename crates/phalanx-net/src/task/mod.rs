//! Which task of a cluster a process is, in the words of TensorFlow's clusters: parameter servers, workers, a master, an evaluator. Pure.
//!
//! - TASK-1: a master counts as a worker and is the first of them; a cluster without parameter servers is a cluster of workers that reduce
//!   among themselves, not many processes that are alone.
//! - TASK-2: ranks are numbered the master first, then workers, then parameter servers; an evaluator has none.
//! - TASK-3: what cannot be a task is an error of one line that names the variable and says what to write.

mod began;
mod error;
mod rotation;
mod sources;

pub use began::{JOB_BEGAN, job_began, job_began_value};
pub use error::TaskError;
pub use rotation::ServerRotation;
pub(crate) use sources::{Vars, of_cluster_vars};

use crate::discover::{DiscoverError, Identity, Meeting, discover, told};
use error::Names;
use phalanx_core::{Rank, TaskRole};
use std::{fmt, str::FromStr};

/// What kind of task a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskType {
    /// Also `chief`: a worker that does what only one must do.
    Master,
    Worker,
    Ps,
    Evaluator,
}

impl TaskType {
    pub const fn name(self) -> &'static str {
        match self {
            TaskType::Master => "master",
            TaskType::Worker => "worker",
            TaskType::Ps => "ps",
            TaskType::Evaluator => "evaluator",
        }
    }
}

impl fmt::Display for TaskType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TaskType {
    type Err = TaskError;

    fn from_str(text: &str) -> Result<TaskType, TaskError> {
        error::task_type(Names::GIVEN, text)
    }
}

/// The addresses of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskHosts {
    pub ps: Vec<String>,
    pub workers: Vec<String>,
    pub master: Option<String>,
}

impl TaskHosts {
    fn is_empty(&self) -> bool {
        self.ps.is_empty() && self.workers.is_empty() && self.master.is_none()
    }

    /// Addresses as a list or as text with commas have them, without the blanks that some launchers write.
    pub fn list(text: &str) -> Vec<String> {
        text.split(',').map(tidy).filter(|host| !host.is_empty()).collect()
    }
}

/// `localhost: 10000` is meant as `localhost:10000`.
fn tidy(address: &str) -> String {
    address.chars().filter(|c| !c.is_whitespace()).collect()
}

/// One task of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    task: TaskType,
    index: u32,
    trial: Option<String>,
    hosts: TaskHosts,
    /// Whose words these are: a variable, a launcher, or a caller.
    source: &'static str,
    /// The addresses are real; otherwise a launcher told numbers only, and they read `rank:N`.
    has_addresses: bool,
    /// The last worker became the evaluator.
    is_without_last: bool,
    /// It was this one.
    is_last: bool,
}

impl TaskSpec {
    /// The task of this type and number in a cluster of these hosts; without hosts it is alone.
    pub fn new(task: TaskType, index: u32, hosts: TaskHosts) -> Result<TaskSpec, TaskError> {
        TaskSpec::named(Names::GIVEN, task, index, hosts)
    }

    fn named(names: Names, task: TaskType, index: u32, hosts: TaskHosts) -> Result<TaskSpec, TaskError> {
        let hosts = TaskHosts {
            ps: hosts.ps.iter().map(|h| tidy(h)).collect(),
            workers: hosts.workers.iter().map(|h| tidy(h)).collect(),
            master: hosts.master.map(|h| tidy(&h)).filter(|h| !h.is_empty()),
        };
        let is_alone = hosts.is_empty();
        let n_hosts = match task {
            TaskType::Ps => hosts.ps.len(),
            TaskType::Worker => hosts.workers.len().max(usize::from(is_alone)),
            TaskType::Master => usize::from(is_alone || hosts.master.is_some()),
            // Not a member of the cluster, so it needs no place there.
            TaskType::Evaluator => usize::MAX,
        };
        if index as usize >= n_hosts {
            return Err(TaskError::Beyond { variable: names.index, task, index, n_hosts });
        }
        if !is_alone && hosts.workers.is_empty() && hosts.master.is_none() {
            return Err(TaskError::NoWorkers { variable: names.hosts });
        }
        Ok(TaskSpec {
            task,
            index,
            trial: None,
            hosts,
            source: names.source,
            has_addresses: !is_alone,
            is_without_last: false,
            is_last: false,
        })
    }

    /// The task that the environment describes: our launcher's, `TF_CONFIG`'s, that of `JOB_NAME` and its companions, or another launcher's.
    /// `None` where nothing is set.
    pub fn from_vars(var: &dyn Fn(&str) -> Option<String>) -> Result<Option<TaskSpec>, DiscoverError> {
        sources::from_vars(var)
    }

    #[must_use]
    pub fn with_trial(self, trial: Option<String>) -> TaskSpec {
        TaskSpec { trial, ..self }
    }

    pub fn task_type(&self) -> TaskType {
        self.task
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// Which attempt of a search over settings this is, as `TF_CONFIG` says it.
    pub fn trial(&self) -> Option<&str> {
        self.trial.as_deref()
    }

    pub fn ps_hosts(&self) -> &[String] {
        &self.hosts.ps
    }

    /// Without the master.
    pub fn worker_hosts(&self) -> &[String] {
        &self.hosts.workers
    }

    pub fn master(&self) -> Option<&str> {
        self.hosts.master.as_deref()
    }

    /// Whether it names others: a description of one process may stand beside a launcher's.
    pub(crate) fn is_in_cluster(&self) -> bool {
        !self.hosts.is_empty() || self.task == TaskType::Evaluator
    }

    /// Whose words these are: a variable, a launcher, or `caller`.
    pub fn source(&self) -> &'static str {
        self.source
    }

    pub fn n_ps(&self) -> u32 {
        self.hosts.ps.len() as u32
    }

    /// With the master, which is a worker, too (TASK-1).
    pub fn n_workers(&self) -> u32 {
        (self.hosts.workers.len() as u32 + self.n_masters()).max(1)
    }

    fn n_masters(&self) -> u32 {
        u32::from(self.hosts.master.is_some())
    }

    /// Which part of the data is this worker's, of [`n_workers`](Self::n_workers). A parameter server or evaluator must not ask.
    pub fn shard_index(&self) -> u32 {
        match self.task {
            TaskType::Worker => self.index + self.n_masters(),
            TaskType::Master | TaskType::Ps | TaskType::Evaluator => self.index,
        }
    }

    pub fn is_ps(&self) -> bool {
        self.task == TaskType::Ps
    }

    /// Whether it is of type `worker`; a master is not.
    pub fn is_worker(&self) -> bool {
        self.task == TaskType::Worker
    }

    /// Whether it does what only one must do: the master, or without one the first worker.
    pub fn is_master(&self) -> bool {
        match self.task {
            TaskType::Master => true,
            TaskType::Worker => !self.is_last && self.shard_index() == 0,
            TaskType::Ps | TaskType::Evaluator => false,
        }
    }

    pub fn is_evaluator(&self) -> bool {
        self.is_last || self.task == TaskType::Evaluator
    }

    pub fn role(&self) -> TaskRole {
        match self.task {
            _ if self.is_evaluator() => TaskRole::Evaluator,
            TaskType::Ps => TaskRole::Server,
            _ => TaskRole::Worker,
        }
    }

    /// Its number in the world (TASK-2).
    pub fn rank(&self) -> Option<Rank> {
        match self.role() {
            TaskRole::Worker => Some(Rank(self.shard_index())),
            TaskRole::Server => Some(Rank(self.n_workers() + self.index)),
            TaskRole::Evaluator => None,
        }
    }

    pub fn n_ranks(&self) -> u32 {
        self.n_workers() + self.n_ps()
    }

    /// The same cluster without its last worker, which becomes the evaluator.
    pub fn use_last_worker_as_evaluator(&self) -> Result<TaskSpec, TaskError> {
        let n_workers = self.n_workers();
        let mut spec = self.clone();
        if self.is_without_last || n_workers < 2 || spec.hosts.workers.pop().is_none() {
            let n_workers = if self.is_without_last { 1 } else { n_workers };
            return Err(TaskError::FewWorkers { n_workers });
        }
        spec.is_without_last = true;
        spec.is_last = self.is_worker() && self.index as usize == spec.hosts.workers.len();
        Ok(spec)
    }

    /// Where its world meets: the address of rank 0; none where it is alone, or where a launcher told numbers only.
    pub fn target(&self) -> Option<&str> {
        let first = self.hosts.master.as_ref().or(self.hosts.workers.first())?;
        (self.has_addresses && self.n_ranks() > 1 && !self.is_evaluator()).then_some(first)
    }

    /// Places variables on the parameter servers, one after the other.
    pub fn device_fn(&self) -> ServerRotation {
        ServerRotation::new(self.n_ps())
    }

    /// How this process joins its world. A task that a launcher or a variable described asks the environment again where the ranks meet.
    pub fn identity(&self, var: Vars<'_>, parent: u32) -> Result<Identity, DiscoverError> {
        let Some(rank) = self.rank().filter(|_| self.n_ranks() > 1) else {
            return Ok(Identity { role: self.role(), source: self.source, ..Identity::alone() });
        };
        let meeting = match self.has_addresses {
            true => self.meeting(var)?,
            false => discover(var, parent)?.meeting,
        };
        // A hub that somebody else serves knows of all ranks (HUB-8).
        let n_aside = u32::from(self.is_without_last && matches!(meeting, Meeting::Hub(_)));
        if n_aside > 0 && self.n_ps() > 0 {
            // The launcher knows these processes by other numbers.
            return Err(TaskError::ServersBehind { n_ps: self.n_ps() }.into());
        }
        let (n_ranks, role) = (self.n_ranks(), self.role());
        Ok(Identity { rank, n_ranks, n_aside, role, source: self.source, meeting })
    }

    /// Rank 0 serves at its own address of the cluster, unless `PHALANX_RENDEZVOUS` names another.
    pub(crate) fn meeting(&self, var: Vars<'_>) -> Result<Meeting, DiscoverError> {
        if self.n_ranks() == 1 || self.is_evaluator() {
            return Ok(Meeting::Alone);
        }
        let hosts = match told(var)? {
            Some(Meeting::Hub(hosts) | Meeting::RankZero { hosts, .. }) => hosts,
            Some(board) => return Ok(board),
            None => self.target().map(ToString::to_string).into_iter().collect(),
        };
        let cluster = [&self.hosts.workers, &self.hosts.ps].map(|list| list.join(","));
        // Not whose words they are: the tasks of one cluster may be described in several ways.
        let job = format!("cluster {} {} {}", self.master().unwrap_or_default(), cluster[0], cluster[1]);
        Ok(Meeting::RankZero { hosts, job })
    }
}

/// `worker 1 of 3, 1 ps`.
impl fmt::Display for TaskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = if self.is_last { ", the evaluator" } else { "" };
        write!(f, "{} {}{role} ({} workers, {} ps)", self.task, self.index, self.n_workers(), self.n_ps())
    }
}

#[cfg(test)]
mod tests;
