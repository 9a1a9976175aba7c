//! What is piped into the launcher reaches the ranks that read it, and nobody else; what nobody reads hurts nobody.

use crate::launch::support::{Done, Running, TempDir, finish, phalanx, run};
use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
    thread,
};

/// Runs with this on stdin.
fn with_input(input: &[u8], args: &[&str]) -> Done {
    let args: Vec<&str> = ["run"].into_iter().chain(args.iter().copied()).collect();
    let mut running = Running::start(phalanx(&args).stdin(Stdio::piped()));
    let mut stdin = running.child.stdin.take().expect("it is piped");
    let input = input.to_vec();
    // A job that does not read must not keep the test; the pipe breaks when it ends.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let done = running.finish();
    writer.join().expect("a writer does not panic");
    done
}

fn sorted(done: &Done) -> Vec<&str> {
    let mut lines: Vec<&str> = done.stdout.lines().collect();
    lines.sort_unstable();
    lines
}

const READ: &str = "read line; echo \"${line:-nothing}\"";

#[test]
fn rank_0_reads_unless_told_otherwise() {
    let run = |flags: &[&str]| {
        let args: Vec<&str> = [&["-np", "2"], flags, &["sh", "-c", READ]].concat();
        let done = with_input(b"hello\n", &args);
        // Who reads an end of file fails in `read`, and the shell goes on.
        assert_eq!(done.code, Some(0), "{done:?}");
        sorted(&done).join(", ")
    };
    assert_eq!(run(&[]), "0 | hello, 1 | nothing");
    assert_eq!(run(&["--stdin", "1"]), "0 | nothing, 1 | hello");
    assert_eq!(run(&["--stdin", "all"]), "0 | hello, 1 | hello");
    assert_eq!(run(&["--stdin", "none"]), "0 | nothing, 1 | nothing");
}

#[test]
fn every_byte_arrives_in_order_on_this_host_and_on_others() {
    let input: Vec<u8> = (0..300_000u32).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    for flags in [&["-np", "2"][..], &["-H", "a:1,b:1", "--rsh", "env HOST={host}"]] {
        let args: Vec<&str> =
            [flags, &["--stdin", "all", "--tag-output", "never", "sh", "-c", "cksum"]].concat();
        let done = with_input(&input, &args);
        let mut cksum = Command::new("cksum");
        let mut child = cksum.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cksum is here");
        child.stdin.take().expect("piped").write_all(&input).expect("cksum reads");
        let expected = String::from_utf8(child.wait_with_output().expect("it ends").stdout).expect("digits");
        assert_eq!(done.stdout, expected.repeat(2), "INPUT-1, STDIN-1: {done:?}");
    }
}

#[test]
fn a_rank_that_does_not_read_keeps_nobody() {
    let endless = vec![b'x'; 8 << 20];
    let done = with_input(&endless, &["-np", "2", "echo", "done"]);
    assert_eq!((done.code, sorted(&done)), (Some(0), vec!["0 | done", "1 | done"]));
    let done = with_input(&endless, &["-np", "2", "--stdin", "all", "sh", "-c", "exit 3"]);
    assert_eq!(done.code, Some(3), "{done:?}");
    // It closes its stdin and lives on; the other one still gets everything.
    let half = "if [ $PHALANX_RANK = 0 ]; then exec <&-; echo closed; else wc -c; fi";
    let done = with_input(&endless, &["-np", "2", "--stdin", "all", "sh", "-c", half]);
    assert_eq!(sorted(&done), ["0 | closed", "1 | 8388608"], "{done:?}");
}

#[test]
fn a_question_is_answered_before_more_is_read() {
    let mut running = Running::start(
        phalanx(&[
            "run",
            "-np",
            "2",
            "sh",
            "-c",
            "[ $PHALANX_RANK = 0 ] || exit 0; while read x; do echo got $x; done",
        ])
        .stdin(Stdio::piped()),
    );
    let mut stdin = running.child.stdin.take().expect("it is piped");
    for word in ["one", "two"] {
        writeln!(stdin, "{word}").expect("the launcher reads");
        assert_eq!(running.line(), format!("0 | got {word}"));
    }
    drop(stdin);
    assert_eq!(running.finish().code, Some(0), "the end of the input is told, too");
}

#[test]
fn only_one_rank_is_printed_and_the_others_still_count() {
    let done = run(&["-np", "3", "--only-rank", "1", "sh", "-c", "echo I am $PHALANX_RANK"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "I am 1\n"), "without a prefix: {done:?}");
    let script = "echo $PHALANX_RANK; [ $PHALANX_RANK != 2 ] || { echo alas >&2; exit 7; }; exec sleep 1000";
    let done = run(&["-np", "3", "--only-rank", "0", "sh", "-c", script]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(7), "0\n"), "{done:?}");
    assert!(done.stderr.contains("alas"), "the last words of a rank that failed are told: {done:?}");
    for (flags, said) in [
        (["--only-rank", "3"], "--only-rank 3: the world has ranks 0 to 2"),
        (["--stdin", "7"], "--stdin 7: the world has ranks 0 to 2"),
    ] {
        let done = run(&[&["-np", "3"], &flags[..], &["true"]].concat());
        assert!(done.code == Some(2) && done.stderr.contains(said), "{done:?}");
    }
}

#[test]
fn a_python_file_runs_with_python() {
    let dir = TempDir::new();
    fs::create_dir_all(dir.0.join("venv/bin")).expect("a folder");
    dir.script("venv/bin/python", "echo python \"$@\"");
    dir.write("train.py", "");
    let mut command = phalanx(&["run", "-np", "1", "train.py", "--lr", "3"]);
    let done = finish(command.current_dir(&dir.0).env("VIRTUAL_ENV", dir.path("venv")));
    assert_eq!(done.stdout, "python train.py --lr 3\n", "{done:?}");
    let done = finish(phalanx(&["run", "-np", "1", "absent.py"]).current_dir(&dir.0));
    assert!(done.code == Some(127) && done.stderr.contains("command not found: absent.py"), "{done:?}");
}
