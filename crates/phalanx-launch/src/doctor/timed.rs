//! Runs commands and calls that may hang, with a deadline.

use crate::ending::await_end;
use std::{
    ffi::OsString,
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::sync_channel,
    thread,
    time::{Duration, Instant},
};

/// What a command said and how it ended; `None` for the status when it took too long and was killed.
#[derive(Debug)]
pub struct Said {
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

/// Runs a command for at most so long.
pub fn run(command: &[OsString], within: Duration) -> io::Result<Said> {
    let started = Instant::now();
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = read_aside(child.stdout.take());
    let stderr = read_aside(child.stderr.take());
    let status = await_end(&mut child, within)?;
    if status.is_none() {
        let group = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        child.wait()?;
    }
    let took = started.elapsed();
    Ok(Said { status, stdout: stdout(), stderr: stderr(), took })
}

/// Makes a call that may hang in a thread of its own; `None` when it took too long and is left behind.
pub fn call<T: Send + 'static>(within: Duration, f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (send, answer) = sync_channel(1);
    thread::spawn(move || {
        let _ = send.try_send(f());
    });
    answer.recv_timeout(within).ok()
}

/// Reads a pipe in a thread; the returned function gives the text that came, soon after the command has ended.
fn read_aside(pipe: Option<impl Read + Send + 'static>) -> impl FnOnce() -> String {
    let (send, answer) = sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(64 << 10).read_to_end(&mut bytes);
        }
        let _ = send.try_send(String::from_utf8_lossy(&bytes).into_owned());
    });
    move || answer.recv_timeout(Duration::from_millis(300)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_cut_off() {
        let words = |w: &[&str]| w.iter().map(OsString::from).collect::<Vec<_>>();
        let said =
            run(&words(&["sh", "-c", "echo out; echo err >&2; exit 3"]), Duration::from_secs(30)).unwrap();
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(said.status.and_then(|s| s.code()), Some(3));
        let said = run(&words(&["sleep", "1000"]), Duration::from_millis(50)).unwrap();
        assert!(said.status.is_none());
        assert_eq!(run(&words(&["/no/such"]), Duration::ZERO).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
