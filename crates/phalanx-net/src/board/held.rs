//! The session with the launcher, which belongs to the process: PMI and PMIx are opened once and closed once.
//!
//! - RDZV-4: a session through which ranks have met stays open until the process ends, because an MPI library of the same process may use
//!   it after this one. It is closed then, unless that library has closed it; otherwise the launcher would take the end for a crash.
//!
//! One static, because the system calls the handler at the end of the process without an argument.

use super::{Notices, agree::Disagreement, process};
use crate::{discover::BoardAddress, error::BoardError};
use std::sync::{Mutex, PoisonError};

static HELD: Mutex<Option<Session>> = Mutex::new(None);

#[derive(Debug)]
struct Session {
    /// The process that opened it, not one that was forked from it.
    owner: u32,
    /// Which of the launcher's doors it leads to.
    door: BoardAddress,
    board: Box<dyn Notices>,
    /// How often ranks have met through it: names on a board cannot be used again.
    n_meetings: u32,
}

/// Talks through the session with this door, which is opened if it is not. After a failure the session is not kept, hence not closed in order:
/// the launcher takes the end of this process for what it is, and ends the others.
pub fn with<B: Notices + 'static, T>(
    door: &BoardAddress,
    open: impl FnOnce() -> Result<B, BoardError>,
    talk: impl FnOnce(Numbered<'_>) -> Result<T, Disagreement>,
) -> Result<T, Disagreement> {
    let me = std::process::id();
    // Taken out, so that no lock is held while others are waited for; two threads cannot meet at once.
    let kept = HELD.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut session = match kept.filter(|kept| kept.owner == me && kept.door == *door) {
        Some(kept) => kept,
        None => Session { owner: me, door: door.clone(), board: Box::new(open()?), n_meetings: 0 },
    };
    session.n_meetings += 1;
    let told = talk(Numbered { board: session.board.as_mut(), meeting: session.n_meetings })?;
    process::at_exit(farewell);
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
    Ok(told)
}

/// A board and the number of this meeting on it.
#[derive(Debug)]
pub struct Numbered<'a> {
    pub board: &'a mut dyn Notices,
    pub meeting: u32,
}

extern "C" fn farewell() {
    // A lock that another thread holds for ever must not keep the process from ending.
    let Ok(mut held) = HELD.try_lock() else { return };
    if let Some(mut session) = held.take().filter(|s| s.owner == std::process::id()) {
        session.board.finish();
    }
}
