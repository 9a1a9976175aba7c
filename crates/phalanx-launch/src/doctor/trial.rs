//! A trial world of one rank on each host: which pairs reach each other, and how fast.
//!
//! `phalanx run` starts the ranks; they are told through their stdin which pair measures next, so that no two pairs disturb each other.
//! A host whose rank does not come is named and left out of a second trial.

use super::{
    DoctorArgs,
    finding::Finding,
    pair::{self, TrialAnswer, TrialOrder, TrialWord},
};
use crate::ending::await_end;
use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long all pairs together send, and each direction of one at most.
const ALL_SEND: Duration = Duration::from_secs(20);
const ONE_SENDS: Duration = Duration::from_millis(250);
const ONE_SENDS_AT_LEAST: Duration = Duration::from_millis(20);
/// A connection that stands has so long for what is measured on it, besides sending.
const MEASURE: Duration = Duration::from_secs(5);
/// The longest time that two ranks try to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// One attempt to connect may begin just before the time is over.
const ATTEMPT: Duration = Duration::from_secs(4);
/// How long ranks have to end after the last order.
const GOODBYE: Duration = Duration::from_secs(5);
/// Worlds that are tried, each with fewer hosts.
const N_TRIALS: usize = 3;

/// One finding for each pair of hosts, and for each host that did not come.
pub fn check(args: &DoctorArgs, hosts: &[String]) -> Vec<Finding> {
    let mut hosts = hosts.to_vec();
    let mut findings = Vec::new();
    for _ in 0..N_TRIALS {
        if hosts.len() < 2 {
            break;
        }
        match Trial::start(args, &hosts).and_then(|trial| trial.run()) {
            Ok(pairs) => {
                findings.extend(pairs);
                break;
            }
            Err(Failed::Missing { ranks, why }) => {
                let gone: Vec<String> =
                    ranks.iter().filter_map(|r| hosts.get(*r as usize)).cloned().collect();
                findings.extend(gone.iter().map(|host| absent(host, &why)));
                hosts.retain(|host| !gone.contains(host));
            }
            Err(Failed::World(why)) => {
                findings.push(Finding::fail(
                    "network",
                    format!("a trial world of these hosts did not form: {why}"),
                    "a job on these hosts would not start either",
                    "mend what is said here, or look closer with: phalanx run -v -H ... -- true",
                ));
                break;
            }
        }
    }
    findings
}

fn absent(host: &str, why: &str) -> Finding {
    Finding::fail(
        host,
        format!("starts ranks, but they do not reach the meeting point: {why}"),
        "no rank there can join a job that is started here",
        "allow TCP from there to this machine, or name the network that both have: phalanx run --interface NAME",
    )
}

/// Why there are no pairs.
enum Failed {
    /// These ranks did not come.
    Missing {
        ranks: Vec<u32>,
        why: String,
    },
    World(String),
}

/// The launcher of a trial world, and what its ranks say.
struct Trial<'a> {
    hosts: &'a [String],
    launcher: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<TrialAnswer>,
    stderr: Option<JoinHandle<String>>,
    connect: Duration,
    send: Duration,
    /// For the ranks to come.
    start: Duration,
}

