//! The launcher of node 0 while it waits for the others, on this machine alone: its place on a board, and its end.

use crate::launch::support::{DEADLINE, Done, Running, TempDir, eventually, finish, phalanx};
use std::{fs, process::Command};

fn node(me: &str, place: &str, flags: &[&str]) -> Command {
    let words = ["run", "--nnodes", "2", "--node-rank", me, "--rdzv", place, "--interface", "lo", "-np", "1"];
    let words = words.into_iter().filter(|word| me == "0" || !["--interface", "lo"].contains(word));
    let words: Vec<&str> = words.chain(flags.iter().copied()).chain(["touch", "/dev/null"]).collect();
    let mut command = phalanx(&words);
    command.env("PHALANX_SECRET", "correct horse battery staple");
    command
}

/// Node 0, once its entry is in the directory.
fn waiting(dir: &TempDir) -> Running {
    let entry = dir.0.join("meet/rank0");
    let before = fs::read(&entry).unwrap_or_default();
    let running = Running::start(&mut node("0", &format!("file:{}", dir.path("meet")), &[]));
    eventually(DEADLINE, "node 0 is announced", || fs::read(&entry).is_ok_and(|now| now != before));
    running
}

fn n_entries(dir: &TempDir) -> usize {
    fs::read_dir(dir.0.join("meet")).unwrap().count()
}

/// RDZV-8
#[test]
fn a_second_node_0_is_refused_with_the_name_of_the_first_and_a_dead_one_is_not_in_the_way() {
    let dir = TempDir::new();
    let place = format!("file:{}", dir.path("meet"));
    let mut dead = waiting(&dir);
    dead.child.kill().unwrap();
    dead.child.wait().unwrap();
    assert_eq!(n_entries(&dir), 1, "it could not take its entry away");
    let first = waiting(&dir);
    let second = finish(&mut node("0", &place, &[]));
    assert_eq!(second.code, Some(1), "{second:?}");
    let named = format!("pid {}, since ", first.pid());
    assert!(
        second.stderr.contains("node 0 of this job is already there (host ")
            && second.stderr.contains(&named),
        "{second:?}"
    );
    let one = finish(&mut node("1", &place, &[]));
    let first = first.finish();
    assert_eq!((one.code, first.code), (Some(0), Some(0)), "{one:?} {first:?}");
    assert_eq!(n_entries(&dir), 0, "RDZV-6");
}

#[test]
fn a_launcher_that_is_interrupted_while_it_waits_takes_its_entry_away_and_says_so() {
    let dir = TempDir::new();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let zero = waiting(&dir);
        zero.signal(signal);
        said(
            &zero.finish(),
            code,
            &format!("ended by SIG{signal} while it waited for the other 1 of 2 hosts at file:"),
        );
        assert_eq!(n_entries(&dir), 0, "RDZV-6");
        let mut one = node("1", &format!("file:{}", dir.path("meet")), &[]);
        let one = Running::start(&mut one);
        let handles = || {
            let status = fs::read_to_string(format!("/proc/{}/status", one.pid())).unwrap_or_default();
            let line =
                |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
            let mask = u64::from_str_radix(line("SigCgt:"), 16).unwrap_or(0);
            // Its thread for signals starts when the last handler is complete; the kernel knows of a handler before it is.
            mask & 0x4002 == 0x4002 && line("Threads:").parse().is_ok_and(|n: u32| n > 1)
        };
        eventually(DEADLINE, "node 1 watches for signals", handles);
        one.signal(signal);
        said(&one.finish(), code, &format!("ended by SIG{signal} while it waited for node 0 at file:"));
    }
}

/// Between the last host's arrival and the start of the ranks: here node 0 waits for a file that nobody reads yet.
#[test]
fn a_signal_that_comes_before_the_ranks_start_ends_the_job() {
    let dir = TempDir::new();
    let place = format!("file:{}", dir.path("meet"));
    fs::create_dir_all(dir.0.join("out/rank.0")).unwrap();
    let pipe = dir.path("out/rank.0/stdout");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let out = dir.path("out");
    let started = dir.0.join("started");
    let mut zero = node("0", &place, &["--output-filename", &out]);
    let zero = Running::start(zero.args([started.to_str().unwrap()]));
    eventually(DEADLINE, "node 0 is announced", || dir.0.join("meet/rank0").exists());
    let one = Running::start(&mut node("1", &place, &[]));
    // Its entry goes when all hosts have come.
    eventually(DEADLINE, "node 0 has gathered", || !dir.0.join("meet/rank0").exists());
    zero.signal("TERM");
    let is_pending = || {
        let status = fs::read_to_string(format!("/proc/{}/status", zero.pid())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        mask.is_none_or(|mask| u64::from_str_radix(mask.trim(), 16).unwrap_or(0) != 0)
    };
    eventually(DEADLINE, "node 0 has taken the signal", || !is_pending());
    let reader = fs::File::open(&pipe).unwrap();
    let (zero, one) = (zero.finish(), one.finish());
    drop(reader);
    assert_eq!((zero.code, one.code), (Some(143), Some(143)), "{zero:?} {one:?}");
    assert!(!started.exists(), "no rank was started");
}

fn said(done: &Done, code: i32, text: &str) {
    assert_eq!(done.code, Some(code), "{done:?}");
    assert!(done.stderr.contains(text) && done.stderr.lines().count() == 1, "{text}: {done:?}");
}

#[test]
fn a_port_that_is_taken_and_too_many_ranks_are_said_at_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    let done = finish(&mut node("0", &place, &[]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.stderr.contains("another process listens there")
            && done.stderr.contains("a port that is free there"),
        "{done:?}"
    );
    let done = finish(&mut phalanx(&[
        "run",
        "--nnodes",
        "2",
        "--node-rank",
        "0",
        "--rdzv",
        &place,
        "-np",
        "5000",
        "true",
    ]));
    assert!(
        done.code == Some(2) && done.stderr.contains("-np 5000: one host has at most 1024 ranks"),
        "{done:?}"
    );
}
