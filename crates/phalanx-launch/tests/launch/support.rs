//! Starts the binary with a deadline on everything.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Far beyond what anything here takes, even on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// The binary with these arguments, in an environment without any launcher's ranks.
pub fn phalanx(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("PHALANX_") {
            command.env_remove(name);
        }
    }
    command.args(args).env_remove("OMP_NUM_THREADS").stdin(Stdio::null());
    command
}

/// `phalanx run` with these arguments, to its end.
pub fn run(args: &[&str]) -> Done {
    let args: Vec<&str> = ["run"].into_iter().chain(args.iter().copied()).collect();
    finish(&mut phalanx(&args))
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Done {
    Running::start(command).finish()
}

/// A command that runs.
pub struct Running {
    pub child: Child,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    seen: String,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let lines = lines_of(child.stdout.take().expect("stdout is piped"));
        let mut pipe = child.stderr.take().expect("stderr is piped");
        let stderr = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Running { child, lines, stderr: Some(stderr), seen: String::new() }
    }

    pub fn run(args: &[&str]) -> Running {
        let args: Vec<&str> = ["run"].into_iter().chain(args.iter().copied()).collect();
        Running::start(&mut phalanx(&args))
    }

    /// The next line of stdout.
    pub fn line(&mut self) -> String {
        let line = self.lines.recv_timeout(DEADLINE).expect("a line of output before the deadline");
        self.seen.push_str(&line);
        self.seen.push('\n');
        line
    }

    /// The first `n` numbers that the ranks print, one a line.
    pub fn numbers(&mut self, n: usize) -> Vec<u32> {
        (0..n)
            .map(|_| self.line().rsplit(' ').next().and_then(|w| w.parse().ok()).expect("a number"))
            .collect()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        kill(self.pid(), name);
    }

    pub fn finish(mut self) -> Done {
        let code = wait(&mut self.child).code();
        // A process that outlives the launcher would hold the pipes; that is a failure of its own.
        while let Ok(line) = self.lines.recv_timeout(DEADLINE) {
            self.seen.push_str(&line);
            self.seen.push('\n');
        }
        let stderr =
            self.stderr.take().map(|t| t.join().expect("the reader does not panic")).unwrap_or_default();
        Done { code, stdout: std::mem::take(&mut self.seen), stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (send, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    lines
}

/// Waits for a process, or kills it and fails the test.
pub fn wait(child: &mut Child) -> ExitStatus {
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("the child is ours");
    let limit = Timespec { tv_sec: DEADLINE.as_secs() as _, tv_nsec: 0 };
    let mut fds = [PollFd::new(&ended, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut fds, Some(&limit))).expect("one descriptor can be polled") == 0 {
        let _ = child.kill();
        panic!("process {} did not end within {DEADLINE:?}", child.id());
    }
    child.wait().expect("the child is ours")
}

/// Asks again and again until the answer is yes: about what tells nobody when it happens, like the state of others' processes.
pub fn eventually(within: Duration, what: &str, mut yes: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !yes() {
        assert!(Instant::now() < deadline, "{what} did not happen within {within:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs; one that only waits to be reaped does not.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !stat.is_empty() && !matches!(state, Some('Z' | 'X'))
}

pub fn kill(pid: u32, signal: &str) {
    let status =
        Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill -{signal} {pid}");
}

/// An empty directory that goes away with the value.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("phalanx-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = env::temp_dir().join(name);
        fs::create_dir_all(&dir).expect("a temporary directory");
        TempDir(dir)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("temporary paths are text").to_string()
    }

    /// A shell script that can be executed.
    pub fn script(&self, name: &str, body: &str) -> String {
        self.executable(name, &format!("#!/bin/sh\n{body}\n"))
    }

    pub fn executable(&self, name: &str, text: &str) -> String {
        // Written and made executable by another process: were it ours, a test that forks meanwhile would inherit the
        // open file, and executing it would fail with "text file busy".
        let path = self.path(name);
        let status = Command::new("sh")
            .args(["-c", "printf %s \"$2\" > \"$1\" && chmod +x \"$1\"", "sh", &path, text])
            .status();
        assert!(status.expect("sh runs").success());
        path
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.0.join(name), text).expect("a temporary file");
        self.path(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
