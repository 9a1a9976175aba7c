//! Whole worlds: ranks that meet, share memory or links, and check every result, started in every way there is.

use crate::launch::support::{Done, Running, finish, is_alive, phalanx};
use std::process::{Command, Stdio};

const EXE: &str = env!("CARGO_BIN_EXE_phalanx");

/// Rows of a benchmark that ended well.
fn rows(done: &Done) -> Vec<serde_json::Value> {
    assert_eq!(done.code, Some(0), "{done:?}");
    let lines = done.stdout.lines().filter(|l| l.starts_with('{'));
    lines.map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
}

fn bench(args: &[&str]) -> Done {
    let all: Vec<&str> =
        ["bench", "--json", "--seconds", "0.02"].into_iter().chain(args.iter().copied()).collect();
    finish(&mut phalanx(&all))
}

#[test]
fn worlds_of_many_sizes_run_every_collective_oversubscribed() {
    for np in ["1", "2", "3", "4", "5", "8"] {
        let done = bench(&["-np", np, "--op", "all", "--sizes", "40,64K", "--buffers", "private,arena"]);
        let rows = rows(&done);
        assert_eq!(rows.len(), 34, "{np}: {}", done.stdout);
        for row in &rows {
            assert_eq!(row["np"].to_string(), np);
            assert!(row["median_us"].as_f64().unwrap() > 0.0 && !row["plan"].as_str().unwrap().is_empty());
            assert_eq!(row["check"], if row["op"] == "barrier" { "none" } else { "ok" }, "{row}");
        }
    }
}

#[test]
fn every_element_type_is_reduced() {
    let rows = rows(&bench(&[
        "-np",
        "3",
        "--op",
        "allreduce,reduce_scatter",
        "--dtype",
        "all",
        "--sizes",
        "30,100K",
    ]));
    assert_eq!(rows.len(), 44);
    let rows_max = bench(&["-np", "2", "--reduce", "max", "--dtype", "bool,f16,bf16", "--sizes", "1000"]);
    assert_eq!(self::rows(&rows_max).len(), 3);
}

#[test]
fn two_hosts_on_one_machine_use_shared_memory_and_links() {
    let rows = rows(&bench(&[
        "-np",
        "5",
        "-H",
        "a:3,b:2",
        "--rsh",
        "env PHALANX_HOST_ID={host}",
        "--op",
        "all",
        "--sizes",
        "40,300K",
    ]));
    assert!(rows.iter().all(|r| r["transport"] == "shm+tcp"), "{rows:?}");
}

#[test]
fn a_host_file_and_another_path_of_phalanx_lead_to_the_same_world() {
    let dir = crate::launch::support::TempDir::new();
    let hosts = dir.write("hosts", "a slots=1\nb slots=1\n");
    let exe = dir.script("other", &format!("echo $1 >> {}; exec {EXE} \"$@\"", dir.path("log")));
    let rsh = "env PHALANX_HOST_ID={host}";
    let args = ["--hostfile", &hosts, "--rsh", rsh, "--remote-exe", &exe, "--sizes", "3,64K"];
    let done = bench(&args);
    assert_eq!(rows(&done).len(), 2, "{done:?}");
    assert!(done.stderr.contains("3 bytes are not a whole number of f32"), "{done:?}");
    assert_eq!(rows(&done)[0]["bytes"], 4);
    let mut started: Vec<String> =
        std::fs::read_to_string(dir.path("log")).unwrap().lines().map(str::to_string).collect();
    started.sort();
    assert_eq!(started, ["agent", "agent", "bench", "bench"]);
}

