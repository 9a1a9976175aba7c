//! What a process of a job is there for.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a process of a job is there for. Workers and servers are ranks of the world, workers numbered first; an evaluator is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaskRole {
    /// It trains: communicators and engines consist of workers.
    #[default]
    Worker,
    /// It keeps what workers ask for, and ends when they have left.
    Server,
    /// It looks at what the others have saved. Nobody waits for it, and its loss fails nobody.
    Evaluator,
}

/// Not the name of a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a role: write worker, server or evaluator")]
pub struct UnknownRole {
    pub text: String,
}

impl TaskRole {
    pub const fn name(self) -> &'static str {
        match self {
            TaskRole::Worker => "worker",
            TaskRole::Server => "server",
            TaskRole::Evaluator => "evaluator",
        }
    }
}

impl fmt::Display for TaskRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TaskRole {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<TaskRole, UnknownRole> {
        let all = [TaskRole::Worker, TaskRole::Server, TaskRole::Evaluator];
        let found = all.into_iter().find(|role| role.name() == text.trim());
        found.ok_or_else(|| UnknownRole { text: text.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_they_are_written() {
        for role in [TaskRole::Worker, TaskRole::Server, TaskRole::Evaluator] {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        let error = "ps".parse::<TaskRole>().unwrap_err().to_string();
        assert_eq!(error, "\"ps\" is not a role: write worker, server or evaluator");
    }
}
