use super::{
    super::{
        Memory, Wiring,
        step::{CollectiveOp, Layout},
    },
    *,
};
use phalanx_core::Topology;
use std::sync::Arc;

fn request(sizes: &[u32], bytes: u64) -> PlanRequest {
    PlanRequest {
        op: CollectiveOp::Allreduce,
        layout: Layout::Whole { len: bytes / 4 },
        topology: Arc::new(Topology::of_sizes(sizes)),
        tiers: None,
        elem_bytes: 4,
        in_place: true,
        memory: Memory::Private,
        slot_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        links_only: false,
    }
}

/// Shared memory, and a network of 10 us and 1 gigabyte a second; reductions cost nothing.
fn cost() -> CostModel {
    let tiers = vec![
        TierCost { latency_us: 0.5, gbytes_per_s: 10.0 },
        TierCost { latency_us: 10.0, gbytes_per_s: 1.0 },
    ];
    CostModel { tiers, reduce_gbytes_per_s: f64::INFINITY }
}

fn time_us(name: &str, request: &PlanRequest) -> f64 {
    simulate(request, name.parse().unwrap(), &cost()).time_us
}

fn assert_near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs(), "{a} is not {b}");
}

#[test]
fn flat_algorithms_cost_what_the_textbook_says() {
    let bytes = 1 << 20;
    let us = bytes as f64 / 1e3;
    for n in [2u32, 4, 8, 16] {
        let request = request(&vec![1; n as usize], bytes);
        let (p, log) = (f64::from(n), f64::from(n.ilog2()));
        assert_near(time_us("ring", &request), 2.0 * (p - 1.0) * (10.0 + us / p));
        assert_near(time_us("halving", &request), 2.0 * log * 10.0 + 2.0 * us * (p - 1.0) / p);
        let copies = log * bytes as f64 / 10e3;
        assert_near(time_us("doubling", &request), log * (10.0 + us) + copies);
    }
}

#[test]
fn ranks_of_a_host_share_its_network() {
    // Two hosts of four ranks, which halve inside before they meet: four messages queue for each host.
    let bytes = 1 << 20;
    let paired = Topology::new((0..2).map(|h| (0..4).map(|i| Rank(2 * i + h)).collect()).collect()).unwrap();
    let request = PlanRequest { topology: Arc::new(paired), links_only: true, ..request(&[4, 4], bytes) };
    let halving = simulate(&request, "halving".parse().unwrap(), &cost());
    let far_us = 2.0 * (10.0 + 4.0 * (bytes as f64 / 8.0) / 1e3);
    assert!(halving.time_us > far_us, "{} <= {far_us}", halving.time_us);
    assert_eq!(halving.tier_bytes, [8 * 2 * (bytes / 2 + bytes / 4), 8 * 2 * bytes / 8]);
}

/// Three hosts of four ranks behind 200 Mbit/s each, as `phalanx doctor` measures them, and what the fullest host sends along each shape. A shape takes
/// what its bytes take, and up to a twentieth more for what waits for something else.
#[test]
fn shapes_take_as_long_as_their_bytes_need_and_are_in_that_order() {
    let tiers = vec![
        TierCost { latency_us: 5.0, gbytes_per_s: 3.0 },
        TierCost { latency_us: 60.0, gbytes_per_s: 0.0239 },
    ];
    let cost = CostModel { tiers, reduce_gbytes_per_s: 3.0 };
    let base = request(&[4, 4, 4], 16 << 20);
    let mut last_us = 0.0;
    for (shape, ways, (times, of)) in [
        ("4x3", "arena,ring", (4.0, 3.0)),
        ("2x2x3", "arena,arena,ring", (4.0, 3.0)),
        ("2x6", "ring,ring", (5.0, 3.0)),
        ("12", "ring", (11.0, 6.0)),
        ("6x2", "ring,ring", (4.0, 1.0)),
        ("3x4", "ring,ring", (25.0, 6.0)),
    ] {
        let ways = phalanx_core::Way::list(ways).unwrap();
        let wiring = Wiring::new(&shape.parse().unwrap(), &base.topology, Some(&ways)).unwrap();
        let request = PlanRequest { tiers: Some(wiring), segment_bytes: 128 << 10, ..base.clone() };
        let time_us = simulate(&request, super::super::select(&request), &cost).time_us;
        let line_us = times / of * (16 << 20) as f64 / 0.0239e3;
        let over = time_us / line_us;
        assert!((1.0..1.05).contains(&over), "{shape}: {time_us} us is {over} of {line_us}");
        assert!(time_us >= last_us, "{shape}: {time_us} us after {last_us}");
        last_us = time_us;
    }
}

