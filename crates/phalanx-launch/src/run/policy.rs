//! When a job ends and with which exit code: a state machine without clocks, processes or signals.
//!
//! - END-1: the job ends by itself only when every rank has ended.
//! - END-2: after the first failure, an interruption or a timeout, every rank is asked to end, then killed, within a
//!   bounded time; then the launcher exits, whatever the hosts answer.
//! - END-3: the culprit is the first rank that failed, unless another one crashed within [`CRASH_WINDOW`] of it: ranks
//!   that lose a peer exit with a code, and on several hosts their messages may arrive before the message of the crash.
//! - END-4: a rank that the ranks agreed to blame is the culprit, however it ended: a rank that notices a dead or frozen peer may end
//!   before that peer does. The job's exit code is the culprit's, and never 0.
//! - END-5: how an evaluator ends is told, but changes neither the job nor its exit code.
//! - END-6: servers and an evaluator that still run when every worker has ended get the grace, then SIGTERM, then SIGKILL; that is no failure.
//! - END-7: a job that the launcher was asked to end has that signal's exit code, even if every rank ended with 0: it is not complete, and
//!   the program that restarts jobs must see that.
//! - END-8: a signal that arrives twice at once counts once: `timeout` sends it to its child and then to the whole group. Asked again later,
//!   the launcher kills.
//! - END-9: under Slurm a rank gets one SIGTERM. Slurm sends it to the launcher, to agents and to ranks, in any order: the first that
//!   reports it ends the job, the launcher's own is then no second one (at a time limit Slurm sends two, at once), and ranks are asked by the launcher only after
//!   [`Crew::term_after`], by agents that had none.

use crate::{
    slurm::TERM_AFTER,
    wire::{Ending, JobSignal},
};
use phalanx_core::Rank;
use phalanx_net::lost::{self, Doom};
use std::time::Duration;

/// How long the others may take to report the failure and end by themselves.
const SETTLE: Duration = Duration::from_secs(1);
const FAIL_KILL: Duration = Duration::from_secs(4);
const ASK_TERM: Duration = Duration::from_secs(2);
const ASK_KILL: Duration = Duration::from_secs(4);
const STOP_KILL: Duration = Duration::from_secs(3);
/// How long after SIGKILL a host may take to confirm.
const CONFIRM: Duration = Duration::from_secs(2);
/// How soon after the first the same signal is the same request (END-8). Nobody presses Ctrl-C twice in that time.
const ECHO: Duration = Duration::from_millis(100);
const CRASH_WINDOW: Duration = Duration::from_millis(500);

/// How long processes get to end by themselves, where nobody chose: after SIGTERM, and after the last worker.
const GRACE: Duration = Duration::from_secs(30);

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// Who is in a job, and how patient it is.
#[derive(Clone, Copy, Debug)]
pub struct Crew {
    /// Workers and servers.
    pub n_ranks: u32,
    pub n_servers: u32,
    /// It has the place after the last rank.
    pub has_evaluator: bool,
    pub grace: Option<Duration>,
    /// How long the launcher waits before it passes SIGTERM on (END-9).
    pub term_after: Duration,
}

/// What the user is told while a job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobNote {
    EvaluatorFailed(Ending),
    /// These did not end so long after the last worker, and get this signal.
    Overdue {
        signal: JobSignal,
        servers: Vec<u32>,
        evaluator: bool,
        after: Duration,
    },
}

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
        ranks: Vec<u32>,
    },
    /// Somebody sent this signal to the launcher.
    Asked(i32),
    /// Somebody sent this signal to ranks of a host.
    AskedElsewhere(i32),
    TimedOut,
    /// Nobody reads our output any more.
    OutputClosed,
    Tick,
}

/// What the launcher does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Tell(JobNote),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evaluator {
    Absent,
    Runs,
    Ended,
}

/// One job's ending.
#[derive(Debug)]
pub struct Policy {
    ends: Vec<Option<RankEnd>>,
    n_workers: usize,
    evaluator: Evaluator,
    grace: Option<Duration>,
    term_after: Duration,
    /// The launcher itself was not asked yet, only others were (END-9).
    asked_elsewhere: bool,
    /// When the launcher was first asked.
    asked_at: Duration,
    cause: Option<EndCause>,
    /// When the cause arose.
    caused_at: Duration,
    asked: Option<JobSignal>,
    /// Whom the ranks themselves blame, and for what.
    blamed: Option<(Rank, Charge)>,
    /// Hosts that went with ranks that had not ended.
    lost_hosts: Vec<(usize, Vec<u32>)>,
    finished: bool,
    /// What happens when, soonest first, while the job is being ended.
    ladder: Vec<(Duration, Rung)>,
}

impl Policy {
    /// A job of workers alone.
    #[cfg(test)]
    pub fn new(n_ranks: u32) -> Policy {
        let term_after = Duration::ZERO;
        Policy::of(Crew { n_ranks, n_servers: 0, has_evaluator: false, grace: None, term_after })
    }

