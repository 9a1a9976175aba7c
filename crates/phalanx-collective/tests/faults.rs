//! Ranks die, freeze, leave and never come, in the middle of every collective: every other rank is told who, and nobody hangs.

use crate::processes::{
    Job, Server, Spec,
    blow::{Blow, all_name},
    chance::Chance,
    crowd,
    worker::{After, Fault, OPS, Order},
};
use phalanx_net::ending::Ending;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Worlds with a stopped rank that run at the same time: more ranks than there are cores, so that names must be right on a busy machine, too.
const N_STOPPED_AT_ONCE: usize = 10;

/// Kills every rank during every collective of this world, each in a world of its own.
fn kill_each_rank_in_each_collective(what: &str, spec: &Spec, seed: u64) {
    println!("{what}: seed {seed}");
    let mut chance = Chance(seed);
    let afters = [After::Stay, After::Leave, After::Exit];
    let blows: Vec<Blow> =
        afters.iter().flat_map(|&after| Blow::each(spec, Signal::KILL, after, &mut chance)).collect();
    // One at a time: what is measured is how soon, not how soon on a crowded machine.
    crowd::run(what, 1, &blows, Blow::strike);
}

/// Stops every rank during every collective of this world, each in a world of its own.
fn stop_each_rank_in_each_collective(what: &str, spec: &Spec, after: After, seed: u64) {
    println!("{what}: seed {seed}");
    let blows = Blow::each(spec, Signal::STOP, after, &mut Chance(seed));
    crowd::run(what, N_STOPPED_AT_ONCE, &blows, Blow::strike);
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
    // WATCH-3 is what tells the ranks that did not wait for rank 0 itself.
    let spec = Spec::new(&[3]).served_by(Server::RankZero);
    kill_each_rank_in_each_collective("rank 0 serves, shared memory", &spec, 4);
    kill_each_rank_in_each_collective("rank 0 serves, tcp", &spec.over_tcp(), 5);
}

#[test]
fn a_stopped_rank_is_named_by_all_in_every_collective_over_shared_memory() {
    stop_each_rank_in_each_collective("stopped, shared memory", &Spec::new(&[3]), After::Exit, 6);
}

#[test]
fn a_stopped_rank_is_named_by_all_in_every_collective_over_tcp() {
    stop_each_rank_in_each_collective("stopped, tcp", &Spec::new(&[3]).over_tcp(), After::Leave, 7);
}

#[test]
fn a_stopped_rank_is_named_by_all_where_rank_0_serves_the_hub() {
    let spec = Spec::new(&[3]).served_by(Server::RankZero);
    stop_each_rank_in_each_collective("stopped, rank 0 serves, shared memory", &spec, After::Stay, 8);
    stop_each_rank_in_each_collective("stopped, rank 0 serves, tcp", &spec.over_tcp(), After::Exit, 9);
}

/// Blows against any rank of any world at any moment: a few with every change; `docs/reliability.md` has the figures of many.
fn random_blows(what: &str, signal: Signal, n_at_once: usize, n: usize) {
    let seed = crowd::setting("PHALANX_TEST_SEED", 10) as u64;
    println!("{what}: seed {seed}");
    let mut chance = Chance(seed);
    let blows: Vec<Blow> = (0..n).map(|_| Blow::random(signal, &mut chance)).collect();
    crowd::run(what, n_at_once, &blows, Blow::strike);
}

#[test]
fn a_rank_killed_at_any_moment_in_any_world_is_named_by_all() {
    random_blows("random kills", Signal::KILL, 1, crowd::setting("PHALANX_TEST_KILLS", 20));
}

#[test]
fn a_rank_stopped_at_any_moment_in_any_world_is_named_by_all() {
    let n = crowd::setting("PHALANX_TEST_STOPS", N_STOPPED_AT_ONCE);
    random_blows("random stops", Signal::STOP, N_STOPPED_AT_ONCE, n);
}

