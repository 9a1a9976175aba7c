//! One job from start to end: waits for the hosts, watches the ranks, ends those that are left.
//!
//! - JOB-1: no rank starts before every host has answered that it can start its ranks.
//!
//! The main thread waits only for messages, and every such wait can be ended.

use super::{
    LaunchError, News,
    agents::{AgentProcess, Gone},
    failures::{Failures, RankFailure},
    input::{self, InputAck},
    meeting::MeetingPoint,
    policy::{Action, Charge, Crew, EndCause, JobEvent, Policy},
    printer::{Piece, Tails},
    report::{self, Ended, summary},
    route::Route,
    tell,
};
use crate::{
    place::WorldPlan,
    wire::{Ending, JobSignal, ToAgent, ToLauncher},
};
use phalanx_core::Rank;
use phalanx_net::{
    ending::End,
    hub::message::{FailureKind, Verdict, Words},
};
use signal_hook::consts::{SIGTERM, SIGUSR1, SIGUSR2};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// After one host cannot start, how long others may take to say that they cannot either.
const MORE_TROUBLE: Duration = Duration::from_millis(500);
/// How long an agent may be silent while it ends what is left: more than its own grace and kills.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the console may take to swallow what was brought, when the job did not end well.
const CONSOLE: Duration = Duration::from_secs(1);
/// How long a dismissed agent may take to leave.
const LEAVE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Job {
    pub plan: WorldPlan,
    pub routes: Vec<Route>,
    pub agents: Vec<AgentProcess>,
    pub news: Receiver<News>,
    pub meeting: MeetingPoint,
    pub n_waiting: Arc<AtomicUsize>,
    pub discard: Arc<AtomicBool>,
    pub started: Instant,
    pub timeout: Option<Duration>,
    /// How long processes get to end by themselves.
    pub grace: Option<Duration>,
    /// How long to wait for others to tell ranks what the launcher was told.
    pub term_after: Duration,
    /// What is known about each host and rank.
    pub hosts: Vec<HostState>,
    pub pids: Vec<Option<u32>>,
    pub tails: Option<Tails>,
    /// Why ranks said that they end.
    pub failures: Failures,
    /// Whom they agreed to blame.
    pub verdict: Verdict,
    /// Disconnected once the last notice is written.
    pub showing: Option<Receiver<()>>,
    /// The way to a terminal on which lines change, until the job is over.
    pub screen: Option<SyncSender<Piece>>,
    pub reading: Reading,
    /// Which hosts have ranks that read.
    pub readers: Vec<bool>,
}

/// How far the ranks' input is.
#[derive(Debug)]
pub enum Reading {
    /// Nothing is read before the ranks run.
    Later {
        n_readers: usize,
        news: SyncSender<News>,
    },
    Now(InputAck),
    Over,
}

#[derive(Debug, Default)]
pub struct HostState {
    pub ready: bool,
    pub cores: u32,
    pub gone: bool,
    pub words: Vec<String>,
}

impl Job {
    /// Waits until every host could start its ranks. All the trouble that shows within a moment is reported.
    pub fn gather(&mut self, start_timeout: Duration) -> Result<(), Vec<LaunchError>> {
        let mut deadline = self.started + start_timeout;
        let mut trouble = Vec::new();
        while trouble.is_empty() && self.hosts.iter().any(|h| !h.ready) || !trouble.is_empty() {
            let wait = deadline.saturating_duration_since(Instant::now());
            let Ok(news) = self.news.recv_timeout(wait) else {
                if trouble.is_empty() {
                    trouble.push(self.nobody_answered(start_timeout));
                }
                return Err(trouble);
            };
            if let News::Signal(signal) = news {
                if !matches!(signal, SIGUSR1 | SIGUSR2) {
                    return Err(vec![LaunchError::Asked(signal)]);
                }
            } else if let Err(error) = self.gathered(news) {
                if trouble.is_empty() {
                    deadline = Instant::now() + MORE_TROUBLE;
                }
                trouble.push(error);
            }
            if !trouble.is_empty() && self.hosts.iter().all(|h| h.ready || h.gone) {
                return Err(trouble);
            }
        }
        Ok(())
    }

