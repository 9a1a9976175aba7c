//! Sparse gradients of several replicas, and of several processes.

use super::models::on;
use crate::threads::Threads;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Clip, Dim, Feed, Fetch, GradientScale, Init, Optimizer,
    ParallelExecutor, Program, ReduceStrategy, Rule, Setup, Store, Tensor, kernel::Stream,
    layers::EmbeddingOptions, op::Reduction,
};
use std::sync::Arc;

/// Words and their successors, with one table for both places of the input.
fn words(sparse: bool, optimizer: &Optimizer) -> Program {
    let mut b = Builder::new();
    let a = b.feed("a", DType::I64, [BATCH, Dim::Fixed(3)]).unwrap();
    let c = b.feed("c", DType::I64, [BATCH]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let options = EmbeddingOptions { sparse, padding: None };
    let table = b.parameter("table", [20, 6], Init::Normal { mean: 0.0, std: 0.5 }).unwrap();
    let (ea, ec) = (b.lookup(table, a, options).unwrap(), b.lookup(table, c, options).unwrap());
    let ea = b.reduce(Reduction::Sum, ea, &[1], false).unwrap();
    let joined = b.concat(&[ea, ec], 1).unwrap();
    let scores = b.fc(joined, 20, Act::None).unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    optimizer.minimize(&mut program, loss).unwrap();
    program
}

fn batch(n: usize, seed: u64) -> [Tensor; 3] {
    let dice = Stream::new(5, seed, 0);
    let word = |i: usize| (dice.bits(i as u64) % 20) as i64;
    let a: Vec<i64> = (0..3 * n).map(word).collect();
    let c: Vec<i64> = (0..n).map(|i| word(1000 + i)).collect();
    let label: Vec<i64> = c.iter().map(|w| (w * 7 + 3) % 20).collect();
    [Tensor::new(&[n, 3], &a).unwrap(), Tensor::new(&[n], &c).unwrap(), Tensor::new(&[n], &label).unwrap()]
}

fn train(program: &Program, setup: Setup, steps: u64, n: usize, of: (usize, usize)) -> (Vec<f64>, Vec<f64>) {
    let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
    let mut store = Store::new(9);
    let losses = (0..steps).map(|step| {
        let all = batch(n, step % 2);
        let own: Vec<Tensor> = all
            .iter()
            .map(|t| {
                let width = t.dims()[1..].iter().product::<usize>();
                let (from, size) = (n / of.1 * of.0, n / of.1);
                let mut dims = t.dims().to_vec();
                dims[0] = size;
                Tensor::new(&dims, &t.data::<i64>().unwrap()[from * width..(from + size) * width]).unwrap()
            })
            .collect();
        let feeds = [("a", &own[0]), ("c", &own[1]), ("label", &own[2])].map(|(n, t)| (n, Feed::Split(t)));
        exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap()[0].one().to_f64()[0]
    });
    (losses.collect(), store.get("table").unwrap().to_f64())
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(0.1))
}

#[test]
fn sparse_is_dense_on_any_number_of_replicas_in_both_modes() {
    for rule in [Rule::Sgd, Rule::Adagrad { epsilon: 1e-6 }] {
        for clip in [None, Some(Clip::GlobalNorm(0.3))] {
            let optimizer = Optimizer { clip, ..Optimizer::new(rule, 0.2) };
            let (dense, sparse) = (words(false, &optimizer), words(true, &optimizer));
            let wanted = train(&dense, on(1), 10, 14, (0, 1));
            for n in [1, 2, 3, 5] {
                let mut both = Vec::new();
                for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
                    let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
                    let got = train(&sparse, Setup { build, ..on(n) }, 10, 14, (0, 1));
                    assert!(
                        close(&got.0, &wanted.0) && close(&got.1, &wanted.1),
                        "{rule:?} {n}: {:?}",
                        got.0
                    );
                    both.push(got);
                }
                assert_eq!(both[0], both[1], "PARA-1");
            }
            assert!(wanted.0[8] < wanted.0[0], "the same batch, learned");
        }
    }
}

