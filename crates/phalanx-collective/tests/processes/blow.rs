//! One blow against one rank in the middle of a collective, and what the survivors say.

use super::{
    Job, Server, Spec,
    chance::Chance,
    worker::{After, OPS},
};
use phalanx_net::ending::Ending;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A world, and the signal that hits one of its ranks.
#[derive(Clone, Debug)]
pub struct Blow {
    pub spec: Spec,
    pub op: &'static str,
    pub victim: usize,
    pub signal: Signal,
    /// Since every rank has been busy for a while.
    pub delay: Duration,
    /// Whether the launcher says how the rank ended, as ours does.
    pub told: bool,
}

impl Blow {
    /// Every rank of this world in every collective.
    pub fn each(spec: &Spec, signal: Signal, after: After, chance: &mut Chance) -> Vec<Blow> {
        let mut blows = Vec::new();
        for op in OPS {
            for victim in 0..spec.n_ranks() as usize {
                let spec = spec.clone().then(after);
                blows.push(Blow { op, victim, ..Blow::new(spec, signal, chance) });
            }
        }
        blows
    }

    /// Any rank of any world of 2 to 8 ranks in any collective.
    pub fn random(signal: Signal, chance: &mut Chance) -> Blow {
        let n = 2 + chance.below(7);
        let on_first = 1 + chance.below(n);
        let hosts = [on_first as u32, (n - on_first) as u32];
        let mut spec = Spec::new(if on_first == n { &hosts[..1] } else { &hosts });
        if chance.below(3) == 0 {
            spec = spec.over_tcp();
        }
        if chance.below(4) == 0 {
            spec = spec.served_by(Server::RankZero);
        }
        let spec = spec.then([After::Stay, After::Leave, After::Exit][chance.below(3)]);
        Blow { op: OPS[chance.below(OPS.len())], victim: chance.below(n), ..Blow::new(spec, signal, chance) }
    }

    fn new(spec: Spec, signal: Signal, chance: &mut Chance) -> Blow {
        let ends = signal == Signal::KILL && spec.server == Server::Launcher;
        let told = ends && chance.below(2) == 0;
        // A kill shall hit any step of a call, a stop any moment between two heartbeats.
        let most_us = if signal == Signal::STOP { 1_000_000 } else { 20_000 };
        let delay = Duration::from_micros(chance.below(most_us) as u64);
        Blow { spec, op: OPS[0], victim: 0, signal, delay, told }
    }

    /// Asserts that every survivor names the victim, and returns how long each took.
    pub fn strike(&self) -> Vec<Duration> {
        let mut job = Job::start(self.spec.clone().with("PHALANX_TEST_OPS", self.op));
        let all: Vec<usize> = (0..job.n_ranks()).collect();
        job.hear(&all, "busy");
        job.listen_for(self.delay);
        let struck = Instant::now();
        job.signal(self.victim, self.signal);
        if self.told {
            job.report_end(self.victim, Ending::Signal(9));
        }
        let times = all_name(&mut job, self.victim, struck);
        if self.signal == Signal::STOP {
            let frozen = format!("{} its process is frozen", self.victim);
            let wrong = job.log.iter().find(|s| s.word == "lost" && !s.rest.starts_with(&frozen));
            assert!(wrong.is_none(), "not for its silence: {wrong:?}; {}", job.story());
            job.kill(self.victim);
        }
        job.finish();
        times
    }
}

/// Asserts that all others named exactly this rank, and returns how long after `since` each did. They wait meanwhile, so each was woken
/// (WATCH-2).
pub fn all_name(job: &mut Job, culprit: usize, since: Instant) -> Vec<Duration> {
    let others: Vec<usize> = (0..job.n_ranks()).filter(|&r| r != culprit).collect();
    let verdicts = job.hear(&others, "lost");
    for said in &verdicts {
        let named = said.rest.split(' ').next();
        assert_eq!(
            named,
            Some(culprit.to_string().as_str()),
            "COMM-1, WAIT-3, WATCH-1: rank {} named another; {}",
            said.rank,
            job.story()
        );
    }
    verdicts.iter().map(|said| said.at.saturating_duration_since(since)).collect()
}
