//! Many nodes, a network that delays and reorders between pairs, and random programs: the same code as in the engine, with time in our hands.

use super::{agree::SpecConflict, fuse::FusionLimits, message::*, replay::View, report::Missed, *};
use crate::engine::{
    spec::{Form, Kind, Spec},
    whereabouts::Frame,
};
use phalanx_core::DType;
use std::collections::BTreeMap;

/// A small generator; the seed of a failing run is in the message of the assertion.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n.max(1)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Event {
    Ran(Vec<String>),
    Failed(String),
    AllJoined(Rank),
    Over(Rank),
}

struct Net {
    nodes: Vec<Negotiator>,
    /// Messages on the way, in order for each pair.
    wires: BTreeMap<(usize, usize), VecDeque<Message>>,
    boards: Vec<(Generation, u64, bool)>,
    events: Vec<Vec<Event>>,
    unfinished: Vec<u64>,
    reports: Vec<StallReport>,
    replayed: usize,
    now_us: u64,
    chance: Chance,
    n_messages: usize,
    /// Crashed: nothing happens there any more.
    dead: Vec<bool>,
    /// Operations that have run or failed on each rank.
    n_finished: Vec<usize>,
    /// How often each program was to say where it is, and has not been asked yet.
    asked: Vec<u64>,
}

impl Net {
    fn new(n: usize, seed: u64, change: impl Fn(&mut NegotiatorSetup)) -> Net {
        let node = |me| {
            let mut setup = NegotiatorSetup {
                me,
                members: (0..n).map(Rank::at).collect(),
                limits: FusionLimits { fusion_bytes: 256, alone_bytes: 200 },
                cache_capacity: 6,
                board: false,
                replay: true,
                stall_ms: None,
                abort_ms: None,
                says_where: false,
            };
            change(&mut setup);
            Negotiator::new(setup)
        };
        Net {
            nodes: (0..n).map(node).collect(),
            wires: BTreeMap::new(),
            boards: vec![(0, 0, false); n],
            events: vec![Vec::new(); n],
            unfinished: vec![0; n],
            reports: Vec::new(),
            replayed: 0,
            now_us: 0,
            chance: Chance(seed | 1),
            n_messages: 0,
            dead: vec![false; n],
            n_finished: vec![0; n],
            asked: vec![0; n],
        }
    }

    fn step(&mut self, me: usize, input: Input) {
        if self.dead[me] {
            return;
        }
        let mut out = Vec::new();
        self.nodes[me].step(self.now_us, input, &mut out);
        for output in out {
            match output {
                Output::Send { to, message } => {
                    self.n_messages += 1;
                    self.wires.entry((me, to)).or_default().push_back(message);
                }
                Output::Run { batch, replayed } => {
                    self.replayed += usize::from(replayed);
                    self.n_finished[me] += batch.len();
                    let names = batch.iter().map(|a| a.name.to_string()).collect();
                    self.events[me].push(Event::Ran(names));
                    self.unfinished[me] += 1;
                }
                Output::Fail { name, .. } => {
                    self.n_finished[me] += 1;
                    self.events[me].push(Event::Failed(name.to_string()));
                }
                Output::AllJoined { last } => self.events[me].push(Event::AllJoined(last)),
                Output::Over { rank, .. } => self.events[me].push(Event::Over(rank)),
                Output::Show { generation, count, frozen } => self.boards[me] = (generation, count, frozen),
                Output::Report(report) => self.reports.push(report),
                Output::Locate => self.asked[me] += 1,
                Output::Tune(_) => {}
            }
        }
    }

