//! Loops and branches in several replicas, which go different ways.

use super::models::{assert_same, bits, on};
use crate::threads::Threads;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Dim, ExecutionStrategy, Executor, Feed, Fetch, Fetched, GraphError,
    Optimizer, Options, ParallelExecutor, Program, ReduceStrategy, Rule, RunError, Setup, Shape, Store,
    Tensor, VarId,
    kernel::{KernelError, Stream},
    op::{Comparison, Func, Reduction},
};
use std::sync::Arc;

const TIME: usize = 6;
const WIDTH: usize = 3;

/// A recurrent network that goes as far as the longest sequence of the replica's share; shorter ones stay as they are.
/// How it goes on depends on the share, too, but not what it gives.
fn network(most: u64, dropout: f64, optimizer: Option<&Optimizer>) -> Result<Program, GraphError> {
    let h = 5;
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(TIME), Dim::Fixed(WIDTH)])?;
    let lengths = b.feed("lengths", DType::F32, [BATCH])?;
    let longest = b.reduce(Reduction::Max, lengths, &[], false)?;
    let by_time = b.transpose(x, &[1, 0, 2])?;
    let i = b.fill(DType::F32, Shape::scalar(), 0.0)?;
    let first = b.fill(DType::F32, [BATCH, Dim::Fixed(h)], 0.1)?;
    let going = |b: &mut Builder, v: &[VarId]| b.less_than(v[0], longest);
    let out = b.while_loop(most, &[i, first], going, |b, v| {
        let at = b.cast(v[0], DType::I64)?;
        let at = b.reshape(at, [1])?;
        let now = b.gather(by_time, at)?;
        let now = b.reshape(now, [BATCH, Dim::Fixed(WIDTH)])?;
        let (u, w) = (b.fc(now, h, Act::None)?, b.fc(v[1], h, Act::None)?);
        let sum = b.add(u, w)?;
        let two = b.fill(DType::F32, Shape::scalar(), 2.0)?;
        let early = b.less_than(v[0], two)?;
        let tanh = |b: &mut Builder| Ok(vec![b.map(Func::Tanh, sum)?]);
        let next = b.cond(early, tanh, |b| Ok(vec![b.map(Func::Softsign, sum)?]))?[0];
        let next = if dropout > 0.0 { b.dropout(next, dropout)? } else { next };
        let goes = b.compare(Comparison::Greater, lengths, v[0])?;
        let goes = b.cast(goes, DType::F32)?;
        let goes = b.reshape(goes, [BATCH, Dim::Fixed(1)])?;
        let change = b.sub(next, v[1])?;
        let change = b.mul(change, goes)?;
        Ok(vec![b.scale(v[0], 1.0, 1.0)?, b.add(v[1], change)?])
    })?;
    let rounds = b.reshape(out[0], [1])?;
    b.named(rounds, "rounds")?;
    b.named(out[1], "last")?;
    let y = b.fc(out[1], 2, Act::None)?;
    let y = b.map(Func::Square, y)?;
    let loss = b.mean(y)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    if let Some(optimizer) = optimizer {
        optimizer.minimize(&mut program, loss)?;
    }
    Ok(program)
}

fn data(batch: usize, seed: u64, longest: usize) -> (Tensor, Tensor) {
    let dice = Stream::new(seed, 4, 4);
    let x: Vec<f32> = (0..batch * TIME * WIDTH).map(|i| dice.uniform(i as u64) as f32 - 0.5).collect();
    let length = |i: usize| (dice.bits(90_000 + i as u64) % (longest as u64 + 1)) as f32;
    let lengths: Vec<f32> = (0..batch).map(length).collect();
    (Tensor::new(&[batch, TIME, WIDTH], &x).unwrap(), Tensor::new(&[batch], &lengths).unwrap())
}

