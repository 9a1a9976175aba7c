//! When a job ends and with which exit code: a state machine without clocks, processes or signals.
//!
//! - END-1: the job ends by itself only when every rank has ended.
//! - END-2: after the first failure, an interruption or a timeout, every rank is asked to end, then killed, within a
//!   bounded time; then the launcher exits, whatever the hosts answer.
//! - END-3: the culprit is the first rank that failed, unless another one crashed within [`CRASH_WINDOW`] of it: ranks
//!   that lose a peer exit with a code, and on several hosts their messages may arrive before the message of the crash.
//! - END-4: a rank that the ranks agreed to blame is the culprit, however it ended: a rank that notices a dead or frozen peer may end
//!   before that peer does. The job's exit code is the culprit's, and never 0.

use crate::wire::{Ending, JobSignal};
use phalanx_core::Rank;
use phalanx_net::lost::{self, Doom};
use std::{ops::Range, time::Duration};

/// How long the others may take to report the failure and end by themselves.
const SETTLE: Duration = Duration::from_secs(1);
const FAIL_KILL: Duration = Duration::from_secs(4);
const ASK_TERM: Duration = Duration::from_secs(2);
const ASK_KILL: Duration = Duration::from_secs(4);
const STOP_KILL: Duration = Duration::from_secs(3);
/// How long after SIGKILL a host may take to confirm.
const CONFIRM: Duration = Duration::from_secs(2);
const CRASH_WINDOW: Duration = Duration::from_millis(500);

const SIGINT: i32 = 2;

/// What the launcher learns.
#[derive(Clone, Debug)]
pub enum JobEvent {
    Exited {
        rank: Rank,
        ending: Ending,
    },
    /// The agent of these ranks is gone without saying how they ended.
    HostLost {
        host: usize,
        ranks: Range<u32>,
    },
    /// Somebody sent this signal to the launcher.
    Asked(i32),
    TimedOut,
    /// Nobody reads our output any more.
    OutputClosed,
    Tick,
}

/// What the launcher does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// To every rank that still runs.
    Signal(JobSignal),
    /// No rank runs, or none that would still answer.
    Finish,
}

/// Why the job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    Success,
    Failed {
        rank: Rank,
        ending: Ending,
    },
    /// The ranks agreed that it was this one, which did not fail by itself, or not only (END-4).
    Blamed {
        rank: Rank,
        charge: Charge,
        end: Option<RankEnd>,
    },
    HostLost {
        host: usize,
    },
    Asked(i32),
    TimedOut,
    OutputClosed,
}

/// What ranks hold against one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// It was gone while others still waited for it.
    Gone,
    Frozen,
    /// Its host did not answer.
    CutOff,
    /// It failed, as it said itself.
    Failed,
}

impl Charge {
    /// Whom and what a doom is about; nobody where two ranks contradict each other.
    pub fn of(doom: &Doom) -> Option<(Rank, Charge)> {
        let charge = match doom {
            Doom::Lost(lost) => match lost.cause {
                lost::Cause::Ended(_)
                | lost::Cause::Left
                | lost::Cause::Disconnected
                | lost::Cause::HubLost => Charge::Gone,
                lost::Cause::Frozen { .. } => Charge::Frozen,
                lost::Cause::Unreachable => Charge::CutOff,
            },
            Doom::GaveUp { .. } | Doom::Mismatch { .. } => Charge::Failed,
        };
        Some((doom.culprit()?, charge))
    }
}

impl EndCause {
    pub fn exit_code(self) -> u8 {
        match self {
            EndCause::Success => 0,
            EndCause::Failed { ending, .. } => ending.exit_code(),
            EndCause::Blamed { end, .. } => {
                end.and_then(|e| e.ending).map_or(1, |ending| ending.exit_code().max(1))
            }
            EndCause::HostLost { .. } => 1,
            EndCause::Asked(signal) => (128 + signal) as u8,
            EndCause::TimedOut => 124,
            EndCause::OutputClosed => 141,
        }
    }
}

/// How one rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankEnd {
    /// `None` when its host was lost.
    pub ending: Option<Ending>,
    /// The last signal by which we had asked the ranks to end before it did.
    pub asked: Option<JobSignal>,
    /// It ended while nothing was wrong yet.
    pub early: bool,
}

