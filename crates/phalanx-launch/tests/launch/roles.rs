//! Servers and an evaluator beside the workers, and `phalanx train`.

use crate::launch::{
    netns::binary,
    support::{Running, TempDir, finish, kill, phalanx, run},
};
use phalanx_net::task::job_began;
use std::{fs, process::Stdio, time::SystemTime};

const WHO: &str = "echo $PHALANX_ROLE ${PHALANX_RANK-none} of $PHALANX_SIZE";

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_process_is_told_its_role() {
    let dir = TempDir::new();
    let logs = dir.path("logs");
    let done =
        run(&["-np", "2", "--servers", "1", "--evaluator", "--output-filename", &logs, "sh", "-c", WHO]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(
        sorted(&done.stdout),
        ["0 | worker 0 of 3", "1 | worker 1 of 3", "2 | server 2 of 3", "evaluator | evaluator none of 3"]
    );
    assert_eq!(fs::read_to_string(dir.path("logs/evaluator/stdout")).unwrap(), "evaluator none of 3\n");
    assert_eq!(fs::read_to_string(dir.path("logs/rank.2/stdout")).unwrap(), "server 2 of 3\n");
    let done = run(&["-np", "1", "--servers", "1", "-H", "localhost:1", "true"]);
    assert_eq!(done.code, Some(2));
    assert!(
        done.stderr.contains("-np 1 and --servers 1 ask for more ranks than the 1 slots of -H"),
        "{}",
        done.stderr
    );
}

/// Servers of tables need no program: they run phalanx itself, and end when the workers have left.
#[test]
fn servers_run_phalanx_serve_and_refusals_say_how_to_start_it() {
    let work = [&binary(), "bench", "--json", "--sizes", "4", "--seconds", "0.01"];
    let done = run(&[&["-np", "2", "--servers", "2", "--serve"], &work[..]].concat());
    assert_eq!((done.code, done.stderr.contains("phalanx serve")), (Some(0), false), "{}", done.stderr);
    let alone = finish(&mut phalanx(&["serve"]));
    assert_eq!(alone.code, Some(2), "{}", alone.stderr);
    assert!(
        alone.stderr.contains("start it with `phalanx run -np N --servers M --serve -- COMMAND`"),
        "{}",
        alone.stderr
    );
    let nobody = run(&["-np", "2", "--serve", "true"]);
    assert_eq!(nobody.code, Some(2));
    assert!(nobody.stderr.contains("write --servers N as well"), "{}", nobody.stderr);
}

/// By this an evaluator tells the end of its own job from that of an earlier one (FOLLOW-3).
#[test]
fn every_process_is_told_when_the_job_began() {
    let before = SystemTime::now();
    let args = ["run", "-np", "2", "--evaluator", "sh", "-c", "echo $PHALANX_JOB_BEGAN"];
    let done = finish(phalanx(&args).env("PHALANX_JOB_BEGAN", "1.000000000"));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let told: Vec<&str> = done.stdout.lines().filter_map(|line| Some(line.split_once("| ")?.1)).collect();
    assert_eq!((told.len(), told[0], told[1]), (3, told[1], told[2]), "{}", done.stdout);
    let var = |_: &str| Some(told[0].to_string());
    let began = job_began(&var, 0).unwrap().expect("it is told");
    assert!((before..=SystemTime::now()).contains(&began), "{began:?}, not that of the job around it");
}

/// END-5.
#[test]
fn an_evaluator_that_fails_or_is_killed_fails_nobody() {
    let dir = TempDir::new();
    let ready = dir.path("ready");
    fs::write(dir.path("go"), "").unwrap();
    // The evaluator is killed while the worker waits for it to be gone.
    let script = format!(
        "if [ $PHALANX_ROLE = evaluator ]; then echo $$ > {ready}.new; mv {ready}.new {ready}; exec sleep 1000; fi; \
         until [ -f {ready} ]; do sleep 0.02; done; kill -9 $(cat {ready}); exit 0"
    );
    let done = run(&["-np", "1", "--evaluator", "sh", "-c", &script]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let done = run(&[
        "-np",
        "1",
        "--evaluator",
        "sh",
        "-c",
        "test $PHALANX_ROLE = worker && exec sleep 0.5; exit 3",
    ]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let said = "phalanx: the evaluator exited with code 3; the ranks go on without it";
    assert!(done.stderr.contains(said), "{}", done.stderr);
    let done = run(&[
        "-np",
        "1",
        "--evaluator",
        "sh",
        "-c",
        "test $PHALANX_ROLE = worker && exit 5; exec sleep 1000",
    ]);
    assert_eq!(done.code, Some(5), "the code is the worker's: {}", done.stderr);
}

/// END-6.
#[test]
fn an_evaluator_that_outlives_the_workers_gets_the_grace() {
    let script =
        "test $PHALANX_ROLE = worker && exit 0; trap 'echo asked; exit 9' TERM; while :; do sleep 0.05; done";
    let done = run(&["-np", "1", "--evaluator", "--grace", "0.3", "sh", "-c", script]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stdout.contains("evaluator | asked"), "{}", done.stdout);
    let said = "phalanx: the evaluator did not end within 0.3 s after the last worker: SIGTERM (see --grace)";
    assert!(done.stderr.contains(said), "{}", done.stderr);
}

/// A rank that saves on SIGTERM and ends with 0 ends the job with 0; END-7 is about the launcher.
#[test]
fn sigterm_to_a_rank_is_its_own_business_and_to_the_launcher_an_end() {
    let script = "trap 'echo saved; exit 0' TERM; echo $$; while :; do sleep 0.05; done";
    let mut running = Running::run(&["-np", "1", "sh", "-c", script]);
    let pid = running.numbers(1)[0];
    kill(pid, "TERM");
    let done = running.finish();
    assert_eq!((done.code, done.stdout.contains("saved")), (Some(0), true), "{}", done.stderr);
    let mut running = Running::run(&["-np", "2", "sh", "-c", script]);
    running.numbers(2);
    running.signal("TERM");
    let done = running.finish();
    assert_eq!((done.code, done.stdout.matches("saved").count()), (Some(143), 2), "END-7: {}", done.stderr);
}

fn train(dir: &TempDir, args: &[&str]) -> crate::launch::support::Done {
    let args: Vec<&str> = ["train"].into_iter().chain(args.iter().copied()).collect();
    finish(phalanx(&args).current_dir(&dir.0))
}

#[test]
fn train_describes_the_cluster_to_every_process() {
    let dir = TempDir::new();
    dir.script("task", "echo \"$1 $PHALANX_ROLE $TF_CONFIG\" | sed 's/:[0-9][0-9]*\"/:PORT\"/g'");
    let done = train(&dir, &["-s", "1", "-w", "2", "-e", "task", "--", "--lr"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let cluster = r#""cluster":{"ps":["localhost:PORT"],"worker":["localhost:PORT","localhost:PORT"]}"#;
    let line =
        |tag: &str, role: &str, task: &str| format!("{tag} | --lr {role} {{{cluster},\"task\":{task}}}");
    let expected = [
        line("0", "worker", r#"{"index":0,"type":"worker"}"#),
        line("1", "worker", r#"{"index":1,"type":"worker"}"#),
        line("2", "server", r#"{"index":0,"type":"ps"}"#),
        line("evaluator", "evaluator", r#"{"index":0,"type":"evaluator"}"#),
    ];
    assert_eq!(sorted(&done.stdout), expected);
}

#[test]
fn train_has_the_code_of_the_first_failure_and_refuses_what_cannot_be() {
    let dir = TempDir::new();
    dir.script("fail", "test $PHALANX_RANK = 1 && exit 6; exec sleep 1000");
    assert_eq!(train(&dir, &["-w", "2", "fail"]).code, Some(6));
    let closed = finish(phalanx(&["train", "-w", "1", "/bin/cat"]).stdin(Stdio::null()));
    assert_eq!(closed.code, Some(0), "a closed stdin is no reason to end: {}", closed.stderr);
    let missing = train(&dir, &["nowhere.py"]);
    assert_eq!(missing.code, Some(2));
    assert_eq!(
        missing.stderr,
        "phalanx: nowhere.py does not exist; write the script that every process runs\n"
    );
    for (args, said) in [
        (["-w", "0", "fail"], "write a whole number of workers from 1"),
        (["-s", "x", "fail"], "write a whole number of servers from 0"),
    ] {
        let done = train(&dir, &args);
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(done.stderr.contains(said), "{}", done.stderr);
    }
}