    /// One thing happens, chosen by chance.
    fn happen(&mut self) {
        self.now_us += self.chance.below(200);
        let n = self.nodes.len() as u64;
        let me = self.chance.below(n) as usize;
        match self.chance.below(4) {
            0 => self.step(me, Input::Flush),
            1 => {
                let done = self.chance.below(self.unfinished[me] + 1);
                self.unfinished[me] -= done;
                self.step(me, Input::Ran(done));
            }
            2 if self.nodes[me].setup.board => {
                let generation = self.nodes[me].generation;
                let of =
                    |b: &(Generation, u64, bool)| if b.0 == generation { (b.1, b.2) } else { (0, false) };
                let seen: Vec<(u64, bool)> = self.boards.iter().map(of).collect();
                let view = View {
                    generation,
                    lowest: seen.iter().map(|s| s.0).min().unwrap(),
                    any_frozen: seen.iter().any(|s| s.1),
                    all_frozen: seen.iter().all(|s| s.1),
                };
                self.step(me, Input::Seen(view));
            }
            _ => {
                let busy: Vec<(usize, usize)> =
                    self.wires.iter().filter(|(_, w)| !w.is_empty()).map(|(k, _)| *k).collect();
                if busy.is_empty() {
                    return;
                }
                let (from, to) = busy[self.chance.below(busy.len() as u64) as usize];
                let message = self.wires.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                self.step(to, Input::Heard { from, message });
            }
        }
    }

    /// A node stops; of what it has said last, some arrives and the rest does not.
    fn crash(&mut self, me: usize) {
        self.dead[me] = true;
        for ((from, _), wire) in &mut self.wires {
            if *from == me {
                wire.truncate(self.chance.below(wire.len() as u64 + 1) as usize);
            }
        }
    }

    fn submit(&mut self, me: usize, name: &str, spec: Spec) {
        self.step(me, Input::Submit { name: name.into(), spec });
    }
}

fn spec(kind: Kind, n: u64) -> Spec {
    Spec::new(kind, vec![Form { dtype: DType::F32, shape: vec![n] }])
}

fn finished(net: &Net, me: usize) -> Vec<String> {
    let names = |e: &Event| match e {
        Event::Ran(names) => names.clone(),
        Event::Failed(name) => vec![name.clone()],
        _ => Vec::new(),
    };
    net.events[me].iter().flat_map(names).collect()
}

/// Every rank runs a program of steps; in each step it submits the step's tensors in an order of its own, and begins the next step when all of
/// them have finished. Some steps have an extra or a missing tensor, or one that disagrees.
fn random_program(seed: u64, n: usize, board: bool) -> usize {
    const STEPS: usize = 14;
    let mut net = Net::new(n, seed, |s| s.board = board);
    let mut plan: Vec<Vec<(String, bool)>> = Vec::new();
    let usual = 1 + net.chance.below(7) as usize;
    for step in 0..STEPS {
        let mut tensors: Vec<(String, bool)> = (0..usual).map(|t| (format!("t{t}"), false)).collect();
        match net.chance.below(8) {
            0 => tensors.push((format!("extra{step}"), false)),
            1 => tensors.truncate(usual / 2 + 1),
            2 => tensors[0].1 = true,
            _ => {}
        }
        plan.push(tensors);
    }
    let mut at = vec![0; n];
    let mut todo: Vec<Vec<(String, bool)>> = vec![plan[0].clone(); n];
    let mut want: Vec<usize> = vec![plan[0].len(); n];
    let mut idle = 0;
    while at.iter().any(|s| *s < STEPS) {
        idle += 1;
        assert!(idle < 200_000, "NEG-3: seed {seed}, n {n}, board {board}: stuck at steps {at:?}");
        let me = net.chance.below(n as u64) as usize;
        if net.chance.below(3) == 0 && !todo[me].is_empty() {
            let pick = net.chance.below(todo[me].len() as u64) as usize;
            let (name, odd) = todo[me].swap_remove(pick);
            // A disagreement: the last rank brings another shape.
            let len = if odd && me == n - 1 { 3 } else { 10 + name.len() as u64 };
            net.submit(me, &name, spec(Kind::Allreduce, len));
        }
        net.happen();
        for me in 0..n {
            if at[me] < STEPS && todo[me].is_empty() && net.n_finished[me] == want[me] {
                at[me] += 1;
                if let Some(next) = plan.get(at[me]) {
                    todo[me] = next.clone();
                    want[me] += next.len();
                }
                idle = 0;
            }
        }
    }
    for me in 1..n {
        assert_eq!(net.events[me], net.events[0], "NEG-1: seed {seed}, n {n}, board {board}, rank {me}");
    }
    net.replayed
}

