//! PARA-1: the same bits however it is run; and the same numbers as one replica.

use super::models::{adam, assert_same, bits, digits, mlp, network, on, train};
use phalanx_graph::{
    BuildStrategy, Clip, ExecutionStrategy, Executor, Optimizer, Options, ReduceStrategy, Rule, Setup, Store,
};

fn setup(replicas: usize, build: BuildStrategy, threads: usize) -> Setup {
    let exec = ExecutionStrategy { num_threads: threads, ..ExecutionStrategy::default() };
    Setup { build, exec, ..on(replicas) }
}

fn reduce() -> BuildStrategy {
    BuildStrategy { reduce_strategy: ReduceStrategy::Reduce, ..BuildStrategy::default() }
}

#[test]
fn reduce_and_allreduce_leave_the_same_bits_after_fifty_steps_and_learn() {
    for norm in [false, true] {
        let program = network(Some(&adam()), &[200, 200, 200, 200], norm, 0.1);
        let (losses, mut store) = train(&program, setup(4, BuildStrategy::default(), 2), 50, 32);
        let (other, mut others) = train(&program, setup(4, reduce(), 2), 50, 32);
        assert_eq!(bits(&losses), bits(&other), "PARA-1");
        assert_same(&mut store, &mut others, "PARA-1");
        assert!(losses[49] < losses[0] * 0.5, "{losses:?}");
        let (again, _) = train(&program, setup(4, reduce(), 2), 50, 32);
        assert_eq!(bits(&losses), bits(&again), "the same seed, the same bits");
    }
}

#[test]
fn fused_or_not_sequential_or_not_and_any_number_of_threads_give_the_same_bits() {
    let program = network(Some(&adam()), &[50, 40, 30], true, 0.1);
    let (losses, mut store) = train(&program, setup(3, BuildStrategy::default(), 1), 8, 22);
    for base in [BuildStrategy::default(), reduce()] {
        let ways = [
            BuildStrategy { fuse_all_reduce_ops: false, ..base.clone() },
            BuildStrategy { bucket_bytes: 3000, ..base.clone() },
            BuildStrategy { fuse_all_optimizer_ops: true, ..base.clone() },
            BuildStrategy { fuse_elewise_add_act_ops: true, ..base.clone() },
            BuildStrategy { enable_sequential_execution: true, fuse_all_optimizer_ops: true, ..base.clone() },
            BuildStrategy { memory_optimize: false, enable_inplace: false, ..base.clone() },
            BuildStrategy { memory_optimize: false, ..base.clone() },
            base,
        ];
        for way in ways {
            for threads in [1, 2, 4, 7] {
                let (other, mut others) = train(&program, setup(3, way.clone(), threads), 8, 22);
                assert_eq!(bits(&losses), bits(&other), "PARA-1: {threads} threads, {way:?}");
                assert_same(&mut store, &mut others, "PARA-1");
            }
        }
    }
}

#[test]
fn every_optimizer_gives_the_same_bits_in_both_modes() {
    let rules = [
        Rule::Sgd,
        Rule::Momentum { mu: 0.9, nesterov: true },
        Rule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.01 },
        Rule::Adagrad { epsilon: 1e-6 },
        Rule::RmsProp { rho: 0.95, epsilon: 1e-6, mu: 0.1 },
        Rule::Lars { mu: 0.9, coefficient: 0.02, decay: 1e-4 },
    ];
    let clips = [
        None,
        Some(Clip::GlobalNorm(0.5)),
        Some(Clip::Norm(0.5)),
        Some(Clip::Value { low: -0.1, high: 0.1 }),
    ];
    for (i, rule) in rules.into_iter().enumerate() {
        let optimizer = Optimizer { clip: clips[i % 4], decay: Some(1e-3), ..Optimizer::new(rule, 0.01) };
        // One layer is larger than a chunk, so that its update is done in ranges.
        let program = network(Some(&optimizer), &[300, 100], false, 0.0);
        let (losses, mut store) = train(&program, setup(4, BuildStrategy::default(), 2), 5, 18);
        let (other, mut others) = train(&program, setup(4, reduce(), 3), 5, 18);
        assert_eq!(bits(&losses), bits(&other), "{rule:?}");
        assert_same(&mut store, &mut others, "PARA-1");
    }
}

/// One replica on the whole batch, by the executor for one.
fn single(program: &phalanx_graph::Program, steps: u64, batch: usize) -> (Vec<f32>, Store) {
    let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
    let mut store = Store::new(3);
    let losses = (0..steps).map(|step| {
        let (x, y) = digits(batch, step);
        let out = executor.run(&mut store, &[("image", &x), ("label", &y)], &["loss"]).unwrap();
        out[0].data::<f32>().unwrap()[0]
    });
    (losses.collect(), store)
}

#[test]
fn any_number_of_replicas_learns_what_one_does_also_where_the_batch_cannot_be_divided() {
    for batch in [32, 29] {
        let program = mlp(Some(&Optimizer::new(Rule::Sgd, 0.05)));
        let (wanted, mut reference) = single(&program, 12, batch);
        for n in [1, 2, 3, 4, 7] {
            for build in [BuildStrategy::default(), reduce()] {
                let (losses, mut store) = train(&program, setup(n, build, 2), 12, batch);
                for (a, b) in losses.iter().zip(&wanted) {
                    assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{n} replicas: {a} and {b}");
                }
                let (a, b) = (store.get("fc.w").unwrap(), reference.get("fc.w").unwrap());
                for (a, b) in a.to_f64().iter().zip(b.to_f64()) {
                    assert!((a - b).abs() < 1e-6, "{n} replicas: {a} and {b}");
                }
            }
        }
    }
}

#[test]
fn one_replica_is_the_executor_for_one_to_the_bit() {
    let program = network(Some(&adam()), &[50, 40], true, 0.2);
    let (wanted, mut reference) = single(&program, 6, 16);
    let (losses, mut store) = train(&program, setup(1, BuildStrategy::default(), 1), 6, 16);
    assert_eq!(bits(&wanted), bits(&losses));
    assert_same(&mut reference, &mut store, "one replica");
}
