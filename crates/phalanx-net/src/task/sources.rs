//! Reads a task from environment variables.

use super::{
    TaskHosts, TaskSpec, TaskType,
    error::{Names, TaskError, index, task_type},
};
use crate::discover::{self, DiscoverError};
use phalanx_core::TaskRole;
use serde_json::Value;

pub type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

const TF: Names = Names { source: "TF_CONFIG", task: "TF_CONFIG", index: "TF_CONFIG", hosts: "TF_CONFIG" };
const JOB: Names = Names { source: "JOB_NAME", task: "JOB_NAME", index: "TASK_INDEX", hosts: "WORKER_HOSTS" };
/// Without one of these, `JOB_NAME` is somebody else's: Jenkins, for one, names its jobs so.
const COMPANIONS: [&str; 4] = ["TASK_INDEX", "PS_HOSTS", "WORKER_HOSTS", "MASTER_HOST"];

pub(super) fn from_vars(var: Vars<'_>) -> Result<Option<TaskSpec>, DiscoverError> {
    let var = &|name: &str| var(name).filter(|value| !value.is_empty() || name == "TF_CONFIG");
    match discover::sources(var)? {
        (Some(told), _) if told.source == "phalanx" => of_numbers(&told).map(Some),
        (_, Some(task)) => Ok(Some(task)),
        (Some(told), None) => of_numbers(&told).map(Some),
        // A description of one process says nothing about who else there is, but more than nothing.
        (None, None) => Ok(of_cluster_vars(var)?),
    }
}

/// The task that `TF_CONFIG`, or `JOB_NAME` and its companions, describe.
pub fn of_cluster_vars(var: Vars<'_>) -> Result<Option<TaskSpec>, TaskError> {
    if let Some(text) = var("TF_CONFIG") {
        return of_tf_config(&text).map(Some);
    }
    let set = |name: &str| var(name).filter(|value| !value.is_empty());
    let Some(name) = set("JOB_NAME") else { return Ok(None) };
    let Some(found) = COMPANIONS.into_iter().find(|companion| set(companion).is_some()) else {
        return Ok(None);
    };
    let Some(number) = set("TASK_INDEX") else {
        return Err(TaskError::Missing { variable: "TASK_INDEX", found });
    };
    let list = |name| set(name).map(|text| TaskHosts::list(&text)).unwrap_or_default();
    let hosts = TaskHosts { ps: list("PS_HOSTS"), workers: list("WORKER_HOSTS"), master: set("MASTER_HOST") };
    TaskSpec::named(JOB, task_type(JOB, &name)?, index(JOB, &number)?, hosts).map(Some)
}

fn of_tf_config(text: &str) -> Result<TaskSpec, TaskError> {
    if text.trim().is_empty() {
        return Err(TaskError::Empty { variable: TF.source });
    }
    let all: Value = serde_json::from_str(text)
        .map_err(|why| TaskError::NotJson { variable: TF.source, why: why.to_string() })?;
    object(&all, "the whole")?;
    let (task, cluster) = (&all["task"], &all["cluster"]);
    let (kind, number) = match task {
        Value::Null => (TaskType::Master, 0),
        task => {
            object(task, "task")?;
            let kind = match &task["type"] {
                Value::Null => TaskType::Master,
                Value::String(text) => task_type(TF, text)?,
                other => return Err(shape("task.type", other, "a text")),
            };
            let number = match &task["index"] {
                Value::Null => return Err(TaskError::NoIndex { variable: TF.source }),
                Value::String(text) => index(TF, text)?,
                other => index(TF, &other.to_string())?,
            };
            (kind, number)
        }
    };
    if !cluster.is_null() {
        object(cluster, "cluster")?;
    }
    let masters = [hosts_of(cluster, "master")?, hosts_of(cluster, "chief")?];
    if masters.iter().all(|list| !list.is_empty()) {
        return Err(TaskError::TwoMasters { variable: TF.source });
    }
    let masters = masters.concat();
    if masters.len() > 1 {
        let have = format!("{} addresses", masters.len());
        return Err(TaskError::Shape { variable: TF.source, at: "cluster.master".into(), have, want: "one" });
    }
    let hosts = TaskHosts {
        ps: hosts_of(cluster, "ps")?,
        workers: hosts_of(cluster, "worker")?,
        master: masters.into_iter().next(),
    };
    let trial = match &task["trial"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    Ok(TaskSpec::named(TF, kind, number, hosts)?.with_trial(trial))
}

/// A list of addresses, or a single one.
fn hosts_of(cluster: &Value, key: &str) -> Result<Vec<String>, TaskError> {
    let at = format!("cluster.{key}");
    match &cluster[key] {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(TaskHosts::list(text)),
        Value::Array(list) => list
            .iter()
            .map(|one| {
                one.as_str().map(ToString::to_string).ok_or_else(|| shape(&at, one, "a list of host:port"))
            })
            .collect(),
        other => Err(shape(&at, other, "a list of host:port")),
    }
}

fn object(value: &Value, at: &str) -> Result<(), TaskError> {
    if value.is_object() { Ok(()) } else { Err(shape(at, value, "an object in braces")) }
}

fn shape(at: &str, value: &Value, want: &'static str) -> TaskError {
    let have: String = value.to_string().chars().take(40).collect();
    TaskError::Shape { variable: TF.source, at: at.to_string(), have, want }
}

/// A launcher that tells numbers, not addresses.
fn of_numbers(told: &discover::Numbers) -> Result<TaskSpec, DiscoverError> {
    if told.role == TaskRole::Server && told.n_servers.is_none() {
        return Err(DiscoverError::ServersUnknown);
    }
    let n_workers = told.n_ranks.saturating_sub(told.n_servers.unwrap_or(0));
    let named =
        |numbers: std::ops::Range<u32>| numbers.map(|rank| format!("rank:{rank}")).collect::<Vec<_>>();
    let is_alone = told.n_ranks == 1;
    let hosts = TaskHosts {
        ps: named(n_workers..told.n_ranks),
        workers: if is_alone { Vec::new() } else { named(0..n_workers) },
        master: None,
    };
    let (task, index) = match told.role {
        TaskRole::Worker => (TaskType::Worker, told.rank.0),
        TaskRole::Server => (TaskType::Ps, told.rank.0 - n_workers),
        TaskRole::Evaluator => (TaskType::Evaluator, 0),
    };
    Ok(TaskSpec {
        task,
        index,
        trial: None,
        hosts,
        source: told.source,
        has_addresses: false,
        is_without_last: false,
        is_last: false,
    })
}