    pub fn of(crew: Crew) -> Policy {
        Policy {
            ends: vec![None; crew.n_ranks as usize],
            n_workers: (crew.n_ranks - crew.n_servers) as usize,
            evaluator: if crew.has_evaluator { Evaluator::Runs } else { Evaluator::Absent },
            grace: crew.grace,
            term_after: crew.term_after,
            asked_elsewhere: false,
            asked_at: Duration::ZERO,
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
        let mut actions = Vec::new();
        match input {
            JobEvent::Exited { rank, ending } if rank.index() >= self.ends.len() => {
                self.evaluator = Evaluator::Ended;
                if ending.is_failure() && self.cause.is_none() && self.asked.is_none() {
                    actions.push(Action::Tell(JobNote::EvaluatorFailed(ending))); // END-5
                }
            }
            JobEvent::Exited { rank, ending } => self.exited(now, rank, ending),
            JobEvent::HostLost { host, ranks } => self.host_lost(now, host, ranks),
            JobEvent::Asked(signal) => self.asked_by_user(now, signal),
            JobEvent::AskedElsewhere(signal) if self.cause.is_none() => {
                self.asked_elsewhere = true;
                self.ask_in_time(now, signal, GRACE, TERM_AFTER);
            }
            JobEvent::AskedElsewhere(_) => {}
            JobEvent::TimedOut => self.stop(now, EndCause::TimedOut),
            JobEvent::OutputClosed => self.stop(now, EndCause::OutputClosed),
            JobEvent::Tick => {}
        }
        self.wind_down(now);
        self.climb(now, actions)
    }

    fn is_over(&self) -> bool {
        self.evaluator != Evaluator::Runs && self.ends.iter().all(Option::is_some)
    }

    /// END-6.
    fn wind_down(&mut self, now: Duration) {
        let workers_ended = self.ends[..self.n_workers].iter().all(Option::is_some);
        if self.cause.is_some() || !workers_ended || self.is_over() || !self.ladder.is_empty() {
            return;
        }
        let grace = self.grace.unwrap_or(GRACE);
        self.arrange(now, &[(grace, JobSignal::Term), (grace + STOP_KILL, JobSignal::Kill)]);
    }

    fn overdue(&self, signal: JobSignal) -> JobNote {
        let servers = (self.n_workers..self.ends.len()).filter(|&rank| self.ends[rank].is_none());
        JobNote::Overdue {
            signal,
            servers: servers.map(|rank| rank as u32).collect(),
            evaluator: self.evaluator == Evaluator::Runs,
            after: self.grace.unwrap_or(GRACE),
        }
    }

    fn exited(&mut self, now: Duration, rank: Rank, ending: Ending) {
        let (asked, early) = (self.asked, self.cause.is_none());
        self.ends[rank.index()].get_or_insert(RankEnd { ending: Some(ending), asked, early });
        if !ending.is_failure() {
            return;
        }
        match self.cause {
            None if asked.is_some() => {} // END-6
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

    fn host_lost(&mut self, now: Duration, host: usize, ranks: Vec<u32>) {
        let (asked, early) = (self.asked, self.cause.is_none());
        let mut lost_any = false;
        for &rank in &ranks {
            let end = &mut self.ends[rank as usize];
            lost_any |= end.is_none();
            end.get_or_insert(RankEnd { ending: None, asked, early });
        }
        if host == 0 && self.evaluator == Evaluator::Runs {
            self.evaluator = Evaluator::Ended;
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
        let was_elsewhere = std::mem::take(&mut self.asked_elsewhere);
        let echo = ECHO.max(self.term_after);
        match (self.cause, signal) {
            (Some(EndCause::Asked(first)), _) if first == signal && was_elsewhere => self.asked_at = now, // END-9
            (Some(EndCause::Asked(first)), _) if first == signal && now - self.asked_at < echo => {}
            // Asked twice, or while the end takes long: no more patience.
            (Some(cause), _) => self.end(now, cause, &[(Duration::ZERO, JobSignal::Kill)]),
            (None, SIGINT) => self.end(
                now,
                EndCause::Asked(signal),
                &[
                    (Duration::ZERO, JobSignal::Int),
                    (ASK_TERM, JobSignal::Term),
                    (self.grace.map_or(ASK_KILL, |grace| ASK_TERM + grace), JobSignal::Kill),
                ],
            ),
            (None, SIGTERM) => self.ask_in_time(now, signal, GRACE, self.term_after),
            (None, _) => self.ask_in_time(now, signal, ASK_KILL, Duration::ZERO),
        }
    }

    /// Asks ranks to end after a while, and kills them when the grace is over.
    fn ask_in_time(&mut self, now: Duration, signal: i32, usual: Duration, after: Duration) {
        let kill = after + self.grace.unwrap_or(usual);
        self.end(now, EndCause::Asked(signal), &[(after, JobSignal::Term), (kill, JobSignal::Kill)]);
    }

    fn stop(&mut self, now: Duration, cause: EndCause) {
        if self.cause.is_none() {
            self.end(now, cause, &[(Duration::ZERO, JobSignal::Term), (STOP_KILL, JobSignal::Kill)]);
        }
    }

    fn end(&mut self, now: Duration, cause: EndCause, rungs: &[(Duration, JobSignal)]) {
        if self.cause.replace(cause).is_none() {
            (self.caused_at, self.asked_at) = (now, now);
        }
        self.arrange(now, rungs);
    }

    fn arrange(&mut self, now: Duration, rungs: &[(Duration, JobSignal)]) {
        self.ladder = rungs.iter().map(|&(after, sig)| (now + after, Rung::Signal(sig))).collect();
        let last = rungs.last().map_or(Duration::ZERO, |(after, _)| *after);
        self.ladder.push((now + last + CONFIRM, Rung::GiveUp));
    }

    fn climb(&mut self, now: Duration, mut actions: Vec<Action>) -> Vec<Action> {
        let all_ended = self.is_over();
        while !all_ended && self.ladder.first().is_some_and(|(at, _)| *at <= now) {
            match self.ladder.remove(0).1 {
                Rung::Signal(sig) => {
                    if self.cause.is_none() {
                        actions.push(Action::Tell(self.overdue(sig)));
                    }
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
mod tests;
