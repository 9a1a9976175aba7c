//! The timeline of running engines.

use super::{floats, on};
use crate::support::run_owners;
use phalanx_collective::{
    Communicator,
    engine::{Engine, EngineError, EngineTensor, Request, TimelineError},
};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("phalanx-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn parse(path: &Path) -> Result<Vec<Value>, String> {
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// A file that is being written: a reader may get a part of an event, and looks again.
fn parse_live(path: &Path) -> Vec<Value> {
    parse(path).or_else(|_| parse(path)).or_else(|_| parse(path)).unwrap()
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} in time");
        std::thread::yield_now();
    }
}

/// How often each event is there, as phase and name.
fn counts(events: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        let what = format!("{} {}", event["ph"].as_str().unwrap(), event["name"].as_str().unwrap());
        *counts.entry(what).or_default() += 1;
    }
    counts
}

fn sum(engine: &Engine, name: &str) -> Vec<f32> {
    floats(engine.submit(Request::allreduce(EngineTensor::new(vec![1f32; 3])).name(name)).unwrap())
}

#[test]
fn every_rank_writes_its_own_file_which_is_valid_all_the_time() {
    let folder = Folder::new("live");
    let path = folder.0.join("t.json");
    let settings = [("PHALANX_TIMELINE", path.to_str().unwrap()), ("PHALANX_TIMELINE_MARK_CYCLES", "1")];
    let name = |rank| if rank == 0 { "t.json".to_string() } else { format!("t.rank{rank}.json") };
    let own = |rank| folder.0.join(name(rank));
    let at = folder.0.clone();
    on(&[2, 1], &settings, move |engine| {
        let own = at.join(name(engine.rank().0));
        for round in 0..60 {
            assert_eq!(sum(engine, &format!("grad.{}", round % 4)), [3.0; 3]);
            if round % 5 == 0 {
                parse_live(&own);
            }
        }
        let gathered = Request::allgather(EngineTensor::new(vec![1i64; 2])).name("rows");
        engine.submit(gathered).unwrap().wait().unwrap();
        let began = Instant::now();
        until("flush", || parse_live(&own).iter().any(|e| e["args"]["dtype"] == "i64").then_some(()));
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    });
    for rank in 0..3 {
        let events = parse(&own(rank)).unwrap();
        let n = counts(&events);
        assert_eq!(events[0]["args"]["rank"], rank);
        assert_eq!((n["B NEGOTIATE_ALLREDUCE"], n["E NEGOTIATE_ALLREDUCE"]), (60, 60));
        assert_eq!((n["B ALLREDUCE"], n["E ALLREDUCE"], n["B ALLGATHER"]), (60, 60, 1));
        assert_eq!(n["B QUEUE"], n["E QUEUE"]);
        assert!(n["i CYCLE_START"] > 10 && !n.contains_key("i DROPPED_EVENTS"), "{n:?}");
        let names: Vec<&str> = events
            .iter()
            .filter(|e| e["name"] == "process_name" && e["pid"] != 0)
            .map(|e| e["args"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["grad.0", "grad.1", "grad.2", "grad.3", "rows", "before the end"]);
        // Every rank numbers operations alike.
        let numbers = |name: &str| {
            let all = events.iter().filter(|e| e["name"] == name && e["ph"] == "E");
            all.map(|e| e["args"]["operation"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(numbers("ALLREDUCE"), (0..60).collect::<Vec<_>>());
        assert_eq!((numbers("ALLGATHER"), numbers("BARRIER")), (vec![60], vec![61]));
    }
}

#[test]
fn a_timeline_is_started_and_stopped_again_and_again() {
    let folder = Folder::new("again");
    let at = folder.0.clone();
    on(&[2], &[], move |engine| {
        let file = |i: usize| at.join(format!("{i}.{}.json", engine.rank()));
        engine.stop_timeline().unwrap();
        for i in 0..20 {
            assert_eq!(sum(engine, "outside"), [2.0; 3]);
            engine.start_timeline(file(i), false).unwrap();
            let error = engine.start_timeline(file(99), false).unwrap_err();
            assert!(matches!(error, EngineError::Timeline(TimelineError::Running { .. })), "{error}");
            assert!(error.to_string().ends_with(".json; stop it first"), "{error}");
            for _ in 0..=i {
                assert_eq!(sum(engine, "inside"), [2.0; 3]);
            }
            engine.stop_timeline().unwrap();
            let n = counts(&parse(&file(i)).unwrap());
            assert_eq!(n["E ALLREDUCE"], i + 1);
            assert!(!n.contains_key("i CYCLE_START"));
            assert!(!file(99).exists());
        }
        let error = engine.start_timeline(at.join("missing/t.json"), false).unwrap_err();
        assert!(matches!(error, EngineError::Timeline(TimelineError::File { .. })), "{error}");
        assert!(error.to_string().contains("missing/t.json: No such file or directory"), "{error}");
    });
}

#[test]
fn operations_of_sets_and_disagreements_are_told_and_a_forced_end_leaves_a_whole_file() {
    let folder = Folder::new("sets");
    let at = folder.0.clone();
    run_owners(&[2], &[], move |comm| {
        let engine = Engine::start(comm).unwrap();
        let path = at.join(format!("{}.json", engine.rank()));
        engine.start_timeline(&path, false).unwrap();
        let set = engine.add_process_set(&[engine.rank().0]).unwrap_err();
        assert!(set.to_string().contains("Mismatched"), "{set}");
        let set = engine.add_process_set(&[1]).unwrap();
        if engine.rank().0 == 1 {
            floats(
                engine.submit(Request::allreduce(EngineTensor::new(vec![1f32])).name("x").set(set)).unwrap(),
            );
        }
        engine.submit(Request::barrier()).unwrap().wait().unwrap();
        let me = engine.rank().0;
        drop(engine);
        let events = parse(&path).unwrap();
        let n = counts(&events);
        assert_eq!((n["E NEGOTIATE_ADD_PROCESS_SET"], n["E ADD_PROCESS_SET"]), (2, 1));
        assert!(events.iter().any(|e| e["args"]["refused"] == "ranks disagree"));
        let in_set = events.iter().any(|e| e["args"]["name"] == "x (process set 1)");
        assert_eq!(in_set, me == 1);
    });
}

#[test]
fn settings_that_name_no_possible_file_cost_the_timeline_and_nothing_else() {
    let folder = Folder::new("impossible");
    let at = folder.0.clone();
    let missing = folder.0.join("missing/t.json");
    on(&[2], &[("PHALANX_TIMELINE", missing.to_str().unwrap())], move |engine| {
        assert_eq!(sum(engine, "x"), [2.0; 3]);
        assert!(!at.join("missing").exists());
        // Nothing is running, so another one can be started.
        let path = at.join(format!("{}.json", engine.rank()));
        engine.start_timeline(&path, false).unwrap();
        assert_eq!(sum(engine, "x"), [2.0; 3]);
        engine.stop_timeline().unwrap();
        assert_eq!(counts(&parse(&path).unwrap())["E ALLREDUCE"], 1);
    });
}

/// A process that is killed at the end of the test, if not before.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const FILE: &str = "PHALANX_TEST_TIMELINE";

/// Not a test of its own: what the killed process does.
#[test]
fn timeline_worker() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let engine = Engine::start(Communicator::from_env().unwrap()).unwrap();
    engine.start_timeline(path, true).unwrap();
    for i in 0.. {
        sum(&engine, &format!("grad.{}", i % 7));
    }
}

/// TIME-1.
#[test]
fn a_killed_process_leaves_a_whole_file() {
    let folder = Folder::new("killed");
    for round in 0..10u64 {
        let path = folder.0.join(format!("{round}.json"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "engine::timeline::timeline_worker", "--nocapture"]).env(FILE, &path);
        let worker = command.stdout(Stdio::null()).spawn().map(Worker).unwrap();
        until("event", || fs::read(&path).ok().filter(|t| t.iter().filter(|c| **c == b'{').count() > 200));
        // In the middle of writing, at another place each time.
        let moment = Instant::now() + Duration::from_micros(round * 1_937);
        until("moment", || (Instant::now() >= moment).then_some(()));
        rustix::process::kill_process(Pid::from_child(&worker.0), Signal::KILL).unwrap();
        drop(worker);
        let n = counts(&parse(&path).unwrap());
        assert!(n["E ALLREDUCE"] > 10, "{n:?}");
    }
}

/// Two processes that are given one file would spoil it for each other.
#[test]
fn a_file_that_another_process_writes_is_refused() {
    let folder = Folder::new("taken");
    let path = folder.0.join("t.json");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "engine::timeline::timeline_worker", "--nocapture"]).env(FILE, &path);
    let worker = command.stdout(Stdio::null()).spawn().map(Worker).unwrap();
    until("file", || path.exists().then_some(()));
    let given = path.clone();
    run_owners(&[1], &[], move |comm| {
        let engine = Engine::start(comm).unwrap();
        let error = engine.start_timeline(&given, false).unwrap_err().to_string();
        assert!(error.ends_with("each rank needs a file of its own"), "{error}");
    });
    drop(worker);
    parse(&path).unwrap();
}
