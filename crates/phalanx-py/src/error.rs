//! Errors as exceptions. Their classes are written in Python, in `phalanx/exceptions.py`.

use phalanx_collective::{
    Error,
    engine::{EngineError, Invalid, negotiate::message::OpFault},
};
use phalanx_core::Rank;
use phalanx_net::NetError;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};

/// One attribute of an exception.
pub enum Detail {
    Number(u32),
    Numbers(Vec<u32>),
    Text(String),
}

impl Detail {
    fn to_object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Detail::Number(n) => n.into_pyobject(py)?.into_any(),
            Detail::Numbers(list) => list.into_pyobject(py)?.into_any(),
            Detail::Text(text) => text.into_pyobject(py)?.into_any(),
        })
    }
}

/// The exception of this class with these attributes.
pub fn raise(py: Python<'_>, class: &str, message: &str, details: &[(&str, Detail)]) -> PyErr {
    let make = || {
        let class = py.import("phalanx.exceptions")?.getattr(class)?;
        let named = PyDict::new(py);
        for (name, detail) in details {
            named.set_item(name, detail.to_object(py)?)?;
        }
        class.call((message,), Some(&named))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

pub fn not_initialized(py: Python<'_>) -> PyErr {
    raise(
        py,
        "NotInitializedError",
        "this process has not joined a world, or has left it; call init() first",
        &[],
    )
}

pub fn of_engine(py: Python<'_>, error: &EngineError) -> PyErr {
    let text = error.to_string();
    let tensor = |name: &str| ("tensor", Detail::Text(name.to_string()));
    match error {
        EngineError::Mismatch { name, fault } => {
            let ranks = match fault {
                OpFault::Conflict(conflict) => vec![conflict.a.0, conflict.b.0],
                OpFault::RootJoined { root } => vec![root.0],
                OpFault::NoRows { rank, .. } => vec![rank.0],
            };
            raise(py, "MismatchError", &text, &[tensor(name), ("ranks", Detail::Numbers(ranks))])
        }
        EngineError::Invalid { name, why: Invalid::Reduction { .. } } => {
            raise(py, "UnsupportedError", &text, &[tensor(name)])
        }
        EngineError::PeerLost { rank, cause } => lost(py, &text, *rank, cause.to_string()),
        EngineError::ShutDown { rank } => {
            raise(py, "ShutDownError", &text, &[("rank", Detail::Number(rank.0))])
        }
        EngineError::Stalled { name, missing, .. } => {
            let ranks = missing.iter().map(|r| r.0).collect();
            raise(py, "StalledError", &text, &[tensor(name), ("ranks", Detail::Numbers(ranks))])
        }
        EngineError::Forked => raise(py, "ForkedError", &text, &[]),
        EngineError::Failed(error) => of_collective(py, error),
        EngineError::DuplicateName { .. }
        | EngineError::Invalid { .. }
        | EngineError::Op(_)
        | EngineError::NoSuchSet { .. }
        | EngineError::NotAMember { .. }
        | EngineError::BadSet(_)
        | EngineError::Timeline(_)
        | EngineError::Taken => PyValueError::new_err(text),
    }
}

pub fn of_collective(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::PeerLost { rank, cause } => lost(py, &text, *rank, cause.to_string()),
        Error::Mismatch { a, b, .. } => {
            raise(py, "MismatchError", &text, &[("ranks", Detail::Numbers(vec![a.0, b.0]))])
        }
        Error::Net(NetError::Late { rank, .. } | NetError::GaveUp { rank, .. }) => {
            raise(py, "FailureError", &text, &[("rank", Detail::Number(rank.0))])
        }
        Error::NoMpi { .. } => raise(py, "NoMpiError", &text, &[]),
        error if error.is_failure() => raise(py, "FailureError", &text, &[]),
        _ => raise(py, "PhalanxError", &text, &[]),
    }
}

/// What was wrong when the world was joined.
pub fn of_joining(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::PeerLost { .. } => of_collective(py, error),
        _ => raise(py, "InitializationError", &error.to_string(), &[]),
    }
}

fn lost(py: Python<'_>, text: &str, rank: Rank, cause: String) -> PyErr {
    raise(py, "RankLostError", text, &[("rank", Detail::Number(rank.0)), ("cause", Detail::Text(cause))])
}