/// TABLE-1 and REPLAY-2: ranks that name operations by number, and stop replays at different moments, still run the same.
#[test]
fn random_programs_run_alike_on_every_rank_and_to_the_end() {
    let mut replayed = 0;
    for seed in 1..=400 {
        let n = 1 + (seed as usize * 7) % 9;
        replayed += random_program(seed * 7919, n, seed % 2 == 0);
    }
    assert!(replayed > 1000, "the programs repeat, so some of them are replayed: {replayed}");
}

#[test]
fn what_all_have_submitted_runs_although_something_older_is_missing() {
    for board in [false, true] {
        let mut net = Net::new(3, 11, |s| s.board = board);
        net.submit(0, "x", spec(Kind::Allreduce, 4));
        (0..3).for_each(|me| net.submit(me, "barrier", spec(Kind::Barrier, 0)));
        (0..3000).for_each(|_| net.happen());
        assert_eq!(finished(&net, 0), ["barrier"], "NEG-3");
        (1..3).for_each(|me| net.submit(me, "x", spec(Kind::Allreduce, 4)));
        (0..3000).for_each(|_| net.happen());
        assert_eq!(finished(&net, 0), ["barrier", "x"]);
    }
}

#[test]
fn joined_ranks_are_waited_for_by_nobody_and_all_return_together() {
    for seed in 1..60 {
        let n = 2 + seed as usize % 6;
        let mut net = Net::new(n, seed, |s| s.board = seed % 2 == 0);
        // Rank r takes r + 1 steps, then joins; more than enough for a replay to begin in between.
        let mut steps = vec![0; n];
        for _ in 0..300_000 {
            let me = net.chance.below(n as u64) as usize;
            let last = (me + 1) * 5;
            if steps[me] <= last && net.n_finished[me] == steps[me] * 2 {
                steps[me] += 1;
                if steps[me] > last {
                    net.step(me, Input::Join);
                } else {
                    net.submit(me, "a", spec(Kind::Allreduce, 4));
                    net.submit(me, "b", spec(Kind::Allreduce, 4));
                }
            }
            net.happen();
            if net.events.iter().all(|e| matches!(e.last(), Some(Event::AllJoined(_)))) {
                break;
            }
        }
        for me in 0..n {
            assert_eq!(net.events[me], net.events[0], "NEG-1, NEG-2: seed {seed}");
            assert!(
                matches!(net.events[me].last(), Some(Event::AllJoined(_))),
                "seed {seed}: {:?}",
                net.events[me]
            );
        }
    }
}

#[test]
fn a_rank_that_leaves_ends_it_for_all_and_is_named() {
    for seed in 1..40 {
        let n = 1 + seed as usize % 7;
        let mut net = Net::new(n, seed, |s| s.board = seed % 2 == 0);
        for step in 0..20 {
            (0..n).for_each(|me| net.submit(me, "a", spec(Kind::Allreduce, 4)));
            let mut left = 20_000;
            while (0..n).any(|me| net.n_finished[me] == step) {
                net.happen();
                left -= 1;
                assert!(left > 0, "seed {seed}");
            }
        }
        net.submit(0, "a", spec(Kind::Allreduce, 4));
        net.step(n - 1, Input::Leave);
        (0..20_000).for_each(|_| net.happen());
        for me in 0..n {
            assert_eq!(net.events[me].last(), Some(&Event::Over(Rank::at(n - 1))), "seed {seed}");
        }
    }
}

