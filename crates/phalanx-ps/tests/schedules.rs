//! Offices and servers without clocks or sockets: letters arrive in any order that connections allow.

use crate::worlds::{WIDTH, bytes, spec, touched};
use phalanx_core::Rank;
use phalanx_ps::{
    Consistency, LetterKind, Office, Placement, Port, RowLetter, RowValues, Rows, Shard, ShardSetup,
    TableSpec,
};
use std::collections::{BTreeMap, VecDeque};

const STEPS: u64 = 4;
const HEIGHT: u64 = 40;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Worker(u32),
    Office(u32),
    Server(u32),
}

/// The rows that a worker got in each step.
type Seen = Vec<(u64, Vec<u8>)>;

/// A worker that pulls, then pushes, step after step.
#[derive(Default)]
struct Worker {
    step: u64,
    waits: bool,
    seen: Seen,
}

struct Simulation {
    offices: Vec<Office>,
    shards: Vec<Shard>,
    workers: Vec<Worker>,
    office_of: Vec<u32>,
    /// Connections keep order; which one delivers next is the dice's choice.
    wires: BTreeMap<(Place, Place), VecDeque<RowLetter>>,
    dead: Option<u32>,
    staleness: u64,
}

impl Simulation {
    fn new(hosts: &[u32], n_servers: u32, consistency: Consistency) -> Simulation {
        let specs = vec![TableSpec { partitions: 3, ..spec("t") }];
        let placement = Placement::greedy(&specs, n_servers);
        let (mut offices, mut office_of) = (Vec::new(), Vec::new());
        for (number, n) in hosts.iter().enumerate() {
            let first = office_of.len() as u32;
            let ranks = (first..first + n).map(Rank).collect();
            office_of.extend((0..*n).map(|_| number as u32));
            offices.push(Office::new(number as u32, ranks, specs.clone(), placement.clone(), consistency, 0));
        }
        let n_workers = office_of.len() as u32;
        let shard = |server| {
            Shard::new(ShardSetup {
                server,
                specs: specs.clone(),
                placement: placement.clone(),
                consistency,
                n_offices: hosts.len() as u32,
                n_workers,
                step: 0,
            })
        };
        Simulation {
            shards: (0..n_servers).map(shard).collect(),
            offices,
            workers: (0..n_workers).map(|_| Worker::default()).collect(),
            office_of,
            wires: BTreeMap::new(),
            dead: None,
            staleness: 0,
        }
    }

    fn send(&mut self, from: Place, to: Place, letter: RowLetter) {
        self.wires.entry((from, to)).or_default().push_back(letter);
    }

    /// A worker's next move, unless it waits.
    fn act(&mut self, worker: u32) {
        let state = &mut self.workers[worker as usize];
        if state.waits || state.step > STEPS || self.dead == Some(worker) {
            return;
        }
        state.waits = true;
        let step = state.step;
        // At the end every worker looks at everything.
        let mut ids: Vec<u32> = match step {
            STEPS => (0..HEIGHT as u32).collect(),
            _ => touched(worker, step, HEIGHT).0.iter().map(|&id| id as u32).collect(),
        };
        ids.sort_unstable();
        ids.dedup();
        let rows = Rows { ids, ..Rows::default() };
        let office = Place::Office(self.office_of[worker as usize]);
        self.send(
            Place::Worker(worker),
            office,
            RowLetter { rows, ticket: 1, ..RowLetter::new(LetterKind::Pull, 0, step) },
        );
    }

    fn answered(&mut self, worker: u32, letter: RowLetter) {
        assert_eq!(letter.kind, LetterKind::Pulled, "{}", letter.text());
        let slowest = self.workers.iter().map(|w| w.step).min().expect("there is a worker");
        // Who asks for nothing sees nothing old.
        if !letter.rows.values.is_empty() {
            self.staleness = self.staleness.max(self.workers[worker as usize].step - slowest);
        }
        let state = &mut self.workers[worker as usize];
        let step = state.step;
        state.seen.push((step, letter.rows.values.bytes().to_vec()));
        state.step += 1;
        state.waits = false;
        if step == STEPS {
            return;
        }
        let (ids, grads) = touched(worker, step, HEIGHT);
        let mut sums: BTreeMap<u32, Vec<f32>> = BTreeMap::new();
        for (id, g) in ids.iter().zip(grads.chunks_exact(WIDTH)) {
            let to = sums.entry(*id as u32).or_insert_with(|| vec![0.0; WIDTH]);
            to.iter_mut().zip(g).for_each(|(to, g)| *to += g);
        }
        let values: Vec<f32> = sums.values().flatten().copied().collect();
        let rows = Rows {
            ids: sums.into_keys().collect(),
            values: RowValues::of(bytes(&values)),
            ..Rows::default()
        };
        let office = Place::Office(self.office_of[worker as usize]);
        self.send(
            Place::Worker(worker),
            office,
            RowLetter { rows, number: 0.125, ..RowLetter::new(LetterKind::Push, 0, step) },
        );
    }

