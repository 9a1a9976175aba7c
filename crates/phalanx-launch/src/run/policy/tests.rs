//! Jobs played in time.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn exit(rank: u32, code: i32) -> JobEvent {
    JobEvent::Exited { rank: Rank(rank), ending: Ending::Code(code) }
}

fn killed(rank: u32, signal: i32) -> JobEvent {
    JobEvent::Exited { rank: Rank(rank), ending: Ending::Signal(signal) }
}

/// Plays inputs at times and returns what happened when.
fn play(n_ranks: u32, inputs: &[(u32, JobEvent)]) -> (Policy, Vec<(u32, Action)>) {
    play_with(Policy::new(n_ranks), inputs)
}

fn play_with(mut policy: Policy, inputs: &[(u32, JobEvent)]) -> (Policy, Vec<(u32, Action)>) {
    let mut log = Vec::new();
    let mut inputs = inputs.iter().peekable();
    loop {
        let tick = policy.deadline();
        let (now, input) = match (inputs.peek(), tick) {
            (Some((at, _)), Some(tick)) if *at * MS > tick => (tick, JobEvent::Tick),
            (Some((at, input)), _) => {
                inputs.next();
                (*at * MS, input.clone())
            }
            (None, Some(tick)) => (tick, JobEvent::Tick),
            (None, None) => return (policy, log),
        };
        log.extend(policy.step(now, input).into_iter().map(|a| (now.as_millis() as u32, a)));
    }
}

use Action::{Finish, Signal};

#[test]
fn a_job_ends_when_its_last_rank_does() {
    let (policy, log) = play(2, &[(5, exit(1, 0)), (900_000, exit(0, 0))]);
    assert_eq!(log, [(900_000, Finish)], "END-1");
    assert_eq!((policy.cause(), policy.cause().exit_code()), (EndCause::Success, 0));
}

#[test]
fn the_first_failure_ends_everybody_step_by_step() {
    let (policy, log) = play(2, &[(100, exit(1, 3))]);
    assert_eq!(
        log,
        [(1100, Signal(JobSignal::Term)), (4100, Signal(JobSignal::Kill)), (6100, Finish)],
        "END-2"
    );
    assert_eq!(policy.cause(), EndCause::Failed { rank: Rank(1), ending: Ending::Code(3) });
    assert_eq!(policy.cause().exit_code(), 3);
    assert_eq!(policy.ends()[0], None);
}

#[test]
fn survivors_that_end_by_themselves_are_not_waited_for() {
    let (policy, log) = play(3, &[(100, exit(1, 3)), (110, exit(0, 1)), (120, exit(2, 1))]);
    assert_eq!(log, [(120, Finish)]);
    assert_eq!(policy.cause().exit_code(), 3);
}

#[test]
fn a_crash_outranks_the_codes_of_those_who_noticed_it() {
    let (policy, _) = play(3, &[(100, exit(0, 1)), (102, killed(2, 9)), (103, exit(1, 1))]);
    assert_eq!(policy.cause(), EndCause::Failed { rank: Rank(2), ending: Ending::Signal(9) }, "END-3");
    assert_eq!(policy.cause().exit_code(), 137);
}

#[test]
fn the_rank_that_all_others_blame_is_the_culprit_however_it_ended() {
    let judged = |n_ranks, inputs: &[(u32, JobEvent)], charge| {
        let (mut policy, _) = play(n_ranks, inputs);
        policy.blame(Rank(1), charge);
        (policy.culprit(), policy.cause().exit_code())
    };
    let failed = [(10, exit(0, 1)), (11, exit(1, 101)), (12, exit(2, 1))];
    assert_eq!(judged(3, &failed, Charge::Gone), (Some(Rank(1)), 101), "END-4");
    let left = [(10, exit(1, 0)), (11, exit(0, 7))];
    assert_eq!(judged(2, &left, Charge::Gone), (Some(Rank(1)), 1), "END-4: never 0");
    let frozen = [(10, exit(0, 7)), (4011, killed(1, 9))];
    assert_eq!(judged(2, &frozen, Charge::Frozen), (Some(Rank(1)), 137), "END-4: its own code");
    assert_eq!(judged(2, &frozen[..1], Charge::Frozen), (Some(Rank(1)), 1), "nobody knows its code");
}

