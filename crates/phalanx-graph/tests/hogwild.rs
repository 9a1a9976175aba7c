//! Replicas that learn without waiting for each other: HOGWILD-1 to HOGWILD-3.

use crate::models;
use crate::threads::Threads;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildError, BuildStrategy, Builder, Dim, ExecutionStrategy, Executor, Hogwild, Init,
    Optimizer, Options, ParallelExecutor, Program, Rule, RunError, Setup, Store, Tensor,
    exec::{NamedFeeds, ReaderError, each},
    graph::Conflict,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    thread::ThreadId,
};

fn setup(replicas: usize, num_iteration_per_run: usize) -> Setup {
    let exec = ExecutionStrategy { num_iteration_per_run, ..ExecutionStrategy::default() };
    Setup { replicas: Some(replicas), exec, ..Setup::default() }
}

fn owned(feeds: Vec<(&'static str, Tensor)>) -> NamedFeeds {
    feeds.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

fn contents(store: &mut Store) -> BTreeMap<String, Vec<u8>> {
    let names: Vec<String> = store.names().map(str::to_string).collect();
    names.into_iter().map(|n| (n.clone(), store.get(&n).unwrap().bytes().to_vec())).collect()
}

/// `mean(x * w)`: its gradient does not depend on what was learned, so the order of updates cannot matter.
fn linear(rate: f64) -> Program {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(40)]).unwrap();
    let w = b.parameter("w", [40], Init::Constant(0.0)).unwrap();
    let y = b.mul(x, w).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, rate).minimize(&mut program, loss).unwrap();
    program
}

fn ones(samples: usize, value: f32) -> NamedFeeds {
    let x = Tensor::new(&[samples, 40], &vec![value; samples * 40]).unwrap();
    vec![("x".to_string(), x)]
}

#[test]
fn one_replica_learns_what_the_executor_for_one_does_to_the_bit() {
    for model in models::all() {
        let built = (model.build)(DType::F32).unwrap();
        let mut program = built.program;
        model.optimizer.minimize_with(&mut program, built.loss, &built.checkpoints).unwrap();
        let batches = |step: u64| (model.data)(DType::F32, 9 + step as usize % 2, step);
        let mut one = Executor::new(program.clone(), Options::default()).unwrap();
        let (mut store, mut other) = (Store::new(4), Store::new(4));
        let mut losses = Vec::new();
        for step in 0..6 {
            let feeds = batches(step);
            let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(n, t)| (*n, t)).collect();
            losses.push(one.run(&mut store, &feeds, &["loss"]).unwrap()[0].to_f64()[0]);
        }
        let mut hogwild = Hogwild::new(&program, "loss", setup(1, 4)).unwrap();
        let mut reader = each((0..6).map(|step| owned(batches(step))));
        let mut updates = Vec::new();
        for wanted in [4, 6, 6] {
            let mut part = hogwild.run(&mut other, &mut reader).unwrap();
            part.iter_mut().for_each(|u| u.batch += updates.len() as u64);
            updates.extend(part);
            assert_eq!(updates.len(), wanted, "{}", model.name);
        }
        let got: Vec<f64> = updates.iter().map(|u| u.loss).collect();
        assert_eq!(got, losses, "{}", model.name);
        assert!(updates.iter().enumerate().all(|(i, u)| (u.replica, u.batch) == (0, i as u64)));
        assert_eq!(contents(&mut store), contents(&mut other), "{}", model.name);
    }
}

#[test]
fn each_batch_is_one_update_and_no_update_is_lost() {
    const BATCHES: u64 = 3000;
    for replicas in [1, 2, 4, 7] {
        // Rate, batches and gradients are whole numbers over powers of two: sums are exact in any order.
        let mut hogwild = Hogwild::new(&linear(10.0), "loss", setup(replicas, usize::MAX)).unwrap();
        let mut store = Store::new(1);
        let reader = each((0..BATCHES).map(|i| ones(1 + (i % 3) as usize, (i % 5) as f32)));
        let updates = hogwild.run(&mut store, reader).unwrap();
        let seen: BTreeSet<u64> = updates.iter().map(|u| u.batch).collect();
        assert_eq!(updates.len() as u64, BATCHES, "HOGWILD-1: {replicas} replicas");
        assert!(seen.into_iter().eq(0..BATCHES), "HOGWILD-1: {replicas} replicas");
        let sum: u64 = (0..BATCHES).map(|i| i % 5).sum();
        let w = store.get("w").unwrap().to_f64();
        let wanted = -10.0 / 40.0 * sum as f64;
        assert!(w.iter().all(|&w| w == wanted), "HOGWILD-2: {replicas} replicas: {w:?}, not {wanted}");
        assert!(updates.iter().all(|u| u.replica < replicas));
    }
}