    fn deliver(&mut self, (from, to): (Place, Place), letter: RowLetter) {
        let port = match from {
            Place::Worker(w) => Port::Worker(Rank(w)),
            Place::Office(o) => Port::Office(o),
            Place::Server(s) => Port::Server(s),
        };
        let mut out = Vec::new();
        match to {
            Place::Worker(worker) => return self.answered(worker, letter),
            Place::Office(o) => self.offices[o as usize].step(port, letter, &mut out),
            Place::Server(s) => self.shards[s as usize].step(port, letter, &mut out),
        }
        for (port, letter) in out {
            let next = match port {
                Port::Worker(rank) => Place::Worker(rank.0),
                Port::Office(o) => Place::Office(o),
                Port::Server(s) => Place::Server(s),
            };
            self.send(to, next, letter);
        }
    }

    /// Until nothing moves.
    fn run(&mut self, dice: &mut Dice, dies_at: Option<(u32, u64)>) {
        loop {
            for worker in 0..self.workers.len() as u32 {
                if let Some((victim, step)) = dies_at
                    && worker == victim
                    && self.workers[worker as usize].step >= step
                {
                    self.dead = Some(worker);
                }
                // Some are slow.
                if dice.below(3) > 0 {
                    self.act(worker);
                }
            }
            let busy: Vec<(Place, Place)> =
                self.wires.iter().filter(|(_, letters)| !letters.is_empty()).map(|(wire, _)| *wire).collect();
            let idle = |w: &Worker| w.waits || w.step > STEPS;
            if busy.is_empty() {
                let done = (0..).zip(&self.workers).all(|(i, w)| idle(w) || self.dead == Some(i));
                if done {
                    return;
                }
                continue;
            }
            let wire = busy[dice.below(busy.len())];
            let letter = self.wires.get_mut(&wire).and_then(VecDeque::pop_front).expect("it has a letter");
            if let (Place::Worker(w), _) | (_, Place::Worker(w)) = wire
                && self.dead == Some(w)
            {
                continue;
            }
            self.deliver(wire, letter);
        }
    }
}

#[test]
fn ten_thousand_schedules_give_the_same_rows() {
    let mut wanted: BTreeMap<usize, Vec<Seen>> = BTreeMap::new();
    for seed in 0..10_000u64 {
        let mut dice = Dice(seed);
        let shapes: [(&[u32], u32); 4] = [(&[1], 1), (&[2, 1], 2), (&[1, 1], 3), (&[3], 2)];
        let shape = dice.below(shapes.len());
        let (hosts, servers) = shapes[shape];
        let mut simulation = Simulation::new(hosts, servers, Consistency::Sync);
        simulation.run(&mut dice, None);
        let seen: Vec<_> = simulation.workers.iter().map(|w| w.seen.clone()).collect();
        assert!(seen.iter().all(|seen| seen.len() as u64 == STEPS + 1), "seed {seed}: everybody ends");
        let ends: Vec<&Vec<u8>> = seen.iter().map(|seen| &seen[STEPS as usize].1).collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: SHARD-1");
        assert_eq!(wanted.entry(shape).or_insert_with(|| seen.clone()), &seen, "seed {seed}: SHARD-3");
    }
}

#[test]
fn a_dead_worker_stops_every_step_that_lacks_its_push() {
    for seed in 0..2_000u64 {
        let mut dice = Dice(seed);
        let mut simulation = Simulation::new(&[2, 1], 2, Consistency::Sync);
        let (victim, step) = (dice.below(3) as u32, dice.below(STEPS as usize) as u64);
        simulation.run(&mut dice, Some((victim, step)));
        for shard in &simulation.shards {
            assert!(shard.version(0) <= step, "seed {seed}: SHARD-1: an incomplete step is never applied");
        }
        let alive = (0..).zip(&simulation.workers).filter(|(worker, _)| *worker != victim);
        assert!(alive.clone().all(|(_, w)| w.step <= STEPS), "seed {seed}: nobody sees the end");
    }
}

#[test]
fn nobody_is_further_ahead_than_the_bound() {
    for seed in 0..3_000u64 {
        let mut dice = Dice(seed);
        let bound = dice.below(3) as u64;
        let mut simulation = Simulation::new(&[2, 1], 2, Consistency::Bounded(bound));
        simulation.run(&mut dice, None);
        assert!(simulation.workers.iter().all(|w| w.step == STEPS + 1), "seed {seed}: everybody ends");
        // A worker may ask for the step after the last one that it got.
        assert!(
            simulation.staleness <= bound + 1,
            "seed {seed}: SHARD-2: {} > {bound}",
            simulation.staleness
        );
    }
}

/// OFFICE-3
#[test]
fn without_bounds_a_dead_worker_stops_nobody() {
    for seed in 0..1_000u64 {
        let mut dice = Dice(seed);
        let mut simulation = Simulation::new(&[2, 1], 2, Consistency::Async);
        let victim = dice.below(3) as u32;
        simulation.run(&mut dice, Some((victim, 1)));
        for (worker, state) in (0..).zip(&simulation.workers) {
            assert!(worker == victim || state.step == STEPS + 1, "seed {seed}: {worker} waits for nobody");
        }
    }
}
