//! Worlds of real processes: the test executes its own binary once a rank (see [`worker`]), and is their launcher.
//!
//! - PROC-1: whatever a test does or fails to do, no process outlives its [`Job`].

pub mod blow;
pub mod chance;
pub mod crowd;
pub mod worker;

use phalanx_core::Rank;
use phalanx_net::{
    ending::{End, Ending},
    hub::Hub,
    secret::Secret,
};
use rustix::process::{Pid, Signal};
use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

/// Nothing that a rank is waited for takes longer, however slow the machine: a rank that needs more hangs.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Who serves the meeting point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The test, as the launcher does.
    Launcher,
    RankZero,
}

/// A world to be started.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Ranks of each (simulated) host.
    pub hosts: Vec<u32>,
    pub server: Server,
    /// More of the environment: settings, and the orders of [`worker`].
    pub vars: Vec<(String, String)>,
}

impl Spec {
    pub fn new(hosts: &[u32]) -> Spec {
        Spec { hosts: hosts.to_vec(), server: Server::Launcher, vars: Vec::new() }
    }

    pub fn served_by(mut self, server: Server) -> Spec {
        self.server = server;
        self
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Spec {
        self.vars.push((name.into(), value.to_string()));
        self
    }

    pub fn over_tcp(self) -> Spec {
        self.with("PHALANX_TRANSPORT", "tcp")
    }

    /// What its ranks do after a failure.
    pub fn then(self, after: worker::After) -> Spec {
        self.with("PHALANX_TEST_AFTER", format!("{after:?}"))
    }

    pub fn n_ranks(&self) -> u32 {
        self.hosts.iter().sum()
    }
}

/// What a rank said: `word` and the rest of the line.
#[derive(Clone, Debug)]
pub struct Said {
    pub rank: usize,
    pub word: String,
    pub rest: String,
    pub at: Instant,
}

/// A running world.
pub struct Job {
    spec: Spec,
    secret: String,
    address: String,
    pub hub: Option<Hub>,
    children: Vec<Option<Child>>,
    tongue: mpsc::Sender<Said>,
    ear: mpsc::Receiver<Said>,
    /// Everything that was said so far.
    pub log: Vec<Said>,
}

impl Job {
    /// A world none of whose ranks runs yet.
    pub fn prepare(spec: Spec) -> Job {
        let secret = Secret::random();
        let hex = secret.expose().iter().map(|b| format!("{b:02x}")).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = match spec.server {
            Server::Launcher => listener.local_addr().expect("it is bound").to_string(),
            // Without a port: rank 0 tries several, where one that was free a moment ago may be another test's.
            Server::RankZero => "127.0.0.1".to_string(),
        };
        let hub = (spec.server == Server::Launcher)
            .then(|| Hub::start(vec![listener], secret, spec.n_ranks()).expect("a hub starts"));
        let (tongue, ear) = mpsc::channel();
        let children = (0..spec.n_ranks()).map(|_| None).collect();
        Job { spec, secret: hex, address, hub, children, tongue, ear, log: Vec::new() }
    }

    /// A world whose ranks have all been started.
    pub fn start(spec: Spec) -> Job {
        let mut job = Job::prepare(spec);
        (0..job.children.len()).for_each(|rank| job.spawn(rank));
        job
    }