fn train(program: &Program, setup: Setup, batch: usize) -> (Vec<f32>, Store) {
    let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
    let mut store = Store::new(3);
    let losses = (0..5).map(|step| {
        let (x, lengths) = data(batch, step, TIME);
        let feeds = [("x", Feed::Split(&x)), ("lengths", Feed::Split(&lengths))];
        let out = exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap();
        out[0].one().data::<f32>().unwrap()[0]
    });
    (losses.collect(), store)
}

fn setup(replicas: usize, build: BuildStrategy, threads: usize) -> Setup {
    let exec = ExecutionStrategy { num_threads: threads, ..ExecutionStrategy::default() };
    Setup { build, exec, ..on(replicas) }
}

fn single(program: &Program, batch: usize) -> (Vec<f32>, Store) {
    let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
    let mut store = Store::new(3);
    let losses = (0..5).map(|step| {
        let (x, lengths) = data(batch, step, TIME);
        let out = executor.run(&mut store, &[("x", &x), ("lengths", &lengths)], &["loss"]).unwrap();
        out[0].data::<f32>().unwrap()[0]
    });
    (losses.collect(), store)
}

#[test]
fn loops_give_the_same_bits_in_all_modes_on_any_number_of_threads() {
    let program = network(7, 0.2, Some(&Optimizer::new(Rule::adam(), 0.02))).unwrap();
    for replicas in 1..=4 {
        let (losses, mut store) = train(&program, setup(replicas, BuildStrategy::default(), 1), 9);
        let reduce = ReduceStrategy::Reduce;
        for base in
            [BuildStrategy::default(), BuildStrategy { reduce_strategy: reduce, ..BuildStrategy::default() }]
        {
            let ways = [
                BuildStrategy { enable_sequential_execution: true, ..base.clone() },
                BuildStrategy { memory_optimize: false, enable_inplace: false, ..base.clone() },
                BuildStrategy { memory_optimize: false, ..base.clone() },
                base,
            ];
            for (way, threads) in ways.into_iter().flat_map(|w| [1, 2, 4].map(|t| (w.clone(), t))) {
                let (other, mut others) = train(&program, setup(replicas, way.clone(), threads), 9);
                assert_eq!(
                    bits(&losses),
                    bits(&other),
                    "PARA-1: {replicas} replicas, {threads} threads, {way:?}"
                );
                assert_same(&mut store, &mut others, "PARA-1");
            }
        }
    }
}

#[test]
fn any_number_of_replicas_learns_what_one_does_with_dropout_in_the_loop_too() {
    let program = network(7, 0.3, Some(&Optimizer::new(Rule::Sgd, 0.1))).unwrap();
    let (wanted, mut reference) = single(&program, 11);
    let (losses, mut store) = train(&program, setup(1, BuildStrategy::default(), 1), 11);
    assert_eq!(bits(&wanted), bits(&losses), "one replica is the executor for one to the bit");
    assert_same(&mut reference, &mut store, "one replica");
    for replicas in [2, 3, 4, 7] {
        let (losses, mut store) = train(&program, setup(replicas, BuildStrategy::default(), 2), 11);
        for (a, b) in losses.iter().zip(&wanted) {
            assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "CONTROL-2: {replicas} replicas: {a} and {b}");
        }
        for p in program.trainable() {
            let name = &program.var(p).name;
            let (a, b) = (store.get(name).unwrap().to_f64(), reference.get(name).unwrap().to_f64());
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{replicas} replicas: {name}");
        }
    }
}

