//! Worlds with a shape: what goes over the network follows from it, and DDL's options name it.

use crate::support::{run_on, run_owners};
use phalanx_collective::{
    Scale,
    ddl::{DdlError, DdlWish, wire},
    engine::{Engine, EngineTensor, Request},
};
use phalanx_core::ReduceOp;

/// Divisible by all groups here.
const LEN: usize = 12 * 4096;

/// Three hosts of four ranks, in order and dealt: the counters show the bytes that the shape asks for, and the sums are right.
#[test]
fn the_bytes_of_a_host_follow_from_the_shape_however_ranks_are_numbered() {
    let hosts = [(0..12).map(|r| r / 4).collect(), (0..12).map(|r| r % 3).collect::<Vec<usize>>()];
    for (shape, ways, (times, of)) in [
        ("4x3", "arena,ring", (4, 3)),
        ("4x3", "halving,direct", (4, 3)),
        ("2x2x3", "arena,arena,ring", (4, 3)),
        ("12", "ring", (11, 6)),
        ("6x2", "ring,ring", (4, 1)),
    ] {
        for host_of in &hosts {
            let settings = [("PHALANX_TIERS", shape), ("PHALANX_WAYS", ways), ("PHALANX_ALGORITHM", "tiers")];
            let sent = run_on(host_of.clone(), &settings, |mut comm| {
                let before: u64 = comm.traffic()[1..].iter().map(|t| t.bytes).sum();
                let mut data: Vec<f32> = (0..LEN).map(|i| (i % 7) as f32 + comm.rank().0 as f32).collect();
                comm.allreduce(&mut data, ReduceOp::Sum).unwrap();
                assert!(data.iter().enumerate().all(|(i, x)| *x == 12.0 * (i % 7) as f32 + 66.0));
                assert_eq!(comm.last_plan(), "tiers");
                comm.traffic()[1..].iter().map(|t| t.bytes).sum::<u64>() - before
            });
            let host =
                |h| sent.iter().zip(host_of).filter(move |(_, of)| **of == h).map(|(b, _)| b).sum::<u64>();
            let fullest = (0..3).map(host).max().unwrap();
            assert_eq!(fullest * of, times * LEN as u64 * 4, "GRID-1: {shape} {ways} {host_of:?}");
        }
    }
}

#[test]
fn segments_under_way_in_several_tiers_give_what_one_after_the_other_gives() {
    let run = |algorithm: &str| {
        let settings =
            [("PHALANX_TIERS", "2x2x2"), ("PHALANX_ALGORITHM", algorithm), ("PHALANX_SEGMENT_BYTES", "4096")];
        run_owners(&[2, 2, 2, 2], &settings, |mut comm| {
            let mut data: Vec<f32> =
                (0..200_003).map(|i| (i as f32 * 0.37).sin() + comm.rank().0 as f32 * 0.1).collect();
            comm.allreduce(&mut data, ReduceOp::Average).unwrap();
            (comm.last_plan(), data.iter().map(|x| x.to_bits()).collect::<Vec<u32>>())
        })
    };
    let (plain, pipelined) = (run("tiers"), run("tiers-pipelined"));
    assert_eq!((plain[0].0, pipelined[0].0), ("tiers", "tiers-pipelined"));
    for all in [&plain, &pipelined] {
        assert!(all.iter().all(|(_, bits)| *bits == all[0].1), "VER-2");
    }
    // The same numbers, though not always in the same order: cut differently, an element meets others first.
    let near = |a: &u32, b: &u32| (f32::from_bits(*a) - f32::from_bits(*b)).abs() <= 1e-5;
    assert!(plain[0].1.iter().zip(&pipelined[0].1).all(|(a, b)| near(a, b)));
}

