//! Batch norm with the statistics of all replicas is that of one replica with all samples.

use super::models::{adam, digits, network, on};
use crate::threads::Threads;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Dim, ExecutionStrategy, Executor, Feed, Fetch, Optimizer, Options,
    ParallelExecutor, Program, ReduceStrategy, Rule, Setup, Store, Tensor,
    kernel::Stream,
    layers::{BatchNormOptions, ConvOptions},
};
use std::sync::Arc;

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0))
}

/// Images, with a convolution before the norm.
fn images() -> Program {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(2), Dim::Fixed(6), Dim::Fixed(6)]).unwrap();
    let c = b.conv2d(x, ConvOptions { act: Act::Relu, ..ConvOptions::new(3, 3) }).unwrap();
    let n = b.batch_norm(c, BatchNormOptions::default()).unwrap();
    let n = b.named(n, "normed").unwrap();
    let f = b.flatten(n).unwrap();
    let y = b.fc(f, 1, Act::Tanh).unwrap();
    let y = b.map(phalanx_graph::op::Func::Square, y).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, 0.1).minimize(&mut program, loss).unwrap();
    program
}

#[test]
fn outputs_gradients_and_statistics_are_those_of_one_replica() {
    let program = images();
    let dice = Stream::new(1, 2, 3);
    let data = |n: usize| -> Tensor {
        let values: Vec<f32> = (0..n * 72).map(|i| dice.normal(i as u64) as f32).collect();
        Tensor::new(&[n, 2, 6, 6], &values).unwrap()
    };
    for n_samples in [8, 7] {
        let x = data(n_samples);
        let mut one = Executor::new(program.clone(), Options::default()).unwrap();
        let mut reference = Store::new(4);
        let names = ["normed", "conv.w@GRAD", "bn.scale@GRAD", "bn.shift@GRAD"];
        let names: Vec<&str> = names.into_iter().filter(|n| program.find(n).is_some()).collect();
        assert!(names.len() >= 2, "the names of layers have changed");
        let mut wanted = Vec::new();
        for _ in 0..3 {
            wanted = one.run(&mut reference, &[("x", &x)], &names).unwrap();
        }
        for n in [2, 3, 4, 10] {
            for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
                let build =
                    BuildStrategy { sync_batch_norm: true, reduce_strategy, ..BuildStrategy::default() };
                let exec = ExecutionStrategy { num_threads: 3, ..ExecutionStrategy::default() };
                let setup = Setup { build, exec, ..on(n) };
                let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
                let mut store = Store::new(4);
                let fetch: Vec<Fetch<'_>> = names.iter().map(|n| Fetch::concat(n)).collect();
                let mut got = Vec::new();
                for _ in 0..3 {
                    got = exe.run(&mut store, &[("x", Feed::Split(&x))], &fetch).unwrap();
                }
                for ((name, got), wanted) in names.iter().zip(&got).zip(&wanted) {
                    assert!(close(&got.one().to_f64(), &wanted.to_f64()), "{name}, {n} replicas");
                }
                for name in ["bn.mean", "bn.var"] {
                    let wanted = reference.get(name).unwrap();
                    for replica in 0..n {
                        // Those without samples, too.
                        let own = store.get_copy(name, replica).unwrap();
                        assert!(close(&own.to_f64(), &wanted.to_f64()), "{name}, replica {replica} of {n}");
                    }
                }
            }
        }
    }
}

#[test]
fn without_it_each_replica_has_its_own_and_with_processes_all_have_one() {
    let program = network(Some(&adam()), &[12], true, 0.0);
    let run = |sync: bool, n: usize| {
        let build = BuildStrategy { sync_batch_norm: sync, ..BuildStrategy::default() };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), Setup { build, ..on(n) }).unwrap();
        let mut store = Store::new(4);
        let (x, y) = digits(16, 1);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        exe.run(&mut store, &feeds, &[Fetch::concat("hidden")]).unwrap().remove(0).one().to_f64()
    };
    let one = run(false, 1);
    assert!(!close(&run(false, 4), &one), "local statistics differ");
    let synced = run(true, 4);
    assert!(close(&synced, &one));
    let halves: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = Threads::new(2)
            .into_iter()
            .enumerate()
            .map(|(at, collective)| {
                let program = &program;
                scope.spawn(move || {
                    let build = BuildStrategy { sync_batch_norm: true, ..BuildStrategy::default() };
                    let setup = Setup { build, collective: Arc::new(collective), ..on(2) };
                    let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
                    let (x, y) = digits(16, 1);
                    let x = Tensor::new(&[8, 64], &x.data::<f32>().unwrap()[at * 512..][..512]).unwrap();
                    let y = Tensor::new(&[8], &y.data::<i64>().unwrap()[at * 8..][..8]).unwrap();
                    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
                    let out = exe.run(&mut Store::new(4), &feeds, &[Fetch::concat("hidden")]).unwrap();
                    out[0].one().to_f64()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(halves.concat(), synced, "SUM-1: the bits of one process");
}

#[test]
fn nothing_is_learned_of_no_samples() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(2), Dim::Fixed(2), Dim::Fixed(2)]).unwrap();
    b.batch_norm(x, BatchNormOptions::default()).unwrap();
    let program = b.finish().unwrap();
    let build = BuildStrategy { sync_batch_norm: true, ..BuildStrategy::default() };
    let mut exe = ParallelExecutor::new(&program, None, Setup { build, ..on(2) }).unwrap();
    let mut store = Store::new(0);
    exe.prepare(&mut store).unwrap();
    let names: Vec<String> = store.names().map(String::from).collect();
    let before: Vec<_> = names.iter().map(|n| store.get(n)).collect();
    let none = Tensor::new::<f32>(&[0, 2, 2, 2], &[]).unwrap();
    exe.run(&mut store, &[("x", Feed::Split(&none))], &[]).unwrap();
    assert_eq!(before, names.iter().map(|n| store.get(n)).collect::<Vec<_>>());
}