    fn gathered(&mut self, news: News) -> Result<(), LaunchError> {
        match news {
            News::Said { host, up: ToLauncher::Hello { version } }
                if version != phalanx_collective::BUILD =>
            {
                Err(LaunchError::OtherVersion { host: self.name(host), theirs: version })
            }
            News::Said { host, up: ToLauncher::Ready { cores } } => {
                self.hosts[host].ready = true;
                self.hosts[host].cores = cores;
                Ok(())
            }
            News::Said { host, up: ToLauncher::Refused(refusal) } => {
                self.hosts[host].ready = true;
                Err(LaunchError::Refused { host: self.name(host), refusal })
            }
            News::Gone { host, gone } => {
                self.hosts[host].gone = true;
                let (reason, advice) = self.routes[host].explain(&gone);
                Err(LaunchError::Unreachable { host: self.name(host), reason, words: gone.unread(), advice })
            }
            _ => Ok(()),
        }
    }

    fn nobody_answered(&self, start_timeout: Duration) -> LaunchError {
        let silent = self.hosts.iter().enumerate().filter(|(_, h)| !h.ready);
        let hosts = silent.map(|(i, _)| self.name(i)).collect::<Vec<_>>().join(",");
        LaunchError::StartTimeout { hosts, seconds: start_timeout.as_secs_f64() }
    }

    /// Starts the ranks and watches them until none runs or none that would still answer.
    pub fn supervise(&mut self) -> Result<Policy, LaunchError> {
        self.order_all(|| ToAgent::Go);
        self.reading = match std::mem::replace(&mut self.reading, Reading::Over) {
            Reading::Later { n_readers, news } if n_readers > 0 => {
                Reading::Now(input::start(n_readers, news))
            }
            _ => Reading::Over,
        };
        let mut policy = Policy::of(Crew {
            n_ranks: self.plan.n_ranks(),
            n_servers: self.plan.n_servers(),
            has_evaluator: self.plan.evaluator().is_some(),
            grace: self.grace,
            term_after: self.term_after,
        });
        loop {
            let now = self.started.elapsed();
            let timeout = self.timeout.filter(|_| policy.cause() == EndCause::Success);
            let due = [policy.deadline(), timeout].into_iter().flatten().min();
            let news = match due {
                Some(due) => self.news.recv_timeout(due.saturating_sub(now)).ok(),
                // Every agent's end, and every signal, is news.
                None => self.news.recv().ok(),
            };
            let now = self.started.elapsed();
            let input = match news {
                Some(news) => self.heard(news)?,
                None if timeout.is_some_and(|t| t <= now) => Some(JobEvent::TimedOut),
                None => Some(JobEvent::Tick),
            };
            for action in input.map(|input| policy.step(now, input)).unwrap_or_default() {
                match action {
                    Action::Tell(note) => self.show(report::note(&note)),
                    Action::Signal(sig) => {
                        self.stop_waiting_for_the_console(&policy, now);
                        self.order_all(|| ToAgent::Signal(sig));
                    }
                    Action::Finish => {
                        self.verdict = self.meeting.verdict();
                        tracing::info!(cause = ?policy.cause(), verdict = ?self.verdict, "the job is over");
                        return Ok(policy);
                    }
                }
            }
        }
    }

    /// The news of a rank's end may be stuck behind output that nobody reads. Who asked for the end and still waits
    /// for it after the first signal wants that more than the output.
    fn stop_waiting_for_the_console(&self, policy: &Policy, now: Duration) {
        let wants_end = matches!(policy.cause(), EndCause::Asked(_) | EndCause::TimedOut);
        // Relaxed: see `agents::pass_on`.
        self.discard.store(wants_end && now > policy.caused_at(), Ordering::Relaxed);
    }

