//! Which ranks are lost and why. Every wait checks this, and a loss ends it.
//!
//! - LOST-1: a wait fails when the rank it waits for is lost, or when the world is doomed; never because of a lost rank it does
//!   not need (that rank may have finished its part and gone).
//! - LOST-2: the first verdict stays. A rank that fails because of another one dooms the world with the *first* culprit, and reports
//!   the verdict that the hub sent to all ranks, so that all ranks name the same culprit.

use crate::ending::End;
use phalanx_core::Rank;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    ops::Range,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Why a rank is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Its process ended: how, if the launcher told.
    Ended(End),
    /// It left the world in order while others still wanted something of it.
    Left,
    /// Its connection was closed or reset.
    Disconnected,
    /// Its process exists but its heartbeat stopped: stopped, swapped out, or in a debugger.
    Frozen { silent_ms: u64 },
    /// Its host does not answer any more.
    Unreachable,
    /// The launcher or the rank that held the world together is gone.
    HubLost,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Ended(end) => write!(f, "its process {end}"),
            Cause::Left => f.write_str("it left the world while others still waited for it"),
            Cause::Disconnected => f.write_str("its connection was closed"),
            Cause::Frozen { silent_ms } => {
                write!(f, "its process is frozen: no heartbeat for {:.1} s", *silent_ms as f64 / 1000.0)
            }
            Cause::Unreachable => f.write_str("its host does not answer"),
            Cause::HubLost => f.write_str("the meeting point of the world is no longer reachable"),
        }
    }
}

/// One verdict: this rank, for this reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub rank: Rank,
    pub cause: Cause,
}

/// What is known about lost ranks in this process. Written by the watch thread, read by waiting operations.
#[derive(Debug)]
pub struct Casualties {
    /// Set once anything below is set, so that spinning waits need one relaxed load.
    any: AtomicBool,
    /// A lock because causes carry text; taken only when something is already lost.
    known: Mutex<Known>,
    /// Rung when `Known::agreed` is set.
    agreement: Condvar,
    /// Rung when a rank is lost or the world is over.
    news: Condvar,
}

#[derive(Debug)]
struct Known {
    lost: Vec<Option<Cause>>,
    doom: Option<Doom>,
    /// What every rank will name if anything fails: the hub's word, or its own end.
    agreed: Option<Doom>,
    /// Who was lost, in order.
    order: Vec<Rank>,
    /// Whether the launcher's host does not answer this one.
    is_cut_off: bool,
}

impl Known {
    fn verdict(&self, rank: Rank) -> Option<Doom> {
        let own = || self.lost.get(rank.index())?.clone().map(|cause| Doom::Lost(Lost { rank, cause }));
        self.doom.clone().or_else(own)
    }
}

/// Why no operation of this world can complete any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doom {
    /// A rank was lost that somebody needed.
    Lost(Lost),
    /// Two ranks called different things; the text names both sides.
    Mismatch { a: Rank, a_call: String, b: Rank, b_call: String },
    /// A rank gave up an operation for a reason of its own (deadline, local error).
    GaveUp { rank: Rank, why: String },
}

impl Doom {
    /// The one rank whose fault it is, if it is one rank's.
    pub fn culprit(&self) -> Option<Rank> {
        match self {
            Doom::Lost(lost) => Some(lost.rank),
            Doom::GaveUp { rank, .. } => Some(*rank),
            Doom::Mismatch { .. } => None,
        }
    }
}

impl Casualties {
    pub fn new(n_ranks: u32) -> Casualties {
        let lost = vec![None; n_ranks as usize];
        let known = Known { lost, doom: None, agreed: None, order: Vec::new(), is_cut_off: false };
        Casualties {
            any: AtomicBool::new(false),
            known: Mutex::new(known),
            agreement: Condvar::new(),
            news: Condvar::new(),
        }
    }

