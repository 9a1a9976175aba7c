//! Errors of sessions and checkpoints as exceptions.

use crate::error::{self, Detail, raise};
use phalanx_checkpoint::CheckpointError;
use phalanx_train::session::SessionError;
use pyo3::{exceptions::PyFileNotFoundError, prelude::*};

pub fn of_session(py: Python<'_>, why: &SessionError) -> PyErr {
    let text = why.to_string();
    match why {
        SessionError::Failed { rank, by, why, .. } => {
            let cause = Detail::Text(format!("{by}: {why}"));
            raise(py, "SessionError", &text, &[("rank", Detail::Number(rank.0)), ("cause", cause)])
        }
        SessionError::Save { rank, .. } | SessionError::Restore { rank, .. } => {
            raise(py, "CheckpointError", &text, &[("rank", Detail::Number(rank.0))])
        }
        SessionError::Unlike { rank, .. } => {
            raise(py, "SessionError", &text, &[("rank", Detail::Number(rank.0))])
        }
        SessionError::Directory { .. } => raise(py, "CheckpointError", &text, &[("rank", Detail::Number(0))]),
        SessionError::Ranks { why, .. } => error::of_engine(py, why),
        SessionError::Engine(why) => error::of_engine(py, why),
        SessionError::Checkpoint(why) => of_checkpoint(py, why),
        SessionError::Ended
        | SessionError::Words { .. }
        | SessionError::Thread(_)
        | SessionError::Build(_)
        | SessionError::Run(_)
        | SessionError::Events(_) => raise(py, "SessionError", &text, &[]),
    }
}

pub fn of_checkpoint(py: Python<'_>, why: &CheckpointError) -> PyErr {
    if why.is_gone() {
        return PyFileNotFoundError::new_err(why.to_string());
    }
    let tensor = match why {
        CheckpointError::Unfit { misfits, .. } => misfits.first().map(|misfit| misfit.name.clone()),
        CheckpointError::Name { name, .. } => Some(name.clone()),
        CheckpointError::Part { tensor, .. } => Some(tensor.clone()),
        _ => None,
    };
    let details: Vec<(&str, Detail)> =
        tensor.map(|name| ("tensor", Detail::Text(name))).into_iter().collect();
    raise(py, "CheckpointError", &why.to_string(), &details)
}