#[test]
fn disagreements_are_told_to_all_and_the_name_is_free_again() {
    let mut net = Net::new(5, 3, |_| ());
    for me in 0..5 {
        net.submit(me, "x", spec(Kind::Allreduce, if me == 3 { 7 } else { 8 }));
    }
    (0..3000).for_each(|_| net.happen());
    for me in 0..5 {
        assert_eq!(net.events[me], [Event::Failed("x".into())], "NEG-4");
        net.submit(me, "x", spec(Kind::Allreduce, 9));
    }
    (0..3000).for_each(|_| net.happen());
    assert!((0..5).all(|me| net.events[me].last() == Some(&Event::Ran(vec!["x".into()]))), "NEG-4");
}

#[test]
fn conflicts_name_the_first_check_and_both_ranks_however_the_tree_merges_them() {
    let mut net = Net::new(9, 5, |_| ());
    let mut odd = spec(Kind::Allreduce, 8);
    odd.prescale = 2.0;
    let mut worse = spec(Kind::Allreduce, 8);
    worse.forms[0].dtype = DType::F64;
    let mut faults = Vec::new();
    for me in 0..9 {
        let spec = [(4, odd.clone()), (7, worse.clone())].into_iter().find(|(at, _)| *at == me);
        net.submit(me, "x", spec.map_or(self::spec(Kind::Allreduce, 8), |s| s.1));
    }
    for _ in 0..3000 {
        net.happen();
    }
    for node in &mut net.nodes {
        assert!(node.mine.is_empty());
    }
    // The text is made where the conflict is found; ask a root for it.
    let mut root = Negotiator::new(NegotiatorSetup {
        members: (0..2).map(Rank).collect(),
        me: 0,
        ..net.nodes[0].setup.clone()
    });
    let mut out = Vec::new();
    root.step(0, Input::Submit { name: "x".into(), spec: odd }, &mut out);
    let part = Announced::Full(Box::new(Merged {
        name: "x".into(),
        first: 1,
        spec: worse,
        conflict: None,
        rows: Vec::new(),
        absent: Vec::new(),
    }));
    let announce = Announce { submitted: vec![part], ..Announce::default() };
    root.step(0, Input::Heard { from: 1, message: Message::Announce(announce) }, &mut out);
    for output in out {
        if let Output::Fail { fault: OpFault::Conflict(c), .. } = output {
            faults.push(c);
        }
    }
    let (a_value, b_value) = ("f32".to_string(), "f64".to_string());
    // Check 0 is of the notes, which are alike here.
    assert_eq!(faults, [SpecConflict { check: 1, a: Rank(0), b: Rank(1), a_value, b_value }], "AGREE-1");
}

#[test]
fn a_stall_names_who_is_missing_and_can_end_everything() {
    let mut net = Net::new(6, 17, |s| (s.stall_ms, s.abort_ms) = (Some(100), Some(400)));
    for me in [0, 1, 3, 4] {
        net.submit(me, "late", spec(Kind::Allreduce, 4));
    }
    (0..40_000).for_each(|_| net.happen());
    let first = &net.reports[0];
    assert_eq!(first.tensors[0].ranks, [Rank(2), Rank(5)]);
    let told: Vec<(Rank, bool)> = first.missed.iter().map(|m| (m.rank, m.answered)).collect();
    assert_eq!(told, [(Rank(2), true), (Rank(5), true)]);
    assert!(net.events.iter().all(|e| e.last() == Some(&Event::Over(Rank(2)))), "{:?}", net.events);
}

