//! Ranks die, freeze, leave and never come, in the middle of every collective: everybody else is told who, and nobody hangs.

mod processes;

use processes::{
    Job, Server, Spec,
    chance::Chance,
    worker::{After, Fault, OPS, Order},
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

#[test]
fn worker_entry() {
    processes::worker::main();
}

/// Asserts that all others named exactly this rank, and returns how long after `since` each did.
fn all_name(job: &mut Job, culprit: usize, since: Instant) -> Vec<Duration> {
    let others: Vec<usize> = (0..job.n_ranks()).filter(|&r| r != culprit).collect();
    let verdicts = job.hear(&others, "lost");
    for said in &verdicts {
        let named = said.rest.split(' ').next();
        assert_eq!(named, Some(culprit.to_string().as_str()), "rank {} named another; {}", said.rank, job.story());
    }
    verdicts.iter().map(|said| said.at.saturating_duration_since(since)).collect()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    println!("{what}: {} verdicts, p50 {:?}, p99 {:?}, worst {:?}", times.len(), at(0.5), at(0.99), at(1.0));
}

/// Kills every rank during every collective of this world, each in a world of its own.
fn kill_each_rank_in_each_collective(what: &str, spec: &Spec, seed: u64) {
    println!("{what}: seed {seed}");
    let mut chance = Chance(seed);
    let mut times = Vec::new();
    let all: Vec<usize> = (0..spec.n_ranks() as usize).collect();
    let cases = OPS.iter().flat_map(|op| all.iter().map(move |&victim| (op, victim)));
    for after in [After::Stay, After::Leave, After::Exit] {
        for (op, victim) in cases.clone() {
            let mut job = Job::start(spec.clone().with("PHALANX_TEST_OPS", op).then(after));
            job.hear(&all, "busy");
            let moment = Instant::now() + Duration::from_micros(chance.below(3000) as u64);
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
            let killed = job.kill(victim);
            if job.hub.is_some() && chance.below(2) == 0 {
                job.report_end(victim, "was killed by SIGKILL");
            }
            times.extend(all_name(&mut job, victim, killed));
            job.finish();
        }
    }
    report(what, times);
}

#[test]
fn a_killed_rank_is_named_by_all_in_every_collective_over_shared_memory() {
    kill_each_rank_in_each_collective("shared memory", &Spec::new(&[3]), 1);
}

#[test]
fn a_killed_rank_is_named_by_all_in_every_collective_over_tcp() {
    kill_each_rank_in_each_collective("tcp", &Spec::new(&[3]).over_tcp(), 2);
}

#[test]
fn a_killed_rank_is_named_by_all_in_every_collective_between_hosts() {
    kill_each_rank_in_each_collective("2 x 2", &Spec::new(&[2, 2]), 3);
}

#[test]
fn a_killed_rank_is_named_by_all_where_rank_0_serves_the_hub() {
    let spec = Spec::new(&[3]).served_by(Server::RankZero);
    kill_each_rank_in_each_collective("rank 0 serves, shared memory", &spec, 4);
    kill_each_rank_in_each_collective("rank 0 serves, tcp", &spec.over_tcp(), 5);
}
