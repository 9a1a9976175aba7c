//! Worlds of real processes: the test executes its own file once a rank, and is their launcher.

use phalanx_net::{hub::Hub, secret::Secret};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

/// Nothing here takes longer, however slow the machine: a test that needs more hangs.
const DEADLINE: Duration = Duration::from_secs(40);
const ROLE: &str = "PHALANX_TEST_ROLE";
const MARK: &str = "@said ";

/// What this process is to do, if it is a rank.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Says a line to the test.
pub fn say(line: &str) {
    println!("{MARK}{line}");
}

/// The ranks of a world, and what they meet at.
pub struct World {
    pub ranks: Vec<Rank>,
    _hub: Hub,
}

impl World {
    /// One rank for each host. `entry` is the test that is a rank, `limit` a line of the shell before rank 0 begins.
    pub fn start(entry: &str, hosts: &[&str], role: &str, limit: Option<&str>) -> World {
        let secret = Secret::random();
        let hex: String = secret.expose().iter().map(|b| format!("{b:02x}")).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("it is bound").to_string();
        let hub = Hub::start(vec![listener], secret, hosts.len() as u32).expect("a hub starts");
        let file = std::env::current_exe().expect("a test knows its file");
        let start = |(rank, host): (usize, &&str)| {
            let mut command = match limit.filter(|_| rank == 0) {
                Some(limit) => {
                    let mut shell = Command::new("sh");
                    shell.args(["-c", &format!("{limit} && exec \"$@\""), "sh"]).arg(&file);
                    shell
                }
                None => Command::new(&file),
            };
            command
                .args(["--exact", entry, "--nocapture", "--test-threads=1"])
                .env(ROLE, role)
                .env("PHALANX_RANK", rank.to_string())
                .env("PHALANX_SIZE", hosts.len().to_string())
                .env("PHALANX_RENDEZVOUS", &address)
                .env("PHALANX_SECRET", &hex)
                .env("PHALANX_HOST_ID", host)
                .env("PHALANX_LAUNCHER", "1");
            Rank::start(command)
        };
        World { ranks: hosts.iter().enumerate().map(start).collect(), _hub: hub }
    }
}

/// A process that does not outlive the test.
pub struct Rank {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    fn start(mut command: Command) -> Rank {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the test's own file can be executed");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tongue, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The harness of the worker writes lines of its own, even into ours.
                let Some((_, said)) = line.split_once(MARK) else { continue };
                if tongue.send(said.to_string()).is_err() {
                    return;
                }
            }
        });
        Rank { child, lines }
    }

    /// The next line that begins like this; `None` if it has closed its output.
    pub fn hear(&self, word: &str) -> Option<String> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with(word) => return Some(line),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("nobody said {word:?} within {DEADLINE:?}"),
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child that was not waited for exists");
    }

    /// Waits for its end, which is near once it has closed its output.
    pub fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("it is our child")
    }
}
