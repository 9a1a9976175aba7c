//! Random faults at random moments in random worlds: no rank hangs, and a rank that fails names one that is at fault.

use crate::processes::{
    Job, Server, Spec,
    chance::Chance,
    worker::{After, Fault, OPS, Order},
};
use rustix::process::Signal;
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Worlds that run at the same time: those with a stopped rank mostly wait.
const N_AT_ONCE: usize = 6;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// One world and what goes wrong in it.
#[derive(Debug)]
struct Schedule {
    spec: Spec,
    orders: Vec<Order>,
    /// Started this long after the others.
    late: Option<(usize, Duration)>,
}

impl Schedule {
    fn of(seed: u64) -> Schedule {
        let chance = &mut Chance(seed);
        let n = 2 + chance.below(4) as u32;
        let mut hosts = vec![n];
        if chance.below(2) == 0 {
            let first = 1 + chance.below(n as usize - 1) as u32;
            hosts = vec![first, n - first];
        }
        let mut spec = Spec::new(&hosts);
        if chance.below(3) == 0 {
            spec = spec.over_tcp();
        }
        if chance.below(4) == 0 {
            spec = spec.served_by(Server::RankZero);
        }
        spec = spec.then([After::Stay, After::Leave, After::Exit][chance.below(3)]);
        let ops: Vec<&str> = (0..1 + chance.below(5)).map(|_| OPS[chance.below(OPS.len())]).collect();
        // Somebody stays healthy, to tell.
        let mut orders: Vec<Order> = (0..1 + chance.below(2).min(n as usize - 2))
            .map(|_| Order {
                rank: chance.below(n as usize),
                // Stopping takes seconds to notice, so it is rarer than its turn.
                fault: match chance.below(9) {
                    0 => Fault::Stop,
                    1 | 2 => Fault::Leave,
                    3 => Fault::Exit,
                    4 | 5 => Fault::HalfOpen,
                    _ => Fault::Kill,
                },
                round: chance.below(12) as u64,
                delay: Duration::from_micros(chance.below(1500) as u64),
            })
            .collect();
        orders.sort_by_key(|o| o.rank);
        orders.dedup_by_key(|o| o.rank);
        let late = (chance.below(4) == 0)
            .then(|| (chance.below(n as usize), Duration::from_millis(chance.below(600) as u64)));
        let texts: Vec<String> = orders.iter().map(Order::text).collect();
        let spec = spec.with("PHALANX_TEST_OPS", ops.join(",")).with("PHALANX_TEST_FAULTS", texts.join(","));
        Schedule { spec, orders, late }
    }

    fn run(&self, seed: u64) {
        let mut job = Job::prepare(self.spec.clone());
        let n = job.n_ranks();
        let late = self.late.map_or(usize::MAX, |(rank, _)| rank);
        (0..n).filter(|&r| r != late).for_each(|r| job.spawn(r));
        if let Some((rank, delay)) = self.late {
            job.listen_for(delay);
            job.spawn(rank);
        }
        let faulty: BTreeSet<usize> = self.orders.iter().map(|o| o.rank).collect();
        // Every other rank either fails and names one of them, or was itself cut off from the launcher by nothing but their faults.
        let others: Vec<usize> = (0..n).filter(|r| !faulty.contains(r)).collect();
        for said in job.hear(&others, "lost") {
            let named = said.rest.split(' ').next().and_then(|r| r.parse().ok());
            let right = named.is_some_and(|r: usize| faulty.contains(&r));
            assert!(
                right,
                "COMM-1, seed {seed}: rank {} named a rank without fault; {}",
                said.rank,
                job.story()
            );
        }
        // A rank that is at fault but still runs must not hang either.
        for order in &self.orders {
            match order.fault {
                Fault::Stop => {
                    job.signal(order.rank, Signal::CONT);
                    job.kill(order.rank);
                }
                Fault::Leave | Fault::HalfOpen => {
                    job.hear_any(order.rank, &["lost", "failed", "left", "ended"]);
                }
                Fault::Kill | Fault::Exit | Fault::Away => {}
            }
        }
        job.finish();
    }
}

#[test]
fn random_faults_never_hang_a_world_and_are_never_put_down_to_a_healthy_rank() {
    let n_schedules = setting("PHALANX_TEST_SCHEDULES", 300);
    let first = setting("PHALANX_TEST_SEED", 1_000_000);
    println!(
        "{n_schedules} schedules from seed {first}; PHALANX_TEST_SEED=s PHALANX_TEST_SCHEDULES=1 runs one"
    );
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..N_AT_ONCE {
            scope.spawn(|| {
                loop {
                    // Relaxed: the number itself is all that is shared.
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= n_schedules {
                        return;
                    }
                    Schedule::of(first + i).run(first + i);
                }
            });
        }
    });
    println!("{n_schedules} schedules in {:?}", begun.elapsed());
}