#[test]
fn each_replica_goes_as_many_rounds_as_its_samples_need() {
    let program = network(7, 0.0, None).unwrap();
    let (x, _) = data(4, 1, TIME);
    let lengths = Tensor::new(&[4], &[0f32, 6.0, 1.0, 3.0]).unwrap();
    let mut exe = ParallelExecutor::new(&program, None, setup(4, BuildStrategy::default(), 3)).unwrap();
    let feeds = [("x", Feed::Split(&x)), ("lengths", Feed::Split(&lengths))];
    let mut store = Store::new(0);
    let out = exe.run(&mut store, &feeds, &[Fetch::unmerged("rounds"), Fetch::concat("last")]).unwrap();
    let Fetched::Each(each) = &out[0] else { panic!("{:?}", out[0]) };
    let rounds: Vec<f64> = each.iter().flat_map(|t| t.to_f64()).collect();
    assert_eq!(rounds, [0.0, 6.0, 1.0, 3.0]);
    let mut one = Executor::new(program, Options::default()).unwrap();
    let whole = one.run(&mut store, &[("x", &x), ("lengths", &lengths)], &["last"]).unwrap();
    for (a, b) in out[1].one().to_f64().iter().zip(whole[0].to_f64()) {
        assert!((a - b).abs() < 1e-6, "{a} and {b}");
    }
}

#[test]
fn a_replica_that_goes_on_for_too_long_is_named_and_nothing_is_learned() {
    let program = network(4, 0.0, Some(&Optimizer::new(Rule::Sgd, 0.1))).unwrap();
    let mut exe =
        ParallelExecutor::new(&program, Some("loss"), setup(3, BuildStrategy::default(), 2)).unwrap();
    let mut store = Store::new(0);
    let (x, _) = data(3, 1, TIME);
    let mut with = |exe: &mut ParallelExecutor, lengths: [f32; 3]| {
        let lengths = Tensor::new(&[3], &lengths).unwrap();
        let feeds = [("x", Feed::Split(&x)), ("lengths", Feed::Split(&lengths))];
        let out = exe.run(&mut store, &feeds, &[Fetch::mean("loss")]);
        let learned: Vec<Tensor> =
            program.trainable().into_iter().map(|p| store.get(&program.var(p).name).unwrap()).collect();
        (out.map(|out| out[0].one().to_f64()[0]), learned)
    };
    let (_, before) = with(&mut exe, [4.0, 2.0, 0.0]);
    let (error, after) = with(&mut exe, [4.0, 5.0, 0.0]);
    let error = error.unwrap_err();
    let RunError::Replica { replica: 1, error: inner } = &error else { panic!("{error}") };
    let RunError::Failed { op: "while", site, why, .. } = &**inner else { panic!("{error}") };
    assert_eq!(*why, KernelError::Rounds { most: 4 }, "CONTROL-1");
    assert!(site.file().ends_with("controlling.rs"), "{error}");
    assert_eq!(before, after, "PARA-2");
    let (fine, later) = with(&mut exe, [1.0, 0.0, 4.0]);
    assert!(fine.unwrap().is_finite() && later != after, "the next run is fine");
}

#[test]
fn a_number_that_is_not_finite_names_replica_and_operation_within() {
    let program = network(7, 0.0, None).unwrap();
    let build = BuildStrategy { check_nan_inf: true, ..BuildStrategy::default() };
    let mut exe = ParallelExecutor::new(&program, None, setup(2, build, 2)).unwrap();
    let (_, lengths) = data(2, 0, TIME);
    let mut x = vec![0.5f32; 2 * TIME * WIDTH];
    x[TIME * WIDTH + 1] = f32::MAX;
    let x = Tensor::new(&[2, TIME, WIDTH], &x).unwrap();
    let lengths = Tensor::new(lengths.dims(), &[2f32, 2.0]).unwrap();
    let mut store = Store::new(0);
    exe.prepare(&mut store).unwrap();
    store.set("fc.w", &Tensor::new(&[3, 5], &[9f32; 15]).unwrap()).unwrap();
    let feeds = [("x", Feed::Split(&x)), ("lengths", Feed::Split(&lengths))];
    let error = exe.run(&mut store, &feeds, &[Fetch::concat("last")]).unwrap_err();
    let RunError::Replica { replica: 1, error: inner } = &error else { panic!("{error}") };
    assert!(matches!(&**inner, RunError::NotFinite { op: "matmul", .. }), "{error}");
}