#[test]
fn blame_does_not_outrank_a_lost_host_or_a_request() {
    let lost = (11, JobEvent::HostLost { host: 1, ranks: vec![1] });
    let (mut policy, _) = play(2, &[(10, exit(0, 1)), lost]);
    policy.blame(Rank(1), Charge::CutOff);
    assert_eq!(policy.cause(), EndCause::HostLost { host: 1 }, "the host is why the rank is gone");
    let (mut policy, _) = play(2, &[(10, JobEvent::Asked(2)), (11, exit(0, 1)), (12, exit(1, 0))]);
    policy.blame(Rank(1), Charge::Gone);
    assert_eq!((policy.cause(), policy.blamed()), (EndCause::Asked(2), Some((Rank(1), Charge::Gone))));
    let (mut policy, _) = play(2, &[(10, exit(0, 0)), (11, exit(1, 0))]);
    policy.blame(Rank(1), Charge::Gone);
    assert_eq!(policy.cause(), EndCause::Success, "the other ranks coped");
}

#[test]
fn what_comes_late_or_looks_like_a_reaction_is_not_the_culprit() {
    let first = EndCause::Failed { rank: Rank(0), ending: Ending::Code(1) };
    assert_eq!(play(2, &[(100, exit(0, 1)), (700, killed(1, 11))]).0.cause(), first);
    assert_eq!(play(2, &[(100, exit(0, 1)), (110, killed(1, 6))]).0.cause(), first);
    let crash = EndCause::Failed { rank: Rank(0), ending: Ending::Signal(11) };
    assert_eq!(play(2, &[(100, killed(0, 11)), (110, killed(1, 9))]).0.cause(), crash);
    // Killed by us at 4000, not by the kernel.
    let (policy, _) = play(2, &[(0, exit(0, 1)), (4001, killed(1, 9))]);
    assert_eq!(policy.cause(), first);
    assert_eq!(
        policy.ends()[1],
        Some(RankEnd { ending: Some(Ending::Signal(9)), asked: Some(JobSignal::Kill), early: false })
    );
}

#[test]
fn an_early_exit_with_zero_waits_for_the_others() {
    let (policy, log) = play(2, &[(100, exit(0, 0)), (5000, exit(1, 7))]);
    assert_eq!(log, [(5000, Finish)]);
    assert_eq!(policy.cause().exit_code(), 7);
}

#[test]
fn ctrl_c_interrupts_then_terminates_then_kills() {
    let (policy, log) = play(1, &[(10, JobEvent::Asked(2))]);
    assert_eq!(
        log,
        [
            (10, Signal(JobSignal::Int)),
            (2010, Signal(JobSignal::Term)),
            (4010, Signal(JobSignal::Kill)),
            (6010, Finish)
        ]
    );
    assert_eq!(policy.cause().exit_code(), 130);
}

#[test]
fn a_second_ctrl_c_kills_at_once() {
    let (policy, log) = play(1, &[(10, JobEvent::Asked(2)), (500, JobEvent::Asked(2)), (510, killed(0, 9))]);
    assert_eq!(log, [(10, Signal(JobSignal::Int)), (500, Signal(JobSignal::Kill)), (510, Finish)]);
    assert_eq!(policy.cause().exit_code(), 130, "the cause stays the first one");
}

/// END-8.
#[test]
fn a_request_to_end_that_arrives_twice_at_once_counts_once() {
    let kills = |signal, second| {
        let inputs =
            [(0, JobEvent::Asked(signal)), (second, JobEvent::Asked(signal)), (second + 1, exit(0, 0))];
        play(1, &inputs).1.iter().any(|(_, action)| *action == Signal(JobSignal::Kill))
    };
    for signal in [2, 15] {
        assert!(!kills(signal, 20), "timeout signals its child, then the group");
        assert!(kills(signal, 400), "a later request has no more patience");
    }
}

