//! Every collective on real memory and real sockets, against a reference computed by one thread.

use crate::support::run_owners;
use phalanx_collective::{Communicator, Error, Scale};
use phalanx_core::{Rank, ReduceOp};
use std::sync::Arc;

/// Runs `f` on every rank of a world whose hosts have these sizes, and returns what each rank returned.
fn run_ranks<T: Send + 'static>(
    hosts: &[u32],
    settings: &[(&'static str, &str)],
    f: impl Fn(&mut Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    run_owners(hosts, settings, move |mut comm| f(&mut comm))
}

/// Shapes of worlds: one host and several, even and uneven, also more ranks than cores.
const SHAPES: &[&[u32]] = &[&[1], &[2], &[3], &[4], &[5], &[8], &[1, 1], &[2, 2], &[3, 1], &[1, 2, 2]];
const LENGTHS: &[usize] = &[0, 1, 3, 7, 1000, 40_000, 300_001];

fn value(rank: usize, i: usize) -> f32 {
    ((rank * 31 + i * 7) % 101) as f32 - 50.0
}

fn input(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| value(rank, i)).collect()
}

fn sums(n: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (0..n).map(|r| value(r, i)).sum()).collect()
}

fn everywhere(
    settings: &'static [(&'static str, &str)],
    f: impl Fn(&mut Communicator) + Send + Sync + Clone + 'static,
) {
    for shape in SHAPES {
        run_ranks(shape, settings, f.clone());
    }
}

fn check_allreduce(comm: &mut Communicator) {
    let (me, n) = (comm.rank().index(), comm.size() as usize);
    for &len in LENGTHS {
        let want = sums(n, len);
        let mut data = input(me, len);
        comm.allreduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, want, "in place, {len} elements, {}", comm.last_plan());

        let data = input(me, len);
        let mut out = vec![0.0; len];
        comm.allreduce_into(&data, &mut out, ReduceOp::Sum, Scale { pre: 2.0, post: 0.5 }).unwrap();
        assert_eq!(out, want, "out of place, scaled, {len} elements, {}", comm.last_plan());
        assert_eq!(data, input(me, len), "inputs are not written");

        let mut shared = comm.alloc::<f32>(len).unwrap();
        shared.copy_from_slice(&data);
        comm.allreduce(&mut shared, ReduceOp::Average).unwrap();
        let averages: Vec<f32> = want.iter().map(|s| s / n as f32).collect();
        assert_eq!(&shared[..], averages, "arena memory, {len} elements, {}", comm.last_plan());

        // Only some ranks bring arena memory.
        let mut mixed = input(me, len);
        shared.copy_from_slice(&mixed);
        let data = if me.is_multiple_of(2) { &mut shared[..] } else { &mut mixed[..] };
        comm.allreduce(data, ReduceOp::Sum).unwrap();
        assert_eq!(data, want, "mixed memory, {len} elements, {}", comm.last_plan());
    }
}

/// Every step of these plans asserts MEM-1.
#[test]
fn allreduce_through_shared_memory_and_between_hosts() {
    everywhere(&[], check_allreduce);
}

#[test]
fn allreduce_over_tcp_only() {
    everywhere(&[("PHALANX_TRANSPORT", "tcp")], check_allreduce);
}

#[test]
fn allreduce_over_unix_sockets() {
    everywhere(&[("PHALANX_TRANSPORT", "unix")], check_allreduce);
}

#[test]
fn allreduce_encrypted() {
    everywhere(&[("PHALANX_ENCRYPT", "always")], check_allreduce);
    everywhere(&[("PHALANX_ENCRYPT", "always"), ("PHALANX_TRANSPORT", "tcp")], check_allreduce);
}

#[test]
fn allreduce_with_every_algorithm() {
    for algorithm in phalanx_collective::plan::Algorithm::all() {
        for shape in [&[3u32][..], &[2, 2], &[1, 2]] {
            run_ranks(shape, &[("PHALANX_ALGORITHM", algorithm.name())], check_allreduce);
        }
    }
}

