//! An error for C: a code for the program, a text for the user.

use crate::abi::Status;
use phalanx_collective::{
    Error,
    ddl::DdlError,
    engine::{EngineError, TimelineError},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: Status,
    pub text: String,
}

impl Failure {
    pub fn new(status: Status, text: impl Into<String>) -> Failure {
        Failure { status, text: text.into() }
    }

    pub fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(Status::Invalid, text)
    }

    pub fn code(&self) -> i32 {
        self.status as i32
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure::new(status(&error), error.to_string())
    }
}

impl From<DdlError> for Failure {
    fn from(error: DdlError) -> Failure {
        match error {
            DdlError::Engine(error) => error.into(),
            DdlError::World(error) => error.into(),
            wrong => Failure::invalid(wrong.to_string()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        EngineError::from(error).into()
    }
}

pub fn status(error: &EngineError) -> Status {
    match error {
        EngineError::Mismatch { .. } => Status::Mismatch,
        EngineError::DuplicateName { .. } => Status::DuplicateName,
        EngineError::Invalid { .. } | EngineError::Op(_) | EngineError::BadSet(_) => Status::Invalid,
        EngineError::Timeline(TimelineError::Running { .. }) => Status::Invalid,
        EngineError::Timeline(TimelineError::File { .. }) => Status::Failed,
        EngineError::NoSuchSet { .. } => Status::UnknownSet,
        EngineError::NotAMember { .. } => Status::ForeignSet,
        EngineError::PeerLost { .. } => Status::PeerLost,
        EngineError::ShutDown { .. } => Status::ShutDown,
        EngineError::Stalled { .. } => Status::Stalled,
        EngineError::Forked => Status::Forked,
        EngineError::Taken => Status::Internal,
        EngineError::Failed(_) => Status::Failed,
    }
}