#[test]
fn every_replica_does_its_iterations_and_the_reader_is_asked_no_more_than_that() {
    for (replicas, iterations) in [(1, 10), (2, 10), (4, 5), (3, 1)] {
        let mut hogwild = Hogwild::new(&linear(1.0), "loss", setup(replicas, iterations)).unwrap();
        assert_eq!(hogwild.effective().threads, replicas);
        let mut store = Store::new(1);
        let mut reader = each((0..).map(|_| ones(2, 1.0)));
        for _ in 0..3 {
            let updates = hogwild.run(&mut store, &mut reader).unwrap();
            for replica in 0..replicas {
                let own = updates.iter().filter(|u| u.replica == replica).count();
                assert_eq!(own, iterations, "replica {replica} of {replicas}");
            }
        }
        let w = -3.0 * (replicas * iterations) as f64 / 40.0;
        assert!((store.get("w").unwrap().to_f64()[0] - w).abs() < 1e-4);
    }
}

#[test]
fn nobody_waits_for_the_computations_of_another() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(40)]).unwrap();
    let mut h = x;
    for _ in 0..3 {
        h = b.fc(h, 200, Act::Tanh).unwrap();
    }
    let loss = b.mean(h).unwrap();
    b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, 0.1).minimize(&mut program, loss).unwrap();
    let mut hogwild = Hogwild::new(&program, "loss", setup(2, usize::MAX)).unwrap();
    // The first replica has much to do; the other one gets little things until the first is back.
    let mut first: Option<ThreadId> = None;
    let mut large = Some(ones(30_000, 0.5));
    let mut n_small = 0;
    let reader = |batch: &mut NamedFeeds| -> Result<bool, ReaderError> {
        let me = std::thread::current().id();
        if let Some(large) = large.take() {
            (first, *batch) = (Some(me), large);
            return Ok(true);
        }
        if first == Some(me) {
            return Ok(false);
        }
        n_small += 1;
        *batch = ones(1, 0.5);
        Ok(true)
    };
    let updates = hogwild.run(&mut Store::new(1), reader).unwrap();
    assert_eq!(updates.len(), 1 + n_small);
    let large = updates.iter().position(|u| u.batch == 0).unwrap();
    assert!(large >= 3, "the large batch was update {large} of {}", updates.len());
}

/// A table of ten words: others are an error of the operation.
fn words() -> Program {
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH]).unwrap();
    let x = b.embedding(ids, 10, 4, Default::default()).unwrap();
    let loss = b.mse(x, x).unwrap();
    let mean = b.mean(x).unwrap();
    let loss = b.add(loss, mean).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::adam(), 0.01).minimize(&mut program, loss).unwrap();
    program
}

fn ids(value: i64) -> NamedFeeds {
    vec![("ids".to_string(), Tensor::new(&[3], &[1, value, 2]).unwrap())]
}

/// Runs a reader that does something wrong at its 20th batch, and then one that does not.
fn recovers(
    replicas: usize,
    mut wrong: impl FnMut(&mut NamedFeeds) -> Result<bool, ReaderError> + Send,
) -> RunError {
    let mut hogwild = Hogwild::new(&words(), "loss", setup(replicas, usize::MAX)).unwrap();
    let mut store = Store::new(1);
    let (mut updates, mut n) = (Vec::new(), 0);
    let reader = |batch: &mut NamedFeeds| {
        n += 1;
        if n == 20 {
            return wrong(batch);
        }
        *batch = ids(n % 10);
        Ok(n < 2000)
    };
    let error = hogwild.run_into(&mut store, reader, &mut updates).unwrap_err();
    assert!(n < 2000, "HOGWILD-3: all have ended");
    assert!(updates.iter().all(|u| u.batch != 19), "HOGWILD-3: nothing was learned from it");
    let steps = |store: &mut Store| store.get("@STEP@").unwrap().to_f64()[0] as usize;
    assert_eq!(steps(&mut store), updates.len(), "HOGWILD-3: what was done is there");
    let again = hogwild.run(&mut store, each((0..40).map(|i| ids(i % 10)))).unwrap();
    assert_eq!(again.len(), 40);
    assert_eq!(steps(&mut store), updates.len() + 40);
    assert!(store.get("embedding.w").unwrap().to_f64().iter().all(|w| w.is_finite()));
    error
}