fn check_others(comm: &mut Communicator) {
    let (me, n) = (comm.rank().index(), comm.size() as usize);
    for &len in LENGTHS {
        for root in [0, n - 1] {
            let mut data = if me == root { input(root, len) } else { vec![0.0; len] };
            comm.broadcast(&mut data, Rank::at(root)).unwrap();
            assert_eq!(data, input(root, len), "broadcast, {}", comm.last_plan());

            let mut data = input(me, len);
            comm.reduce(&mut data, ReduceOp::Max, Rank::at(root)).unwrap();
            if me == root {
                let want: Vec<f32> =
                    (0..len).map(|i| (0..n).map(|r| value(r, i)).fold(f32::MIN, f32::max)).collect();
                assert_eq!(data, want, "reduce, {}", comm.last_plan());
            } else {
                assert_eq!(data, input(me, len), "reduce leaves other ranks alone");
            }
        }
        let counts: Vec<u64> =
            (0..n).map(|r| ((len + r * 5) / (r + 1) * usize::from(r != 1)) as u64).collect();
        let total: usize = counts.iter().sum::<u64>() as usize;
        let at = |r: usize| counts[..r].iter().sum::<u64>() as usize;
        let own = input(me, counts[me] as usize);
        let joined: Vec<f32> = (0..n).flat_map(|r| input(r, counts[r] as usize)).collect();

        let mut all = vec![0.0; total];
        comm.allgather(&own, &mut all, &counts).unwrap();
        assert_eq!(all, joined, "allgather, {}", comm.last_plan());

        let root = Rank::at(n / 2);
        let mut all = vec![0.0; total];
        comm.gather(&own, &mut all, &counts, root).unwrap();
        assert_eq!(all, if comm.rank() == root { joined.clone() } else { vec![0.0; total] }, "gather");

        let mut mine = vec![0.0; counts[me] as usize];
        comm.scatter(if comm.rank() == root { &joined } else { &[] }, &mut mine, &counts, root).unwrap();
        assert_eq!(mine, own, "scatter, {}", comm.last_plan());

        let mut mine = vec![0.0; counts[me] as usize];
        comm.reduce_scatter(&input(me, total), &mut mine, &counts, ReduceOp::Sum).unwrap();
        assert_eq!(
            mine,
            sums(n, total)[at(me)..at(me) + counts[me] as usize],
            "reduce_scatter, {}",
            comm.last_plan()
        );

        let row: Vec<u64> = (0..n).map(|q| ((len / n + me * 3 + q) % (len + 1)) as u64).collect();
        let matrix = comm.alltoall_counts(&row).unwrap();
        let to_send: usize = row.iter().sum::<u64>() as usize;
        let mut got = vec![0.0; (0..n).map(|p| matrix[p * n + me]).sum::<u64>() as usize];
        comm.alltoall(&input(me, to_send), &mut got, &matrix).unwrap();
        let want: Vec<f32> = (0..n)
            .flat_map(|p| {
                let before: u64 = matrix[p * n..p * n + me].iter().sum();
                (before..before + matrix[p * n + me]).map(move |i| value(p, i as usize))
            })
            .collect();
        assert_eq!(got, want, "alltoall, {}", comm.last_plan());
    }
    comm.barrier().unwrap();
}

#[test]
fn every_other_collective_through_shared_memory_and_between_hosts() {
    everywhere(&[], check_others);
}

#[test]
fn every_other_collective_over_tcp_only() {
    everywhere(&[("PHALANX_TRANSPORT", "tcp")], check_others);
}

#[test]
fn every_other_collective_over_unix_sockets() {
    everywhere(&[("PHALANX_TRANSPORT", "unix")], check_others);
}

#[test]
fn every_other_collective_encrypted() {
    everywhere(&[("PHALANX_ENCRYPT", "always"), ("PHALANX_TRANSPORT", "tcp")], check_others);
}

#[test]
fn ranks_that_end_at_once_do_not_trouble_those_that_still_join() {
    for _ in 0..20 {
        run_ranks(&[4], &[], |comm| assert_eq!(comm.size(), 4));
        run_ranks(&[2, 2], &[], |comm| assert_eq!(comm.local_size(), 2));
    }
}

#[test]
fn results_are_bit_equal_on_every_rank() {
    for shape in [&[2u32][..], &[4], &[5], &[2, 1]] {
        let results = run_ranks(shape, &[], |comm| {
            // Sums whose value depends on the order of additions.
            let mut data: Vec<f32> = (0..70_000)
                .map(|i| ((i * (comm.rank().index() + 3)) as f32).sin() * 1e3f32.powi(i as i32 % 7 - 3))
                .collect();
            comm.allreduce(&mut data, ReduceOp::Sum).unwrap();
            data.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        });
        assert!(results.windows(2).all(|w| w[0] == w[1]), "{shape:?}");
    }
}

#[test]
fn ranks_that_call_different_things_are_told_and_can_go_on() {
    for n in [2, 3, 4] {
        run_ranks(&[n], &[], |comm| {
            let me = comm.rank();
            for round in 0..20 {
                let len = if me == Rank(1) { 100_000 } else { 3 + round };
                let error = comm.allreduce(&mut vec![0f32; len], ReduceOp::Sum).unwrap_err();
                let text = error.to_string();
                assert!(
                    !error.is_failure() && text.contains("rank 1 calls allreduce(sum) of 100000 f32"),
                    "{text}"
                );
                let error = match me {
                    Rank(0) => comm.allreduce(&mut [0i32; 4], ReduceOp::Max),
                    _ => comm.broadcast(&mut [0f32; 4], Rank(0)),
                };
                assert!(matches!(error, Err(Error::Mismatch { .. })), "COMM-2, RUN-1: {error:?}");
                let mut one = [1f32];
                comm.allreduce(&mut one, ReduceOp::Sum).unwrap();
                assert_eq!(one[0], comm.size() as f32, "RUN-2");
            }
        });
    }
}