/// What every rank has, bit for bit, after allreduces of several lengths one after the other, out of place and scaled.
fn reduced(host_of: &[usize], shape: &str, (algorithm, exact): (&'static str, bool)) -> Vec<Vec<u32>> {
    let settings = [("PHALANX_ALGORITHM", algorithm), ("PHALANX_TIERS", shape)];
    let settings: Vec<(&'static str, &str)> = settings.into_iter().filter(|s| !s.1.is_empty()).collect();
    run_on(host_of.to_vec(), &settings, move |mut comm| {
        let rank = comm.rank().0;
        let mut all = Vec::new();
        for len in [1_000_003, 1, 12, 300_000] {
            let value = |i: usize| match exact {
                // Sums of small integers are the same in any order.
                true => ((i * 7 + rank as usize * 3) % 64) as f32,
                false => (i as f32 * 0.37).sin() + rank as f32 * 0.1,
            };
            let input: Vec<f32> = (0..len).map(value).collect();
            let mut data = vec![0.0; len];
            let scale = Scale { pre: 0.5, post: 4.0 };
            comm.allreduce_into(&input, &mut data, ReduceOp::Sum, scale).unwrap();
            assert_eq!(comm.last_plan(), algorithm);
            all.extend(data.iter().map(|x| x.to_bits()));
        }
        all
    })
}

/// Segments in the arena and on the way to other hosts at once: ranks in order and dealt, with and without a shape, 2 to 4 ranks a host.
#[test]
fn segments_in_the_arena_and_between_hosts_give_what_one_after_the_other_gives() {
    let in_order = |hosts: usize, each: usize| (0..hosts * each).map(|r| r / each).collect::<Vec<usize>>();
    let dealt = |hosts: usize, each: usize| (0..hosts * each).map(|r| r % hosts).collect::<Vec<usize>>();
    for (host_of, shape) in [
        (in_order(3, 4), "4x3"),
        (dealt(3, 4), "4x3"),
        (dealt(3, 2), ""),
        (in_order(2, 3), "3x2"),
        (in_order(4, 2), ""),
    ] {
        let run = |algorithm, exact| reduced(&host_of, shape, (algorithm, exact));
        let (plain, overlapped) = (run("tiers", true), run("tiers-overlapped", true));
        assert!(overlapped.iter().all(|bits| *bits == plain[0]), "{shape} {host_of:?}");
        let (plain, overlapped) = (run("tiers", false), run("tiers-overlapped", false));
        assert!(overlapped.iter().all(|bits| *bits == overlapped[0]), "VER-2: {shape} {host_of:?}");
        let is_pair = host_of.iter().max() == Some(&1);
        // Between two hosts the order of additions does not matter; with more, an element that is cut differently meets others first.
        let same = |a: &u32, b: &u32| match is_pair {
            true => a == b,
            false => (f32::from_bits(*a) - f32::from_bits(*b)).abs() <= 1e-4,
        };
        assert!(plain[0].iter().zip(&overlapped[0]).all(|(a, b)| same(a, b)), "{shape} {host_of:?}");
    }
}

#[test]
fn options_name_the_shape_and_the_engine_reduces_along_it() {
    let sums = run_owners(&[2, 2, 2], &[], |mut comm| {
        let told = DdlWish { n_local: Some(2), options: "-mode n:2x3", from_env: None };
        let (_, wiring) = wire(&mut comm, &told).unwrap();
        let (meter, rank) = (comm.meter(), comm.rank());
        assert_eq!(wiring.grid.coordinates(rank), [rank.0 % 2, rank.0 / 2]);
        let engine = Engine::start(comm).unwrap();
        // In any order.
        let mut names = ["a", "b", "c"];
        names.rotate_left(rank.index() % 3);
        let handles: Vec<_> = names
            .iter()
            .map(|name| {
                let tensor = EngineTensor::new(vec![rank.0 as f64; 50_000]);
                engine.submit(Request::allreduce(tensor).name(*name).op(ReduceOp::Sum)).unwrap()
            })
            .collect();
        let sums: Vec<f64> = handles
            .into_iter()
            .map(|handle| handle.wait().unwrap().tensor().unwrap().as_slice::<f64>().unwrap()[49_999])
            .collect();
        // Half of each tensor goes twice between three hosts, but for the third that a rank keeps: 4 thirds of 25,000 elements.
        // Three do not divide them, so a rank may send an element less each way; batched, the tensors divide evenly.
        let even: u64 = 3 * 4 * 25_000 * 8 / 3;
        assert!(meter.read()[1].bytes >= even - 3 * 2 * 8, "{:?}", meter.read());
        engine.shutdown().unwrap();
        sums
    });
    assert_eq!(sums, vec![vec![15.0; 3]; 6]);
}

#[test]
fn options_that_differ_or_do_not_fit_are_errors_on_all_ranks_and_others_can_follow() {
    let said = run_owners(&[2, 2], &[], |mut comm| {
        let mine = if comm.rank().0 == 3 { "-mode r:2x2" } else { "-mode n:2x2" };
        let told = |options| DdlWish { options, ..DdlWish::default() };
        let differ = wire(&mut comm, &told(mine)).unwrap_err().to_string();
        let wrong = if comm.rank().0 == 1 { "-mode n:2x3" } else { "-mode n:2x2" };
        let wrong = wire(&mut comm, &told(wrong)).unwrap_err();
        let is_own = matches!(wrong, DdlError::Shape(_));
        wire(&mut comm, &told("-mode c:2x2")).unwrap();
        let mut data = [1.0f32; 5000];
        comm.allreduce(&mut data, ReduceOp::Sum).unwrap();
        (differ, wrong.to_string(), is_own, data[4999])
    });
    for (rank, (differ, wrong, is_own, sum)) in said.into_iter().enumerate() {
        assert_eq!(differ, "ranks 0 and 3 were started with different options: all ranks give the same ones");
        assert_eq!(is_own, rank == 1);
        let says = match rank {
            1 => "shape 2x3 holds 6 ranks, but the world has 4",
            _ => "rank 1 cannot start with its options; its own error says why",
        };
        assert_eq!((wrong.as_str(), sum), (says, 4.0));
    }
}

#[test]
fn ways_without_tiers_and_too_few_of_them_are_refused() {
    use phalanx_collective::Communicator;
    use phalanx_core::{Config, Rank};
    use phalanx_net::{
        World,
        discover::{Identity, Meeting},
        secret::Secret,
    };
    let says = |settings: &[(&str, &str)]| {
        let mut config = Config::default();
        settings.iter().for_each(|(name, value)| config.set(name, value).expect("valid settings"));
        let identity = Identity::worker(Rank::ZERO, 1, Meeting::Alone);
        let world = World::join(identity, Secret::random(), config).expect("a world of one");
        Communicator::of_world(std::sync::Arc::new(world)).unwrap_err().to_string()
    };
    assert_eq!(
        says(&[("PHALANX_WAYS", "ring")]),
        "PHALANX_WAYS says how each tier of PHALANX_TIERS works: set that, too, e.g. PHALANX_TIERS=4x3"
    );
    assert_eq!(
        says(&[("PHALANX_TIERS", "1x1"), ("PHALANX_WAYS", "ring")]),
        "PHALANX_TIERS: shape 1x1 has 2 tiers, but 1 ways are given: write one for each tier"
    );
}