/// REPLAY-1: every batch that all ranks have counted runs, with no message.
#[test]
fn steady_steps_are_replayed_without_messages_where_ranks_share_a_board() {
    let mut net = Net::new(4, 23, |s| (s.board, s.cache_capacity) = (true, 100));
    let mut sent = Vec::new();
    for step in 0..30 {
        for me in 0..4 {
            (0..10).for_each(|t| net.submit(me, &format!("t{t}"), spec(Kind::Allreduce, 4)));
        }
        let mut left = 20_000;
        while (0..4).any(|me| net.n_finished[me] < (step + 1) * 10) {
            net.happen();
            left -= 1;
            assert!(left > 0);
        }
        sent.push(net.n_messages);
    }
    assert_eq!(sent[29], sent[9], "after a few steps nobody says anything: {sent:?}");
}

#[test]
fn more_names_than_the_table_holds_still_run() {
    let mut net = Net::new(3, 29, |s| s.cache_capacity = 2);
    for step in 0..12 {
        for me in 0..3 {
            (0..5).for_each(|t| net.submit(me, &format!("t{t}"), spec(Kind::Allgather, 4 + me as u64)));
        }
        let mut left = 20_000;
        while (0..3).any(|me| net.n_finished[me] < (step + 1) * 5) {
            net.happen();
            left -= 1;
            assert!(left > 0, "TABLE-2");
        }
    }
}

/// Steps as in a training loop, with orders of their own on every rank, until a node crashes, and for a while after.
fn crashing_program(seed: u64) -> usize {
    let n = 2 + seed as usize % 8;
    let mut net =
        Net::new(n, seed, |s| (s.board, s.cache_capacity) = (seed.is_multiple_of(2), 3 + seed as usize % 9));
    let n_names = 1 + net.chance.below(6);
    let crash_at = net.chance.below(20_000);
    let victim = net.chance.below(n as u64) as usize;
    let mut todo: Vec<Vec<String>> = vec![Vec::new(); n];
    let mut n_submitted = vec![0; n];
    for moment in 0..30_000 {
        if moment == crash_at {
            net.crash(victim);
        }
        let me = net.chance.below(n as u64) as usize;
        if todo[me].is_empty() && net.n_finished[me] == n_submitted[me] {
            todo[me] = (0..n_names).map(|t| format!("t{t}")).collect();
            // Now and then something else, so that replays end.
            if n_submitted[me] as u64 / n_names % 7 == 6 {
                todo[me].push(format!("extra{}", n_submitted[me]));
            }
        }
        if !todo[me].is_empty() && net.chance.below(2) == 0 {
            let pick = net.chance.below(todo[me].len() as u64) as usize;
            let name = todo[me].swap_remove(pick);
            net.submit(me, &name, spec(Kind::Allreduce, 4 + name.len() as u64));
            n_submitted[me] += 1;
        }
        net.happen();
    }
    for a in 0..n {
        for b in 0..a {
            let both = net.events[a].len().min(net.events[b].len());
            assert_eq!(net.events[a][..both], net.events[b][..both], "NEG-1: seed {seed}, ranks {a} and {b}");
        }
    }
    net.replayed
}

/// REPLAY-2, with a rank that never stops in order.
#[test]
fn after_a_crash_the_survivors_have_run_the_same_up_to_where_each_got() {
    let mut replayed = 0;
    for seed in 1..=80 {
        replayed += crashing_program(seed * 104_729);
    }
    assert!(replayed > 1000, "some crash while replaying: {replayed}");
}

#[test]
fn a_number_is_understood_however_long_what_it_names_has_to_wait() {
    for board in [false, true] {
        let mut net = Net::new(3, 31, |s| (s.cache_capacity, s.replay, s.board) = (1, false, board));
        let round = |net: &mut Net, ranks: &[usize], name: &str| {
            ranks.iter().for_each(|me| net.submit(*me, name, spec(Kind::Allgather, 4 + *me as u64)));
            (0..600).for_each(|_| net.happen());
        };
        (0..3).for_each(|_| round(&mut net, &[0, 1, 2], "slow"));
        assert!(net.nodes[1].table.find("slow").is_some(), "it has a number");
        // All but one submit it, by number; meanwhile tables come and go.
        round(&mut net, &[0, 1], "slow");
        let number = net.nodes[0].table.number;
        for step in 0..24 {
            round(&mut net, &[0, 1, 2], &format!("t{}", step % 4));
        }
        assert!(net.nodes[0].table.number > number + 2, "tables were replaced");
        round(&mut net, &[2], "slow");
        for me in 0..3 {
            assert_eq!(finished(&net, me).last().map(String::as_str), Some("slow"), "TABLE-2");
        }
    }
}

