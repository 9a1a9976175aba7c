//! What ranks say and where it goes.

use crate::launch::support::{DEADLINE, Done, Running, TempDir, finish, kill, phalanx, run, wait};
use std::{fs, io::Read, process::Stdio, thread};

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_line_carries_its_rank_and_keeps_its_stream() {
    let Done { code, stdout, stderr } =
        run(&["-np", "3", "--", "sh", "-c", "echo out of $PHALANX_SIZE; echo trouble >&2; printf half"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(
        sorted(&stdout),
        ["0 | half", "0 | out of 3", "1 | half", "1 | out of 3", "2 | half", "2 | out of 3"]
    );
    assert_eq!(sorted(&stderr), ["0 | trouble", "1 | trouble", "2 | trouble"]);
}

#[test]
fn a_single_rank_speaks_for_itself() {
    let done = run(&["-np", "1", "printf", "a\\rb\\n"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "a\rb\n"));
    let done = run(&["-np", "1", "--tag-output", "always", "printf", "a\\rb\\n"]);
    assert_eq!(done.stdout, "0 | a\n0 | b\n");
    let done = run(&["-np", "2", "--tag-output", "never", "echo", "x"]);
    assert_eq!(done.stdout, "x\nx\n");
}

#[test]
fn without_a_number_every_core_gets_a_rank() {
    let done = run(&["sh", "-c", "echo $PHALANX_SIZE"]);
    let cores = thread::available_parallelism().unwrap().get();
    assert_eq!(done.stdout.lines().count(), cores, "{}", done.stderr);
}

#[test]
fn files_hold_each_ranks_output_unchanged() {
    let dir = TempDir::new();
    let script = "printf \"r$PHALANX_RANK\\r\\nx\"; echo e$PHALANX_RANK >&2";
    let done = run(&["-np", "11", "--output-filename", &dir.path("logs"), "sh", "-c", script]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let read = |name: &str| fs::read_to_string(dir.path(name)).unwrap();
    assert_eq!(read("logs/rank.03/stdout"), "r3\r\nx");
    assert_eq!(read("logs/rank.10/stderr"), "e10\n");
    assert!(done.stdout.contains(" 3 | r3\n"), "the console has it, too: {}", done.stdout);
}

#[test]
fn nothing_is_lost_of_much_output() {
    let done = run(&["-np", "2", "sh", "-c", "seq 1 40000"]);
    for rank in 0..2 {
        let prefix = format!("{rank} | ");
        let numbers: Vec<usize> =
            done.stdout.lines().filter_map(|l| l.strip_prefix(&prefix)?.parse().ok()).collect();
        assert!(numbers.iter().copied().eq(1..=40000), "rank {rank}: {} lines", numbers.len());
    }
}

/// VOICE-1 and PRINT-1.
#[test]
fn a_slow_reader_loses_nothing_and_memory_stays_small() {
    let mut command = phalanx(&["run", "-np", "1", "sh", "-c", "head -c 20000000 /dev/zero"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 1000];
    stdout.read_exact(&mut first).unwrap();
    // The rank cannot have finished: nobody has read its 20 MB, and nobody stores them.
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak =
        status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().split(' ').next().unwrap();
    assert!(peak.parse::<usize>().unwrap() < 18_000, "{peak} kB");
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert_eq!(first.len() + rest.len(), 20_000_000);
    assert!(wait(&mut child).success());
}

/// PRINT-2.
#[test]
fn a_closed_stdout_ends_the_job_quietly() {
    let mut child = phalanx(&["run", "-np", "2", "sh", "-c", "while :; do echo again; done"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 100]).unwrap();
    drop(stdout);
    assert_eq!(wait(&mut child).code(), Some(141));
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
}

#[test]
fn ctrl_c_works_while_nobody_reads_the_output() {
    let mut child = phalanx(&["run", "-np", "2", "sh", "-c", "while :; do echo again; done"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 100]).unwrap();
    kill(child.id(), "INT");
    assert_eq!(wait(&mut child).code(), Some(130));
}

#[test]
fn a_launcher_whose_parent_ignores_its_children_still_gets_exit_codes() {
    let python = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let phalanx = env!("CARGO_BIN_EXE_phalanx");
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: no python3 to ignore SIGCHLD with");
        return;
    }
    let mut command = std::process::Command::new("python3");
    let done = finish(command.args(["-c", python, phalanx, "run", "-np", "2", "sh", "-c", "exit 5"]));
    assert_eq!(done.code, Some(5), "{}", done.stderr);
}

#[test]
fn closed_stdin_is_fine_and_ranks_read_nothing() {
    let mut sh = std::process::Command::new("sh");
    sh.args(["-c", "exec \"$0\" run -np 2 sh -c 'cat; echo read' <&-", env!("CARGO_BIN_EXE_phalanx")]);
    let done = finish(&mut sh);
    assert_eq!((done.code, sorted(&done.stdout)), (Some(0), vec!["0 | read", "1 | read"]), "{}", done.stderr);
}

#[test]
fn lines_arrive_while_the_ranks_run() {
    let mut running = Running::run(&["-np", "1", "--timeout", "50", "sh", "-c", "echo first; sleep 1000"]);
    assert_eq!(running.line(), "first");
    running.signal("TERM");
    assert_eq!(running.finish().code, Some(143));
    assert!(DEADLINE.as_secs() > 50, "the job's own timeout comes first when something hangs");
}
