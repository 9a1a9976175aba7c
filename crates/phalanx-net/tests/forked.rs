//! A rank that forked dies while its child lives on: the others hear of it from their connections, not from silence (FORK-1).

use phalanx_core::Rank;
use phalanx_net::{Link, World, hub::Hub, secret::Secret};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    process::Signal,
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

const DEADLINE: Duration = Duration::from_secs(30);
/// Stands before every line for the test.
const MARK: &str = "@@ ";

/// Not a test: what a rank does. It joins, opens a link, forks if it is the victim, and says what it hears of the other rank.
#[test]
fn rank_entry() {
    let Ok(victim) = std::env::var("PHALANX_TEST_VICTIM") else { return };
    let world = World::from_env().expect("the world forms");
    let other = Rank(1 - world.rank().0);
    let link = world.link(other, 7).expect("a link opens");
    if world.rank().0.to_string() == victim {
        fork_a_child_that_lives_on();
        say("forked");
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    say("ready");
    until_it_ends(&link);
    say("link ended");
    let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an event counter"));
    world.watch().expect("a world of two has a watch").subscribe(event.clone());
    while world.casualties().cause(other).is_none() {
        let limit = Timespec { tv_sec: DEADLINE.as_secs() as _, tv_nsec: 0 };
        let mut fds = [PollFd::new(&*event, PollFlags::IN)];
        assert_ne!(poll(&mut fds, Some(&limit)), Ok(0), "no verdict came");
    }
    say(&format!("lost {}", world.casualties().cause(other).expect("it was just there")));
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
}

/// The child ends when the test closes the stdin that it shares with its parent.
fn fork_a_child_that_lives_on() {
    // SAFETY: the child only reads from a descriptor and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a fork succeeds");
    if child == 0 {
        let (stdin, mut byte) = (std::io::stdin(), [0]);
        while matches!(rustix::io::read(&stdin, &mut byte), Ok(1) | Err(rustix::io::Errno::INTR)) {}
        // SAFETY: ends the child without the parent's destructors.
        unsafe { libc::_exit(0) };
    }
}

fn until_it_ends(link: &Link) {
    let limit = Timespec { tv_sec: DEADLINE.as_secs() as _, tv_nsec: 0 };
    while link.recv_some(&mut [0; 16]).is_ok() {
        assert_ne!(
            poll(&mut [PollFd::new(link, PollFlags::IN)], Some(&limit)),
            Ok(0),
            "the link did not end"
        );
    }
}

struct RankProcess {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl RankProcess {
    fn hear(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("the rank says something in time")
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A world of two ranks on two (simulated) hosts, so that nothing but connections tells of a death.
fn ranks(victim: u32, is_launched: bool) -> (Option<Hub>, Vec<RankProcess>) {
    let secret = Secret::random();
    let hex: String = secret.expose().iter().map(|b| format!("{b:02x}")).collect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let address = match is_launched {
        true => listener.local_addr().expect("it is bound").to_string(),
        // Without a port: rank 0 tries several, where one that was free a moment ago may be another test's.
        false => "127.0.0.1".to_string(),
    };
    let hub = is_launched.then(|| Hub::start(vec![listener], secret, 2).expect("a hub starts"));
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().expect("a test knows its file"));
        command
            .args(["--exact", "forked::rank_entry", "--nocapture", "--test-threads=1"])
            .env("PHALANX_TEST_VICTIM", victim.to_string())
            .env("PHALANX_RANK", rank.to_string())
            .env("PHALANX_SIZE", "2")
            .env("PHALANX_RENDEZVOUS", &address)
            .env("PHALANX_SECRET", &hex)
            .env("PHALANX_HOST_ID", format!("host{rank}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if is_launched {
            command.env("PHALANX_LAUNCHER", "1");
        }
        let mut child = command.spawn().expect("the test's own file can be executed");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tongue, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(MARK) {
                    let _ = tongue.send(said.to_string());
                }
            }
        });
        RankProcess { child, lines }
    };
    (hub, vec![start(0), start(1)])
}

#[test]
fn the_death_of_a_rank_that_forked_is_heard_from_its_connections() {
    for (victim, is_launched) in [(0, true), (1, true), (0, false), (1, false)] {
        let (_hub, ranks) = ranks(victim, is_launched);
        let (dying, other) = (&ranks[victim as usize], &ranks[1 - victim as usize]);
        assert_eq!((dying.hear().as_str(), other.hear().as_str()), ("forked", "ready"));
        let pid = rustix::process::Pid::from_child(&dying.child);
        rustix::process::kill_process(pid, Signal::KILL).expect("it was not waited for");
        assert_eq!(other.hear(), "link ended", "FORK-1: victim {victim}, launched {is_launched}");
        // A child that kept the connection to the hub would make it silence: "no heartbeat for 3.0 s".
        assert_eq!(
            other.hear(),
            "lost its connection was closed",
            "FORK-1: victim {victim}, launched {is_launched}"
        );
    }
}