#[test]
fn what_runs_during_a_roll_call_is_nobodys_fault() {
    let mut net = Net::new(2, 1, |s| (s.stall_ms, s.abort_ms) = (Some(100), Some(100)));
    net.submit(0, "x", spec(Kind::Allreduce, 4));
    net.now_us = 150_000;
    net.step(0, Input::Flush); // It asks everybody; before rank 1 hears it, rank 1 has submitted.
    net.submit(1, "x", spec(Kind::Allreduce, 4));
    net.step(1, Input::Flush);
    let announce = net.wires.get_mut(&(1, 0)).unwrap().pop_front().unwrap();
    net.step(0, Input::Heard { from: 1, message: announce });
    let wire = net.wires.get_mut(&(0, 1)).unwrap();
    // The network delivers in order; rank 1 learns that it runs, and answers that it waits for nothing.
    let (roll, run) = (wire.pop_front().unwrap(), wire.pop_front().unwrap());
    assert_eq!(roll, Message::Roll);
    net.step(1, Input::Heard { from: 0, message: run });
    net.step(1, Input::Heard { from: 0, message: roll });
    (0..20_000).for_each(|_| net.happen());
    assert_eq!((net.reports.len(), &net.events[0]), (0, &vec![Event::Ran(vec!["x".into()])]));
}

/// A message of the kind nodes send, with numbers that mean nothing.
fn nonsense(chance: &mut Chance, generation: Generation) -> Message {
    let number = |c: &mut Chance| [0, 1, 2, 5, 77, u64::MAX][c.below(6) as usize];
    let generation = generation.wrapping_add([0, 0, 0, 1, u32::MAX][chance.below(5) as usize]);
    let (a, b) = (number(chance), number(chance));
    let names = ["t0", "t1", "nobody's"];
    let name: Name = names[chance.below(3) as usize].into();
    let odd = Spec::new(Kind::Allgather, vec![Form { dtype: DType::F64, shape: vec![a, b] }]);
    let agreed =
        Agreed { name: name.clone(), spec: odd.clone(), rows: vec![vec![b; 3]; 2], absent: vec![a as u32] };
    let merged = Merged {
        name,
        first: a as u32,
        spec: odd,
        conflict: None,
        rows: vec![(b as u32, vec![a, b])],
        absent: vec![b as u32],
    };
    let part = [Announced::Known { table: a as u32, id: b as u32 }, Announced::Full(Box::new(merged))];
    let submitted = part[chance.below(2) as usize..][..1].to_vec();
    let joined = if chance.below(4) == 0 { vec![a as u32] } else { Vec::new() };
    let leaving = (chance.below(4) == 0).then_some(Rank(b as u32));
    let response = match chance.below(7) {
        0 => Response::Run(vec![Item::Known(a as u32)]),
        1 => Response::Run(vec![Item::New { agreed: Box::new(agreed), remember: Some(b as u32) }]),
        2 => Response::Run(Vec::new()),
        3 => Response::AllJoined { last: a as u32 },
        4 => Response::Replay { batches: vec![vec![a as u32]; chance.below(3) as usize] },
        5 => Response::NewTable,
        _ => Response::Over { rank: Rank(b as u32), why: EngineEnd::ShutDown },
    };
    let status =
        RankStatus { place: a as u32, waiting: vec![("t0".into(), b)], last: None, says_where: a == 1 };
    let spot = Spot { frames: Vec::new(), elsewhere: vec![(0, "t0".into()); 9] };
    match chance.below(8) {
        0 | 1 => Message::Announce(Announce { generation, submitted, joined, leaving }),
        2 | 3 => Message::Respond { generation, responses: vec![response] },
        4 => Message::Ready { generation, count: a, frozen: b == 0 },
        5 => [Message::Final { generation, count: a }, Message::Stop { generation, count: b }]
            [chance.below(2) as usize]
            .clone(),
        6 => [Message::Commit { generation, count: a }, Message::Freeze { generation }]
            [chance.below(2) as usize]
            .clone(),
        _ => [Message::Waiting(vec![status]), Message::Located(vec![(a as u32, spot)]), Message::Roll]
            [chance.below(3) as usize]
            .clone(),
    }
}