/// What eight replicas make of rows that all of them have: `-1` times the sum, row by row, in the order of samples.
#[test]
fn rows_that_many_replicas_have_are_added_in_the_order_of_samples() {
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH, Dim::Fixed(2)]).unwrap();
    let slope = b.feed("slope", DType::F32, [BATCH, Dim::Fixed(2), Dim::Fixed(3)]).unwrap();
    let table = b.parameter("table", [5, 3], Init::Constant(0.0)).unwrap();
    let x = b.lookup(table, ids, EmbeddingOptions { sparse: true, padding: None }).unwrap();
    let x = b.mul(x, slope).unwrap();
    let loss = b.reduce(Reduction::Sum, x, &[], false).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, 1.0).minimize(&mut program, loss).unwrap();
    for n in [8, 19, 40] {
        let dice = Stream::new(2, n as u64, 0);
        let ids: Vec<i64> = (0..2 * n).map(|i| (dice.bits(i as u64) % 5) as i64).collect();
        // Numbers so different in size that any other order has other bits.
        let size = |i: usize| 10f64.powi((dice.bits(900 + i as u64) % 9) as i32 - 4);
        let slopes: Vec<f32> =
            (0..6 * n).map(|i| ((dice.uniform(5000 + i as u64) - 0.5) * size(i)) as f32).collect();
        let sum = |order: &mut dyn Iterator<Item = usize>| {
            let mut rows: [Vec<usize>; 5] = Default::default();
            order.for_each(|at| rows[ids[at] as usize].push(at));
            std::array::from_fn::<u32, 15, _>(|i| {
                // Sixteen rows at a time in f32, and these sums in f64: TOTAL-1.
                let sixteen = |few: &[usize]| few.iter().fold(0f32, |s, at| s + slopes[3 * at + i % 3]);
                let sum = rows[i / 3].chunks(16).fold(0f64, |s, few| s + f64::from(sixteen(few)));
                (0.0 - sum as f32).to_bits()
            })
        };
        let wanted = sum(&mut (0..2 * n));
        assert_ne!(wanted, sum(&mut (0..2 * n).rev()), "the order matters");
        let feeds = [Tensor::new(&[n, 2], &ids).unwrap(), Tensor::new(&[n, 2, 3], &slopes).unwrap()];
        for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
            for replicas in [8, 3, 1] {
                let gradient_scale = GradientScale::One;
                let build = BuildStrategy { reduce_strategy, gradient_scale, ..BuildStrategy::default() };
                let setup = Setup { build, ..on(replicas) };
                let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
                let mut store = Store::new(0);
                let fed = [("ids", Feed::Split(&feeds[0])), ("slope", Feed::Split(&feeds[1]))];
                exe.run(&mut store, &fed, &[]).unwrap();
                let table = store.get("table").unwrap();
                let got: Vec<u32> = table.data::<f32>().unwrap().iter().map(|v| v.to_bits()).collect();
                assert_eq!(got, wanted, "{n} samples, {replicas} replicas, {reduce_strategy:?}");
            }
        }
    }
}

#[test]
fn replicas_without_samples_bring_no_rows() {
    let optimizer = Optimizer::new(Rule::adam(), 0.01);
    let program = words(true, &optimizer);
    let (two, seven) = (train(&program, on(1), 5, 2, (0, 1)), train(&program, on(7), 5, 2, (0, 1)));
    assert!(close(&two.0, &seven.0) && close(&two.1, &seven.1));
}

#[test]
fn rows_of_all_processes_are_gathered() {
    let optimizer = Optimizer::new(Rule::Adagrad { epsilon: 1e-6 }, 0.1);
    let program = words(true, &optimizer);
    let wanted = train(&program, on(4), 6, 16, (0, 1));
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = Threads::new(2)
            .into_iter()
            .enumerate()
            .map(|(at, collective)| {
                let program = &program;
                scope.spawn(move || {
                    let setup = Setup { collective: Arc::new(collective), ..on(2) };
                    train(program, setup, 6, 16, (at, 2))
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (_, table) in &all {
        assert_eq!(*table, wanted.1, "rows come in the order of replicas, so even the bits agree");
    }
}