/// A host whose messages wait for one other host does not keep those for a third waiting.
#[test]
fn a_port_that_is_taken_does_not_hold_up_what_goes_elsewhere() {
    let request = request(&[1, 1, 1, 1], 4096);
    let mut hosts = Hosts::new(&request);
    // Rank 0 and rank 1 send to rank 2; then rank 1 to rank 3.
    let mut send = |from, to| {
        let leaves_us = hosts.leave(1, Rank(from), 0.0, 10.0);
        (leaves_us, hosts.come(1, Rank(to), leaves_us, 10.0))
    };
    assert_eq!(send(0, 2), (0.0, 10.0));
    assert_eq!(send(1, 2), (0.0, 20.0), "it waits in the switch");
    assert_eq!(
        send(1, 3),
        (10.0, 20.0),
        "behind what its own host sends, not behind what the other receives"
    );
}

#[test]
fn tiers_beat_a_flat_ring_where_hosts_hold_several_ranks() {
    // With ranks in order of hosts a flat ring enters each host once, so in the end only its many messages are a loss.
    for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let request = request(&[8; 16], bytes);
        let (flat, tiers) = (time_us("ring", &request), time_us("tiers", &request));
        assert!(tiers < flat, "{bytes}: {tiers} >= {flat}");
    }
    let request = request(&[8; 16], 1 << 10);
    assert!(time_us("tiers-small", &request) < time_us("tiers", &request));
}

#[test]
fn the_tier_of_two_ranks_is_the_highest_in_which_they_differ() {
    let request = request(&[2; 4], 4096);
    let wiring = Wiring::new(&"2x2x2".parse().unwrap(), &request.topology, None).unwrap();
    let request = PlanRequest { tiers: Some(wiring), ..request };
    let hosts = Hosts::new(&request);
    assert_eq!([1, 2, 3, 4, 7].map(|r| hosts.tier(Rank::ZERO, Rank(r))), [0, 1, 1, 2, 2]);
    assert_eq!(hosts.tier(Rank(5), Rank(4)), 0);
}

#[test]
fn every_algorithm_comes_to_an_end() {
    for op in CollectiveOp::ALL {
        for sizes in [&[1][..], &[5], &[1, 3, 2], &[4, 4]] {
            let n = sizes.iter().sum::<u32>();
            let (root, counts) = (Rank(n / 2), vec![100; n as usize]);
            let layout = match op {
                CollectiveOp::Allreduce => Layout::Whole { len: 1000 },
                CollectiveOp::Broadcast | CollectiveOp::Reduce => Layout::Rooted { root, len: 1000 },
                CollectiveOp::ReduceScatter | CollectiveOp::Allgather => Layout::Counts { counts },
                CollectiveOp::Gather | CollectiveOp::Scatter => Layout::RootedCounts { root, counts },
                CollectiveOp::Alltoall => Layout::Matrix { n_ranks: n, matrix: vec![30; (n * n) as usize] },
                CollectiveOp::Barrier => Layout::Empty,
            };
            for (memory, slot_bytes) in [(Memory::Private, 64), (Memory::Arena, 1 << 20)] {
                let request = PlanRequest {
                    op,
                    layout: layout.clone(),
                    memory,
                    slot_bytes,
                    segment_bytes: 64,
                    in_place: false,
                    ..request(sizes, 0)
                };
                for algorithm in Algorithm::supporting(&request) {
                    let prediction = simulate(&request, algorithm, &cost());
                    assert!(prediction.time_us.is_finite());
                    assert!(n == 1 || prediction.time_us > 0.0, "{algorithm} {request:?}");
                }
            }
        }
    }
}

#[test]
fn worlds_of_thousands_of_ranks_fit() {
    let (n, bytes) = (4096, 64 << 20);
    let request = request(&[8; 512], bytes);
    let ring = simulate(&request, "ring".parse().unwrap(), &cost());
    assert_eq!(ring.n_steps, 2 * (n - 1) + 1, "and the scaling");
    assert_eq!(ring.tier_bytes.iter().sum::<u64>(), 2 * (n - 1) * bytes);
    let tiers = simulate(&request, "tiers".parse().unwrap(), &cost());
    assert_eq!(tiers.tier_bytes, [0, 2 * 511 * bytes]);
    assert!(tiers.time_us < ring.time_us);
}
