//! Starts other programs so that none outlives its deadline, Ctrl-C, or us.
//!
//! Every program leads a process group of its own, which ends as a whole.

use crate::profile::Profile;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often a wait looks at the clock and at Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a group may take to end after it was asked to, before it is killed.
const GRACE: Duration = Duration::from_secs(3);

/// Whether `cargo run` sets this variable for the program that it starts, about that program's package.
fn is_of_cargo_run(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Where the project is and whether somebody wants us to stop.
#[derive(Debug)]
pub struct Shell {
    pub root: PathBuf,
    /// The signal that asked us to stop; 0 for none.
    signal: Arc<AtomicUsize>,
}

/// What becomes of a program's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Goes where ours goes.
    Shown,
    /// Is shown and kept.
    Both,
    /// Is only kept.
    Kept,
}

/// How a program ended.
#[derive(Debug)]
pub struct Done {
    pub ending: Ending,
    /// What it wrote, where it was kept: both streams, line by line as they came.
    pub text: String,
    /// What it wrote to stdout, where it was kept.
    pub stdout: String,
}

#[derive(Debug)]
pub enum Ending {
    Exited(ExitStatus),
    /// It was ended because its time was over.
    Overdue(Duration),
    /// It was ended because we were asked to stop.
    Interrupted,
}

impl Done {
    /// Nothing, or why it did not go well.
    pub fn check(&self) -> Result<(), String> {
        match &self.ending {
            Ending::Exited(status) if status.success() => Ok(()),
            Ending::Exited(status) => Err(status.to_string()),
            Ending::Overdue(limit) => Err(format!("was ended after {} s, its deadline", limit.as_secs())),
            Ending::Interrupted => Err("was interrupted".into()),
        }
    }
}

impl Shell {
    pub fn new() -> Result<Shell, String> {
        let heard = Arc::new(AtomicUsize::new(0));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_usize(signal, heard.clone(), signal as usize)
                .map_err(|e| format!("cannot listen for signals: {e}"))?;
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here.parent().ok_or("xtask is not inside the project")?.to_path_buf();
        Ok(Shell { root, signal: heard })
    }

    pub fn interrupted(&self) -> bool {
        self.signal().is_some()
    }

    /// The signal that asked us to stop.
    pub fn signal(&self) -> Option<u8> {
        // Relaxed: nothing is ordered by it.
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|&signal| signal > 0)
    }

    /// Where cargo puts what it builds.
    pub fn target(&self) -> PathBuf {
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), |dir| self.root.join(dir))
    }

    /// A program that cargo built, or the folder `examples` of one profile.
    pub fn built(&self, profile: Profile, name: &str) -> PathBuf {
        self.target().join(profile.folder()).join(name)
    }

    /// A program started from the project's root.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).stdin(Stdio::null());
        // Build scripts ask for them (ring's does): what `cargo xtask` builds would be built anew by a direct call of cargo, and the other way round.
        for (name, _) in env::vars_os().filter(|(name, _)| is_of_cargo_run(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command
    }

    pub fn cargo(&self, args: &str) -> Command {
        let mut command = self.command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(args.split_whitespace());
        if env::var_os("CI").is_some() {
            // Nobody builds a second time there, and what a second build could use again takes time to write.
            command.env("CARGO_INCREMENTAL", "0");
        }
        command
    }

    /// Runs a program to its end, or ends it.
    pub fn run(&self, command: &mut Command, output: Output, limit: Duration) -> Result<Done, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        if output != Output::Shown {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child =
            command.process_group(0).spawn().map_err(|e| format!("cannot start {program}: {e}"))?;
        let group = Pid::from_child(&child);
        let readers = Readers::start(&mut child, output);
        let waiter = Waiter::start(child);
        let ending = waiter.wait(group, limit, self);
        // What a program leaves behind when it ends does not outlive it, nor can it keep our readers waiting.
        let _ = kill_process_group(group, Signal::KILL);
        let (text, stdout) = readers.join();
        Ok(Done { ending, text, stdout })
    }

    /// Runs a program that must end well.
    pub fn must(&self, command: &mut Command, output: Output, limit: Duration) -> Result<Done, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let done = self.run(command, output, limit)?;
        done.check().map_err(|why| match output {
            Output::Kept if !self.interrupted() => format!("{program} {why}\n{}", done.text.trim_end()),
            _ => format!("{program} {why}"),
        })?;
        Ok(done)
    }

    /// Whether a program can be started and ends well.
    pub fn works(&self, command: &mut Command) -> bool {
        self.run(command, Output::Kept, Duration::from_secs(60)).is_ok_and(|done| done.check().is_ok())
    }
}

