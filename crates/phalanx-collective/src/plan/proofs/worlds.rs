//! All algorithms, all operations, all small worlds.

use super::{
    super::{
        Algorithm, Memory, PlanRequest, Wiring,
        step::{CollectiveOp, Layout},
    },
    prove, request,
};
use phalanx_core::{Rank, Tiers, Topology, Way};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Slot and segment in bytes. With the small ones pipelines wrap round the slots, and slots hold fewer elements than there are ranks.
const SIZES: [(u64, u64); 3] = [(1 << 20, 64 << 10), (32, 16), (100, 32)];

/// Proves all algorithms that support a request, in place and not, through the arena and not. Returns the names.
fn prove_all(request: &PlanRequest) -> BTreeSet<&'static str> {
    let mut proved = BTreeSet::new();
    let worlds = [
        (Memory::Private, false),
        (Memory::Private, true),
        (Memory::Readable, false),
        (Memory::Arena, false),
    ];
    for (slot_bytes, segment_bytes) in SIZES {
        for (memory, links_only) in worlds {
            for in_place in [false, true] {
                let request = PlanRequest {
                    slot_bytes,
                    segment_bytes,
                    memory,
                    links_only,
                    in_place,
                    ..request.clone()
                };
                let never = in_place && request.op == CollectiveOp::Alltoall;
                for algorithm in Algorithm::supporting(&request).filter(|_| !never) {
                    // What makes no difference to an algorithm is not tried again.
                    let is_direct = algorithm.name() == "arena-direct";
                    let uses_slots = !links_only && !is_direct;
                    let is_first = (slot_bytes, segment_bytes) == SIZES[1];
                    let is_reached = matches!(memory, Memory::Readable | Memory::Arena);
                    if is_direct == is_reached && (uses_slots || is_first) {
                        prove(algorithm, &request);
                        proved.insert(algorithm.name());
                    }
                }
            }
        }
    }
    proved
}

fn topologies(n: u32) -> Vec<Topology> {
    let mut all = vec![Topology::one_host(n)];
    if n > 1 {
        all.push(Topology::of_sizes(&vec![1; n as usize]));
        all.push(Topology::of_sizes(&[n - 1, 1]));
    }
    if n > 2 && n.is_multiple_of(2) {
        all.push(Topology::of_sizes(&[n / 2, n / 2]));
        // Ranks dealt out to the hosts in turn.
        let dealt = |h: u32| (0..n).filter(|r| r % 2 == h).map(Rank).collect();
        all.push(Topology::new(vec![dealt(0), dealt(1)]).expect("every rank is on one host"));
    }
    if n > 4 {
        all.push(Topology::of_sizes(&[1, 1, n - 2]));
        all.push(Topology::of_sizes(&[2, n - 4, 2]));
    }
    all
}

fn lens(n: u32) -> BTreeSet<u64> {
    let n = u64::from(n);
    [0, 1, 2, n - 1, n, n + 1, 63, 1000].into()
}

/// Uneven, with zeros.
fn ragged(n: u32, seed: u64) -> Vec<u64> {
    (0..u64::from(n)).map(|r| (r * 7 + seed * 3) % 5 * ((r + seed) % 3)).collect()
}

#[test]
fn allreduce_is_right_in_every_small_world() {
    let mut proved = BTreeSet::new();
    for n in 1..=17 {
        for topology in topologies(n) {
            for len in lens(n) {
                proved.append(&mut prove_all(&request(
                    CollectiveOp::Allreduce,
                    Layout::Whole { len },
                    topology.clone(),
                )));
            }
        }
    }
    let all =
        "alone arena-all arena-direct arena-split doubling halving ring tiers tiers-overlapped tiers-small"
            .split(' ')
            .collect();
    assert_eq!(proved, all);
}

/// Every shape of one to four tiers that holds this many ranks; a tier of one only in shapes of up to three tiers.
fn shapes(n: u32, n_more: usize) -> Vec<Vec<u32>> {
    let mut all = vec![vec![n]];
    if n_more > 0 {
        for first in (1..=n).filter(|d| n.is_multiple_of(*d) && (*d > 1 || n_more == 2)) {
            all.extend(shapes(n / first, n_more - 1).into_iter().map(|rest| [vec![first], rest].concat()));
        }
    }
    all
}