#[test]
fn a_failure_ends_all_replicas_is_named_and_the_next_run_is_fine() {
    for replicas in [1, 2, 4] {
        let error = recovers(replicas, |batch| {
            *batch = ids(77);
            Ok(true)
        });
        let RunError::Replica { replica, error } = &error else { panic!("{error}") };
        assert!(*replica < replicas);
        let RunError::Failed { site, inputs, .. } = &**error else { panic!("{error}") };
        assert!(site.file().ends_with("hogwild.rs") && inputs.contains("ids"), "{error}");

        let error = recovers(replicas, |_| Err("the disk is gone".into()));
        assert!(error.to_string().contains("the reader failed at batch 19: the disk is gone"), "{error}");
        assert!(matches!(&error, RunError::Replica { replica, .. } if *replica < replicas));

        let error = recovers(replicas, |_| panic!("the reader has a bug"));
        assert!(error.to_string().contains("panicked at batch 19: the reader has a bug"), "{error}");

        let error = recovers(replicas, |batch| {
            *batch = ones(1, 1.0);
            Ok(true)
        });
        let RunError::Replica { error, .. } = error else { panic!("{error}") };
        assert!(matches!(&*error, RunError::UnknownFeed { var } if var == "x"), "{error}");
    }
}

#[test]
fn nan_is_found_where_it_is_born() {
    let build = BuildStrategy { check_nan_inf: true, ..BuildStrategy::default() };
    let mut hogwild = Hogwild::new(&linear(1.0), "loss", Setup { build, ..setup(2, 50) }).unwrap();
    let mut store = Store::new(1);
    let reader = each((0..).map(|i| ones(1, if i == 7 { f32::NAN } else { 1.0 })));
    let error = hogwild.run(&mut store, reader).unwrap_err();
    let RunError::Replica { error, .. } = &error else { panic!("{error}") };
    assert!(matches!(&**error, RunError::NotFinite { .. }), "{error}");
    assert!(store.get("w").unwrap().to_f64().iter().all(|w| w.is_finite()), "HOGWILD-3");
}

#[test]
fn what_cannot_be_done_without_waiting_is_refused() {
    let conflicts = |setup| match Hogwild::new(&linear(1.0), "loss", setup).unwrap_err() {
        BuildError::Conflicts(found) => found.0,
        other => panic!("{other}"),
    };
    let collective = Threads::new(2).remove(0);
    let build = BuildStrategy { sync_batch_norm: true, accumulate: 2, ..BuildStrategy::default() };
    let found = conflicts(Setup { collective: Arc::new(collective), build, ..setup(2, 1) });
    for wanted in [Conflict::AsyncProcesses { got: 2 }, Conflict::AsyncSync, Conflict::AsyncPieces] {
        assert!(found.contains(&wanted), "{found:?}");
    }
    assert_eq!(conflicts(setup(2, 0)), [Conflict::NoIterations]);
    assert!(matches!(conflicts(setup(0, 1))[..], [Conflict::Replicas { got: 0, .. }]));
    let build = BuildStrategy { async_mode: true, ..BuildStrategy::default() };
    let error =
        ParallelExecutor::new(&linear(1.0), Some("loss"), Setup { build, ..setup(2, 1) }).unwrap_err();
    assert_eq!(error, BuildError::Asynchronous);
    let error = Hogwild::new(&linear(1.0), "lost", setup(2, 1)).unwrap_err();
    assert!(matches!(error, BuildError::UnknownLoss { .. }), "{error}");
    let loss = linear(1.0).find("loss").unwrap();
    let error = Hogwild::new(&linear(1.0).pruned(&[loss]), "loss", setup(2, 1)).unwrap_err();
    assert_eq!(error, BuildError::NoUpdate { loss: "loss".into() });
}