#[test]
fn a_stopped_rank_is_named_by_all_and_learns_of_it_when_it_goes_on() {
    let mut times = Vec::new();
    for (spec, victim) in [
        (Spec::new(&[3]), 0),
        (Spec::new(&[3]).over_tcp(), 1),
        (Spec::new(&[2, 1]), 2),
        (Spec::new(&[3]).served_by(Server::RankZero), 0),
        (Spec::new(&[3]).over_tcp().served_by(Server::RankZero), 0),
        (Spec::new(&[3]).over_tcp().served_by(Server::RankZero).then(After::Exit), 1),
    ] {
        let mut job = Job::start(spec.clone().with("PHALANX_TEST_OPS", "allreduce-large"));
        job.hear(&[0, 1, 2], "busy");
        let stopped = Instant::now();
        job.signal(victim, Signal::STOP);
        times.extend(all_name(&mut job, victim, stopped));
        job.signal(victim, Signal::CONT);
        if spec.server == Server::Launcher {
            // It names itself: the others went on without it.
            let said = job.hear(&[victim], "lost");
            assert!(said[0].rest.starts_with(&format!("{victim} its process is frozen")), "{}", job.story());
        } else {
            job.kill(victim);
        }
        job.finish();
    }
    crowd::report("stopped", times);
}

#[test]
fn a_rank_that_goes_while_others_wait_is_named_with_the_cause() {
    let shapes = [Spec::new(&[3]), Spec::new(&[3]).over_tcp(), Spec::new(&[2, 2])];
    let with_servers = shapes.iter().flat_map(|s| {
        [s.clone(), s.clone().served_by(Server::RankZero)].into_iter().flat_map(|s| {
            [
                (s.clone(), Fault::Leave, 0),
                (s.clone(), Fault::Leave, 1),
                (s.clone(), Fault::Exit, 0),
                (s, Fault::Exit, 2),
            ]
        })
    });
    for (spec, fault, victim) in with_servers {
        // In the first call, when links are not open yet and memory may not be shared yet, and later.
        for round in [0, 40] {
            let order = Order { rank: victim, fault, round, delay: Duration::ZERO };
            let orders = spec.clone().with("PHALANX_TEST_FAULTS", order.text());
            let mut job = Job::start(orders.with("PHALANX_TEST_OPS", OPS.join(",")));
            let begun = Instant::now();
            if fault == Fault::Exit && job.hub.is_some() {
                job.hear(&[victim], "ended");
                job.report_end(victim, Ending::Code(0));
            }
            all_name(&mut job, victim, begun);
            if fault == Fault::Leave {
                let left =
                    job.log.iter().filter(|s| s.word == "lost" && s.rest.contains("it left the world"));
                assert_eq!(left.count(), job.n_ranks() - 1, "{}", job.story());
            }
            job.finish();
        }
    }
}

#[test]
fn a_world_that_misses_a_rank_says_so_on_every_rank() {
    for server in [Server::Launcher, Server::RankZero] {
        let spec = Spec::new(&[3]).served_by(server).with("PHALANX_START_TIMEOUT", "1.5");
        let mut job = Job::prepare(spec);
        job.spawn(0);
        job.spawn(1);
        for said in job.hear(&[0, 1], "failed") {
            assert!(said.rest.contains("did not form within"), "{}", job.story());
            assert!(said.rest.contains("missing ranks 2"), "{}", job.story());
        }
        job.finish();
    }
}

#[test]
fn a_rank_that_comes_late_but_in_time_is_waited_for() {
    for server in [Server::Launcher, Server::RankZero] {
        for late in [0, 2] {
            let spec = Spec::new(&[2, 1]).served_by(server).with("PHALANX_TEST_ROUNDS", 5);
            let mut job = Job::prepare(spec);
            let early: Vec<usize> = (0..3).filter(|&r| r != late).collect();
            early.iter().for_each(|&r| job.spawn(r));
            // Longer than a few beats of the hub, so that waiting is not taken for silence.
            job.quiet_for(Duration::from_millis(1800));
            job.spawn(late);
            job.hear(&[0, 1, 2], "done");
            job.finish();
        }
    }
}

#[test]
fn nobody_joins_a_world_that_is_over_before_it_formed() {
    let mut job = Job::prepare(Spec::new(&[3]));
    job.spawn(0);
    job.spawn(1);
    job.kill(1);
    job.report_end(1, Ending::Signal(9));
    all_of(&mut job, &[0], 1);
    job.spawn(2);
    all_of(&mut job, &[2], 1);
    job.finish();
}

/// Asserts that these ranks name the culprit.
fn all_of(job: &mut Job, ranks: &[usize], culprit: usize) {
    for said in job.hear(ranks, "lost") {
        assert!(said.rest.starts_with(&format!("{culprit} ")), "{}", job.story());
    }
}