/// A thread waits for the child, so that the wait can be given up.
struct Waiter(mpsc::Receiver<io::Result<ExitStatus>>);

impl Waiter {
    fn start(mut child: Child) -> Waiter {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            // Nobody hears it when the wait was given up.
            let _ = tell.send(child.wait());
        });
        Waiter(told)
    }

    fn wait(&self, group: Pid, limit: Duration, shell: &Shell) -> Ending {
        let start = Instant::now();
        loop {
            match self.0.recv_timeout(LOOK_EVERY) {
                Ok(Ok(status)) => return Ending::Exited(status),
                Err(RecvTimeoutError::Timeout) if shell.interrupted() => {
                    self.end(group);
                    return Ending::Interrupted;
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() < limit => {}
                _ => {
                    self.end(group);
                    return Ending::Overdue(limit);
                }
            }
        }
    }

    fn end(&self, group: Pid) {
        let _ = kill_process_group(group, Signal::TERM);
        if self.0.recv_timeout(GRACE).is_err() {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.0.recv_timeout(GRACE);
        }
    }
}

/// Threads that pass on and keep what a child writes.
struct Readers {
    threads: Vec<JoinHandle<()>>,
    lines: mpsc::Receiver<(bool, String)>,
}

impl Readers {
    fn start(child: &mut Child, output: Output) -> Readers {
        let (tell, lines) = mpsc::channel();
        let mut threads = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            threads.push(read(pipe, io::stdout(), true, output, tell.clone()));
        }
        if let Some(pipe) = child.stderr.take() {
            threads.push(read(pipe, io::stderr(), false, output, tell));
        }
        Readers { threads, lines }
    }

    fn join(self) -> (String, String) {
        let (mut text, mut stdout) = (String::new(), String::new());
        for (is_stdout, line) in self.lines {
            text.push_str(&line);
            if is_stdout {
                stdout.push_str(&line);
            }
        }
        for thread in self.threads {
            thread.join().expect("a reader only reads");
        }
        (text, stdout)
    }
}

fn read(
    pipe: impl Read + Send + 'static,
    mut show: impl Write + Send + 'static,
    is_stdout: bool,
    output: Output,
    tell: mpsc::Sender<(bool, String)>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if output == Output::Both {
                // A closed terminal is no reason to stop the tests.
                let _ = show.write_all(&line).and_then(|()| show.flush());
            }
            let _ = tell.send((is_stdout, String::from_utf8_lossy(&line).into_owned()));
            line.clear();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str, limit: Duration) -> Done {
        let shell = Shell { root: env::temp_dir(), signal: Arc::default() };
        shell.run(shell.command("sh").args(["-c", script]), Output::Kept, limit).unwrap()
    }

    #[test]
    fn output_is_kept_and_codes_are_told() {
        let done = sh("echo out; echo err >&2; exit 3", LONG);
        assert_eq!(done.stdout, "out\n");
        assert!(done.text.contains("err\n"));
        assert_eq!(done.check(), Err("exit status: 3".into()));
    }

    #[test]
    fn a_whole_group_ends_at_its_deadline() {
        let done = sh("sleep 600 & echo started; wait", Duration::from_millis(300));
        assert!(matches!(done.ending, Ending::Overdue(_)), "{done:?}");
        assert_eq!(done.stdout, "started\n", "the pipe is closed, so the sleeper is gone, too");
    }

    #[test]
    fn a_signal_to_us_ends_what_runs_and_is_remembered() {
        let shell = Shell { root: env::temp_dir(), signal: Arc::new(AtomicUsize::new(2)) };
        let done = shell.run(shell.command("sleep").arg("600"), Output::Kept, LONG).unwrap();
        assert!(matches!(done.ending, Ending::Interrupted), "{done:?}");
        assert_eq!(shell.signal(), Some(2));
    }

    #[test]
    fn what_is_left_behind_goes_with_its_parent() {
        let done = sh("sleep 600 & echo done", LONG);
        assert_eq!(done.check(), Ok(()));
    }
}
