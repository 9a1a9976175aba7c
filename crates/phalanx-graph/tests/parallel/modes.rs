//! Replicas that learn alone, programs that people change by hand, and programs that no mode can run.

use super::models::{adam, assert_same, bits, digits, mlp, network, on, train};
use phalanx_core::DType;
use phalanx_graph::{
    BATCH, BuildError, BuildStrategy, Builder, Dim, Executor, Feed, Fetch, Init, Optimizer, Options,
    ParallelExecutor, Program, ReduceStrategy, Role, Rule, Setup, Store, Tensor, append_backward,
    op::{Func, Sgd, Unary},
};

fn in_mode(reduce_strategy: ReduceStrategy, n: usize) -> Setup {
    Setup { build: BuildStrategy { reduce_strategy, ..BuildStrategy::default() }, ..on(n) }
}

#[test]
fn replicas_that_are_not_reduced_learn_alone_each_from_its_share() {
    let program = network(Some(&adam()), &[20], true, 0.0);
    let mut exe =
        ParallelExecutor::new(&program, Some("loss"), in_mode(ReduceStrategy::NoReduce, 3)).unwrap();
    let mut store = Store::new(3);
    let mut alone: Vec<(Executor, Store)> = (0..3)
        .map(|_| (Executor::new(program.clone(), Options::default()).unwrap(), Store::new(3)))
        .collect();
    for step in 0..4 {
        let parts: Vec<(Tensor, Tensor)> = (0..3).map(|r| digits(4 + r, step * 3 + r as u64)).collect();
        let images: Vec<&Tensor> = parts.iter().map(|p| &p.0).collect();
        let labels: Vec<&Tensor> = parts.iter().map(|p| &p.1).collect();
        let feeds = [("image", Feed::PerReplica(&images)), ("label", Feed::PerReplica(&labels))];
        exe.run(&mut store, &feeds, &[]).unwrap();
        for ((one, own), (x, y)) in alone.iter_mut().zip(&parts) {
            one.run(own, &[("image", x), ("label", y)], &[]).unwrap();
        }
    }
    let mut sum = vec![0.0; store.get("fc.w").unwrap().to_f64().len()];
    for (replica, (_, own)) in alone.iter_mut().enumerate() {
        let wanted = own.get("fc.w").unwrap();
        assert_eq!(store.get_copy("fc.w", replica).unwrap(), wanted, "replica {replica}");
        sum.iter_mut().zip(wanted.to_f64()).for_each(|(s, v)| *s += v);
    }
    let mean = store.get("fc.w").unwrap().to_f64();
    assert!(mean.iter().zip(&sum).all(|(m, s)| (m - s / 3.0).abs() < 1e-6), "STORE-2");
}

/// Decay that the user has written after the optimizer's operations, for every parameter.
fn with_decay(mut program: Program) -> Program {
    for p in program.trainable() {
        let site = program.var(p).site.clone();
        let kind = Unary(Func::Scale { a: 0.999, b: 0.0 });
        program.append_to(kind, &[p], &[p], Role::Forward, site).unwrap();
    }
    program.verify().unwrap();
    program
}

#[test]
fn what_the_user_appends_to_the_update_belongs_to_it() {
    let program = with_decay(mlp(Some(&Optimizer::new(Rule::Sgd, 0.05))));
    let plain = mlp(Some(&Optimizer::new(Rule::Sgd, 0.05)));
    let (losses, mut store) = train(&program, in_mode(ReduceStrategy::AllReduce, 4), 6, 16);
    let (other, mut others) = train(&program, in_mode(ReduceStrategy::Reduce, 4), 6, 16);
    assert_eq!(bits(&losses), bits(&other));
    assert_same(&mut store, &mut others, "PARA-1");
    let (without, _) = train(&plain, in_mode(ReduceStrategy::Reduce, 4), 6, 16);
    assert_ne!(bits(&losses), bits(&without), "it does something");
    let mut one = Executor::new(program, Options::default()).unwrap();
    let mut reference = Store::new(3);
    for step in 0..6 {
        let (x, y) = digits(16, step);
        one.run(&mut reference, &[("image", &x), ("label", &y)], &[]).unwrap();
    }
    let (a, b) = (store.get("fc.w").unwrap().to_f64(), reference.get("fc.w").unwrap().to_f64());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6));
}

