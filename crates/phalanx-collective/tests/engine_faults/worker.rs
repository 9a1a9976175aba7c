//! What a rank of these tests does with its engine. Orders come as variables: `PHALANX_TEST_SCENE` (see [`main`]), `PHALANX_TEST_VICTIM` (a rank)
//! and `PHALANX_TEST_FAULT` (what it does when its stdin is closed; signals come from the test).

use super::forked;
use crate::processes::worker::MARK;
use phalanx_collective::{
    Communicator,
    engine::{Engine, EngineError, EngineOptions, EngineTensor, Frame, Handle, Request, Whereabouts},
};
use phalanx_core::ReduceOp;
use rustix::process::Signal;
use std::{
    fmt::Display,
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Nothing is waited for longer.
const DEADLINE: Duration = Duration::from_secs(20);
/// Tensors of one step.
const N_TENSORS: usize = 4;
/// Steps after which a sequence is surely replayed.
const STEADY: u64 = 30;

fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

pub fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    // A test that no longer listens has ended.
    let _ = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
}

/// Stays until the test closes this rank's stdin.
fn linger() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// The body of the test `worker_entry`, which does nothing unless this process was started as a rank.
pub fn main() {
    if std::env::var_os("PHALANX_TEST_ROLE").is_none() {
        return;
    }
    // Also when the test itself is killed, no rank outlives it.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let communicator = Communicator::from_env().expect("a world forms");
    let options = EngineOptions::from_config(communicator.world().config());
    let options = EngineOptions { whereabouts: whereabouts(), ..options };
    let engine = Engine::start_with(communicator, options).expect("an engine starts");
    match var("PHALANX_TEST_SCENE").as_str() {
        "waiting" => wait_for_the_victim(engine),
        "replaying" => step_until_something_happens(engine, 0),
        "subset" => in_a_subset(engine),
        "stalling" => stall(&engine),
        "idle" => idle(&engine),
        "forking" => forked::fork_with(engine),
        other => panic!("no scene {other:?}"),
    }
}

/// `PHALANX_TEST_WHERE`: "says" where it is, or "never" returns.
fn whereabouts() -> Option<Whereabouts> {
    let frame = |line| Frame { file: "train.rs".into(), line, function: "step\x1b[2J".into() };
    match var("PHALANX_TEST_WHERE").as_str() {
        "says" => Some(Whereabouts::new(move || vec![frame(7), frame(40)])),
        "never" => Some(Whereabouts::new(|| {
            loop {
                std::thread::park();
            }
        })),
        _ => None,
    }
}

fn is_victim(engine: &Engine) -> bool {
    engine.rank().to_string() == var("PHALANX_TEST_VICTIM")
}

pub fn ones(name: impl Into<String>) -> Request {
    Request::allreduce(EngineTensor::new(vec![1f32; 300])).name(name).op(ReduceOp::Sum)
}

/// One tensor of a step; the thread that waits has promised to run the last one itself (HELM-3).
fn step_of(i: usize) -> Request {
    let request = ones(format!("t{i}"));
    if i + 1 == N_TENSORS { request.awaited() } else { request }
}

fn warm_up(engine: &Engine) {
    for _ in 0..5 {
        engine.submit(ones("warm")).expect("nothing is wrong yet").wait().expect("nothing is wrong yet");
    }
}

/// Every rank waits for operations that the victim never submits.
fn wait_for_the_victim(engine: Engine) {
    warm_up(&engine);
    if is_victim(&engine) {
        say("ready");
        linger();
        return commit(engine);
    }
    let handles = (0..N_TENSORS).map(|i| engine.submit(ones(format!("w{i}")))).collect();
    say("ready");
    tell(engine, 0, handles);
}

/// Every rank repeats the same step, long enough for a replay, until it fails.
fn step_until_something_happens(engine: Engine, set: u32) {
    let committing = Arc::new(AtomicBool::new(false));
    if is_victim(&engine) {
        let flag = committing.clone();
        std::thread::spawn(move || {
            linger();
            if var("PHALANX_TEST_FAULT") == "exit" {
                std::process::exit(0);
            }
            // Relaxed: the flag itself is all there is to see.
            flag.store(true, Ordering::Relaxed);
        });
    }
    for step in 0u64.. {
        if committing.load(Ordering::Relaxed) {
            return commit(engine);
        }
        let handles: Vec<Result<Handle, EngineError>> =
            (0..N_TENSORS).map(|i| engine.submit(step_of(i).set(set))).collect();
        if handles.iter().any(Result::is_err) {
            return tell(engine, set, handles);
        }
        for (i, handle) in handles.into_iter().enumerate() {
            let deadline = Instant::now() + DEADLINE;
            match handle.expect("checked above").wait_until(deadline) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    // The rest of the step was submitted, too; its handles are gone, but its names are not needed any more.
                    return conclude(engine, set, vec![error.to_string()]);
                }
                Err(_) => {
                    say(format!("hangs in t{i}, step {step}"));
                    return linger();
                }
            }
        }
        if step == STEADY {
            say(format!("ready {}", engine.counters().replayed));
        }
    }
}

