//! What a rank of these tests does: it joins its world, repeats collectives, commits the fault it was ordered to, and says how it went.
//!
//! Orders come as variables: `PHALANX_TEST_OPS` (names of collectives, repeated in order; with commas between them),
//! `PHALANX_TEST_ROUNDS` (calls until it is done; endless without), `PHALANX_TEST_FAULTS` (`rank:fault:round:delay_us`, with commas
//! between them), `PHALANX_TEST_AFTER` (what it does after an error: see [`After`]). It says `joined`, `busy` after some calls, `done`,
//! `left`, `lost RANK CAUSE` or `failed ERROR`.

use super::chance::Chance;
use phalanx_collective::{Communicator, Error};
use phalanx_core::{Rank, ReduceOp};
use rustix::process::{Signal, getpid, kill_process};
use std::{
    fs,
    io::{Read, Write},
    os::fd::BorrowedFd,
    str::FromStr,
    time::{Duration, Instant},
};

/// Stands before every line for the test.
pub const MARK: &str = "@@ ";
/// Calls after which a rank says that it is busy.
const BUSY: u64 = 3;

/// Every collective, by the names that orders use.
pub const OPS: &[&str] = &[
    "allreduce-small",
    "allreduce-large",
    "reduce_scatter",
    "allgather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "barrier",
];

/// What a rank does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    /// Leaves the world in order, while the process goes on.
    Leave,
    /// Exits with 0 without leaving.
    Exit,
    /// All its connections are shut down while it goes on.
    HalfOpen,
    /// Computes (it says `away`) until its stdin is closed, then goes on. No fault: others wait.
    Away,
}

impl Fault {
    pub const ALL: &[(Fault, &str)] = &[
        (Fault::Kill, "kill"),
        (Fault::Stop, "stop"),
        (Fault::Leave, "leave"),
        (Fault::Exit, "exit"),
        (Fault::HalfOpen, "half-open"),
        (Fault::Away, "away"),
    ];

    pub fn name(self) -> &'static str {
        Fault::ALL.iter().find(|(f, _)| *f == self).map_or("", |(_, name)| name)
    }
}

/// What a rank does after its call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It stays, with its communicator: nobody may need its end to learn of the failure.
    Stay,
    /// It leaves the world in order and ends.
    Leave,
    /// It ends at once: nobody may take its end for the reason.
    Exit,
}

/// A fault, whose, and when: this long after that call began.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub rank: usize,
    pub fault: Fault,
    pub round: u64,
    pub delay: Duration,
}

impl Order {
    pub fn text(&self) -> String {
        format!("{}:{}:{}:{}", self.rank, self.fault.name(), self.round, self.delay.as_micros())
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Order, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |i: usize| parts[i].parse::<u64>().map_err(|e| format!("{text}: {e}"));
        let fault = Fault::ALL.iter().find(|(_, name)| *name == parts[1]).ok_or("no such fault")?.0;
        let delay = Duration::from_micros(number(3)?);
        Ok(Order { rank: number(0)? as usize, fault, round: number(2)?, delay })
    }
}

/// The body of the test `worker_entry`, which does nothing unless this process was started as a rank.
pub fn main() {
    if std::env::var_os("PHALANX_TEST_ROLE").is_none() {
        return;
    }
    // PROC-1, also when the test itself is killed.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    match Communicator::from_env() {
        Ok(comm) => {
            say("joined");
            work(comm);
        }
        Err(error) => {
            confess(&error);
            linger();
        }
    }
}

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A test that no longer listens has ended.
    let _ = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
}

fn confess(error: &Error) {
    match error {
        Error::PeerLost { rank, cause } => say(&format!("lost {rank} {cause}")),
        other => say(&format!("failed {other}")),
    }
}

