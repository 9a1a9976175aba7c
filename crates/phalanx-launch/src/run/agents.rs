//! The launcher's side of its agents: starts them, exchanges messages with them, and notices when one is gone.

use super::{
    News,
    nodes::{FromNode, ToNode},
    noise,
    printer::Piece,
    route::Route,
};
use crate::{
    ending::await_end,
    slurm,
    wire::{CAP, Ending, OutputStream, ToAgent, ToLauncher},
};
use phalanx_net::{
    frame::{self, FrameError},
    nodes::NodeLine,
};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    collections::VecDeque,
    env,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::Duration,
};

const LAST_WORDS: usize = 15;
/// More than one job ever says: prepare, go, signals, end.
const ORDERS: usize = 32;
/// How long a remote shell may take to end after its stdout did.
const SHELL_ENDS: Duration = Duration::from_secs(1);
/// How long to wait before bringing output again to a console that was full. The queue tells when there is room only to who can wait for ever.
const CONSOLE_AGAIN: Duration = Duration::from_millis(1);
/// Background helpers of a remote shell (`ControlPersist`) may hold its stderr for ever.
const STDERR_ENDS: Duration = Duration::from_millis(300);

/// An agent that was started, or the remote shell that leads to it, or the launcher of another host.
#[derive(Debug)]
pub struct AgentProcess {
    orders: Option<SyncSender<ToAgent>>,
    reached: Reached,
}

#[derive(Debug)]
enum Reached {
    /// As a child of this process; by `srun`, perhaps.
    Child { pid: Pid, is_srun: bool },
    /// By a connection.
    Line(NodeLine),
}

/// How an agent went away.
#[derive(Debug, Default)]
pub struct Gone {
    /// It said that no process of the job is left.
    pub done: bool,
    /// What it said instead of messages.
    pub garbage: Option<String>,
    pub ending: Option<Ending>,
    /// The last lines of its stderr, or of the remote shell's.
    pub words: Vec<String>,
    /// They were repeated as they came.
    pub is_repeated: bool,
}

/// Where an agent's news go.
#[derive(Clone)]
pub struct Ears {
    pub news: SyncSender<News>,
    pub printer: SyncSender<Piece>,
    /// How many agents' threads wait for the console right now.
    pub n_waiting: Arc<AtomicUsize>,
    /// Throw output away rather than wait for a console that takes no more.
    pub discard: Arc<AtomicBool>,
    /// Repeat at once what this host's remote shell says on stderr, under this name. Who has read it is not told again.
    pub repeat_for: Option<String>,
    /// Who else gets the ranks' errors: node 0's launcher, for its report.
    pub relay: Option<NodeLine>,
}

impl Gone {
    /// The last words that nobody has read.
    pub fn unread(self) -> Vec<String> {
        if self.is_repeated { Vec::new() } else { self.words }
    }
}

