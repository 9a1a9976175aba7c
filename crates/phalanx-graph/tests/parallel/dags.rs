//! Random programs: what many workers compute is what one replica computes, operation by operation.

use super::models::on;
use phalanx_core::DType;
use phalanx_graph::{
    BATCH, BuildStrategy, Builder, Dim, ExecutionStrategy, Executor, Feed, Fetch, Init, Optimizer, Options,
    ParallelExecutor, Program, ReduceStrategy, Rule, Setup, Store, Tensor, VarId,
    kernel::Stream,
    op::{Arith, Func},
};

const WIDTH: usize = 5;

/// A program of `n` random operations on `[batch, WIDTH]`, with parameters between, that learns.
fn random(seed: u64, n: usize) -> Program {
    let dice = Stream::new(seed, 7, 0);
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(WIDTH)]).unwrap();
    let mut all: Vec<VarId> = vec![x];
    for i in 0..n as u64 {
        let roll = |k: u64, n: usize| (dice.bits(i * 10 + k) % n as u64) as usize;
        let (a, c) = (all[roll(0, all.len())], all[all.len() - 1 - roll(1, all.len().min(4))]);
        let made = match roll(2, 6) {
            0 => b.map(Func::Tanh, a),
            1 => b.map(Func::Sigmoid, c),
            2 => b.arith(Arith::Add, a, c),
            3 => b.arith(Arith::Mul, a, c),
            4 => {
                let w =
                    b.parameter(&format!("w{i}"), [WIDTH], Init::Uniform { low: -0.7, high: 0.7 }).unwrap();
                b.mul(c, w)
            }
            _ => {
                let w = b.parameter(&format!("m{i}"), [WIDTH, WIDTH], Init::Xavier).unwrap();
                b.matmul(a, w, false, false)
            }
        };
        all.push(made.unwrap());
    }
    // Everything counts.
    let mut total = b.map(Func::Tanh, all[0]).unwrap();
    for &v in &all[1..] {
        let squashed = b.map(Func::Tanh, v).unwrap();
        total = b.add(total, squashed).unwrap();
    }
    let w = b.parameter("last", [WIDTH], Init::Constant(0.3)).unwrap();
    let total = b.mul(total, w).unwrap();
    let total = b.map(Func::Tanh, total).unwrap();
    let loss = b.mean(total).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Momentum { mu: 0.9, nesterov: true }, 0.05).minimize(&mut program, loss).unwrap();
    program
}

/// LOWER-1 is asserted for every schedule. Variables have several readers: the bits are equal only if their contributions are added in one
/// order (GRAD-2), and sums are placed only if each gradient has one birth (GRAD-3).
#[test]
fn random_programs_agree_with_one_replica_and_with_themselves() {
    for seed in 0..40 {
        let program = random(seed, 4 + seed as usize % 20);
        let dice = Stream::new(seed, 8, 0);
        let n = 1 + (dice.bits(0) % 11) as usize;
        let values: Vec<f32> = (0..n * WIDTH).map(|i| dice.normal(10 + i as u64) as f32).collect();
        let x = Tensor::new(&[n, WIDTH], &values).unwrap();
        let mut one = Executor::new(program.clone(), Options::default()).unwrap();
        let mut reference = Store::new(seed);
        let wanted: Vec<f64> = (0..4)
            .map(|_| one.run(&mut reference, &[("x", &x)], &["loss"]).unwrap()[0].to_f64()[0])
            .collect();
        let replicas = 1 + (dice.bits(1) % 5) as usize;
        let mut first: Option<(Vec<f64>, Vec<Tensor>)> = None;
        for trial in 0..6u64 {
            let coin = |k: u64| dice.bits(100 + trial * 10 + k) & 1 == 1;
            let modes = [ReduceStrategy::AllReduce, ReduceStrategy::Reduce];
            let build = BuildStrategy {
                reduce_strategy: modes[usize::from(coin(0))],
                fuse_all_reduce_ops: coin(1),
                bucket_bytes: 64,
                fuse_all_optimizer_ops: coin(2),
                fuse_elewise_add_act_ops: coin(3),
                enable_sequential_execution: coin(4),
                memory_optimize: coin(5),
                enable_inplace: coin(6),
                ..BuildStrategy::default()
            };
            let exec = ExecutionStrategy { num_threads: 1 + trial as usize, ..ExecutionStrategy::default() };
            let setup = Setup { build, exec, ..on(replicas) };
            let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
            let mut store = Store::new(seed);
            let losses: Vec<f64> = (0..4)
                .map(|_| {
                    let out = exe.run(&mut store, &[("x", Feed::Split(&x))], &[Fetch::mean("loss")]).unwrap();
                    out[0].one().to_f64()[0]
                })
                .collect();
            for (a, b) in losses.iter().zip(&wanted) {
                assert!((a - b).abs() < 5e-6, "seed {seed}, trial {trial}: {losses:?} and {wanted:?}");
            }
            let names: Vec<String> = store.names().map(String::from).collect();
            let values: Vec<Tensor> = names.iter().map(|n| store.get(n).unwrap()).collect();
            match &first {
                None => first = Some((losses, values)),
                Some((l, v)) => {
                    assert_eq!((l, v), (&losses, &values), "PARA-1: seed {seed}, trial {trial}");
                }
            }
        }
    }
}