    /// Whether anything is lost at all.
    #[inline]
    pub fn any(&self) -> bool {
        // Acquire pairs with the release in `mark`: a thread that sees the flag sees the verdict behind the lock anyway.
        self.any.load(Ordering::Acquire)
    }

    /// Records a lost rank; the first cause stays, except that words of how a process ended are better than none.
    pub fn lose(&self, lost: Lost) {
        let mut known = self.lock();
        if let Some(entry) = known.lost.get_mut(lost.rank.index()) {
            let better = |old: &Cause| matches!(old, Cause::Ended(End::Untold) | Cause::Disconnected);
            if entry.as_ref().is_none_or(better) {
                *entry = Some(lost.cause);
            }
            if !known.order.contains(&lost.rank) {
                known.order.push(lost.rank);
            }
        }
        self.any.store(true, Ordering::Release);
        self.news.notify_all();
    }

    /// Ends the world for all threads of this process; the first doom stays (LOST-2).
    pub fn doom(&self, doom: Doom) {
        self.lock().doom.get_or_insert(doom);
        self.any.store(true, Ordering::Release);
        self.news.notify_all();
    }

    /// The launcher's host does not answer: not a rank is lost, but what joins this host to others. Said before the doom that follows.
    pub fn cut_off(&self) {
        self.lock().is_cut_off = true;
    }

    pub fn is_cut_off(&self) -> bool {
        self.lock().is_cut_off
    }

