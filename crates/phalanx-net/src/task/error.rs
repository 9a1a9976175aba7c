//! What is wrong with the description of a task (TASK-3).

use super::TaskType;

/// The variables of one source, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub source: &'static str,
    pub task: &'static str,
    pub index: &'static str,
    pub hosts: &'static str,
}

impl Names {
    /// What a caller gave.
    pub const GIVEN: Names =
        Names { source: "caller", task: "task_type", index: "index", hosts: "worker_hosts" };
}

/// Each is one line that begins with the variable or argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    #[error(
        "{variable} is set but empty; unset it, or write e.g. {{\"cluster\": {{\"worker\": [\"host:2222\"]}}, \"task\": {{\"type\": \"worker\", \"index\": 0}}}}"
    )]
    Empty { variable: &'static str },
    #[error("{variable} is not JSON: {why}")]
    NotJson { variable: &'static str, why: String },
    #[error("{variable}: {at} is {have}, not {want}")]
    Shape { variable: &'static str, at: String, have: String, want: &'static str },
    #[error("{variable} has a task without an index; add \"index\": 0")]
    NoIndex { variable: &'static str },
    #[error("{variable} is not set, but {found} is; set both, or neither for a single process")]
    Missing { variable: &'static str, found: &'static str },
    #[error("{variable}: {text:?} is not a type of task; write master, chief, worker, ps or evaluator")]
    UnknownType { variable: &'static str, text: String },
    #[error("{variable}: {text:?} is not the number of a task; write 0 or more")]
    BadIndex { variable: &'static str, text: String },
    #[error("{variable}: there is no {task} {index}, because {}", beyond(*.task, *.n_hosts))]
    Beyond { variable: &'static str, task: TaskType, index: u32, n_hosts: usize },
    #[error("{variable}: a cluster with parameter servers needs a worker or a master")]
    NoWorkers { variable: &'static str },
    #[error("{variable}: the cluster has a master and a chief, which are the same; name one of them")]
    TwoMasters { variable: &'static str },
    #[error(
        "use_last_worker_as_evaluator: {n_workers} worker is too few; one trains and one evaluates, so start two or more"
    )]
    FewWorkers { n_workers: u32 },
    #[error(
        "use_last_worker_as_evaluator: the launcher has numbered {n_ps} servers after the last worker; \
         start the evaluator with --evaluator instead"
    )]
    ServersBehind { n_ps: u32 },
}

fn beyond(task: TaskType, n_hosts: usize) -> String {
    match n_hosts {
        0 => format!("the cluster names no {task} host"),
        1 => format!("the cluster names 1 {task} host, number 0"),
        n => format!("the cluster names {n} {task} hosts, numbers 0 to {}", n - 1),
    }
}

pub(super) fn task_type(names: Names, text: &str) -> Result<TaskType, TaskError> {
    Ok(match text.trim() {
        "master" | "chief" => TaskType::Master,
        "worker" => TaskType::Worker,
        "ps" => TaskType::Ps,
        "evaluator" => TaskType::Evaluator,
        _ => return Err(TaskError::UnknownType { variable: names.task, text: text.to_string() }),
    })
}

pub(super) fn index(names: Names, text: &str) -> Result<u32, TaskError> {
    text.trim().parse().map_err(|_| TaskError::BadIndex { variable: names.index, text: text.to_string() })
}