#[derive(Clone, Copy, Debug)]
enum Rung {
    Signal(JobSignal),
    GiveUp,
}

/// One job's ending.
#[derive(Debug)]
pub struct Policy {
    ends: Vec<Option<RankEnd>>,
    cause: Option<EndCause>,
    /// When the cause arose.
    caused_at: Duration,
    asked: Option<JobSignal>,
    /// Whom the ranks themselves blame, and for what.
    blamed: Option<(Rank, Charge)>,
    /// Hosts that went with ranks that had not ended.
    lost_hosts: Vec<(usize, Range<u32>)>,
    finished: bool,
    /// What happens when, soonest first, while the job is being ended.
    ladder: Vec<(Duration, Rung)>,
}

impl Policy {
    pub fn new(n_ranks: u32) -> Policy {
        Policy {
            ends: vec![None; n_ranks as usize],
            cause: None,
            caused_at: Duration::ZERO,
            asked: None,
            blamed: None,
            lost_hosts: Vec::new(),
            finished: false,
            ladder: Vec::new(),
        }
    }

    /// When [`JobEvent::Tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.ladder.first().map(|(at, _)| *at)
    }

    pub fn cause(&self) -> EndCause {
        self.cause.unwrap_or(EndCause::Success)
    }

    /// When that was; meaningless for [`EndCause::Success`].
    pub fn caused_at(&self) -> Duration {
        self.caused_at
    }

    /// How each rank ended; `None` for those that nobody knows about.
    pub fn ends(&self) -> &[Option<RankEnd>] {
        &self.ends
    }

    /// The rank that the job failed by, if it did and if it was one rank.
    pub fn culprit(&self) -> Option<Rank> {
        match self.cause {
            Some(EndCause::Failed { rank, .. } | EndCause::Blamed { rank, .. }) => Some(rank),
            _ => None,
        }
    }

    /// The ranks themselves know whose fault it was: better evidence than whose end was seen first (END-4).
    pub fn blame(&mut self, rank: Rank, charge: Charge) {
        let Some(&end) = self.ends.get(rank.index()) else { return };
        self.blamed = Some((rank, charge));
        if self.culprit().is_none() {
            return;
        }
        let host = self.lost_hosts.iter().find(|(_, ranks)| ranks.contains(&rank.0));
        self.cause = Some(match (end, charge, host) {
            (Some(RankEnd { ending: None, .. }), _, Some((host, _))) => EndCause::HostLost { host: *host },
            (Some(RankEnd { ending: Some(ending), asked: None, .. }), Charge::Gone | Charge::Failed, _)
                if ending.is_failure() =>
            {
                EndCause::Failed { rank, ending }
            }
            _ => EndCause::Blamed { rank, charge, end },
        });
    }

    /// The rank that the others blame, whatever the job ended by.
    pub fn blamed(&self) -> Option<(Rank, Charge)> {
        self.blamed
    }

    pub fn step(&mut self, now: Duration, input: JobEvent) -> Vec<Action> {
        if self.finished {
            return Vec::new();
        }
        match input {
            JobEvent::Exited { rank, ending } => self.exited(now, rank, ending),
            JobEvent::HostLost { host, ranks } => self.host_lost(now, host, ranks),
            JobEvent::Asked(signal) => self.asked_by_user(now, signal),
            JobEvent::TimedOut => self.stop(now, EndCause::TimedOut),
            JobEvent::OutputClosed => self.stop(now, EndCause::OutputClosed),
            JobEvent::Tick => {}
        }
        self.climb(now)
    }

    fn exited(&mut self, now: Duration, rank: Rank, ending: Ending) {
        let (asked, early) = (self.asked, self.cause.is_none());
        self.ends[rank.index()].get_or_insert(RankEnd { ending: Some(ending), asked, early });
        if !ending.is_failure() {
            return;
        }
        match self.cause {
            None => self.fail(now, EndCause::Failed { rank, ending }),
            Some(EndCause::Failed { ending: first, .. })
                if is_crash(ending)
                    && !is_crash(first)
                    && asked.is_none()
                    && now - self.caused_at <= CRASH_WINDOW =>
            {
                self.cause = Some(EndCause::Failed { rank, ending });
            }
            Some(_) => {}
        }
    }

    fn host_lost(&mut self, now: Duration, host: usize, ranks: Range<u32>) {
        let (asked, early) = (self.asked, self.cause.is_none());
        let mut lost_any = false;
        for rank in ranks.clone() {
            let end = &mut self.ends[rank as usize];
            lost_any |= end.is_none();
            end.get_or_insert(RankEnd { ending: None, asked, early });
        }
        if lost_any {
            self.lost_hosts.push((host, ranks));
        }
        if lost_any && self.cause.is_none() {
            self.fail(now, EndCause::HostLost { host });
        }
    }

    fn fail(&mut self, now: Duration, cause: EndCause) {
        let rungs = [(SETTLE, JobSignal::Term), (FAIL_KILL, JobSignal::Kill)];
        self.end(now, cause, &rungs);
    }

    fn asked_by_user(&mut self, now: Duration, signal: i32) {
        match (self.cause, signal) {
            // Asked twice, or while the end takes long: no more patience.
            (Some(cause), _) => self.end(now, cause, &[(Duration::ZERO, JobSignal::Kill)]),
            (None, SIGINT) => self.end(
                now,
                EndCause::Asked(signal),
                &[(Duration::ZERO, JobSignal::Int), (ASK_TERM, JobSignal::Term), (ASK_KILL, JobSignal::Kill)],
            ),
            (None, _) => {
                self.end(
                    now,
                    EndCause::Asked(signal),
                    &[(Duration::ZERO, JobSignal::Term), (ASK_KILL, JobSignal::Kill)],
                );
            }
        }
    }

    fn stop(&mut self, now: Duration, cause: EndCause) {
        if self.cause.is_none() {
            self.end(now, cause, &[(Duration::ZERO, JobSignal::Term), (STOP_KILL, JobSignal::Kill)]);
        }
    }

    fn end(&mut self, now: Duration, cause: EndCause, rungs: &[(Duration, JobSignal)]) {
        if self.cause.replace(cause).is_none() {
            self.caused_at = now;
        }
        self.ladder = rungs.iter().map(|&(after, sig)| (now + after, Rung::Signal(sig))).collect();
        let last = rungs.last().map_or(Duration::ZERO, |(after, _)| *after);
        self.ladder.push((now + last + CONFIRM, Rung::GiveUp));
    }

    fn climb(&mut self, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        let all_ended = self.ends.iter().all(Option::is_some);
        while !all_ended && self.ladder.first().is_some_and(|(at, _)| *at <= now) {
            match self.ladder.remove(0).1 {
                Rung::Signal(sig) => {
                    self.asked = Some(sig);
                    actions.push(Action::Signal(sig));
                }
                Rung::GiveUp => self.finished = true,
            }
        }
        if all_ended || self.finished {
            self.finished = true;
            self.ladder.clear();
            actions.push(Action::Finish);
        }
        actions
    }
}

