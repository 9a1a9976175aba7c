//! `phalanx agent`: starts and watches the ranks of one host. It talks to the launcher through stdin and stdout.
//!
//! - AGENT-1: when the launcher is gone (stdin ends, for any reason), no process of the job is left shortly after
//!   [`GRACE`].
//! - AGENT-3: Slurm sends SIGTERM to every process of a job, agents and ranks alike, and SIGKILL after a time of its own. An agent there tells the
//!   launcher, leaves its ranks that time, and does not ask them again.
//! - AGENT-2: the agent exits only when it has no descendants left, or those left cannot be killed.
//!
//! Only the main thread decides, and it waits only for its inbox.

mod check;
pub mod cores;
mod family;
mod feed;
mod pump;
mod secret_fd;
mod spawn;
mod start;
mod voice;

use crate::wire::{CAP, Ending, JobSignal, Prepare, ToAgent, ToLauncher};
use feed::InputWriter;
use phalanx_core::Rank;
use phalanx_net::frame;
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, wait},
};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};
use std::{
    env,
    io::{self, IsTerminal},
    os::fd::OwnedFd,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use voice::Voice;

/// How long a rank may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);
/// SIGKILL is repeated while the family forks faster than it dies.
const KILL_AGAIN: Duration = Duration::from_millis(50);
/// Milliseconds after which what is left hangs in the kernel and cannot be ended.
const KILLS: u32 = 40;

/// What the main thread learns from the others.
pub enum AgentEvent {
    Told(ToAgent),
    LauncherGone,
    /// Somebody sent SIGTERM or SIGHUP.
    AskedToEnd,
    Reaped {
        pid: Pid,
        ending: Ending,
    },
    /// No descendant is left.
    FamilyGone,
    StreamEnded,
    /// This rank can read what it was last given.
    Taken(Rank),
    VoiceEnded,
}

/// How far the end has come.
enum End {
    NotYet,
    /// SIGTERM was sent; SIGKILL follows.
    Asked {
        kill_at: Instant,
        kills: u32,
    },
    /// Everything was said; the writer finishes.
    Leaving,
}

pub struct Agent {
    inbox: Receiver<AgentEvent>,
    events: SyncSender<AgentEvent>,
    voice: Option<Voice>,
    prepared: Option<Box<Prepare>>,
    /// Ranks whose process has not been reaped.
    running: Vec<(Pid, Rank)>,
    /// Hangs up at the streams when the family is gone.
    over: Option<OwnedFd>,
    /// The stdins of the ranks that read, until there is nothing more to read.
    feeds: Vec<InputWriter>,
    n_streams: usize,
    family_gone: bool,
    launcher_gone: bool,
    slurm: Option<SlurmTerm>,
    end: End,
}

/// SIGTERM by Slurm (AGENT-3).
#[derive(Default)]
struct SlurmTerm {
    /// Set by the signal itself: the end of a rank that had the same signal may be seen first.
    came: Arc<AtomicBool>,
    told: bool,
}

/// Runs until the launcher ends the job or goes away.
pub fn main() -> ExitCode {
    // Not stdout: `srun --unbuffered` makes that a terminal.
    if io::stdin().is_terminal() {
        eprintln!(
            "phalanx agent is started by `phalanx run` on every host of a job; do not start it by hand"
        );
        return ExitCode::from(2);
    }
    family::adopt_orphans();
    let (events, inbox) = sync_channel(64);
    // Every process that Slurm has started has this.
    let slurm = env::var_os("SLURMD_NODENAME").map(|_| SlurmTerm::default());
    if let Some(slurm) = &slurm {
        let _ = signal_hook::flag::register(SIGTERM, slurm.came.clone());
    }
    watch_signals(events.clone());
    let voice = Voice::start(events.clone());
    voice.say(ToLauncher::Hello { version: phalanx_collective::BUILD.to_string() });
    listen(events.clone());
    let agent = Agent {
        inbox,
        events,
        voice: Some(voice),
        prepared: None,
        running: Vec::new(),
        over: None,
        feeds: Vec::new(),
        n_streams: 0,
        family_gone: true,
        launcher_gone: false,
        slurm,
        end: End::NotYet,
    };
    agent.live()
}

impl Agent {
    fn live(mut self) -> ExitCode {
        loop {
            let event = match self.end {
                End::Asked { kill_at, .. } => {
                    self.inbox.recv_timeout(kill_at.saturating_duration_since(Instant::now()))
                }
                // The launcher's death ends this wait.
                End::NotYet | End::Leaving => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(AgentEvent::VoiceEnded) if matches!(self.end, End::Leaving) => return ExitCode::SUCCESS,
                Ok(event) => self.handle(event),
                Err(_) => self.kill(),
            }
            if let End::Asked { kills, .. } = self.end {
                if self.launcher_gone && (self.family_gone || kills > KILLS) {
                    return ExitCode::FAILURE;
                }
                if kills > KILLS || (self.family_gone && self.n_streams == 0) {
                    self.leave();
                }
            } else if self.launcher_gone {
                return ExitCode::FAILURE;
            }
        }
    }

    fn handle(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::Told(ToAgent::Prepare(prepare)) => self.prepare(prepare),
            AgentEvent::Told(ToAgent::Go) => self.start(),
            AgentEvent::Told(ToAgent::Signal(sig)) => self.signal(sig),
            AgentEvent::Told(ToAgent::Input(bytes)) => self.feeds.iter().for_each(|feed| feed.give(&bytes)),
            AgentEvent::Told(ToAgent::InputEnded) => self.feeds.clear(),
            AgentEvent::Taken(rank) => self.say(ToLauncher::Taken { rank }),
            AgentEvent::Told(ToAgent::End) => self.ask_to_end(),
            AgentEvent::AskedToEnd => {
                self.tell_of_slurm();
                // At a time limit Slurm sends it twice.
                if self.slurm.is_none() || self.running.is_empty() {
                    self.ask_to_end();
                }
            }
            AgentEvent::LauncherGone => {
                self.launcher_gone = true;
                self.ask_to_end();
            }
            AgentEvent::Reaped { pid, ending } => {
                self.tell_of_slurm();
                if let Some(i) = self.running.iter().position(|(p, _)| *p == pid) {
                    let (_, rank) = self.running.swap_remove(i);
                    self.say(ToLauncher::Exited { rank, ending });
                }
            }
            AgentEvent::FamilyGone => {
                self.family_gone = true;
                self.over = None;
            }
            AgentEvent::StreamEnded => self.n_streams -= 1,
            // The launcher closed our stdout; its death follows on stdin.
            AgentEvent::VoiceEnded => {}
        }
    }

    fn say(&self, message: ToLauncher) {
        if let Some(voice) = &self.voice {
            voice.say(message);
        }
    }

    fn prepare(&mut self, prepare: Box<Prepare>) {
        match start::check(&prepare) {
            Ok(()) => self.say(ToLauncher::Ready { cores: cores::n_usable() }),
            Err(refusal) => self.say(ToLauncher::Refused(refusal)),
        }
        self.prepared = Some(prepare);
    }

    /// Tells the launcher once that Slurm asked the ranks to end.
    fn tell_of_slurm(&mut self) {
        // Relaxed: a flag that only ever rises, and nothing else is read because of it.
        let came = |slurm: &&mut SlurmTerm| slurm.came.load(Ordering::Relaxed) && !slurm.told;
        if let Some(slurm) = self.slurm.as_mut().filter(came) {
            slurm.told = true;
            self.say(ToLauncher::AskedToEnd);
        }
    }

    fn signal(&self, sig: JobSignal) {
        match sig {
            JobSignal::Term if self.slurm.as_ref().is_some_and(|slurm| slurm.told) => {} // AGENT-3
            JobSignal::Int => family::signal_groups(self.leaders(), Signal::INT),
            JobSignal::Term => family::signal_groups(self.leaders(), Signal::TERM),
            JobSignal::Usr1 => family::signal_groups(self.leaders(), Signal::USR1),
            JobSignal::Usr2 => family::signal_groups(self.leaders(), Signal::USR2),
            JobSignal::Kill => family::signal_all(Signal::KILL),
        }
    }

    fn leaders(&self) -> impl Iterator<Item = Pid> {
        self.running.iter().map(|(pid, _)| *pid)
    }

    fn ask_to_end(&mut self) {
        if !matches!(self.end, End::NotYet) {
            return;
        }
        if !self.family_gone {
            family::signal_groups(self.leaders(), Signal::TERM);
            family::signal_all(Signal::TERM);
        }
        self.end = End::Asked { kill_at: Instant::now() + GRACE, kills: 0 };
    }

    fn kill(&mut self) {
        let End::Asked { kill_at, kills } = &mut self.end else { return };
        *kill_at = Instant::now() + KILL_AGAIN;
        if !self.family_gone {
            *kills += 1;
            family::signal_all(Signal::KILL);
        }
    }

    fn leave(&mut self) {
        self.say(ToLauncher::Done);
        self.voice = None;
        self.end = End::Leaving;
    }
}