#[test]
fn traces_have_the_loop_of_every_replica_once_within_the_run() {
    let program = network(7, 0.0, Some(&Optimizer::new(Rule::Sgd, 0.1))).unwrap();
    let mut exe =
        ParallelExecutor::new(&program, Some("loss"), setup(3, BuildStrategy::default(), 2)).unwrap();
    exe.record(true);
    let (x, lengths) = data(6, 0, TIME);
    let feeds = [("x", Feed::Split(&x)), ("lengths", Feed::Split(&lengths))];
    exe.run(&mut Store::new(0), &feeds, &[]).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&exe.trace().unwrap()).unwrap();
    let end = |e: &serde_json::Value| e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap();
    let last = events.iter().map(end).fold(0.0, f64::max);
    for replica in 0..3 {
        let of = |name: &str| {
            let title = format!("{name} @{replica}");
            let found: Vec<_> = events.iter().filter(|e| e["name"] == title.as_str()).collect();
            assert_eq!(found.len(), 1, "{title}");
            assert_eq!(found[0]["args"]["replica"], replica);
            found[0].clone()
        };
        let (forth, back) = (of("while"), of("while_grad"));
        assert!(end(&forth) <= back["ts"].as_f64().unwrap() + 0.002 && end(&back) <= last);
    }
}

#[test]
fn pieces_of_a_share_and_checkpoints_work_with_loops() {
    let program = network(7, 0.2, Some(&Optimizer::new(Rule::Sgd, 0.1))).unwrap();
    let (losses, mut store) = train(&program, setup(4, BuildStrategy::default(), 2), 12);
    let build = BuildStrategy { accumulate: 2, ..BuildStrategy::default() };
    let (other, mut others) = train(&program, setup(2, build, 2), 12);
    assert_eq!(bits(&losses), bits(&other), "pieces are replicas");
    assert_same(&mut store, &mut others, "pieces are replicas");
    let mut again = program;
    let last = again.find("last").unwrap();
    let by_time = again.ops().find(|(_, op)| op.name() == "transpose").unwrap().1.outputs[0];
    phalanx_graph::recompute(&mut again, &[last, by_time]).unwrap();
    let (other, mut others) = train(&again, setup(4, BuildStrategy::default(), 2), 12);
    assert_eq!(bits(&losses), bits(&other), "AGAIN-1");
    assert_same(&mut store, &mut others, "AGAIN-1");
}

/// The samples of one of two processes.
fn half(t: &Tensor, at: usize) -> Tensor {
    let mut dims = t.dims().to_vec();
    dims[0] /= 2;
    let n: usize = dims.iter().product();
    Tensor::new(&dims, &t.data::<f32>().unwrap()[at * n..(at + 1) * n]).unwrap()
}

#[test]
fn two_processes_whose_loops_go_different_ways_give_the_bits_of_one() {
    let program = network(7, 0.2, Some(&Optimizer::new(Rule::adam(), 0.02))).unwrap();
    let (_, mut wanted) = train(&program, setup(4, BuildStrategy::default(), 2), 8);
    let processes = Threads::new(2);
    std::thread::scope(|scope| {
        let learn = |at: usize, collective: Threads| {
            let setup = Setup { collective: Arc::new(collective), ..setup(2, BuildStrategy::default(), 1) };
            let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
            let mut store = Store::new(3);
            for step in 0..5 {
                let (x, lengths) = data(8, step, TIME);
                let (x, lengths) = (half(&x, at), half(&lengths, at));
                exe.run(&mut store, &[("x", Feed::Split(&x)), ("lengths", Feed::Split(&lengths))], &[])
                    .unwrap();
            }
            store
        };
        let threads = processes.into_iter().enumerate().map(|(at, c)| scope.spawn(move || learn(at, c)));
        for thread in threads.collect::<Vec<_>>() {
            assert_same(&mut wanted, &mut thread.join().unwrap(), "SUM-1");
        }
    });
}