#[test]
fn sigterm_is_passed_on_and_a_failure_that_follows_is_no_culprit() {
    let (policy, log) = play(1, &[(0, JobEvent::Asked(15)), (20, killed(0, 15))]);
    assert_eq!(log, [(0, Signal(JobSignal::Term)), (20, Finish)]);
    assert_eq!(policy.cause().exit_code(), 143);
}

#[test]
fn timeouts_and_closed_output_stop_the_job() {
    let (policy, log) = play(1, &[(0, JobEvent::TimedOut), (1, killed(0, 15))]);
    assert_eq!((log, policy.cause().exit_code()), (vec![(0, Signal(JobSignal::Term)), (1, Finish)], 124));
    let (policy, log) = play(1, &[(0, JobEvent::OutputClosed)]);
    assert_eq!(log, [(0, Signal(JobSignal::Term)), (3000, Signal(JobSignal::Kill)), (5000, Finish)]);
    assert_eq!(policy.cause().exit_code(), 141);
}

#[test]
fn a_lost_host_loses_the_ranks_that_had_not_ended() {
    let (policy, log) =
        play(3, &[(0, exit(0, 0)), (5, JobEvent::HostLost { host: 0, ranks: vec![0, 1] }), (9, exit(2, 1))]);
    assert_eq!(log, [(9, Finish)]);
    assert_eq!(policy.cause(), EndCause::HostLost { host: 0 });
    assert_eq!(policy.ends()[1], Some(RankEnd { ending: None, asked: None, early: true }));
    assert_eq!(policy.ends()[0].unwrap().ending, Some(Ending::Code(0)));
    let (policy, _) = play(1, &[(0, exit(0, 0)), (5, JobEvent::HostLost { host: 0, ranks: vec![0] })]);
    assert_eq!(policy.cause(), EndCause::Success, "nothing was lost");
}

/// One worker, one server, and an evaluator, which has the place after the last rank.
fn crew(grace: Option<u64>) -> Policy {
    let grace = grace.map(Duration::from_secs);
    Policy::of(Crew { n_ranks: 2, n_servers: 1, has_evaluator: true, grace, term_after: Duration::ZERO })
}

#[test]
fn an_evaluator_that_fails_ends_nothing_and_is_told() {
    let (policy, log) = play_with(crew(None), &[(5, exit(2, 3)), (50, exit(0, 0)), (60, exit(1, 0))]);
    let note = Action::Tell(JobNote::EvaluatorFailed(Ending::Code(3)));
    assert_eq!(log, [(5, note), (60, Finish)], "END-5");
    assert_eq!(policy.cause().exit_code(), 0, "END-5");
    let (policy, log) = play_with(crew(None), &[(5, exit(2, 0)), (50, exit(0, 7)), (60, exit(1, 0))]);
    assert_eq!((log, policy.cause().exit_code()), (vec![(60, Finish)], 7));
}

#[test]
fn what_outlives_the_workers_gets_the_grace_and_is_ended() {
    let (policy, log) = play_with(crew(None), &[(0, exit(0, 0)), (10, exit(1, 0)), (9000, exit(2, 0))]);
    assert_eq!(log, [(9000, Finish)], "it ends by itself");
    assert_eq!(policy.cause(), EndCause::Success);
    let note = |signal, servers: &[u32]| {
        Action::Tell(JobNote::Overdue {
            signal,
            servers: servers.to_vec(),
            evaluator: true,
            after: Duration::from_secs(5),
        })
    };
    let (policy, log) = play_with(crew(Some(5)), &[(0, exit(0, 0)), (10, exit(1, 0)), (5020, killed(2, 15))]);
    assert_eq!(
        log,
        [(5000, note(JobSignal::Term, &[])), (5000, Signal(JobSignal::Term)), (5020, Finish)],
        "END-6"
    );
    assert_eq!(policy.cause().exit_code(), 0, "END-6");
    let (policy, log) =
        play_with(crew(Some(5)), &[(0, exit(0, 0)), (5020, killed(1, 15)), (8001, killed(2, 9))]);
    let expected = [
        (5000, note(JobSignal::Term, &[1])),
        (5000, Signal(JobSignal::Term)),
        (8000, note(JobSignal::Kill, &[])),
        (8000, Signal(JobSignal::Kill)),
        (8001, Finish),
    ];
    assert_eq!((log, policy.cause().exit_code()), (expected.to_vec(), 0), "END-6: a server is ended, too");
}