#[test]
fn nonsense_from_a_neighbour_is_noticed_or_harmless_and_never_a_panic() {
    let mut noticed = 0;
    for seed in 1..=600 {
        let n = 2 + seed as usize % 6;
        let mut net = Net::new(n, seed * 31, |s| (s.board, s.stall_ms) = (seed % 3 == 0, Some(20)));
        for step in 0..400 {
            let me = net.chance.below(n as u64) as usize;
            let name = format!("t{}", net.chance.below(2));
            if !net.nodes[me].mine.contains_key(&*name) {
                net.submit(me, &name, spec(Kind::Allreduce, 4));
            }
            (0..6).for_each(|_| net.happen());
            if step > 100 && net.chance.below(5) == 0 {
                let to = net.chance.below(n as u64) as usize;
                let all: Vec<usize> = net.nodes[to].neighbours().collect();
                let from = all[net.chance.below(all.len() as u64) as usize];
                let generation = net.nodes[to].generation;
                let message = nonsense(&mut net.chance, generation);
                net.step(to, Input::Heard { from, message });
            }
        }
        noticed += net.nodes.iter().filter(|node| node.garbage().is_some()).count();
    }
    assert!(noticed > 300, "CHECK-1: {noticed}");
}

fn spot(line: u32) -> Spot {
    Spot { frames: vec![Frame { file: "train.py".into(), line, function: "step".into() }], ..Spot::default() }
}

#[test]
fn a_report_waits_for_programs_to_say_where_they_are_but_not_for_ever() {
    // Rank 3 cannot be asked; rank 5 can, and does not answer.
    let mut net = Net::new(6, 23, |s| (s.stall_ms, s.says_where) = (Some(100), s.me != 3));
    for me in [0, 1, 4] {
        net.submit(me, "late", spec(Kind::Allreduce, 4));
    }
    net.submit(2, "another", spec(Kind::Allgather, 4));
    let mut left = 400_000;
    while net.reports.is_empty() {
        net.happen();
        for me in [0, 1, 2, 4] {
            if std::mem::take(&mut net.asked[me]) > 0 {
                net.step(me, Input::Located(spot(me as u32)));
            }
        }
        left -= 1;
        assert!(left > 0, "no report");
    }
    let late = net.reports[0].tensors.iter().find(|t| &*t.name == "late").unwrap();
    assert_eq!(late.ranks, [Rank(2), Rank(3), Rank(5)]);
    let of = |rank: u32| net.reports[0].missed.iter().find(|m| m.rank == Rank(rank)).unwrap();
    let Missed { spot: at, waits_in, .. } = of(2);
    assert_eq!((at, waits_in), (&Some(spot(2)), &vec!["another".into()]));
    assert_eq!((of(3).says_where, &of(3).spot), (false, &None));
    assert_eq!(
        (of(5).says_where, &of(5).spot),
        (true, &None),
        "it was asked, and the report came all the same"
    );
    let (waited_ms, now_ms) = (late.waited_ms, net.now_us / 1000);
    assert!(waited_ms >= 1000, "it had its time to answer: {waited_ms}");
    assert!(waited_ms <= now_ms, "it was submitted {now_ms} ms ago, not {waited_ms}");
}
