//! What happens between two steps: ranks agree whether training goes on and whether this step is saved.
//!
//! Sessions of Rust and of Python use the same boundary; what a step is, they know alone.
//! - BOUND-1: a session stops on all ranks after the same step, with the reason of the rank that wanted it.
//! - BOUND-2: a failure of one rank's hook, and a save that failed, end the session on all ranks after the same step.
//! - BOUND-3: SIGTERM at any rank saves the same step on all ranks and stops them.

use super::{
    asked::TermListener,
    error::SessionError,
    hook::HookAction,
    peers::Peers,
    vote::{EndWords, Reason, Vote, spokesman},
    writer::Writer,
};
use phalanx_core::Rank;
use std::{io, sync::Arc};

/// What the hooks of one rank want after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepWish {
    pub stop: Option<Reason>,
    pub fail: Option<Reason>,
    pub save: bool,
}

impl StepWish {
    /// Takes what ranks agree on from the actions of a hook, and gives back what its rank does alone. The first reason counts.
    pub fn take(&mut self, by: &str, actions: Vec<HookAction>) -> Vec<HookAction> {
        let mut rest = Vec::new();
        for action in actions {
            let reason = |why| Reason { by: by.to_string(), why };
            match action {
                HookAction::Stop { why } => {
                    self.stop.get_or_insert_with(|| reason(why));
                }
                HookAction::Fail { why } => {
                    self.fail.get_or_insert_with(|| reason(why));
                }
                HookAction::Save => self.save = true,
                other => rest.push(other),
            }
        }
        rest
    }
}

/// Why a session has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    pub step: u64,
    pub rank: Rank,
    pub reason: Reason,
    /// The system wants the machine back; the training is not finished.
    pub is_asked: bool,
}

/// What all ranks do after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepVerdict {
    /// This step is saved.
    pub saves: bool,
    pub stopped: Option<Stopped>,
}

/// Between the steps of one session.
#[derive(Debug)]
pub struct Boundary {
    peers: Arc<Peers>,
    listener: Option<TermListener>,
    /// Why this rank does not listen; all ranks are told at the first boundary (BOUND-2).
    deaf: Option<Reason>,
    has_checkpoints: bool,
}

impl Boundary {
    /// `listens`: SIGTERM is a wish to save and to stop.
    pub fn new(peers: Arc<Peers>, has_checkpoints: bool, listens: bool) -> Boundary {
        Boundary::with(peers, has_checkpoints, listens.then(TermListener::new).transpose())
    }

    fn with(
        peers: Arc<Peers>,
        has_checkpoints: bool,
        listener: io::Result<Option<TermListener>>,
    ) -> Boundary {
        let (listener, deaf) = match listener {
            Ok(listener) => (listener, None),
            Err(why) => {
                (None, Some(Reason { by: "SIGTERM".into(), why: format!("it cannot be caught: {why}") }))
            }
        };
        Boundary { peers, listener, deaf, has_checkpoints }
    }

    /// From now on SIGTERM does what it always does: this session cannot act on it any more.
    pub fn deafen(&mut self) {
        self.listener = None;
    }

    /// Called by all ranks after each step.
    pub fn cross(
        &mut self,
        step: u64,
        mut wish: StepWish,
        writer: Option<&mut Writer>,
    ) -> Result<StepVerdict, SessionError> {
        let unsaved = writer.and_then(|writer| writer.look().err()).map(unsaved);
        let fail = wish.fail.or(self.deaf.take()).map(EndWords::Wish).or(unsaved);
        let is_asked = self.listener.as_ref().is_some_and(TermListener::is_asked);
        if is_asked {
            wish.stop
                .get_or_insert(Reason { by: "SIGTERM".into(), why: "the process was asked to end".into() });
        }
        let own = Vote {
            fails: fail.is_some(),
            stops: wish.stop.is_some(),
            is_asked,
            saves: (wish.save || is_asked) && self.has_checkpoints,
        };
        let all = self.peers.vote(own)?;
        if !all.needs_words() {
            return Ok(StepVerdict { saves: all.saves, stopped: None });
        }
        let words = fail.or(wish.stop.map(EndWords::Wish));
        let said = self.peers.reasons(own, words.as_ref())?;
        let (rank, words) = spokesman(&said).ok_or(SessionError::Ended)?;
        let rank = Rank::at(rank);
        let reason = match words.clone() {
            EndWords::Wish(reason) => reason,
            EndWords::Save { step, rank, why } => return Err(SessionError::Save { step, rank, why }),
        };
        if all.fails {
            return Err(SessionError::Failed { step, rank, by: reason.by, why: reason.why });
        }
        let stopped = Stopped { step, rank, reason, is_asked: all.is_asked };
        Ok(StepVerdict { saves: all.saves, stopped: Some(stopped) })
    }
}

/// What other ranks are told of a save that failed.
fn unsaved(why: SessionError) -> EndWords {
    match why {
        SessionError::Save { step, rank, why } => EndWords::Save { step, rank, why },
        other => EndWords::Wish(Reason { by: "the checkpoint".into(), why: other.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BOUND-2.
    #[test]
    fn a_rank_that_cannot_catch_signals_fails_at_the_first_boundary() {
        let peers = Arc::new(Peers::new(Rank::ZERO, 1, 1, Box::new(|| None)));
        let mut boundary = Boundary::with(peers, false, Err(io::Error::other("no room")));
        let why = boundary.cross(0, StepWish::default(), None).expect_err("it is deaf").to_string();
        assert_eq!(why, "training stopped at step 0: SIGTERM of rank 0: it cannot be caught: no room");
    }
}
