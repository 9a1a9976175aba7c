//! Whom the launcher names: the rank that all survivors blame, however it ended, and not the first survivor that failed (END-4).

use crate::launch::support::{Done, finish, phalanx};
use phalanx_collective::{
    Communicator,
    engine::{Engine, EngineTensor, Request},
};
use phalanx_core::ReduceOp;
use rustix::process::{Signal, getpid, kill_process};
use std::{process, thread};

/// What survivors end with, so that a messenger's code is known when it is seen.
const MESSENGER: i32 = 9;
/// The call before which the victim goes.
const ROUND: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Ends with 0, without a word.
    Exit,
    /// Leaves in order, and ends with 0.
    Leave,
    /// Leaves in order, and goes on with something else.
    Linger,
    Stop,
    Kill,
    Panic,
}

impl Fault {
    const ALL: [Fault; 6] =
        [Fault::Exit, Fault::Leave, Fault::Linger, Fault::Stop, Fault::Kill, Fault::Panic];

    /// What the launcher says of the victim, and its exit code.
    fn verdict(self) -> (&'static str, i32) {
        match self {
            Fault::Exit | Fault::Leave => ("exited with code 0 while others still waited for it, after ", 1),
            Fault::Linger => {
                ("left while others still waited for it, and ended on request (SIGTERM), after ", 143)
            }
            Fault::Stop => ("was frozen, and ended by the launcher, after ", 137),
            Fault::Kill => ("was killed by SIGKILL after ", 137),
            Fault::Panic => ("exited with code 101 after ", 101),
        }
    }
}

/// Not a test: what a rank of the jobs below executes.
#[test]
fn rank_entry() {
    let Ok(orders) = std::env::var("PHALANX_TEST_VERDICT") else { return };
    let words: Vec<&str> = orders.split(' ').collect();
    let fault = Fault::ALL.into_iter().find(|f| format!("{f:?}") == words[0]).expect("a known fault");
    let communicator = Communicator::from_env().expect("the world forms");
    let is_victim = communicator.rank().0.to_string() == words[1];
    match words[2] {
        "engine" => with_engine(Engine::start(communicator).expect("an engine starts"), fault, is_victim),
        _ => with_calls(communicator, fault, is_victim),
    }
}

fn with_calls(mut communicator: Communicator, fault: Fault, is_victim: bool) {
    for round in 0.. {
        if is_victim && round == ROUND {
            strike(fault);
            drop(communicator);
            return gone(fault);
        }
        if communicator.allreduce(&mut [1f32; 100], ReduceOp::Sum).is_err() {
            process::exit(MESSENGER);
        }
    }
}

fn with_engine(engine: Engine, fault: Fault, is_victim: bool) {
    for round in 0.. {
        if is_victim && round == ROUND {
            strike(fault);
            drop(engine);
            return gone(fault);
        }
        let request = Request::allreduce(EngineTensor::new(vec![1f32; 100])).name("x").op(ReduceOp::Sum);
        if engine.submit(request).and_then(|handle| handle.wait()).is_err() {
            process::exit(MESSENGER);
        }
    }
}

fn strike(fault: Fault) {
    match fault {
        Fault::Exit => process::exit(0),
        Fault::Stop => {
            kill_process(getpid(), Signal::STOP).expect("it is our own process");
            // This thread may run on for a moment before the signal stops it.
            loop {
                thread::park();
            }
        }
        Fault::Kill => kill_process(getpid(), Signal::KILL).expect("it is our own process"),
        Fault::Panic => panic!("as ordered"),
        Fault::Leave | Fault::Linger => {}
    }
}

fn gone(fault: Fault) {
    if fault == Fault::Linger {
        loop {
            thread::park();
        }
    }
}

fn job(n_ranks: usize, victim: usize, fault: Fault, how: &str) -> Done {
    let exe = std::env::current_exe().expect("a test knows its file");
    let exe = exe.to_str().expect("its path is text");
    let np = n_ranks.to_string();
    let entry = ["--exact", "launch::verdicts::rank_entry", "--nocapture", "--test-threads=1"];
    let args = ["run", "-np", &np, "--", exe].into_iter().chain(entry).collect::<Vec<_>>();
    finish(
        phalanx(&args)
            .env("PHALANX_TEST_VERDICT", format!("{fault:?} {victim} {how}"))
            .env("RUST_BACKTRACE", "0"),
    )
}

/// Every number of ranks, the first and the last as victims, in calls and in an engine.
fn every_job_names_its_victim(fault: Fault) {
    let mut jobs = Vec::new();
    for n_ranks in 2..=4 {
        for victim in [0, n_ranks - 1] {
            jobs.extend(["calls", "engine"].map(|how| (n_ranks, victim, how)));
        }
    }
    // Those that are noticed by silence at the same time, or it would take a minute and a half.
    let n_at_once = if matches!(fault, Fault::Stop | Fault::Linger) { jobs.len() } else { 1 };
    for some in jobs.chunks(n_at_once) {
        thread::scope(|scope| {
            for &(n_ranks, victim, how) in some {
                scope.spawn(move || {
                    let done = job(n_ranks, victim, fault, how);
                    let (said, code) = fault.verdict();
                    let headline = done.stderr.lines().find(|l| l.starts_with("phalanx: rank"));
                    let headline = headline.unwrap_or_else(|| panic!("no headline: {done:?}"));
                    let name = format!("phalanx: rank {victim} on localhost (pid ");
                    let case = format!("{fault:?} of rank {victim} of {n_ranks} in {how}");
                    assert!(headline.starts_with(&name) && headline.contains(said), "{case}: {done:?}");
                    assert_eq!(done.code, Some(code), "{case}: {done:?}");
                });
            }
        });
    }
}

#[test]
fn a_rank_that_ends_with_0_in_the_middle_is_the_headline() {
    every_job_names_its_victim(Fault::Exit);
}

#[test]
fn a_rank_that_leaves_in_order_in_the_middle_is_the_headline() {
    every_job_names_its_victim(Fault::Leave);
}

#[test]
fn a_rank_that_leaves_and_goes_on_with_something_else_is_the_headline() {
    every_job_names_its_victim(Fault::Linger);
}

#[test]
fn a_frozen_rank_is_the_headline() {
    every_job_names_its_victim(Fault::Stop);
}

#[test]
fn a_killed_rank_is_the_headline() {
    every_job_names_its_victim(Fault::Kill);
}

#[test]
fn a_rank_that_panics_is_the_headline() {
    every_job_names_its_victim(Fault::Panic);
}