    /// Takes note of news; returns what the policy has to know.
    fn heard(&mut self, news: News) -> Result<Option<JobEvent>, LaunchError> {
        Ok(match news {
            News::Said { up: ToLauncher::Started { rank, pid }, .. } => {
                tracing::info!(%rank, pid, host = self.plan.host_name(rank), "rank started");
                self.pids[rank.index()] = Some(pid);
                None
            }
            News::Said { up: ToLauncher::Exited { rank, ending }, .. } => {
                tracing::info!(%rank, %ending, "rank ended");
                if self.plan.evaluator() != Some(rank) {
                    self.meeting.rank_ended(rank, End::Process(ending));
                }
                Some(JobEvent::Exited { rank, ending })
            }
            News::Said { host, up: ToLauncher::Refused(refusal) } => {
                return Err(LaunchError::Refused { host: self.name(host), refusal });
            }
            News::Said { up: ToLauncher::Taken { .. }, .. } => {
                if let Reading::Now(taken) = &self.reading {
                    taken.one();
                }
                None
            }
            News::Said { host, up: ToLauncher::AskedToEnd } => {
                tracing::info!(host = self.name(host), "Slurm asked the ranks to end");
                Some(JobEvent::AskedElsewhere(SIGTERM))
            }
            News::Said { .. } => None,
            News::Input(bytes) => {
                self.pass_on_input(&bytes);
                None
            }
            News::Gone { host, gone } => Some(self.lost(host, gone)),
            News::Signal(SIGUSR1) => self.forward(JobSignal::Usr1),
            News::Signal(SIGUSR2) => self.forward(JobSignal::Usr2),
            News::Signal(signal) => Some(JobEvent::Asked(signal)),
            News::OutputClosed => Some(JobEvent::OutputClosed),
            News::Words { words: Words::Notice(text), .. } => {
                self.show(format!("phalanx: {text}\n"));
                None
            }
            News::Words { rank, words: Words::Failure { kind, text } } => {
                self.failures.add(RankFailure { rank, kind, text });
                None
            }
            News::Printed(tails) => {
                self.tails = Some(tails);
                None
            }
            News::FromNodeZero(_) => None,
        })
    }

    /// Gives what was read to the hosts whose ranks read it.
    fn pass_on_input(&self, bytes: &[u8]) {
        if let Some(screen) = self.screen.as_ref().filter(|_| bytes.contains(&b'\n')) {
            let _ = screen.try_send(Piece::Typed);
        }
        for (agent, _) in self.agents.iter().zip(&self.readers).filter(|(_, reads)| **reads) {
            agent.order(if bytes.is_empty() { ToAgent::InputEnded } else { ToAgent::Input(bytes.to_vec()) });
        }
    }

    /// Shows a notice. A console that takes nothing must not block the main thread: what comes meanwhile is left out.
    fn show(&mut self, text: String) {
        if let Some(screen) = &self.screen {
            let _ = screen.try_send(Piece::Notice(text));
        } else if self.showing.as_ref().is_none_or(|last| last.try_recv() == Err(TryRecvError::Disconnected))
        {
            let (written, showing) = sync_channel(0);
            self.showing = Some(showing);
            thread::spawn(move || {
                tell(&text);
                drop(written);
            });
        }
    }

    fn forward(&self, sig: JobSignal) -> Option<JobEvent> {
        self.order_all(|| ToAgent::Signal(sig));
        None
    }

    fn lost(&mut self, host: usize, gone: Gone) -> JobEvent {
        tracing::info!(host = self.name(host), done = gone.done, "agent gone");
        self.hosts[host].gone = true;
        let ranks = self.plan.hosts()[host].ranks.clone();
        if !gone.done {
            let end = match gone.ending {
                Some(ending @ Ending::Signal(_)) => End::WithAgent(ending),
                _ => End::WithHost,
            };
            ranks.iter().for_each(|&rank| self.meeting.rank_ended(Rank(rank), end));
        }
        self.hosts[host].words = gone.unread();
        JobEvent::HostLost { host, ranks }
    }

