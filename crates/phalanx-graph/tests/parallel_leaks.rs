//! Ten thousand runs leave nothing behind.

use crate::{allocator::live, alone::alone};
use phalanx_core::DType;
use phalanx_graph::{
    BATCH, Builder, Dim, ExecutionStrategy, Feed, Fetch, Init, Optimizer, ParallelExecutor, Rule, Setup,
    Store, Tensor, op::Func,
};

/// Every run asserts POOL-1 before the next one begins.
#[test]
fn ten_thousand_runs_leave_nothing_behind() {
    alone("parallel_leaks::ten_thousand_runs_leave_nothing_behind", run_ten_thousand_times);
}

fn run_ten_thousand_times() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(4)]).unwrap();
    let w = b.parameter("w", [4], Init::Constant(0.5)).unwrap();
    let y = b.mul(x, w).unwrap();
    let y = b.map(Func::Square, y).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, 1e-4).minimize(&mut program, loss).unwrap();
    let exec = ExecutionStrategy { num_threads: 2, ..ExecutionStrategy::default() };
    let setup = Setup { exec, replicas: Some(3), ..Setup::default() };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
    let mut store = Store::new(0);
    let (mut after_warmup, mut last) = (0, f64::MAX);
    for run in 0..10_000usize {
        // More sizes than plans are kept, so that plans come and go; the scopes are dropped now and then, too.
        let n = 1 + run % 23;
        let x = Tensor::new(&[n, 4], &vec![1f32; n * 4]).unwrap();
        let out = exe.run(&mut store, &[("x", Feed::Split(&x))], &[Fetch::mean("loss")]).unwrap();
        let loss = out[0].one().to_f64()[0];
        assert!(loss <= last * 1.000_001, "run {run}: {loss} after {last}");
        last = loss;
        // At the same place of both cycles.
        if run == 2299 {
            after_warmup = live();
        }
        if run == 9199 {
            assert_eq!(live(), after_warmup, "bytes after 6900 more runs");
        }
    }
}