/// Stays until the test closes this rank's stdin.
fn linger() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn work(mut comm: Communicator) {
    let me = comm.rank().index();
    let ops = var("PHALANX_TEST_OPS").unwrap_or_else(|| "barrier".into());
    let ops: Vec<&str> = ops.split(',').collect();
    let rounds = var("PHALANX_TEST_ROUNDS").map_or(u64::MAX, |r| r.parse().expect("a number of rounds"));
    let orders = var("PHALANX_TEST_FAULTS").unwrap_or_default();
    let orders: Vec<Order> =
        orders.split(',').filter(|o| !o.is_empty()).map(|o| o.parse().expect("an order")).collect();
    let mut pause = Chance(me as u64);
    for round in 0..rounds {
        if let Some(order) = orders.iter().find(|o| o.rank == me && o.round == round) {
            match order.fault {
                Fault::Leave => {
                    drop(comm);
                    say("left");
                    return linger();
                }
                Fault::Away => {
                    say("away");
                    linger();
                }
                fault => commit(fault, order.delay),
            }
        }
        if let Err(error) = once(&mut comm, ops[round as usize % ops.len()]) {
            confess(&error);
            match var("PHALANX_TEST_AFTER").as_deref() {
                Some("Exit") => std::process::exit(1),
                Some("Leave") => return drop(comm),
                _ => return linger(),
            }
        }
        if round + 1 == BUSY {
            say("busy");
        }
        // Ranks that never drift apart would only ever be hit in the same places.
        if pause.below(8) == 0 {
            std::thread::yield_now();
        }
    }
    say("done");
    linger();
}

/// Commits a fault a little later, from another thread: in the middle of whatever happens then.
fn commit(fault: Fault, delay: Duration) {
    std::thread::spawn(move || {
        let until = Instant::now() + delay;
        while Instant::now() < until {
            std::thread::yield_now();
        }
        match fault {
            Fault::Kill => kill_process(getpid(), Signal::KILL).expect("this process exists"),
            Fault::Stop => kill_process(getpid(), Signal::STOP).expect("this process exists"),
            Fault::Exit => std::process::exit(0),
            Fault::HalfOpen => shut_connections(),
            Fault::Leave | Fault::Away => unreachable!("the worker itself does these"),
        }
    });
}

fn shut_connections() {
    for entry in fs::read_dir("/proc/self/fd").expect("/proc is mounted").flatten() {
        let is_socket =
            fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_string_lossy().parse::<i32>();
        if let (true, Ok(number @ 3..)) = (is_socket, number) {
            // SAFETY: the descriptor was open a moment ago; should it be closed or used again by now, the call fails or shuts
            // another connection of this process, which is what this fault is for.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
    }
}

/// One call of the named collective.
fn once(comm: &mut Communicator, op: &str) -> Result<(), Error> {
    let (me, n) = (comm.rank().index(), comm.size() as usize);
    let root = Rank::at(n - 1);
    let counts: Vec<u64> = (0..n as u64).map(|r| 4000 + r).collect();
    let total = counts.iter().sum::<u64>() as usize;
    let own = vec![1f32; counts[me] as usize];
    match op {
        "allreduce-small" => comm.allreduce(&mut [1f32; 5], ReduceOp::Sum),
        "allreduce-large" => comm.allreduce(&mut vec![1f32; 250_001], ReduceOp::Sum),
        "reduce_scatter" => comm.reduce_scatter(&vec![1f32; total], &mut own.clone(), &counts, ReduceOp::Sum),
        "allgather" => comm.allgather(&own, &mut vec![0.0; total], &counts),
        "broadcast" => comm.broadcast(&mut vec![1f32; 30_000], root),
        "reduce" => comm.reduce(&mut vec![1f32; 30_000], ReduceOp::Max, root),
        "gather" => comm.gather(&own, &mut vec![0.0; total], &counts, root),
        "scatter" => comm.scatter(&vec![1f32; total], &mut own.clone(), &counts, root),
        "alltoall" => comm.alltoall(&vec![1f32; n * 500], &mut vec![0.0; n * 500], &vec![500; n * n]),
        "barrier" => comm.barrier(),
        other => panic!("no collective {other}"),
    }
}