#[test]
fn where_no_memory_can_be_shared_the_advice_helps() {
    // Files of one block: the system refuses to make the memory.
    let ranks = |transport: &str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -f 1 && exec \"$0\" bench -np 2 --sizes 1K --seconds 0.02", EXE])
            .env("PHALANX_TRANSPORT", transport)
            .stdin(Stdio::null());
        finish(&mut command)
    };
    let done = ranks("auto");
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("PHALANX_TRANSPORT=tcp does not need shared memory"), "{done:?}");
    let done = ranks("tcp");
    assert_eq!(done.code, Some(0), "{done:?}");
    // A rank that is alone shares with nobody.
    let mut alone = Command::new("sh");
    alone.args(["-c", "ulimit -f 1 && exec \"$0\" bench -np 1 --sizes 1K --seconds 0.02", EXE]);
    let done = finish(alone.stdin(Stdio::null()));
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn what_does_not_fit_into_memory_is_refused_with_what_there_is() {
    let done = bench(&["-np", "2", "--sizes", "4,1000G"]);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(
        done.stderr.contains("needs 2000.0 GiB of memory") && done.stderr.contains("are available"),
        "{done:?}"
    );
    // Ranks of another launcher find out themselves.
    let done = bench(&["-np", "2", "-H", "localhost:2", "--sizes", "4,1000G"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("needs 2000.0 GiB of memory"), "{done:?}");
}

#[test]
fn a_frozen_rank_is_not_said_to_have_ended_on_request() {
    let script = "echo pid $$; exec \"$0\" bench --sizes 1K,1M --seconds 60";
    let mut job = Running::run(&["-np", "2", "--", "sh", "-c", script, EXE]);
    let mut pids = [0; 2];
    let mut measured = false;
    while pids.contains(&0) || !measured {
        let line = job.line();
        match line.split_once(" | pid ") {
            Some((rank, pid)) => pids[rank.parse::<usize>().unwrap()] = pid.parse().unwrap(),
            None => measured |= line.contains("allreduce"),
        }
    }
    crate::launch::support::kill(pids[1], "STOP");
    let done = job.finish();
    assert_eq!(done.code, Some(137), "END-4: {done:?}");
    assert!(done.stderr.contains(" was frozen, and ended by the launcher, after "), "{done:?}");
    assert!(pids.iter().all(|&p| !is_alive(p)));
}

#[test]
fn bad_arguments_of_bench_and_simulate_are_answered_before_anything_starts() {
    for (args, text) in [
        (vec!["bench", "--op", "allredcue"], "unknown collective \"allredcue\""),
        (vec!["bench", "--dtype", "f8"], "unknown element type \"f8\""),
        (vec!["bench", "--sizes", "12Q"], "12Q"),
        (vec!["bench", "--reduce", "average", "--dtype", "bool"], "average of bool is not defined"),
        (vec!["simulate", "--tiers", "4x"], "4x"),
    ] {
        let done = finish(&mut phalanx(&args));
        assert!(done.code == Some(2) && done.stderr.contains(text), "{args:?}: {done:?}");
    }
}

#[test]
fn four_thousand_ranks_are_simulated() {
    let done = finish(&mut phalanx(&["simulate", "--tiers", "8x512", "--bytes", "16M", "--json"]));
    let rows = rows(&done);
    assert!(rows.iter().any(|r| r["selected"] == true) && rows.len() >= 3, "{rows:?}");
}

#[test]
fn ranks_started_by_torchrun_find_each_other() {
    let home = crate::launch::support::TempDir::new();
    // A port of this process's own, so that no two runs meet each other.
    let port = 20_000 + std::process::id() % 20_000;
    let rank = |rank: &str| {
        let mut command = phalanx(&["bench", "--json", "--seconds", "0.02", "--sizes", "4,64K"]);
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", "2")]);
        command.envs([("MASTER_ADDR", "127.0.0.1".to_string()), ("MASTER_PORT", port.to_string())]);
        command.env("HOME", &home.0);
        Running::start(&mut command)
    };
    let (first, second) = (rank("0"), rank("1"));
    assert_eq!(rows(&first.finish()).len(), 2);
    assert_eq!(second.finish().code, Some(0));
}

#[test]
fn ranks_started_by_mpirun_find_each_other() {
    let here = Command::new("mpirun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !here.is_ok_and(|s| s.success()) {
        eprintln!("skipped: there is no mpirun here");
        return;
    }
    let home = crate::launch::support::TempDir::new();
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", "3", EXE]);
    command
        .args(["bench", "--json", "--seconds", "0.02", "--sizes", "4,64K"])
        .env("HOME", &home.0)
        .stdin(Stdio::null());
    let done = finish(&mut command);
    assert_eq!(rows(&done).len(), 2, "{done:?}");
}

#[test]
fn a_job_inside_each_rank_of_another_is_a_world_of_its_own() {
    let plain = ["run", "-np", "2", "--tag-output", "never", "--"];
    let work = [EXE, "bench", "--json", "--sizes", "4", "--seconds", "0.02"];
    let done = finish(&mut phalanx(&[&plain[..], &[EXE], &plain, &work].concat()));
    let rows = rows(&done);
    assert_eq!(rows.len(), 2, "{done:?}");
    assert!(rows.iter().all(|row| row["np"] == 2 && row["check"] == "ok"), "{done:?}");
}

#[test]
fn contradicting_launchers_are_both_named() {
    let mut command = phalanx(&["bench"]);
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]);
    command.envs([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")]);
    let done = finish(&mut command);
    assert!(
        done.code == Some(1) && done.stderr.contains("torchrun says rank 0 of 2, Open MPI says rank 1 of 4"),
        "{done:?}"
    );
}

#[test]
fn a_killed_rank_is_named_by_the_others_and_by_the_launcher() {
    let mut job = Running::run(&[
        "-np",
        "3",
        "--",
        "sh",
        "-c",
        "echo pid $$; exec \"$0\" bench --sizes 1K,1M --seconds 60",
        EXE,
    ]);
    let pids = job.numbers(3);
    crate::launch::support::eventually(
        std::time::Duration::from_secs(30),
        "every rank becomes the benchmark",
        || {
            pids.iter()
                .all(|p| std::fs::read_link(format!("/proc/{p}/exe")).is_ok_and(|e| e.ends_with("phalanx")))
        },
    );
    crate::launch::support::kill(pids[1], "KILL");
    let done = job.finish();
    assert_eq!(done.code, Some(137), "{done:?}");
    assert!(done.stderr.contains("SIGKILL"), "{done:?}");
    assert!(pids.iter().all(|&p| !is_alive(p)));
}