/// Ctrl-C of a terminal is the launcher's to answer. A handler that does nothing, not `SIG_IGN`: ranks would inherit
/// that, and Python would never raise `KeyboardInterrupt`. SIGCHLD, too, gets a handler: the program that started us may ignore it,
/// and then the kernel would throw the ranks' exit codes away. SIGUSR1 and SIGUSR2 come from Slurm ahead of a time limit, to ranks, too.
fn watch_signals(events: SyncSender<AgentEvent>) {
    let Ok(mut signals) = Signals::new([SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]) else { return };
    thread::spawn(move || {
        for signal in signals.forever() {
            if matches!(signal, SIGTERM | SIGHUP) {
                let _ = events.send(AgentEvent::AskedToEnd);
            }
        }
    });
}

fn listen(events: SyncSender<AgentEvent>) {
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        while let Ok(Some(told)) = frame::read(&mut stdin, CAP) {
            let _ = events.send(AgentEvent::Told(told));
        }
        let _ = events.send(AgentEvent::LauncherGone);
    });
}

/// Reaps every child, adopted ones too, until there is none. Started after the last rank: `Command::spawn` waits for
/// its child itself when the program cannot be executed.
fn reap(events: SyncSender<AgentEvent>) {
    thread::spawn(move || {
        loop {
            let (pid, status) = match wait(WaitOptions::empty()) {
                Ok(Some(reaped)) => reaped,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let ending = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ending::Code(code),
                (_, Some(number)) => Ending::Signal(number),
                // Stopped or continued: not an end.
                (None, None) => continue,
            };
            let _ = events.send(AgentEvent::Reaped { pid, ending });
        }
        let _ = events.send(AgentEvent::FamilyGone);
    });
}