impl<'a> Trial<'a> {
    fn start(args: &DoctorArgs, hosts: &'a [String]) -> Result<Trial<'a>, Failed> {
        let n_pairs = (hosts.len() * (hosts.len() - 1) / 2) as u32;
        let connect = args.timeout.min(CONNECT);
        let send = (ALL_SEND / (2 * n_pairs)).clamp(ONE_SENDS_AT_LEAST, ONE_SENDS);
        let longest = 2 * args.timeout + GOODBYE + n_pairs * (connect + ATTEMPT + 2 * send + MEASURE);
        let list = hosts.iter().map(|host| format!("{host}:1")).collect::<Vec<_>>().join(",");
        let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
        let own = &args.hosts.own;
        let mut command = Command::new(&own.exe);
        command.args(["run", "--np", &hosts.len().to_string(), "--hosts", &list]);
        // The hosts and their slots are known already; only how to reach them is passed on.
        for (flag, value) in [
            ("--rsh", args.hosts.rsh.as_ref().map(Into::into)),
            ("--remote-exe", args.hosts.remote_exe.clone().map(std::path::PathBuf::into_os_string)),
        ] {
            if let Some(value) = value {
                command.arg(flag).arg(value);
            }
        }
        command.args(["--stdin", "all", "--tag-output", "never", "--grace", "1"]);
        command.args(["--start-timeout", &seconds(args.timeout), "--timeout", &seconds(longest)]);
        command.args(["-x", &format!("PHALANX_TIMEOUT={}", seconds(connect))]);
        command.args(["-x", &format!("PHALANX_START_TIMEOUT={}", seconds(args.timeout))]);
        command.args(["--itself", "--", "doctor", "--as-rank"]);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut launcher =
            command.spawn().map_err(|why| Failed::World(format!("{}: {why}", own.exe.display())))?;
        let (stdout, stderr) = (launcher.stdout.take(), launcher.stderr.take());
        let (give, answers) = sync_channel(64);
        thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
            for line in lines.map_while(Result::ok) {
                // A remote shell may say something in between.
                if let Ok(answer) = serde_json::from_str(&line)
                    && give.send(answer).is_err()
                {
                    return;
                }
            }
        });
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.map(|pipe| pipe.take(64 << 10).read_to_string(&mut text));
            text
        });
        Ok(Trial {
            hosts,
            orders: launcher.stdin.take(),
            launcher,
            answers,
            stderr: Some(stderr),
            connect,
            send,
            start: 2 * args.timeout + GOODBYE,
        })
    }

    fn run(mut self) -> Result<Vec<Finding>, Failed> {
        self.gather()?;
        let n = self.hosts.len() as u32;
        let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| [a, b]));
        Ok(pairs.map(|pair| self.measure(pair)).collect())
    }

    /// Waits until all ranks have joined.
    fn gather(&mut self) -> Result<(), Failed> {
        let deadline = Instant::now() + self.start;
        let (mut n_joined, mut missing, mut whys) = (0, Vec::new(), Vec::new());
        while n_joined < self.hosts.len() {
            match self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(TrialAnswer { said: TrialWord::Joined, .. }) => n_joined += 1,
                Ok(TrialAnswer { said: TrialWord::StayedOut { missing: ranks, why }, by }) => {
                    missing
                        .extend(ranks.into_iter().filter(|rank| !missing.contains(rank)).collect::<Vec<_>>());
                    // Who did not come says best why.
                    let place = if missing.contains(&by) { 0 } else { whys.len() };
                    whys.insert(place, why);
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.end();
                    let why = whys.into_iter().next();
                    return Err(match why {
                        Some(why) if !missing.is_empty() => Failed::Missing { ranks: missing, why },
                        why => Failed::World(why.unwrap_or_else(|| self.last_words())),
                    });
                }
            }
        }
        Ok(())
    }

    /// Lets one pair measure and waits for what both say.
    fn measure(&mut self, pair: [u32; 2]) -> Finding {
        let millis = |time: Duration| time.as_millis() as u64;
        let within = 2 * self.send + MEASURE;
        let order = TrialOrder { pair, send_ms: millis(self.send), within_ms: millis(within) };
        let line = serde_json::to_string(&order).unwrap_or_default() + "\n";
        // A launcher that is gone is noticed where answers are read.
        let _ = self.orders.as_mut().map(|orders| orders.write_all(line.as_bytes()));
        let deadline = Instant::now() + self.connect + ATTEMPT + within;
        let mut said: BTreeMap<u32, TrialWord> = BTreeMap::new();
        while said.len() < 2 {
            match self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(answer) => {
                    let with = match &answer.said {
                        TrialWord::Reached { with, .. } | TrialWord::NotReached { with, .. } => *with,
                        TrialWord::Joined | TrialWord::StayedOut { .. } => continue,
                    };
                    // Late words about another pair count for nothing.
                    if pair == [answer.by.min(with), answer.by.max(with)] {
                        said.insert(answer.by, answer.said);
                    }
                }
                Err(_) => break,
            }
        }
        let hosts = pair.map(|rank| self.hosts[rank as usize].as_str());
        pair::judge(hosts, pair.map(|rank| said.get(&rank)))
    }

    /// Ends the ranks by the end of their input, and the launcher.
    fn end(&mut self) {
        drop(self.orders.take());
        if !matches!(await_end(&mut self.launcher, GOODBYE), Ok(Some(_))) {
            let group = rustix::process::Pid::from_child(&self.launcher);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = self.launcher.wait();
        }
    }

    fn last_words(&mut self) -> String {
        let text = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let lines: Vec<&str> = text.trim().lines().map(str::trim).collect();
        if lines.is_empty() { io::Error::from(io::ErrorKind::TimedOut).to_string() } else { lines.join("; ") }
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