/// `mean(x * w)` with its gradient, and then whatever is to be wrong.
fn small() -> (Program, phalanx_graph::VarId, phalanx_graph::VarId) {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1)]).unwrap();
    let w = b.parameter("w", [1], Init::Constant(0.5)).unwrap();
    let y = b.mul(x, w).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    (b.finish().unwrap(), w, loss)
}

#[test]
fn updates_that_would_differ_between_replicas_are_refused() {
    let (mut program, w, loss) = small();
    let g = append_backward(&mut program, loss, &[]).unwrap()[0].1;
    let site = program.var(w).site.clone();
    // The rate is this replica's loss.
    program.append_to(Sgd, &[w, g, loss], &[w], Role::Optimize, site.clone()).unwrap();
    for mode in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let error = ParallelExecutor::new(&program, Some("loss"), in_mode(mode, 2)).unwrap_err();
        assert!(matches!(&error, BuildError::Unreduced { op: "sgd", var, .. } if var == "loss"), "{error}");
    }
    // One replica may do so, and so may those that learn alone.
    let x = Tensor::new(&[4, 1], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    for setup in [on(1), in_mode(ReduceStrategy::NoReduce, 2)] {
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
        let mut store = Store::new(0);
        exe.run(&mut store, &[("x", Feed::Split(&x))], &[Fetch::mean("loss")]).unwrap();
        assert_ne!(store.get("w").unwrap().to_f64(), [0.5]);
    }
    // A gradient of what an update has changed.
    let (mut program, w, _) = small();
    let rate = program.scalar_state("r", DType::F32, 0.1, site.clone()).unwrap();
    program.append_to(Sgd, &[w, w, rate], &[w], Role::Optimize, site.clone()).unwrap();
    let after = program.append(Unary(Func::Square), &[w], "after", Role::Forward, site).unwrap()[0];
    append_backward(&mut program, after, &[]).unwrap();
    let error = ParallelExecutor::new(&program, Some("after"), on(2)).unwrap_err();
    assert!(matches!(error, BuildError::EarlyUpdate { .. }), "{error}");
    assert_eq!(ParallelExecutor::new(&Program::new(), None, on(2)).unwrap_err(), BuildError::Empty);
}

#[test]
fn gradients_without_an_update_are_reduced_and_memory_is_saved() {
    let (mut program, _, loss) = small();
    append_backward(&mut program, loss, &[]).unwrap();
    let x = Tensor::new(&[5, 1], &[1f32, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let mut exe = ParallelExecutor::new(&program, Some("loss"), on(4)).unwrap();
    let fetch = [Fetch::concat("w@GRAD"), Fetch::unmerged("w@GRAD")];
    let out = exe.run(&mut Store::new(0), &[("x", Feed::Split(&x))], &fetch).unwrap();
    assert_eq!(out[0].one().to_f64(), [3.0], "the mean of x");
    assert!(out[1].each().iter().all(|t| t.to_f64() == [3.0]));
    let program = mlp(Some(&adam()));
    let bytes = |memory_optimize, enable_inplace| {
        let build = BuildStrategy { memory_optimize, enable_inplace, ..BuildStrategy::default() };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), Setup { build, ..on(2) }).unwrap();
        let (x, y) = digits(256, 0);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        exe.run(&mut Store::new(0), &feeds, &[]).unwrap();
        exe.arena_bytes()
    };
    let (with, without) = (bytes(true, true), bytes(false, false));
    assert!(with * 10 < without * 9, "{with} against {without} bytes");
}
