//! The verifier notices: plans with one thing wrong are faults.

use super::{
    super::{
        Algorithm, Memory, PlanRequest, Wiring,
        step::{CollectiveOp, Fold, Layout, Plan, Span, Step},
        verify::verify,
    },
    plans, request,
};
use phalanx_core::{Rank, Topology, Way};

/// One request for every operation and kind of world, with slots so small that pipelines wrap.
fn samples() -> Vec<PlanRequest> {
    let counts = vec![3, 0, 9, 5, 6, 2];
    let root = Rank(1);
    let layouts = [
        (CollectiveOp::Allreduce, Layout::Whole { len: 41 }),
        (CollectiveOp::Broadcast, Layout::Rooted { root, len: 23 }),
        (CollectiveOp::Reduce, Layout::Rooted { root, len: 23 }),
        (CollectiveOp::ReduceScatter, Layout::Counts { counts: counts.clone() }),
        (CollectiveOp::Allgather, Layout::Counts { counts: counts.clone() }),
        (CollectiveOp::Gather, Layout::RootedCounts { root, counts: counts.clone() }),
        (CollectiveOp::Scatter, Layout::RootedCounts { root, counts }),
        (CollectiveOp::Alltoall, Layout::Matrix { n_ranks: 6, matrix: (0..36).map(|i| i % 4).collect() }),
        (CollectiveOp::Barrier, Layout::Empty),
    ];
    let mut samples = Vec::new();
    for (op, layout) in layouts {
        for topology in [Topology::one_host(6), Topology::of_sizes(&[1, 3, 2])] {
            for memory in [Memory::Private, Memory::Arena] {
                let sizes = PlanRequest {
                    slot_bytes: 48,
                    segment_bytes: 12,
                    memory,
                    ..request(op, layout.clone(), topology.clone())
                };
                samples.push(sizes);
            }
        }
    }
    let topology = Topology::of_sizes(&[2, 2, 2]);
    let ways = [Way::Arena, Way::Direct, Way::Halving];
    for (shape, n) in [("2x3", 2), ("3x1x2", 3)] {
        let wiring = Wiring::new(&shape.parse().unwrap(), &topology, Some(&ways[..n])).unwrap();
        let base = request(CollectiveOp::Allreduce, Layout::Whole { len: 41 }, topology.clone());
        samples.push(PlanRequest { tiers: Some(wiring), slot_bytes: 48, segment_bytes: 12, ..base });
    }
    samples
}

/// Counts mutants and those of them that are faults; `mutate` gives all mutants of a step, each as what takes its place.
fn score(mutate: impl Fn(&Step) -> Vec<Option<Step>>) -> (usize, usize, Vec<String>) {
    let (mut n_mutants, mut n_caught, mut survivors) = (0, 0, Vec::new());
    for request in samples() {
        for algorithm in Algorithm::supporting(&request) {
            let right = plans(algorithm, &request);
            for r in 0..right.len() {
                for (i, step) in right[r].steps.iter().enumerate() {
                    for mutant in mutate(step) {
                        let mut wrong: Vec<Plan> = right.clone();
                        wrong[r].steps.splice(i..=i, mutant.clone());
                        n_mutants += 1;
                        if verify(&request, &wrong).is_err() {
                            n_caught += 1;
                        } else {
                            survivors
                                .push(format!("{algorithm} {} {r}:{i} {step:?} -> {mutant:?}", request.op));
                        }
                    }
                }
            }
        }
    }
    (n_mutants, n_caught, survivors)
}

/// Demands that all but a twentieth of the mutants are faults.
fn assert_noticed(mutate: impl Fn(&Step) -> Vec<Option<Step>>) {
    let (n_mutants, n_caught, survivors) = score(mutate);
    assert!(n_mutants > 1000, "only {n_mutants} mutants");
    assert!(n_caught * 100 > n_mutants * 95, "{n_caught} of {n_mutants} noticed; not: {survivors:#?}");
}

#[test]
fn a_missing_step_is_noticed() {
    assert_noticed(|step| match step {
        // Releasing late is slow, not wrong, unless a slot is needed again.
        Step::Release { .. } => vec![],
        _ => vec![None],
    });
}

