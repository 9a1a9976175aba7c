//! One rank goes, in one of many ways, while all others wait for answers of their engines.

use crate::processes::{Job, Spec, crowd};
use phalanx_net::ending::Ending;
use rustix::process::Signal;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Exit,
    Panic,
    ShutDown,
    Stop,
}

impl Fault {
    const ALL: [Fault; 5] = [Fault::Kill, Fault::Exit, Fault::Panic, Fault::ShutDown, Fault::Stop];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// What an engine may say about it. Which of several things is noticed first is a matter of chance, but all ranks say the same.
    fn texts(self, victim: usize) -> Vec<String> {
        let lost = |cause: &str| format!("rank {victim} is lost: {cause}");
        let ended = |how: &str| vec![lost(how), lost("its process ended"), lost("its connection was closed")];
        match self {
            Fault::Kill => ended("its process was killed by SIGKILL"),
            Fault::Exit => ended("its process exited with code 0"),
            Fault::Panic => {
                let panicked = format!("rank {victim} gave up: the thread that owned its engine panicked");
                [ended("its process exited with code 101"), vec![panicked]].concat()
            }
            Fault::ShutDown => {
                vec![format!("rank {victim} has shut down its engine, which ends the engines of all ranks")]
            }
            Fault::Stop => vec![lost("its process is frozen: no heartbeat for ")],
        }
    }
}

/// When and where it happens.
#[derive(Clone, Debug)]
struct Case {
    hosts: Vec<u32>,
    scene: &'static str,
    victim: usize,
    fault: Fault,
}

impl Case {
    /// Asserts that every survivor's every operation is answered with the victim and the cause, and returns how long each survivor took.
    fn run(&self) -> Vec<Duration> {
        let Case { hosts, scene, victim, fault } = self;
        let spec = Spec::new(hosts)
            .with("PHALANX_TEST_SCENE", scene)
            .with("PHALANX_TEST_VICTIM", victim)
            .with("PHALANX_TEST_FAULT", fault.name())
            .with("RUST_BACKTRACE", 0);
        let mut job = Job::start(spec);
        let all: Vec<usize> = (0..job.n_ranks()).collect();
        let others: Vec<usize> = all.iter().copied().filter(|r| r != victim).collect();
        job.hear(&all, "ready");
        // In the middle of a step, not always at its beginning.
        job.listen_for(Duration::from_micros(*victim as u64 * 700 + hosts.len() as u64 * 300));
        let struck = Instant::now();
        match fault {
            Fault::Kill => {
                job.kill(*victim);
                job.report_end(*victim, Ending::Signal(9));
            }
            Fault::Stop => job.signal(*victim, Signal::STOP),
            Fault::Exit | Fault::Panic => {
                job.dismiss(*victim);
                job.hear(&[*victim], "ended");
                let code = if *fault == Fault::Exit { 0 } else { 101 };
                job.report_end(*victim, Ending::Code(code));
            }
            Fault::ShutDown => job.dismiss(*victim),
        }
        let verdicts = job.hear(&others, "verdict");
        let texts = fault.texts(*victim);
        for said in &verdicts {
            assert!(
                texts.iter().any(|text| said.rest.starts_with(text)) && !said.rest.contains(" | "),
                "CTL-1: rank {} said {:?}; {self:?}; {}",
                said.rank,
                said.rest,
                job.story()
            );
            assert_eq!(said.rest, verdicts[0].rest, "LOST-2: all name the same; {}", job.story());
        }
        for said in job.hear(&others, "later") {
            let later_us: u64 = said.rest.parse().expect("a number");
            assert!(later_us < 1_000_000, "later submissions fail at once: {later_us} us; {}", job.story());
        }
        if *fault == Fault::ShutDown {
            job.hear(&[*victim], "shut");
        }
        if *fault == Fault::Stop {
            job.kill(*victim);
        }
        job.finish();
        let times: Vec<Duration> = verdicts.iter().map(|s| s.at.saturating_duration_since(struck)).collect();
        assert!(times.iter().all(|t| *t < Duration::from_secs(10)), "{self:?}: {times:?}");
        times
    }
}

const SHAPES: [&[u32]; 6] = [&[2], &[1, 1], &[3], &[2, 1], &[4], &[2, 2]];

/// Every fault in every shape of at least this number of ranks, those that are noticed by silence at the same time.
fn each(scene: &'static str, least: u32) {
    for fault in Fault::ALL {
        let mut cases = Vec::new();
        for (i, hosts) in SHAPES.iter().enumerate().filter(|(_, hosts)| hosts.iter().sum::<u32>() >= least) {
            let n = hosts.iter().sum::<u32>() as usize;
            let victim = (i + fault as usize) % n;
            cases.push(Case { hosts: hosts.to_vec(), scene, victim, fault });
        }
        let n_at_once = if fault == Fault::Stop { cases.len() } else { 1 };
        crowd::run(&format!("{scene}, {}", fault.name()), n_at_once, &cases, Case::run);
    }
}

#[test]
fn whoever_waits_for_a_rank_that_goes_is_told_who_and_why() {
    each("waiting", 2);
}

#[test]
fn a_rank_that_goes_in_the_middle_of_a_replay_is_named_by_all() {
    each("replaying", 2);
}

#[test]
fn a_rank_that_goes_while_it_works_in_a_set_is_named_also_by_those_who_are_not_in_it() {
    each("subset", 3);
}
