//! Ranks that are alive but do not submit what others wait for; and engines with nothing to do.

use crate::processes::{Job, Spec};
use std::{fs, time::Duration};

#[test]
fn a_stall_is_reported_with_the_missing_rank_the_tensor_and_what_ran_last() {
    for hosts in [&[3u32][..], &[2, 1], &[1, 1]] {
        let spec = Spec::new(hosts)
            .with("PHALANX_TEST_SCENE", "stalling")
            .with("PHALANX_TEST_VICTIM", 1)
            .with("PHALANX_STALL_WARN", 0.3);
        let mut job = Job::start(spec);
        let all: Vec<usize> = (0..job.n_ranks()).collect();
        for said in job.hear(&all, "report") {
            let parts: Vec<&str> = said.rest.split(';').map(str::trim).collect();
            let late = parts.iter().any(|p| p.starts_with("late: waiting ") && p.ends_with(" s for rank 1"));
            let last =
                parts.iter().any(|p| p.starts_with("rank 1: last ran warm, ") && p.ends_with(" s ago"));
            assert!(late && last, "{}", job.story());
        }
        drop(job);
    }
}

/// What the report of a stall says about the missing rank, on every rank, if its program answers like this.
fn seen(where_it_is: &str, expected: &[&str]) {
    for hosts in [&[3u32][..], &[1, 1]] {
        let spec = Spec::new(hosts)
            .with("PHALANX_TEST_SCENE", "stalling")
            .with("PHALANX_TEST_VICTIM", 1)
            .with("PHALANX_TEST_WHERE", where_it_is)
            .with("PHALANX_STALL_WARN", 0.3)
            // Long enough that a report comes before.
            .with("PHALANX_STALL_ABORT", 3);
        let mut job = Job::start(spec);
        let all: Vec<usize> = (0..job.n_ranks()).collect();
        for said in job.hear(&all, "report") {
            let parts: Vec<&str> = said.rest.split(';').map(str::trim).collect();
            assert!(expected.iter().all(|e| parts.contains(e)), "{expected:?} {}", job.story());
        }
        // WHERE-1: the engine ends, whatever the program does.
        job.hear(&all, "later");
        job.finish();
    }
}

#[test]
fn a_report_says_where_the_missing_ranks_program_is() {
    seen(
        "says",
        &[
            "rank 1: waits in other",
            "rank 1: is at train.rs:7 in step\u{fffd}[2J",
            "called from train.rs:40 in step\u{fffd}[2J",
        ],
    );
}

#[test]
fn a_program_that_never_says_where_it_is_delays_nobody_for_long() {
    let silent = "rank 1: did not say where it is: its Python is inside native code";
    seen("never", &["rank 1: waits in other", silent]);
}

#[test]
fn a_stall_that_lasts_too_long_ends_everything_on_all_ranks_and_names_who_was_missing() {
    for hosts in [&[3u32][..], &[2, 1]] {
        let spec = Spec::new(hosts)
            .with("PHALANX_TEST_SCENE", "stalling")
            .with("PHALANX_TEST_VICTIM", 1)
            .with("PHALANX_STALL_WARN", 0.3)
            .with("PHALANX_STALL_ABORT", 1);
        let mut job = Job::start(spec);
        for said in job.hear(&[0, 1, 2], "verdict") {
            // Both are missing: rank 1 for one tensor, the others for rank 1's own.
            let late = said.rest.starts_with("late waited ") && said.rest.contains(" s for rank 1, which");
            let other =
                said.rest.starts_with("other waited ") && said.rest.contains(" s for ranks 0, 2, which");
            assert!(late || other, "{}", job.story());
        }
        let verdicts: Vec<String> =
            job.log.iter().filter(|s| s.word == "verdict").map(|s| s.rest.clone()).collect();
        assert!(verdicts.iter().all(|v| *v == verdicts[0]), "{}", job.story());
        for said in job.hear(&[0, 1, 2], "later") {
            assert_eq!(said.rest, verdicts[0], "{}", job.story());
        }
        println!("{hosts:?}: {}", verdicts[0]);
        job.finish();
    }
}

/// Clock ticks of user and system time that a process has used so far.
fn ticks(job: &Job, rank: usize) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", job.pid(rank).as_raw_pid())).expect("it runs");
    // The name, in parentheses, may contain anything; user and system time are the 12th and 13th words behind it.
    let words: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    words[11..13].iter().map(|w| w.parse::<u64>().expect("a number of ticks")).sum()
}

#[test]
fn an_engine_with_nothing_to_do_uses_no_time() {
    let mut jobs: Vec<Job> = [&[2u32][..], &[1, 1]]
        .iter()
        .map(|hosts| Job::start(Spec::new(hosts).with("PHALANX_TEST_SCENE", "idle")))
        .collect();
    for job in &mut jobs {
        job.hear(&[0, 1], "idle");
    }
    let before: Vec<[u64; 2]> = jobs.iter().map(|job| [ticks(job, 0), ticks(job, 1)]).collect();
    jobs[0].quiet_for(Duration::from_secs(5));
    for (job, before) in jobs.iter().zip(before) {
        let used = [0, 1].map(|r| ticks(job, r) - before[r]);
        println!("idle for 5 s: {used:?} ticks of {} a second", rustix::param::clock_ticks_per_second());
        assert!(used.iter().all(|t| *t < 5), "{used:?} ticks; {}", job.story());
    }
    jobs.into_iter().for_each(Job::finish);
}