#[test]
fn a_span_that_is_off_by_one_is_noticed() {
    assert_noticed(|step| {
        let n_spans = spans(&mut step.clone()).len();
        let all = [Shift::Later, Shift::Shorter]
            .into_iter()
            .flat_map(|shift| (0..n_spans).map(move |i| (shift, i)));
        all.map(|(shift, i)| {
            let mut mutant = step.clone();
            shift.apply(spans(&mut mutant)[i]);
            Some(mutant)
        })
        .collect()
    });
}

#[test]
fn a_wrong_peer_turn_place_or_fold_is_noticed() {
    assert_noticed(|step| {
        let n_knobs = knobs(&mut step.clone()).len();
        (0..n_knobs)
            .map(|i| {
                let mut mutant = step.clone();
                knobs(&mut mutant).remove(i).turn();
                Some(mutant)
            })
            .collect()
    });
}

/// Something in a step that is not a span.
enum Knob<'a> {
    Peer(&'a mut Rank),
    Turn(&'a mut u32),
    Place(&'a mut u64),
    Flag(&'a mut bool),
    Fold(&'a mut Fold),
}

impl Knob<'_> {
    fn turn(self) {
        match self {
            Knob::Peer(rank) => rank.0 = (rank.0 + 1) % 6,
            Knob::Turn(turn) => *turn += 1,
            Knob::Place(at) => *at += 1,
            Knob::Flag(flag) => *flag = !*flag,
            Knob::Fold(fold) => {
                *fold = match *fold {
                    Fold::Store => Fold::Reduce,
                    Fold::Reduce => Fold::ReduceLast,
                    Fold::ReduceLast => Fold::Reduce,
                }
            }
        }
    }
}

fn knobs(step: &mut Step) -> Vec<Knob<'_>> {
    match step {
        Step::Copy { .. } => vec![],
        Step::Scale { pre, post, .. } => vec![Knob::Flag(pre), Knob::Flag(post)],
        Step::Exchange { sends, recvs } => {
            let sends = sends.iter_mut().map(|s| Knob::Peer(&mut s.to));
            sends
                .chain(recvs.iter_mut().flat_map(|r| [Knob::Peer(&mut r.from), Knob::Fold(&mut r.fold)]))
                .collect()
        }
        Step::Publish { turn, parts } => {
            let places = parts.iter_mut().map(|(_, at)| Knob::Place(at));
            [Knob::Turn(turn)].into_iter().chain(places).collect()
        }
        Step::ReduceFrom { turn, slot_at, publish, last, .. } => {
            let publish = publish.iter_mut().flat_map(|(turn, at)| [Knob::Turn(turn), Knob::Place(at)]);
            [Knob::Turn(turn), Knob::Place(slot_at), Knob::Flag(last)].into_iter().chain(publish).collect()
        }
        Step::Fetch { turn, peer, slot_at, .. } => {
            vec![Knob::Turn(turn), Knob::Peer(peer), Knob::Place(slot_at)]
        }
        Step::Release { turn } | Step::Sync { turn } => vec![Knob::Turn(turn)],
        Step::ReduceDirect { at, len, last } => vec![Knob::Place(at), Knob::Place(len), Knob::Flag(last)],
        Step::FetchDirect { peer, at, .. } => vec![Knob::Peer(peer), Knob::Place(at)],
    }
}

#[derive(Clone, Copy)]
enum Shift {
    Later,
    Shorter,
}

impl Shift {
    fn apply(self, span: &mut Span) {
        match self {
            Shift::Later => span.at += 1,
            Shift::Shorter => span.len -= 1,
        }
    }
}

fn spans(step: &mut Step) -> Vec<&mut Span> {
    match step {
        Step::Copy { src, dst } => vec![src, dst],
        Step::Scale { span, .. } => vec![span],
        Step::Exchange { sends, recvs } => {
            sends.iter_mut().map(|s| &mut s.src).chain(recvs.iter_mut().map(|r| &mut r.dst)).collect()
        }
        Step::Publish { parts, .. } => parts.iter_mut().map(|(span, _)| span).collect(),
        Step::ReduceFrom { own, dst, .. } => vec![own, dst],
        Step::Fetch { dst, .. } | Step::FetchDirect { dst, .. } => vec![dst],
        Step::Release { .. } | Step::Sync { .. } | Step::ReduceDirect { .. } => vec![],
    }
}