    /// Waits until something is known against this rank or the world, or so long.
    pub fn await_verdict(&self, rank: Rank, at_most: Duration) -> Option<Doom> {
        let waited = self.news.wait_timeout_while(self.lock(), at_most, |k| k.verdict(rank).is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.verdict(rank)
    }

    pub fn doomed(&self) -> Option<Doom> {
        self.lock().doom.clone()
    }

    /// From now on every failure is because of this, whatever a rank sees of it (LOST-2).
    pub fn agree(&self, doom: Doom) {
        self.lock().agreed.get_or_insert(doom);
        self.agreement.notify_all();
    }

    /// What every rank names; `None` if nobody has said so within this time.
    pub fn await_agreement(&self, at_most: Duration) -> Option<Doom> {
        let waited = self.agreement.wait_timeout_while(self.lock(), at_most, |k| k.agreed.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.agreed.clone()
    }

    /// Whom to name when this rank, against which nothing is known, closed a link and the hub does not say why: its own work failed,
    /// and the rank that was lost first, other than in order, is the likeliest reason.
    pub fn suspect(&self, peer: Rank, cause: Cause) -> Lost {
        let known = self.lock();
        let cause_of = |rank: &Rank| known.lost.get(rank.index()).cloned().flatten();
        let first = known.order.iter().find(|rank| cause_of(rank) != Some(Cause::Left));
        match first {
            Some(rank) => Lost { rank: *rank, cause: cause_of(rank).unwrap_or(cause) },
            None => Lost { rank: peer, cause },
        }
    }

    /// Why this rank is lost, if it is.
    pub fn cause(&self, rank: Rank) -> Option<Cause> {
        self.lock().lost.get(rank.index())?.clone()
    }

    /// Waits until all of these ranks have left in order, or one of them is lost in another way, or the world is over. `None` after so long.
    pub fn await_leaving(&self, ranks: Range<u32>, at_most: Duration) -> Option<Result<(), Doom>> {
        let judge = |known: &mut Known| {
            let mut causes = ranks.clone().map(|r| (Rank(r), known.lost.get(r as usize).cloned().flatten()));
            let lost = causes.clone().find_map(|(rank, cause)| {
                let cause = cause.filter(|cause| *cause != Cause::Left)?;
                Some(Doom::Lost(Lost { rank, cause }))
            });
            match known.doom.clone().or(lost) {
                Some(doom) => Some(Err(doom)),
                None => causes.all(|(_, cause)| cause.is_some()).then_some(Ok(())),
            }
        };
        let waited = self.news.wait_timeout_while(self.lock(), at_most, |known| judge(known).is_none());
        judge(&mut waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// The verdict for a wait on this rank: the world's doom first, then the rank's own loss.
    pub fn verdict(&self, rank: Rank) -> Option<Doom> {
        self.lock().verdict(rank)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // A panic elsewhere must not hide who was lost.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Ending;

    fn lost(rank: u32, cause: Cause) -> Lost {
        Lost { rank: Rank(rank), cause }
    }

    #[test]
    fn a_wait_sees_only_the_rank_it_needs_until_the_world_is_doomed() {
        let casualties = Casualties::new(3);
        casualties.lose(lost(1, Cause::Left));
        assert_eq!(casualties.verdict(Rank(2)), None, "LOST-1");
        assert_eq!(casualties.verdict(Rank(1)), Some(Doom::Lost(lost(1, Cause::Left))));
        casualties.doom(Doom::Lost(lost(1, Cause::Left)));
        casualties.doom(Doom::Lost(lost(2, Cause::Left)));
        assert_eq!(casualties.verdict(Rank(2)), Some(Doom::Lost(lost(1, Cause::Left))), "LOST-2");
    }

    #[test]
    fn a_wait_for_a_verdict_ends_with_it() {
        let casualties = Casualties::new(3);
        assert_eq!(casualties.await_verdict(Rank(1), Duration::ZERO), None);
        std::thread::scope(|scope| {
            // Far longer than any test runs: what ends it is the verdict.
            let waiter = scope.spawn(|| casualties.await_verdict(Rank(1), Duration::from_secs(3600)));
            casualties.lose(lost(2, Cause::Left));
            casualties.lose(lost(1, Cause::Unreachable));
            let verdict = waiter.join().expect("the waiter does not panic");
            assert_eq!(verdict, Some(Doom::Lost(lost(1, Cause::Unreachable))));
        });
    }

    #[test]
    fn who_waits_for_others_to_leave_learns_of_all_of_them_or_of_the_first_that_is_lost() {
        let casualties = Casualties::new(4);
        casualties.lose(lost(0, Cause::Left));
        casualties.lose(lost(3, Cause::Unreachable));
        assert_eq!(casualties.await_leaving(0..2, Duration::ZERO), None, "rank 1 is still there");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| casualties.await_leaving(0..2, Duration::from_secs(3600)));
            casualties.lose(lost(1, Cause::Left));
            assert_eq!(waiter.join().expect("the waiter does not panic"), Some(Ok(())), "SERVE-1");
        });
        casualties.lose(lost(2, Cause::Disconnected));
        let verdict = casualties.await_leaving(0..3, Duration::ZERO);
        assert_eq!(verdict, Some(Err(Doom::Lost(lost(2, Cause::Disconnected)))), "SERVE-1");
    }

    #[test]
    fn a_link_closed_without_a_word_is_put_down_to_the_first_that_was_lost() {
        let casualties = Casualties::new(4);
        casualties.lose(lost(0, Cause::Left));
        let closed = |casualties: &Casualties| casualties.suspect(Rank(1), Cause::Disconnected);
        assert_eq!(closed(&casualties), lost(1, Cause::Disconnected), "leaving in order is no reason");
        casualties.lose(lost(3, Cause::Ended(End::Untold)));
        casualties.lose(lost(2, Cause::Disconnected));
        assert_eq!(closed(&casualties), lost(3, Cause::Ended(End::Untold)));
    }

    #[test]
    fn the_launchers_words_replace_a_bare_cause() {
        let casualties = Casualties::new(1);
        casualties.lose(lost(0, Cause::Ended(End::Untold)));
        casualties.lose(lost(0, Cause::Ended(End::Process(Ending::Signal(9)))));
        casualties.lose(lost(0, Cause::Left));
        let cause = casualties.cause(Rank(0)).unwrap();
        assert_eq!(cause.to_string(), "its process was killed by SIGKILL");
    }
}