#[test]
fn a_server_that_fails_fails_the_job() {
    let (policy, log) = play_with(crew(None), &[(0, exit(1, 4)), (10, exit(0, 1)), (1001, killed(2, 15))]);
    assert_eq!(log, [(1000, Signal(JobSignal::Term)), (1001, Finish)], "the evaluator is ended with the job");
    assert_eq!(policy.cause().exit_code(), 4);
}

#[test]
fn ranks_get_the_grace_after_sigterm() {
    let kills = |policy, signal| {
        let (_, log) = play_with(policy, &[(0, JobEvent::Asked(signal))]);
        log.iter().find(|(_, a)| *a == Signal(JobSignal::Kill)).map(|(at, _)| *at)
    };
    let term_after = Duration::ZERO;
    let alone =
        |grace| Policy::of(Crew { n_ranks: 1, n_servers: 0, has_evaluator: false, grace, term_after });
    assert_eq!(kills(alone(None), 15), Some(30_000));
    assert_eq!(kills(alone(Some(Duration::from_secs(7))), 15), Some(7000));
    assert_eq!(kills(alone(Some(Duration::from_secs(7))), 2), Some(9000), "SIGTERM comes 2 s after Ctrl-C");
    let saved = [(0, JobEvent::Asked(15)), (20, exit(0, 0))];
    assert_eq!(play_with(alone(None), &saved).0.cause().exit_code(), 143, "END-7");
}

#[test]
fn an_evaluator_goes_with_its_host() {
    let lost = JobEvent::HostLost { host: 0, ranks: vec![0, 1] };
    let (policy, log) = play_with(crew(None), &[(0, exit(0, 0)), (1, exit(1, 0)), (5, lost)]);
    assert_eq!((log, policy.cause()), (vec![(5, Finish)], EndCause::Success));
}

#[test]
fn a_rank_gets_one_sigterm_under_slurm_whoever_hears_of_it_first() {
    let by_slurm = || {
        let term_after = TERM_AFTER;
        Policy::of(Crew { n_ranks: 2, n_servers: 0, has_evaluator: false, grace: None, term_after })
    };
    let (asked, elsewhere) = (JobEvent::Asked(SIGTERM), JobEvent::AskedElsewhere(SIGTERM));
    let later = [(1100, Signal(JobSignal::Term)), (31_100, Signal(JobSignal::Kill)), (33_100, Finish)];
    let (policy, log) = play_with(by_slurm(), &[(100, asked.clone())]);
    assert_eq!((policy.cause().exit_code(), log.as_slice()), (143, later.as_slice()), "END-9");
    // An agent heard of it first; ranks that have ended are no failure, and the launcher's own signal is the same one.
    let both =
        [(100, elsewhere.clone()), (120, killed(1, 15)), (900, asked.clone()), (950, elsewhere.clone())];
    let (policy, log) = play_with(by_slurm(), &both);
    assert_eq!((policy.cause(), log.as_slice()), (EndCause::Asked(SIGTERM), later.as_slice()), "END-9");
    let again = [(100, elsewhere.clone()), (900, asked.clone()), (1000, asked.clone()), (2000, asked)];
    let (_, log) = play_with(by_slurm(), &again);
    assert_eq!(log[1], (2000, Signal(JobSignal::Kill)), "END-8: asked again");
    // salloc on a machine that is no host of the job: only agents hear of it.
    let ends = [(100, elsewhere.clone()), (200, exit(0, 0)), (300, exit(1, 0)), (300, elsewhere)];
    let (policy, log) = play(2, &ends);
    assert_eq!((policy.cause().exit_code(), log.as_slice()), (143, [(300, Finish)].as_slice()), "END-7");
}