/// The victim and its neighbours in rank work in a set of their own; the other ranks wait for something else.
fn in_a_subset(engine: Engine) {
    let (n, victim) = (engine.size(), var("PHALANX_TEST_VICTIM").parse::<u32>().expect("a rank"));
    let mut members = vec![victim, (victim + 1) % n];
    members.sort_unstable();
    let set = engine.add_process_set(&members).expect("a set is made");
    if members.contains(&engine.rank().0) {
        return step_until_something_happens(engine, set);
    }
    let handles = vec![engine.submit(ones("never"))];
    say("ready");
    tell(engine, 0, handles);
}

/// The fault of a rank that can still choose.
fn commit(engine: Engine) {
    match var("PHALANX_TEST_FAULT").as_str() {
        "exit" => std::process::exit(0),
        "panic" => panic!("as ordered"),
        "shutdown" => {
            match engine.shutdown() {
                Ok(_) => say("shut"),
                Err(error) => say(format!("failed {error}")),
            }
            // Its stdin is closed already; it stays until the others have spoken.
            std::thread::park_timeout(Duration::from_millis(500));
        }
        other => panic!("no fault {other:?}"),
    }
}

/// Says what every one of these, and whatever is submitted later, is answered.
fn tell(engine: Engine, set: u32, handles: Vec<Result<Handle, EngineError>>) {
    let deadline = Instant::now() + DEADLINE;
    let mut texts = Vec::new();
    for handle in handles {
        let answer = match handle {
            Err(error) => Err(error),
            Ok(handle) => match handle.wait_until(deadline) {
                Ok(answer) => answer,
                Err(_) => {
                    say("hangs");
                    return linger();
                }
            },
        };
        texts.push(answer.map_or_else(|error| error.to_string(), |_| "an answer".into()));
    }
    conclude(engine, set, texts);
}

fn conclude(engine: Engine, set: u32, mut texts: Vec<String>) {
    let at = Instant::now();
    for (name, set) in [("later", set), ("later still", 0)] {
        let answer = engine.submit(ones(name).set(set)).and_then(|handle| {
            handle.wait_until(at + DEADLINE).unwrap_or(Err(EngineError::Taken)).map(|_| ())
        });
        texts.push(answer.map_or_else(|error| error.to_string(), |()| "an answer".into()));
    }
    let later_us = at.elapsed().as_micros();
    texts.dedup();
    say(format!("verdict {}", texts.join(" | ")));
    say(format!("later {later_us}"));
    linger();
    drop(engine);
    say("over");
}

/// The victim does not submit what the others do; it waits for something of its own.
fn stall(engine: &Engine) {
    warm_up(engine);
    let name = if is_victim(engine) { "other" } else { "late" };
    let handle = engine.submit(ones(name)).expect("nothing is wrong yet");
    let until = Instant::now() + DEADLINE;
    let mut told = false;
    let mut waiting = Some(handle);
    while let Some(handle) = waiting.take() {
        if let (false, Some(report)) = (told, engine.last_stall()) {
            told = true;
            say(format!("report {}", report.to_string().replace('\n', ";")));
            if var("PHALANX_STALL_ABORT").is_empty() {
                return linger();
            }
        }
        match handle.wait_until(Instant::now() + Duration::from_millis(5)) {
            Ok(answer) => {
                say(format!("verdict {}", answer.map_or_else(|e| e.to_string(), |_| "an answer".into())));
            }
            Err(_) if Instant::now() > until => say("hangs"),
            Err(again) => waiting = Some(again),
        }
    }
    match engine.submit(ones("later")) {
        Ok(_) => say("later accepted"),
        Err(error) => say(format!("later {error}")),
    }
    linger();
}

fn idle(engine: &Engine) {
    warm_up(engine);
    say("idle");
    linger();
}