/// Whether hosts are even or not, in order or dealt.
fn hosts_for(dims: &[u32]) -> Vec<Topology> {
    let n = dims.iter().product::<u32>();
    let n_hosts = n / dims[0];
    let dealt = |h: u32| (0..dims[0]).map(|i| Rank(i * n_hosts + h)).collect();
    let mut all = vec![
        Topology::of_sizes(&vec![dims[0]; n_hosts as usize]),
        Topology::new((0..n_hosts).map(dealt).collect()).expect("every rank is on one host"),
    ];
    if n > 2 {
        all.push(Topology::of_sizes(&[n / 3, n - n / 3]));
    }
    all
}

/// WAY-1: ways of different tiers are mixed.
#[test]
fn allreduce_is_right_along_every_shape_up_to_16_ranks_with_every_way() {
    let names = ["tiers", "tiers-pipelined", "tiers-overlapped"].map(super::named);
    let mut n_proofs = 0;
    for n in 2..=16 {
        let all: BTreeSet<Vec<u32>> = shapes(n, 3).into_iter().collect();
        for (i, dims) in all.iter().enumerate() {
            let tiers = Tiers::new(dims).expect("one to four tiers");
            for (j, topology) in hosts_for(dims).into_iter().enumerate() {
                let base = request(CollectiveOp::Allreduce, Layout::Whole { len: 0 }, topology);
                // Each tier in turn has each way, the others the ways that follow.
                for first in 0..Way::ALL.len() {
                    let ways: Vec<Way> = (0..dims.len()).map(|t| Way::ALL[(first + t) % 4]).collect();
                    let wiring = Wiring::new(&tiers, &base.topology, Some(&ways)).expect("it fits");
                    let len = [u64::from(n) + 1, 97, 1][(i + j + first) % 3];
                    let request = PlanRequest {
                        tiers: Some(wiring),
                        layout: Layout::Whole { len },
                        in_place: (i + first) % 2 == 0,
                        links_only: (j + first) % 3 == 2,
                        slot_bytes: 32,
                        segment_bytes: 8,
                        ..base.clone()
                    };
                    for algorithm in names.into_iter().filter(|a| a.supports(&request)) {
                        prove(algorithm, &request);
                        n_proofs += 1;
                    }
                }
            }
        }
    }
    assert!(n_proofs > 2000, "{n_proofs}");
}

#[test]
fn allreduce_is_right_along_some_shapes_with_every_algorithm() {
    for (shape, ways) in
        [("4x3", None), ("2x2x2", Some("arena,arena,halving")), ("2x3x2", None), ("3x5", None)]
    {
        let tiers: Tiers = shape.parse().unwrap();
        let ways = ways.map(|w| Way::list(w).unwrap());
        for topology in hosts_for(tiers.dims()).into_iter().chain([Topology::one_host(tiers.n_ranks())]) {
            for len in lens(tiers.n_ranks()) {
                let request = request(CollectiveOp::Allreduce, Layout::Whole { len }, topology.clone());
                let wiring = Wiring::new(&tiers, &topology, ways.as_deref()).unwrap();
                prove_all(&PlanRequest { tiers: Some(wiring), ..request });
            }
        }
    }
}

#[test]
fn vectors_from_and_to_one_rank_are_right_for_every_root() {
    let mut proved = BTreeSet::new();
    for n in 1..=17 {
        let all = topologies(n);
        for (root, op) in
            (0..n).flat_map(|r| [(Rank(r), CollectiveOp::Broadcast), (Rank(r), CollectiveOp::Reduce)])
        {
            // The number of hosts matters where there is a two-level algorithm; one length then does.
            for (i, topology) in all.iter().enumerate() {
                let few = [0, 1, u64::from(n) + 1, 63];
                for &len in if i == 0 { &few[..] } else { &few[2..3] } {
                    let layout = Layout::Rooted { root, len };
                    proved.append(&mut prove_all(&request(op, layout, topology.clone())));
                }
            }
        }
    }
    assert_eq!(proved, ["alone", "arena", "arena-direct", "chain", "tiers-rooted", "tree"].into());
}

#[test]
fn uneven_chunks_from_and_to_one_rank_are_right_for_every_root() {
    let mut proved = BTreeSet::new();
    for n in 1..=17 {
        for (root, op) in
            (0..n).flat_map(|r| [(Rank(r), CollectiveOp::Gather), (Rank(r), CollectiveOp::Scatter)])
        {
            for counts in [vec![0; n as usize], vec![1; n as usize], ragged(n, 1), ragged(n, 2)] {
                let layout = Layout::RootedCounts { root, counts };
                proved.append(&mut prove_all(&request(op, layout, Topology::one_host(n))));
            }
        }
    }
    assert_eq!(proved, ["alone", "arena", "arena-direct", "tree"].into());
}

