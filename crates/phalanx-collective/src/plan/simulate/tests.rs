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