    /// Ends what ranks left behind and lets the last output out. Returns the signal that cut this short, if any.
    pub fn finish(&mut self, cause: EndCause) -> Option<i32> {
        self.order_all(|| ToAgent::End);
        // The printer ends when nobody can bring it anything any more.
        self.screen = None;
        self.reading = Reading::Over;
        let mut cut_short = None;
        while self.tails.is_none() {
            let all_gone = self.hosts.iter().all(|h| h.gone);
            let patience = if all_gone { CONSOLE } else { PATIENCE };
            match self.news.recv_timeout(patience) {
                Ok(News::Signal(signal)) if !matches!(signal, SIGUSR1 | SIGUSR2) => {
                    cut_short = Some(signal);
                    break;
                }
                Ok(news) => {
                    let _ = self.heard(news);
                }
                // A reader of our output may take its time; it is the user's, who can end this wait.
                Err(_) if cause == EndCause::Success && self.is_console_slow() => {}
                Err(_) => break,
            }
        }
        self.dismiss();
        if let Some(last) = self.showing.take() {
            // Nothing is ever sent: it ends when the notice is written, or is late.
            let _ = last.recv_timeout(CONSOLE);
        }
        cut_short
    }

    fn is_console_slow(&self) -> bool {
        // Relaxed: see `agents::pass_on`.
        self.n_waiting.load(Ordering::Relaxed) > 0 || self.hosts.iter().all(|h| h.gone)
    }

    /// Makes every agent leave; none is left when this returns.
    pub fn dismiss(&mut self) {
        self.screen = None;
        self.agents.iter_mut().for_each(AgentProcess::dismiss);
        self.wait_until_all_left();
        let staying = || self.agents.iter().zip(&self.hosts).filter(|(_, host)| !host.gone);
        if staying().filter(|(agent, _)| agent.cancel()).count() > 0 {
            self.wait_until_all_left();
        }
        for (agent, _) in self.agents.iter().zip(&self.hosts).filter(|(_, host)| !host.gone) {
            agent.kill();
        }
    }

    fn wait_until_all_left(&mut self) {
        let deadline = Instant::now() + LEAVE;
        while self.hosts.iter().any(|h| !h.gone) {
            let Ok(news) = self.news.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
                break;
            };
            match news {
                News::Gone { host, .. } => self.hosts[host].gone = true,
                News::Signal(signal) if !matches!(signal, SIGUSR1 | SIGUSR2) => break,
                _ => {}
            }
        }
    }

    /// A rank that failed because of another one said so, and is not the cause if that other rank is known.
    pub fn ask_ranks_who_was_first(&self, policy: &mut Policy) {
        if let Some((rank, charge)) = self.verdict.doom.as_ref().and_then(Charge::of) {
            policy.blame(rank, charge);
        }
        let Some(rank) = policy.culprit() else { return };
        let first = self.failures.first(rank);
        if first != rank {
            policy.blame(first, Charge::Failed);
        } else if let Some(whom) = self.verdict.missed.get(&rank)
            && self.failures.of(rank).is_none_or(|f| f.kind != FailureKind::Own)
            // What the rank missed has not killed it: a crash is its own.
            && !matches!(policy.cause(), EndCause::Failed { ending: Ending::Signal(_), .. })
        {
            policy.blame(*whom, Charge::Gone);
        }
    }

    /// What to tell the user about a job that ran.
    pub fn report(&self, policy: &Policy) -> String {
        let host_words = match policy.cause() {
            EndCause::HostLost { host } => self.hosts[host].words.as_slice(),
            _ => &[],
        };
        summary(&Ended {
            plan: &self.plan,
            cause: policy.cause(),
            ends: policy.ends(),
            pids: &self.pids,
            tails: self.tails.as_ref(),
            host_words,
            blamed: policy.blamed(),
            failures: &self.failures,
            after: policy.caused_at(),
        })
    }

    fn order_all(&self, down: impl Fn() -> ToAgent) {
        self.agents.iter().for_each(|agent| agent.order(down()));
    }

    fn name(&self, host: usize) -> String {
        self.plan.hosts()[host].name.clone()
    }
}