    pub fn spawn(&mut self, rank: usize) {
        let mut before = 0;
        let host = self.spec.hosts.iter().position(|&n| {
            before += n as usize;
            rank < before
        });
        let mut command = Command::new(std::env::current_exe().expect("a test knows its file"));
        command
            .args(["--exact", "worker_entry", "--nocapture", "--test-threads=1"])
            .env("PHALANX_TEST_ROLE", "rank")
            .env("PHALANX_RANK", rank.to_string())
            .env("PHALANX_SIZE", self.spec.n_ranks().to_string())
            .env("PHALANX_RENDEZVOUS", &self.address)
            .env("PHALANX_SECRET", &self.secret)
            .env("PHALANX_HOST_ID", format!("host{}", host.expect("every rank has a host")))
            .envs(self.spec.vars.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        if self.spec.server == Server::Launcher {
            command.env("PHALANX_LAUNCHER", "1");
        }
        let mut child = command.spawn().expect("the test's own file can be executed");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let tongue = self.tongue.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // The test harness of the worker writes lines of its own, even into ours.
                let Some((_, said)) = line.split_once(worker::MARK) else { continue };
                let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
                let said = Said { rank, word: word.into(), rest: rest.into(), at: Instant::now() };
                if tongue.send(said).is_err() {
                    return;
                }
            }
            let ended = Said { rank, word: "ended".into(), rest: String::new(), at: Instant::now() };
            let _ = tongue.send(ended);
        });
        self.children[rank] = Some(child);
    }

    pub fn n_ranks(&self) -> usize {
        self.children.len()
    }

    pub fn pid(&self, rank: usize) -> Pid {
        Pid::from_child(self.children[rank].as_ref().expect("it was started"))
    }

    pub fn signal(&self, rank: usize, signal: Signal) {
        rustix::process::kill_process(self.pid(rank), signal)
            .expect("a child that was not waited for exists");
    }

    /// Kills a rank and tells the hub nothing.
    pub fn kill(&self, rank: usize) -> Instant {
        let at = Instant::now();
        self.signal(rank, Signal::KILL);
        at
    }

    /// Tells the hub how a rank ended, as the launcher would.
    pub fn report_end(&self, rank: usize, ending: Ending) {
        let hub = self.hub.as_ref().expect("only the launcher reports");
        hub.rank_ended(Rank::at(rank), End::Process(ending));
    }

    /// Lets a rank that lingers go.
    pub fn dismiss(&mut self, rank: usize) {
        drop(self.children[rank].as_mut().and_then(|c| c.stdin.take()));
    }

    /// Waits until every one of these ranks has said the word, and returns what each said first.
    ///
    /// # Panics
    /// If a rank has not said it within [`DEADLINE`], or ended without.
    pub fn hear(&mut self, ranks: &[usize], word: &str) -> Vec<Said> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let missing = |r: &usize| !self.log.iter().any(|s| s.rank == *r && s.word == word);
            let silent: Vec<usize> = ranks.iter().copied().filter(missing).collect();
            if silent.is_empty() {
                let first = |r: &usize| self.log.iter().find(|s| s.rank == *r && s.word == word).cloned();
                return ranks.iter().filter_map(first).collect();
            }
            let ended = silent.iter().find(|r| self.log.iter().any(|s| s.rank == **r && s.word == "ended"));
            if let Some(rank) = ended {
                panic!("rank {rank} ended without {word:?}; {}", self.story());
            }
            match self.ear.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(said) => self.log.push(said),
                Err(_) => panic!("no {word:?} from ranks {silent:?} within {DEADLINE:?}; {}", self.story()),
            }
        }
    }

    /// Waits until a rank has said one of these words.
    pub fn hear_any(&mut self, rank: usize, words: &[&str]) {
        let deadline = Instant::now() + DEADLINE;
        while !self.log.iter().any(|s| s.rank == rank && words.contains(&s.word.as_str())) {
            match self.ear.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(said) => self.log.push(said),
                Err(_) => panic!("none of {words:?} from rank {rank} within {DEADLINE:?}; {}", self.story()),
            }
        }
    }

    /// Takes down what is said for this long.
    pub fn listen_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Ok(said) = self.ear.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.log.push(said);
        }
    }

    /// Asserts that nobody says anything for this long.
    pub fn quiet_for(&mut self, time: Duration) {
        if let Ok(said) = self.ear.recv_timeout(time) {
            self.log.push(said);
            panic!("somebody spoke; {}", self.story());
        }
    }

    /// All that was said, and the world, for a person who looks for the fault.
    pub fn story(&self) -> String {
        let lines: Vec<String> =
            self.log.iter().map(|s| format!("{}: {} {}", s.rank, s.word, s.rest)).collect();
        let doing: Vec<String> = (0..self.n_ranks()).map(|r| format!("{r}: {}", self.stack(r))).collect();
        format!("{:?}\n said: {}\n doing: {}", self.spec, lines.join("; "), doing.join("; "))
    }

    fn stack(&self, rank: usize) -> String {
        let Some(child) = &self.children[rank] else { return "not started".into() };
        let threads = fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
        let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let state = |path: std::path::PathBuf| {
            let status = read(path.join("status"));
            let state = status.lines().find_map(|l| l.strip_prefix("State:")).unwrap_or("").trim();
            format!("{} {state} {}", read(path.join("comm")), read(path.join("wchan")))
        };
        threads.map(|t| state(t.path())).collect::<Vec<_>>().join(", ")
    }

    /// Lets every rank go and waits for their ends; those that do not end by themselves fail the test.
    pub fn finish(mut self) {
        let running: Vec<usize> = (0..self.n_ranks()).filter(|&r| self.children[r].is_some()).collect();
        running.iter().for_each(|&r| self.dismiss(r));
        self.hear(&running, "ended");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // PROC-1. A process that has ended already cannot be killed any more, and need not.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
