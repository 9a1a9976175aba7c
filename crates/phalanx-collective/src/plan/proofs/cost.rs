//! How many bytes the algorithms move: the least there can be, where that is known.

use super::{
    super::{
        PlanRequest, Wiring,
        step::{CollectiveOp, Layout},
    },
    named, prove, request,
};
use phalanx_core::{Rank, Topology, Way};

/// Divisible by everything that divides a vector here.
const LEN: u64 = 5040 * 4;

fn allreduce(sizes: &[u32]) -> PlanRequest {
    request(CollectiveOp::Allreduce, Layout::Whole { len: LEN }, Topology::of_sizes(sizes))
}

#[test]
fn rings_and_halving_send_the_least_out_of_every_rank() {
    for n in 2..=10u64 {
        let request = allreduce(&vec![1; n as usize]);
        let least = 2 * (n - 1) * LEN * 4 / n;
        assert_eq!(prove(named("ring"), &request).sent_bytes, vec![least; n as usize], "n={n}");
        if n.is_power_of_two() {
            assert_eq!(prove(named("halving"), &request).sent_bytes, vec![least; n as usize], "n={n}");
        }
    }
}

#[test]
fn a_flat_ring_enters_each_host_once_however_ranks_are_numbered() {
    let dealt = |h: u32| (0..4).map(|i| Rank(3 * i + h)).collect();
    let topology = Topology::new((0..3).map(dealt).collect()).unwrap();
    let request = request(CollectiveOp::Allreduce, Layout::Whole { len: LEN }, topology);
    assert_eq!(prove(named("ring"), &request).host_bytes, [2 * 11 * LEN * 4 / 12; 3]);
}

#[test]
fn a_ring_reduce_scatter_or_allgather_sends_each_chunk_once() {
    for op in [CollectiveOp::ReduceScatter, CollectiveOp::Allgather] {
        let counts = vec![10, 0, 7, 30, 1];
        let request = request(op, Layout::Counts { counts: counts.clone() }, Topology::of_sizes(&[1; 5]));
        let sent: u64 = prove(named("ring"), &request).sent_bytes.iter().sum();
        assert_eq!(sent, 4 * 4 * counts.iter().sum::<u64>(), "{op}");
    }
}

#[test]
fn tiers_send_the_least_out_of_every_host_even_or_not() {
    for sizes in [&[4, 4, 4][..], &[3, 1], &[2, 3, 2], &[1, 1, 4], &[1, 2, 3, 4], &[5, 5]] {
        for links_only in [false, true] {
            let request = PlanRequest { links_only, ..allreduce(sizes) };
            let report = prove(named("tiers"), &request);
            let n_hosts = sizes.len() as u64;
            let least = 2 * (n_hosts - 1) * LEN * 4 / n_hosts;
            // Pieces between two borders need not divide by the number of hosts: an element each, in each direction.
            let slack = 2 * 4 * 4 * sizes.len() as u64;
            for bytes in report.host_bytes {
                assert!(bytes.abs_diff(least) <= slack, "{sizes:?}: {bytes} instead of {least}");
            }
        }
    }
}

#[test]
fn three_tiers_send_the_least_along_each() {
    let request = shaped("4x3x2", None, Topology::of_sizes(&[4; 6]));
    let bytes = LEN * 4;
    let between_hosts = 2 * 2 * bytes / 3;
    let between_racks = 2 * (bytes / 3) / 2;
    assert_eq!(prove(named("tiers"), &request).host_bytes, [between_hosts + between_racks; 6]);
}

fn shaped(shape: &str, ways: Option<&[Way]>, topology: Topology) -> PlanRequest {
    let wiring = Wiring::new(&shape.parse().unwrap(), &topology, ways).unwrap();
    let layout = Layout::Whole { len: LEN };
    PlanRequest { tiers: Some(wiring), ..request(CollectiveOp::Allreduce, layout, topology) }
}

