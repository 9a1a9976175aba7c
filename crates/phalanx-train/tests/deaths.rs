//! Two processes train one program, and one of them is killed or stopped in the middle of it: the other one is told who
//! is lost, and ends by itself (RANKS-3).
//!
//! The test executes its own file once a rank, and is their launcher.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Program, ReduceStrategy, Rule,
    RunError, Setup, Store, Tensor,
};
use phalanx_net::{hub::Hub, secret::Secret};
use phalanx_train::Ranks;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// Nothing here takes longer, however slow the machine: a test that needs more hangs.
const DEADLINE: Duration = Duration::from_secs(40);
const ROLE: &str = "PHALANX_TEST_ROLE";
const MARK: &str = "@said ";

/// A network that has something to send: a megabyte of gradients.
fn network() -> Program {
    let mut b = Builder::new();
    let mut build = || {
        let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(32)])?;
        let y = b.fc(x, 500, Act::Tanh)?;
        let y = b.fc(y, 500, Act::Tanh)?;
        let loss = b.mean(y)?;
        b.named(loss, "loss")
    };
    let loss = build().expect("the network is right");
    let mut program = b.finish().expect("the network is right");
    Optimizer::new(Rule::adam(), 1e-3).minimize(&mut program, loss).expect("it has gradients");
    program
}

/// What a rank is: it trains until somebody is lost. In the test's own process it is nothing.
#[test]
fn worker_entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let ranks = Ranks::from_env().expect("the world forms");
    let mut setup = Setup { replicas: Some(2), collective: Arc::new(ranks), ..Setup::default() };
    setup.build.reduce_strategy =
        if role == "reduce" { ReduceStrategy::Reduce } else { ReduceStrategy::AllReduce };
    let mut exe = ParallelExecutor::new(&network(), Some("loss"), setup).expect("the setup is right");
    let mut store = Store::new(1);
    let x = Tensor::new(&[6, 32], &[0.5f32; 192]).expect("six samples");
    for step in 0.. {
        match exe.run(&mut store, &[("x", Feed::Split(&x))], &[Fetch::mean("loss")]) {
            Ok(_) => println!("{MARK}step {step}"),
            Err(error) => {
                let kind = match &error {
                    RunError::Collective(_) => "typed",
                    _ => "other",
                };
                // What was learned is still there.
                let is_whole = store.get("fc.w").is_some_and(|w| w.to_f64().iter().all(|v| v.is_finite()));
                println!("{MARK}error {kind} {is_whole} {error}");
                return;
            }
        }
    }
}

/// A process that does not outlive the test.
struct Rank {
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
    fn start(rank: usize, host: &str, role: &str, address: &str, secret: &str) -> Rank {
        let mut child = Command::new(std::env::current_exe().expect("a test knows its file"))
            .args(["--exact", "deaths::worker_entry", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("PHALANX_RANK", rank.to_string())
            .env("PHALANX_SIZE", "2")
            .env("PHALANX_RENDEZVOUS", address)
            .env("PHALANX_SECRET", secret)
            .env("PHALANX_HOST_ID", host)
            .env("PHALANX_LAUNCHER", "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test's own file can be executed");
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
    fn hear(&self, word: &str) -> Option<String> {
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

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child that was not waited for exists");
    }
}

fn survivor_is_told(hosts: [&str; 2], role: &str, victim: usize, signal: Signal, wanted: &[&str]) {
    let secret = Secret::random();
    let hex: String = secret.expose().iter().map(|b| format!("{b:02x}")).collect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound").to_string();
    let _hub = Hub::start(vec![listener], secret, 2).expect("a hub starts");
    let mut ranks: Vec<Rank> =
        (0..2).map(|rank| Rank::start(rank, hosts[rank], role, &address, &hex)).collect();
    for rank in &ranks {
        rank.hear("step 5").expect("both train");
    }
    ranks[victim].signal(signal);
    let survivor = 1 - victim;
    let told = format!("{hosts:?}, {role}, rank {victim}, {signal:?}");
    let line = ranks[survivor].hear("error").unwrap_or_else(|| panic!("{told}: it ended without an error"));
    assert!(line.starts_with("error typed true "), "{told}: {line}");
    for wanted in wanted.iter().copied().chain([format!("rank {victim}").as_str()]) {
        assert!(line.contains(wanted), "{told}: no {wanted:?} in {line}");
    }
    assert_eq!(ranks[survivor].hear("anything"), None, "{told}: it says no more");
    let ended = ranks[survivor].child.wait().expect("it is our child");
    assert!(ended.success(), "{told}: {ended}");
}

#[test]
fn a_killed_process_is_named_and_the_other_one_ends() {
    for (hosts, role, victim) in
        [(["a", "a"], "all-reduce", 1), (["a", "b"], "reduce", 1), (["a", "a"], "reduce", 0)]
    {
        survivor_is_told(hosts, role, victim, Signal::KILL, &["is lost"]);
    }
}

#[test]
fn a_stopped_process_is_named_and_the_other_one_ends() {
    for hosts in [["a", "a"], ["a", "b"]] {
        survivor_is_told(hosts, "all-reduce", 1, Signal::STOP, &["frozen"]);
    }
}
