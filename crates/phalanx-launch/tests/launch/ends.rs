//! How jobs end: failures, signals, timeouts, and nothing left behind.

use crate::launch::support::{DEADLINE, Running, eventually, is_alive, kill, run};
use std::time::Duration;

/// Prints its own number and waits; everything it starts dies with it or not at all.
const WAIT: &str = "echo $$; exec sleep 1000";
/// Refuses to be asked.
const STUBBORN: &str = "trap '' INT TERM; echo $$; while :; do sleep 1; done";

fn assert_gone(pids: &[u32], within: Duration) {
    for &pid in pids {
        eventually(within, &format!("the end of process {pid}"), || !is_alive(pid));
    }
}

#[test]
fn the_first_failing_rank_gives_the_code_and_its_last_words() {
    let script =
        "test $PHALANX_RANK = 1 || exec sleep 1000; for i in $(seq 1 20); do echo line $i >&2; done; exit 7";
    let done = run(&["-np", "3", "sh", "-c", script]);
    assert_eq!(done.code, Some(7));
    let summary = done.stderr.split_once("phalanx: rank 1 on localhost (pid ").expect("a summary").1;
    assert!(summary.contains("exited with code 7 after"), "{summary}");
    assert!(summary.contains("  | line 6\n") && summary.contains("  | line 20\n"), "{summary}");
    assert!(!summary.contains("line 5\n"), "only the last 15: {summary}");
    assert!(summary.contains("phalanx: ranks 0,2 ended on request (SIGTERM)"), "{summary}");
}

#[test]
fn a_rank_killed_by_a_signal_gives_128_and_the_signal() {
    let done = run(&["-np", "2", "sh", "-c", "test $PHALANX_RANK = 0 && kill -KILL $$; exec sleep 1000"]);
    assert_eq!(done.code, Some(137));
    assert!(done.stderr.contains("rank 0 on localhost"), "{}", done.stderr);
    assert!(done.stderr.contains("was killed by SIGKILL"), "{}", done.stderr);
}

#[test]
fn an_early_success_is_mentioned_when_others_fail() {
    let mut running =
        Running::run(&["-np", "2", "sh", "-c", "echo $$; test $PHALANX_RANK = 0 || exec sleep 1000"]);
    let mut pid_of = [0; 2];
    for _ in 0..2 {
        let line = running.line();
        let (rank, pid) = line.split_once(" | ").unwrap();
        pid_of[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
    }
    eventually(DEADLINE, "the end of rank 0", || !is_alive(pid_of[0]));
    kill(pid_of[1], "SEGV");
    let done = running.finish();
    assert_eq!(done.code, Some(139));
    assert!(done.stderr.contains("phalanx: rank 0 had already exited with code 0"), "{}", done.stderr);
}

#[test]
fn ctrl_c_leaves_no_process() {
    let mut running = Running::run(&["-np", "3", "sh", "-c", WAIT]);
    let pids = running.numbers(3);
    running.signal("INT");
    let done = running.finish();
    assert_eq!(done.code, Some(130), "{}", done.stderr);
    assert!(done.stderr.contains("phalanx: ended by SIGINT"), "{}", done.stderr);
    assert_gone(&pids, Duration::ZERO);
}

#[test]
fn who_does_not_end_on_request_is_said_to_have_been_killed() {
    let script = "test $PHALANX_RANK = 1 && exit 3; trap '' TERM; while :; do sleep 1; done";
    let done = run(&["-np", "2", "sh", "-c", script]);
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    let said = "phalanx: rank 0 did not end on request and was killed by the launcher";
    assert!(done.stderr.contains(said), "{}", done.stderr);
}

#[test]
fn a_second_ctrl_c_does_not_ask() {
    let mut running = Running::run(&["-np", "2", "sh", "-c", STUBBORN]);
    let pids = running.numbers(2);
    running.signal("INT");
    running.signal("INT");
    let done = running.finish();
    assert_eq!(done.code, Some(130), "{}", done.stderr);
    assert_gone(&pids, Duration::ZERO);
}

#[test]
fn ranks_may_answer_ctrl_c_themselves() {
    let script = "trap 'echo saved; exit 0' INT; echo $$; while :; do sleep 0.05; done";
    let mut running = Running::run(&["-np", "2", "sh", "-c", script]);
    running.numbers(2);
    running.signal("INT");
    let done = running.finish();
    assert_eq!(done.code, Some(130));
    assert_eq!(done.stdout.matches("saved").count(), 2, "{}", done.stdout);
}

#[test]
fn sigterm_leaves_no_process_not_even_stubborn_ones_or_their_children() {
    let script = "trap '' TERM; setsid sleep 1000 & echo $!; echo $$; while :; do sleep 1; done";
    let mut running = Running::run(&["-np", "1", "--grace", "1", "sh", "-c", script]);
    let pids = running.numbers(2);
    running.signal("TERM");
    assert_eq!(running.finish().code, Some(143));
    assert_gone(&pids, Duration::ZERO);
}

/// AGENT-2.
#[test]
fn what_a_finished_rank_left_behind_is_ended() {
    let mut running = Running::run(&["-np", "2", "sh", "-c", "sleep 1000 & echo $!"]);
    let pids = running.numbers(2);
    assert_eq!(running.finish().code, Some(0));
    assert_gone(&pids, Duration::ZERO);
}

/// AGENT-1.
#[test]
fn kill_9_of_the_launcher_leaves_no_process_after_two_seconds() {
    let mut running = Running::run(&["-np", "3", "sh", "-c", WAIT]);
    let pids = running.numbers(3);
    running.signal("KILL");
    assert_gone(&pids, Duration::from_secs(2));
}

#[test]
fn kill_9_of_the_launcher_ends_stubborn_ranks_and_their_children_too() {
    let script = "trap '' TERM; setsid sleep 1000 & echo $!; echo $$; while :; do sleep 1; done";
    let mut running = Running::run(&["-np", "1", "sh", "-c", script]);
    let pids = running.numbers(2);
    running.signal("KILL");
    assert_gone(&pids, Duration::from_secs(10));
}

#[test]
fn kill_9_of_the_agent_loses_the_host_and_its_ranks() {
    let mut running = Running::run(&["-np", "2", "sh", "-c", "echo $PPID; echo $$; exec sleep 1000"]);
    let numbers = running.numbers(4);
    let agent = *numbers.iter().find(|n| numbers.iter().filter(|m| m == n).count() == 2).unwrap();
    kill(agent, "KILL");
    let done = running.finish();
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("phalanx: lost host localhost with ranks 0-1"), "{}", done.stderr);
    let ranks: Vec<u32> = numbers.into_iter().filter(|n| *n != agent).collect();
    assert_gone(&ranks, DEADLINE);
}

#[test]
fn a_timeout_ends_the_job_with_124() {
    let done = run(&["-np", "2", "--timeout", "0.3", "sleep", "1000"]);
    assert_eq!(done.code, Some(124));
    assert!(done.stderr.contains("phalanx: --timeout: the job was ended after 0."), "{}", done.stderr);
}

#[test]
fn user_signals_reach_every_rank() {
    let script = "trap 'echo got it; exit 0' USR1; echo $$; while :; do sleep 0.05; done";
    let mut running = Running::run(&["-np", "2", "sh", "-c", script]);
    running.numbers(2);
    running.signal("USR1");
    let done = running.finish();
    assert_eq!((done.code, done.stdout.matches("got it").count()), (Some(0), 2), "{}", done.stdout);
}