#[test]
fn uneven_chunks_of_everybody_are_right() {
    let mut proved = BTreeSet::new();
    for n in 1..=17 {
        let mut one = vec![0; n as usize];
        one[n as usize / 2] = 63;
        let counts =
            [vec![0; n as usize], vec![1; n as usize], vec![59; n as usize], one, ragged(n, 1), ragged(n, 2)];
        for (op, counts) in
            counts.iter().flat_map(|c| [(CollectiveOp::ReduceScatter, c), (CollectiveOp::Allgather, c)])
        {
            for topology in topologies(n) {
                let layout = Layout::Counts { counts: counts.clone() };
                proved.append(&mut prove_all(&request(op, layout, topology)));
            }
        }
    }
    assert_eq!(proved, ["alone", "arena", "arena-direct", "ring"].into());
}

#[test]
fn alltoall_is_right_with_uneven_matrices() {
    let mut proved = BTreeSet::new();
    for n in 1..=17 {
        let cells = n * n;
        let matrices =
            [vec![0; cells as usize], vec![1; cells as usize], vec![7; cells as usize], ragged(cells, 1)];
        for matrix in matrices {
            let layout = Layout::Matrix { n_ranks: n, matrix };
            proved.append(&mut prove_all(&request(CollectiveOp::Alltoall, layout, Topology::one_host(n))));
        }
    }
    assert_eq!(proved, ["alone", "arena", "arena-direct", "pairwise"].into());
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_entered() {
    let mut proved = BTreeSet::new();
    for n in 1..=17 {
        for topology in topologies(n) {
            proved.append(&mut prove_all(&request(CollectiveOp::Barrier, Layout::Empty, topology)));
        }
    }
    assert_eq!(proved, ["alone", "arena", "dissemination", "tiers-rooted"].into());
}

/// Any operation in any world of up to 12 ranks on up to 4 hosts.
fn any_request() -> impl Strategy<Value = PlanRequest> {
    let world = proptest::collection::vec(1u32..=4, 1..=4)
        .prop_filter("at most 12 ranks", |s| s.iter().sum::<u32>() <= 12);
    world.prop_flat_map(|sizes| {
        let n = sizes.iter().sum::<u32>();
        let count = prop_oneof![Just(0u64), 0u64..20, 0u64..90];
        (
            Just(sizes),
            proptest::sample::select(CollectiveOp::ALL.to_vec()),
            proptest::collection::vec(count, (n * n) as usize),
            0..n,
            (4u64..200, 1u64..100, proptest::sample::select(vec![1u32, 2, 4, 8])),
            (any::<bool>(), any::<bool>(), any::<bool>()),
            Just((0..n).collect::<Vec<_>>()).prop_shuffle(),
        )
            .prop_map(
                |(
                    sizes,
                    op,
                    counts,
                    root,
                    (slot, segment, elem_bytes),
                    (in_place, links_only, arena),
                    order,
                )| {
                    let n = order.len() as u32;
                    let (root, len) = (Rank(root), counts[0] * 3);
                    let few = counts[..n as usize].to_vec();
                    let layout = match op {
                        CollectiveOp::Allreduce => Layout::Whole { len },
                        CollectiveOp::Broadcast | CollectiveOp::Reduce => Layout::Rooted { root, len },
                        CollectiveOp::ReduceScatter | CollectiveOp::Allgather => {
                            Layout::Counts { counts: few }
                        }
                        CollectiveOp::Gather | CollectiveOp::Scatter => {
                            Layout::RootedCounts { root, counts: few }
                        }
                        CollectiveOp::Alltoall => Layout::Matrix { n_ranks: n, matrix: counts },
                        CollectiveOp::Barrier => Layout::Empty,
                    };
                    let mut ranks = order.into_iter().map(Rank);
                    let hosts = sizes.iter().map(|&k| ranks.by_ref().take(k as usize).collect()).collect();
                    PlanRequest {
                        elem_bytes,
                        slot_bytes: slot.max(u64::from(elem_bytes)),
                        segment_bytes: segment,
                        in_place: in_place && op != CollectiveOp::Alltoall,
                        links_only,
                        memory: if arena { Memory::Arena } else { Memory::Private },
                        ..request(op, layout, Topology::new(hosts).expect("every rank is on one host"))
                    }
                },
            )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_request_is_right_with_every_algorithm(request in any_request()) {
        let mut n_proofs = 0;
        for algorithm in Algorithm::supporting(&request) {
            prove(algorithm, &request);
            n_proofs += 1;
        }
        prop_assert!(n_proofs > 0, "nothing supports {request:?}");
        prop_assert!(super::super::select(&request).supports(&request));
    }
}