/// Three hosts of four ranks, and what leaves the fullest of them: the better the shape fits the hosts, the less.
#[test]
fn the_bytes_of_a_host_follow_from_the_shape_and_not_from_the_numbers_of_the_ranks() {
    let dealt = |h: u32| (0..4).map(|i| Rank(3 * i + h)).collect();
    let dealt = Topology::new((0..3).map(dealt).collect()).unwrap();
    let table = [
        ("4x3", (4, 3)),
        ("2x2x3", (4, 3)),
        ("2x6", (5, 3)),
        ("12", (11, 6)),
        ("6x2", (4, 1)),
        ("3x4", (25, 6)),
    ];
    for (shape, (times, of)) in table {
        for topology in [Topology::of_sizes(&[4, 4, 4]), dealt.clone()] {
            for links_only in [false, true] {
                let request = PlanRequest { links_only, ..shaped(shape, None, topology.clone()) };
                let fullest = prove(named("tiers"), &request).host_bytes.into_iter().max().unwrap();
                assert_eq!(fullest * of, times * LEN * 4, "GRID-1: {shape} links_only={links_only}");
            }
        }
    }
}

#[test]
fn pipelined_tiers_send_what_tiers_send() {
    for ways in [[Way::Arena, Way::Ring, Way::Ring], [Way::Ring, Way::Direct, Way::Halving]] {
        let request =
            PlanRequest { segment_bytes: 4096, ..shaped("2x3x2", Some(&ways), Topology::of_sizes(&[2; 6])) };
        let (plain, pipelined) = (prove(named("tiers"), &request), prove(named("tiers-pipelined"), &request));
        // Segments need not divide by the groups: an element each.
        for (a, b) in plain.tier_bytes.iter().zip(&pipelined.tier_bytes) {
            assert!(a.abs_diff(*b) <= 16 * 12 * 4 * 4, "{plain:?} {pipelined:?}");
        }
    }
}

#[test]
fn overlapped_tiers_send_what_tiers_send() {
    for dealt in [false, true] {
        let rank = |h: u32, i: u32| if dealt { Rank(3 * i + h) } else { Rank(4 * h + i) };
        let hosts = (0..3).map(|h| (0..4).map(|i| rank(h, i)).collect()).collect();
        let request = shaped("4x3", None, Topology::new(hosts).unwrap());
        let request = PlanRequest { segment_bytes: 64, slot_bytes: 256, ..request };
        let (plain, overlapped) =
            (prove(named("tiers"), &request), prove(named("tiers-overlapped"), &request));
        assert_eq!(plain.host_bytes.iter().sum::<u64>(), overlapped.host_bytes.iter().sum::<u64>());
        let fullest = |bytes: &[u64]| bytes.iter().copied().max().unwrap();
        let more = fullest(&overlapped.host_bytes) - fullest(&plain.host_bytes);
        // Pieces need not divide by three hosts: an element of each segment of each rank, at most.
        let n_segments = LEN / (4 * 3 * 16) + 1;
        assert!(more <= n_segments * 4 * 4 * 2, "{plain:?} {overlapped:?}");
    }
}

#[test]
fn leaders_send_few_messages() {
    let request = request(CollectiveOp::Allreduce, Layout::Whole { len: 8 }, Topology::of_sizes(&[4; 4]));
    let report = prove(named("tiers-small"), &request);
    assert_eq!(report.host_bytes, [2 * 32; 4], "two rounds of the whole vector");
    assert!(report.n_steps.iter().all(|&n| n <= 8), "{:?}", report.n_steps);
}

#[test]
fn small_messages_in_shared_memory_take_two_steps() {
    let request = request(CollectiveOp::Allreduce, Layout::Whole { len: 8 }, Topology::one_host(4));
    assert_eq!(prove(named("arena-all"), &request).n_steps, [2; 4]);
}

#[test]
fn a_broadcast_in_two_levels_enters_each_host_once() {
    let root = Rank(5);
    let request =
        request(CollectiveOp::Broadcast, Layout::Rooted { root, len: 100 }, Topology::of_sizes(&[4, 4, 4]));
    assert_eq!(prove(named("tiers-rooted"), &request).host_bytes.iter().sum::<u64>(), 2 * 400);
}