#[test]
fn across_hosts_a_disagreement_ends_the_world_for_everybody() {
    let errors = run_ranks(&[1, 1, 1], &[], |comm| {
        let len = if comm.rank() == Rank(2) { 7 } else { 9 };
        let first = comm.allreduce(&mut vec![0f32; len], ReduceOp::Sum).unwrap_err().to_string();
        let second = comm.barrier().unwrap_err();
        assert!(matches!(second, Error::Mismatch { .. }), "{second}");
        first
    });
    assert!(errors.iter().all(|e| e.contains("of 7 f32") && e.contains("of 9 f32")), "COMM-2: {errors:?}");
}

#[test]
fn ranks_of_one_host_whose_plans_have_nothing_in_common_find_out_too() {
    // The barrier of two hosts begins in shared memory, the allgather goes over links alone.
    let errors = run_ranks(&[2, 2], &[], |comm| {
        let called = match comm.rank() {
            Rank(0) => comm.barrier(),
            _ => comm.allgather(&[1f32], &mut [0.0; 4], &[1; 4]),
        };
        called.unwrap_err().to_string()
    });
    assert!(errors.iter().all(|e| e.contains("barrier") && e.contains("allgather")), "RUN-1: {errors:?}");
}

#[test]
fn a_forced_link_plan_takes_mixed_memory() {
    run_ranks(&[3], &[("PHALANX_ALGORITHM", "ring")], |comm| {
        for _ in 0..3 {
            let mut shared = comm.alloc::<f32>(1000).unwrap();
            let mut private = vec![1f32; 1000];
            shared.fill(1.0);
            let data = if comm.rank() == Rank(1) { &mut shared[..] } else { &mut private[..] };
            comm.allreduce(data, ReduceOp::Sum).unwrap();
            assert_eq!(data, vec![3.0; 1000]);
        }
    });
}

#[test]
fn a_world_has_one_communicator_of_all_ranks_and_no_room_for_nonsense() {
    let world = Arc::new(phalanx_net::World::from_env().unwrap());
    let comm = Communicator::of_world(world.clone()).unwrap();
    assert!(matches!(Communicator::of_world(world), Err(Error::WorldTaken)));
    for len in [usize::MAX, usize::MAX / 8, (1 << 61) + 1, isize::MAX as usize / 8] {
        assert!(matches!(comm.alloc::<f64>(len), Err(Error::ArenaFull { .. })), "{len}");
    }
    assert_eq!(comm.alloc::<f64>(3).unwrap()[..], [0.0; 3]);
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    run_ranks(&[2], &[], |comm| {
        assert!(matches!(comm.broadcast(&mut [0f32], Rank(2)), Err(Error::NoSuchRoot { .. })));
        assert!(matches!(comm.allreduce(&mut [true], ReduceOp::Average), Err(Error::Op(_))));
        assert!(matches!(comm.allgather(&[0f32], &mut [0.0; 3], &[1, 1]), Err(Error::Length { .. })));
        let odd =
            comm.allreduce_bytes(&mut [0; 5], phalanx_core::DType::F32, ReduceOp::Sum, Scale::default());
        assert!(matches!(odd, Err(Error::Ragged { .. })));
        let mut any = [comm.rank() == Rank(1), false];
        comm.allreduce(&mut any, ReduceOp::Max).unwrap();
        assert_eq!(any, [true, false]);
    });
}

#[test]
fn sub_communicators_work_side_by_side() {
    for shape in [&[6u32][..], &[3, 3], &[4, 2]] {
        run_ranks(shape, &[], |comm| {
            let me = comm.rank().0;
            let group: Vec<Rank> = if me.is_multiple_of(2) {
                [4, 2, 0].map(Rank).to_vec()
            } else {
                [1, 3, 5].map(Rank).to_vec()
            };
            let mut half = comm.split(&group).unwrap().unwrap();
            assert_eq!(half.rank().index(), group.iter().position(|r| r.0 == me).unwrap());
            for len in [1, 5000, 200_000] {
                let mut data = vec![me as f32; len];
                half.allreduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, vec![if me.is_multiple_of(2) { 6.0 } else { 9.0 }; len]);
            }
            // A split of a split, while the other half does the same with the same numbers.
            let pair: Vec<Rank> = if half.rank().0 < 2 { vec![Rank(0), Rank(1)] } else { vec![] };
            if let Some(mut pair) = half.split(&pair).unwrap() {
                let mut data = vec![me as i64; 30_000];
                pair.allreduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data[29_999], if me.is_multiple_of(2) { 6 } else { 4 });
            }
            comm.barrier().unwrap();
            let wrong = comm.split(&[Rank(0), Rank(0)]).unwrap_err().to_string();
            assert!(wrong.contains("is listed twice"), "{wrong}");
            comm.barrier().unwrap();
        });
    }
}