/// Signals by which the kernel ends a process. SIGABRT is not among them: libraries abort when they lose a peer.
fn is_crash(ending: Ending) -> bool {
    const CRASHES: [i32; 7] = [4, 5, 7, 8, 9, 11, 31];
    matches!(ending, Ending::Signal(number) if CRASHES.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn exit(rank: u32, code: i32) -> JobEvent {
        JobEvent::Exited { rank: Rank(rank), ending: Ending::Code(code) }
    }

    fn killed(rank: u32, signal: i32) -> JobEvent {
        JobEvent::Exited { rank: Rank(rank), ending: Ending::Signal(signal) }
    }

    /// Plays inputs at times and returns what happened when.
    fn play(n_ranks: u32, inputs: &[(u32, JobEvent)]) -> (Policy, Vec<(u32, Action)>) {
        let mut policy = Policy::new(n_ranks);
        let mut log = Vec::new();
        let mut inputs = inputs.iter().peekable();
        loop {
            let tick = policy.deadline();
            let (now, input) = match (inputs.peek(), tick) {
                (Some((at, _)), Some(tick)) if *at * MS > tick => (tick, JobEvent::Tick),
                (Some((at, input)), _) => {
                    inputs.next();
                    (*at * MS, input.clone())
                }
                (None, Some(tick)) => (tick, JobEvent::Tick),
                (None, None) => return (policy, log),
            };
            log.extend(policy.step(now, input).into_iter().map(|a| (now.as_millis() as u32, a)));
        }
    }

    use Action::{Finish, Signal};

    #[test]
    fn a_job_ends_when_its_last_rank_does() {
        let (policy, log) = play(2, &[(5, exit(1, 0)), (900_000, exit(0, 0))]);
        assert_eq!(log, [(900_000, Finish)], "END-1");
        assert_eq!((policy.cause(), policy.cause().exit_code()), (EndCause::Success, 0));
    }

    #[test]
    fn the_first_failure_ends_everybody_step_by_step() {
        let (policy, log) = play(2, &[(100, exit(1, 3))]);
        assert_eq!(
            log,
            [(1100, Signal(JobSignal::Term)), (4100, Signal(JobSignal::Kill)), (6100, Finish)],
            "END-2"
        );
        assert_eq!(policy.cause(), EndCause::Failed { rank: Rank(1), ending: Ending::Code(3) });
        assert_eq!(policy.cause().exit_code(), 3);
        assert_eq!(policy.ends()[0], None);
    }

    #[test]
    fn survivors_that_end_by_themselves_are_not_waited_for() {
        let (policy, log) = play(3, &[(100, exit(1, 3)), (110, exit(0, 1)), (120, exit(2, 1))]);
        assert_eq!(log, [(120, Finish)]);
        assert_eq!(policy.cause().exit_code(), 3);
    }

    #[test]
    fn a_crash_outranks_the_codes_of_those_who_noticed_it() {
        let (policy, _) = play(3, &[(100, exit(0, 1)), (102, killed(2, 9)), (103, exit(1, 1))]);
        assert_eq!(policy.cause(), EndCause::Failed { rank: Rank(2), ending: Ending::Signal(9) }, "END-3");
        assert_eq!(policy.cause().exit_code(), 137);
    }

    #[test]
    fn the_rank_that_all_others_blame_is_the_culprit_however_it_ended() {
        let judged = |n_ranks, inputs: &[(u32, JobEvent)], charge| {
            let (mut policy, _) = play(n_ranks, inputs);
            policy.blame(Rank(1), charge);
            (policy.culprit(), policy.cause().exit_code())
        };
        let failed = [(10, exit(0, 1)), (11, exit(1, 101)), (12, exit(2, 1))];
        assert_eq!(judged(3, &failed, Charge::Gone), (Some(Rank(1)), 101), "END-4");
        let left = [(10, exit(1, 0)), (11, exit(0, 7))];
        assert_eq!(judged(2, &left, Charge::Gone), (Some(Rank(1)), 1), "END-4: never 0");
        let frozen = [(10, exit(0, 7)), (4011, killed(1, 9))];
        assert_eq!(judged(2, &frozen, Charge::Frozen), (Some(Rank(1)), 137), "END-4: its own code");
        assert_eq!(judged(2, &frozen[..1], Charge::Frozen), (Some(Rank(1)), 1), "nobody knows its code");
    }

    #[test]
    fn blame_does_not_outrank_a_lost_host_or_a_request() {
        let lost = (11, JobEvent::HostLost { host: 1, ranks: 1..2 });
        let (mut policy, _) = play(2, &[(10, exit(0, 1)), lost]);
        policy.blame(Rank(1), Charge::CutOff);
        assert_eq!(policy.cause(), EndCause::HostLost { host: 1 }, "the host is why the rank is gone");
        let (mut policy, _) = play(2, &[(10, JobEvent::Asked(2)), (11, exit(0, 1)), (12, exit(1, 0))]);
        policy.blame(Rank(1), Charge::Gone);
        assert_eq!((policy.cause(), policy.blamed()), (EndCause::Asked(2), Some((Rank(1), Charge::Gone))));
        let (mut policy, _) = play(2, &[(10, exit(0, 0)), (11, exit(1, 0))]);
        policy.blame(Rank(1), Charge::Gone);
        assert_eq!(policy.cause(), EndCause::Success, "whoever was left coped");
    }

    #[test]
    fn what_comes_late_or_looks_like_a_reaction_is_not_the_culprit() {
        let first = EndCause::Failed { rank: Rank(0), ending: Ending::Code(1) };
        assert_eq!(play(2, &[(100, exit(0, 1)), (700, killed(1, 11))]).0.cause(), first);
        assert_eq!(play(2, &[(100, exit(0, 1)), (110, killed(1, 6))]).0.cause(), first);
        let crash = EndCause::Failed { rank: Rank(0), ending: Ending::Signal(11) };
        assert_eq!(play(2, &[(100, killed(0, 11)), (110, killed(1, 9))]).0.cause(), crash);
        // Killed by us at 4000, not by the kernel.
        let (policy, _) = play(2, &[(0, exit(0, 1)), (4001, killed(1, 9))]);
        assert_eq!(policy.cause(), first);
        assert_eq!(
            policy.ends()[1],
            Some(RankEnd { ending: Some(Ending::Signal(9)), asked: Some(JobSignal::Kill), early: false })
        );
    }

    #[test]
    fn an_early_exit_with_zero_waits_for_the_others() {
        let (policy, log) = play(2, &[(100, exit(0, 0)), (5000, exit(1, 7))]);
        assert_eq!(log, [(5000, Finish)]);
        assert_eq!(policy.cause().exit_code(), 7);
    }

    #[test]
    fn ctrl_c_interrupts_then_terminates_then_kills() {
        let (policy, log) = play(1, &[(10, JobEvent::Asked(2))]);
        assert_eq!(
            log,
            [
                (10, Signal(JobSignal::Int)),
                (2010, Signal(JobSignal::Term)),
                (4010, Signal(JobSignal::Kill)),
                (6010, Finish)
            ]
        );
        assert_eq!(policy.cause().exit_code(), 130);
    }

    #[test]
    fn a_second_ctrl_c_kills_at_once() {
        let (policy, log) =
            play(1, &[(10, JobEvent::Asked(2)), (500, JobEvent::Asked(2)), (510, killed(0, 9))]);
        assert_eq!(log, [(10, Signal(JobSignal::Int)), (500, Signal(JobSignal::Kill)), (510, Finish)]);
        assert_eq!(policy.cause().exit_code(), 130, "the cause stays the first one");
    }

    #[test]
    fn sigterm_is_passed_on_and_a_failure_that_follows_is_no_culprit() {
        let (policy, log) = play(1, &[(0, JobEvent::Asked(15)), (20, killed(0, 15))]);
        assert_eq!(log, [(0, Signal(JobSignal::Term)), (20, Finish)]);
        assert_eq!(policy.cause().exit_code(), 143);
    }

    #[test]
    fn timeouts_and_closed_output_stop_the_job() {
        let (policy, log) = play(1, &[(0, JobEvent::TimedOut), (1, killed(0, 15))]);
        assert_eq!((log, policy.cause().exit_code()), (vec![(0, Signal(JobSignal::Term)), (1, Finish)], 124));
        let (policy, log) = play(1, &[(0, JobEvent::OutputClosed)]);
        assert_eq!(log, [(0, Signal(JobSignal::Term)), (3000, Signal(JobSignal::Kill)), (5000, Finish)]);
        assert_eq!(policy.cause().exit_code(), 141);
    }

    #[test]
    fn a_lost_host_loses_the_ranks_that_had_not_ended() {
        let (policy, log) =
            play(3, &[(0, exit(0, 0)), (5, JobEvent::HostLost { host: 0, ranks: 0..2 }), (9, exit(2, 1))]);
        assert_eq!(log, [(9, Finish)]);
        assert_eq!(policy.cause(), EndCause::HostLost { host: 0 });
        assert_eq!(policy.ends()[1], Some(RankEnd { ending: None, asked: None, early: true }));
        assert_eq!(policy.ends()[0].unwrap().ending, Some(Ending::Code(0)));
        let (policy, _) = play(1, &[(0, exit(0, 0)), (5, JobEvent::HostLost { host: 0, ranks: 0..1 })]);
        assert_eq!(policy.cause(), EndCause::Success, "nothing was lost");
    }
}
