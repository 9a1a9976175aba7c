//! `PHALANX_LOG`: the launcher and the ranks say what they decide, and nonsense is refused.

use crate::launch::support::{Running, finish, phalanx};

fn logged(level: &str, args: &[&str]) -> crate::launch::support::Done {
    finish(phalanx(args).env("PHALANX_LOG", level))
}

#[test]
fn launcher_and_ranks_say_what_they_decide() {
    let bench = ["bench", "-np", "2", "--sizes", "1K", "--seconds", "0.02"];
    let done = logged("info", &bench);
    assert_eq!(done.code, Some(0), "{done:?}");
    for word in ["meeting opened", "rank started", "world formed", "algorithm chosen", "rank ended"] {
        assert!(done.stderr.contains(word), "{word}: {done:?}");
    }
    assert!(!done.stderr.contains("DEBUG"), "{done:?}");
    let quiet = finish(&mut phalanx(&bench));
    assert!(!quiet.stderr.contains("INFO"), "{quiet:?}");
}

#[test]
fn a_lost_rank_is_logged_with_its_reason() {
    let exe = env!("CARGO_BIN_EXE_phalanx");
    let script = "echo $$; exec \"$0\" bench --sizes 1K,1M --seconds 60";
    let run = ["run", "-np", "2", "--tag-output", "never", "--", "sh", "-c", script, exe];
    let mut job = Running::start(phalanx(&run).env("PHALANX_LOG", "info"));
    let (mut pids, mut measured) = (Vec::new(), false);
    while pids.len() < 2 || !measured {
        let line = job.line();
        match line.trim().parse::<u32>() {
            Ok(pid) => pids.push(pid),
            // One row is there, and another one is being measured.
            Err(_) => measured |= line.contains("allreduce"),
        }
    }
    crate::launch::support::kill(pids[1], "KILL");
    let done = job.finish();
    assert_eq!(done.code, Some(137), "{done:?}");
    let gone = done
        .stderr
        .lines()
        .find(|l| l.contains("a rank is gone"))
        .unwrap_or_else(|| panic!("no line about the loss: {done:?}"));
    assert!(gone.contains("reason=its "), "{gone}");
}

#[test]
fn a_level_that_does_not_exist_is_refused_in_one_sentence() {
    let said = "phalanx: PHALANX_LOG=\"loud\" cannot be used: write off, error, warn, info, debug or trace";
    for args in [&["run", "-np", "2", "true"][..], &["bench", "--sizes", "1K"]] {
        let done = logged("loud", args);
        assert_eq!((done.code, done.stderr.lines().count()), (Some(2), 1), "{done:?}");
        assert!(done.stderr.starts_with(said), "{done:?}");
    }
}
