//! Shares that are taken piece by piece: the bits of as many replicas, in the memory of fewer.

use super::models::{adam, assert_same, bits, digits, network, on, train};
use phalanx_graph::{
    BuildError, BuildStrategy, ExecutionStrategy, Feed, Fetch, ParallelExecutor, ReduceStrategy, Setup,
    Store, graph::Conflict,
};

fn pieces(replicas: usize, accumulate: usize, reduce_strategy: ReduceStrategy, num_threads: usize) -> Setup {
    let build = BuildStrategy { accumulate, reduce_strategy, ..BuildStrategy::default() };
    let exec = ExecutionStrategy { num_threads, ..ExecutionStrategy::default() };
    Setup { build, exec, ..on(replicas) }
}

const MODES: [ReduceStrategy; 2] = [ReduceStrategy::AllReduce, ReduceStrategy::Reduce];

#[test]
fn pieces_of_few_replicas_give_the_bits_of_many() {
    let program = network(Some(&adam()), &[40, 30], false, 0.2);
    // 22 samples: uneven shares; 5: some pieces have none.
    for batch in [22, 5] {
        let (losses, mut store) = train(&program, on(6), 6, batch);
        for (replicas, accumulate) in [(1, 6), (2, 3), (3, 2)] {
            for mode in MODES {
                for threads in [1, 3] {
                    let setup = pieces(replicas, accumulate, mode, threads);
                    let (other, mut others) = train(&program, setup, 6, batch);
                    assert_eq!(bits(&losses), bits(&other), "{replicas} x {accumulate}, {mode:?}");
                    assert_same(&mut store, &mut others, "SUM-1");
                }
            }
        }
    }
}

#[test]
fn everything_can_be_fetched_of_every_piece_and_memory_is_that_of_one() {
    let program = network(Some(&adam()), &[300, 300], false, 0.0);
    let (x, y) = digits(256, 1);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let names: Vec<String> =
        program.vars().filter(|(_, v)| v.sig.is_dense()).map(|(_, v)| v.name.clone()).collect();
    let fetch: Vec<Fetch<'_>> = names.iter().map(|n| Fetch::concat(n)).collect();
    let run = |setup: Setup, fetch: &[Fetch<'_>]| {
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
        let out = exe.run(&mut Store::new(2), &feeds, fetch).unwrap();
        (out, exe.arena_bytes())
    };
    let (wanted, _) = run(on(4), &fetch);
    for mode in MODES {
        let (got, _) = run(pieces(2, 2, mode, 2), &fetch);
        for ((name, a), b) in names.iter().zip(&got).zip(&wanted) {
            assert_eq!(a.one(), b.one(), "{name}, {mode:?}");
        }
    }
    let (_, whole) = run(on(1), &[]);
    let (_, less) = run(pieces(1, 4, ReduceStrategy::AllReduce, 1), &[]);
    let gradients: usize = program.trainable().iter().map(|&p| program.sig(p).bytes(0)).sum();
    assert!(less < whole + 3 * gradients, "{less} bytes in pieces, {whole} at once");
}

#[test]
fn what_pieces_cannot_do_is_said() {
    let program = network(Some(&adam()), &[8], true, 0.0);
    let conflicts =
        |build: BuildStrategy| match ParallelExecutor::new(&program, Some("loss"), Setup { build, ..on(2) })
            .unwrap_err()
        {
            BuildError::Conflicts(all) => all.0,
            other => panic!("{other}"),
        };
    let plain = BuildStrategy::default;
    assert_eq!(conflicts(BuildStrategy { accumulate: 0, ..plain() }), [Conflict::NoPieces]);
    let sync = BuildStrategy { accumulate: 2, sync_batch_norm: true, ..plain() };
    assert_eq!(conflicts(sync), [Conflict::SyncPieces]);
    let alone = BuildStrategy { accumulate: 2, reduce_strategy: ReduceStrategy::NoReduce, ..plain() };
    assert_eq!(conflicts(alone), [Conflict::AccumulateAlone]);
    assert!(matches!(
        conflicts(BuildStrategy { accumulate: 1000, ..plain() })[..],
        [Conflict::Pieces { pieces: 1000, .. }]
    ));
    // Statistics follow piece after piece.
    let (losses, mut store) = train(&program, pieces(2, 2, ReduceStrategy::Reduce, 2), 4, 16);
    let (other, mut others) = train(&program, pieces(2, 2, ReduceStrategy::AllReduce, 1), 4, 16);
    assert_eq!(bits(&losses), bits(&other));
    assert_same(&mut store, &mut others, "PARA-1");
}