impl AgentProcess {
    /// Starts the command that becomes the agent of a host. In a process group of its own: Ctrl-C is the launcher's.
    pub fn start(host: usize, route: &Route, ears: Ears) -> io::Result<AgentProcess> {
        let (words, is_srun) = (route.command(), route.is_srun());
        let mut command = Command::new(&words[0]);
        for (name, _) in env::vars_os().filter(|_| is_srun) {
            if slurm::is_hidden_from_srun(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(&words[1..])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pid = Pid::from_child(&child);
        let (orders, inbox) = sync_channel(ORDERS);
        let stdin = child.stdin.take();
        thread::spawn(move || speak(stdin, &inbox));
        thread::spawn(move || hear(host, child, &ears));
        Ok(AgentProcess { orders: Some(orders), reached: Reached::Child { pid, is_srun } })
    }

    /// The agent of a host whose own launcher has connected.
    pub fn of_node(host: usize, line: NodeLine, ears: Ears) -> AgentProcess {
        let (orders, inbox) = sync_channel(ORDERS);
        let (to, from) = (line.clone(), line.clone());
        thread::spawn(move || {
            for down in inbox {
                if to.say(&ToNode::Order(Box::new(down))).is_err() {
                    return;
                }
            }
            let _ = to.say(&ToNode::Dismiss);
        });
        thread::spawn(move || hear_node(host, &from, &ears));
        AgentProcess { orders: Some(orders), reached: Reached::Line(line) }
    }

    /// Gives an order without ever waiting. An agent that is gone reports that itself.
    pub fn order(&self, down: ToAgent) {
        if let Some(orders) = &self.orders {
            let _ = orders.try_send(down);
        }
    }

    /// Closes the agent's stdin, on which it ends its ranks and leaves.
    pub fn dismiss(&mut self) {
        self.orders = None;
    }

    /// Asks Slurm to end an agent that does not leave, and says whether that can help: an `srun` that is killed leaves its step running. Only
    /// while it is not [`Gone`].
    pub fn cancel(&self) -> bool {
        match self.reached {
            Reached::Child { pid, is_srun } => is_srun && kill_process_group(pid, Signal::TERM).is_ok(),
            Reached::Line(_) => false,
        }
    }

    /// Ends an agent that does not leave. Only while it is not [`Gone`]: its number is still its own.
    pub fn kill(&self) {
        match &self.reached {
            Reached::Child { pid, .. } => {
                let _ = kill_process_group(*pid, Signal::KILL);
            }
            Reached::Line(line) => line.close(),
        }
    }
}

fn hear_node(host: usize, line: &NodeLine, ears: &Ears) {
    let mut gone = Gone::default();
    while let Ok(Some(said)) = line.hear::<FromNode>(CAP) {
        let news = match said {
            // That launcher has printed it. It is kept for the report, and a console that takes no more is no reason to keep the line waiting.
            FromNode::Up(ToLauncher::Output { rank, stream, bytes }) => {
                let _ = ears.printer.try_send(Piece::Output { rank, stream, bytes: Some(bytes) });
                continue;
            }
            FromNode::Up(ToLauncher::Closed { .. }) => continue,
            FromNode::Up(up) => News::Said { host, up },
            FromNode::Signal(signal) => News::Signal(signal),
            FromNode::OutputClosed => News::OutputClosed,
            FromNode::Gone { done, ending, words } => {
                gone = Gone { done, ending, words, ..Gone::default() };
                break;
            }
        };
        if ears.news.send(news).is_err() {
            return;
        }
    }
    let _ = ears.news.send(News::Gone { host, gone });
}

fn speak(stdin: Option<ChildStdin>, orders: &Receiver<ToAgent>) {
    let Some(mut stdin) = stdin else { return };
    for down in orders {
        if frame::write(&mut stdin, &down).is_err() {
            return;
        }
    }
}

fn hear(host: usize, mut child: Child, ears: &Ears) {
    let words = Arc::new(Mutex::new(VecDeque::new()));
    let (stderr_ended, stderr_end) = sync_channel::<()>(1);
    let stderr = child.stderr.take();
    let (kept, repeat_for) = (words.clone(), ears.repeat_for.clone());
    thread::spawn(move || {
        keep_last_words(stderr, &kept, repeat_for.as_deref());
        let _ = stderr_ended.try_send(());
    });
    let mut gone = Gone { is_repeated: ears.repeat_for.is_some(), ..Gone::default() };
    if let Some(stdout) = child.stdout.take() {
        gone.garbage = hear_messages(host, stdout, ears, &mut gone.done);
    }
    gone.ending = wait_for(&mut child, SHELL_ENDS).and_then(ending);
    if gone.ending.is_some() {
        let _ = stderr_end.recv_timeout(STDERR_ENDS);
    }
    // The lock guards a list that both threads hold for moments only.
    gone.words = words.lock().map(|w| w.iter().cloned().collect()).unwrap_or_default();
    let ended = gone.ending.is_some();
    let _ = ears.news.send(News::Gone { host, gone });
    if !ended && wait_for(&mut child, 2 * SHELL_ENDS).is_none() {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
    }
}

/// Passes messages on until the stream ends; returns what was no message.
fn hear_messages(host: usize, stdout: impl Read, ears: &Ears, done: &mut bool) -> Option<String> {
    let mut stream = BufReader::with_capacity(64 << 10, stdout);
    let noise = noise::skip(&mut stream);
    let lines = noise.text.lines().filter(|line| !line.trim().is_empty());
    let said = lines.clone().next().map(|line| format!("it said {line:?}"));
    if let Some(name) = &ears.repeat_for {
        lines.for_each(|line| drop(writeln!(io::stderr(), "phalanx: {name}: {line:?}")));
    }
    if !noise.is_over {
        return said;
    }
    loop {
        match frame::read::<ToLauncher>(&mut stream, CAP) {
            Ok(Some(up)) => {
                *done |= matches!(up, ToLauncher::Done);
                pass_on(host, up, ears);
            }
            Ok(None) | Err(FrameError::Io(_)) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

fn pass_on(host: usize, up: ToLauncher, ears: &Ears) {
    let up = match (&ears.relay, up) {
        (Some(line), up @ ToLauncher::Output { stream: OutputStream::Stderr, .. }) => {
            let told = FromNode::Up(up);
            let _ = line.say(&told);
            match told {
                FromNode::Up(up) => up,
                _ => return,
            }
        }
        (_, up) => up,
    };
    let piece = match up {
        ToLauncher::Output { rank, stream, bytes } => Piece::Output { rank, stream, bytes: Some(bytes) },
        ToLauncher::Closed { rank, stream } => Piece::Output { rank, stream, bytes: None },
        up => {
            let _ = ears.news.send(News::Said { host, up });
            return;
        }
    };
    let Err(TrySendError::Full(mut piece)) = ears.printer.try_send(piece) else { return };
    // Relaxed, both: hints between this thread and the launcher's, nothing is ordered by them.
    ears.n_waiting.fetch_add(1, Ordering::Relaxed);
    while !ears.discard.load(Ordering::Relaxed) {
        thread::sleep(CONSOLE_AGAIN);
        match ears.printer.try_send(piece) {
            Err(TrySendError::Full(back)) => piece = back,
            Ok(()) | Err(TrySendError::Disconnected(_)) => break,
        }
    }
    ears.n_waiting.fetch_sub(1, Ordering::Relaxed);
}

fn keep_last_words(stderr: Option<ChildStderr>, words: &Mutex<VecDeque<String>>, repeat_for: Option<&str>) {
    let Some(stderr) = stderr else { return };
    let mut lines = BufReader::new(stderr);
    let mut line = Vec::new();
    while matches!(lines.by_ref().take(64 << 10).read_until(b'\n', &mut line), Ok(n) if n > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_string();
        if let Some(host) = repeat_for {
            let _ = writeln!(io::stderr(), "phalanx: {host}: {text}");
        }
        if let Ok(mut words) = words.lock() {
            if words.len() == LAST_WORDS {
                words.pop_front();
            }
            words.push_back(text);
        }
        line.clear();
    }
}

fn wait_for(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    // A child that cannot be waited for is treated as one that does not end: it is killed.
    await_end(child, patience).ok().flatten()
}

fn ending(status: ExitStatus) -> Option<Ending> {
    status.code().map(Ending::Code).or(status.signal().map(Ending::Signal))
}
