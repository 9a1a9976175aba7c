//! PARA-3: a run that was planned before allocates nothing, on any of its threads. HOGWILD-4: neither does an update.

use crate::{allocator::count_of_all, alone::alone};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Dim, ExecutionStrategy, Feed, Fetch, Hogwild, Init, Optimizer,
    ParallelExecutor, Program, ReduceStrategy, Rule, Setup, Store, Tensor, VarId, exec::NamedFeeds, op::Func,
};

fn program() -> Program {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(20)]).unwrap();
    let w = b.parameter("w", [20], Init::Constant(0.5)).unwrap();
    let y = b.mul(x, w).unwrap();
    let y = b.fc(y, 24, Act::Gelu).unwrap();
    let y = b.layer_norm(y, 1).unwrap();
    let y = b.dropout(y, 0.5).unwrap();
    let y = b.softmax(y).unwrap();
    let (i, n) = (b.fill(DType::I64, [1], 0.0).unwrap(), b.fill(DType::I64, [1], 3.0).unwrap());
    let body = |b: &mut Builder, v: &[VarId]| Ok(vec![b.increment(v[0], 1)?, b.fc(v[1], 24, Act::Tanh)?]);
    let y = b.while_loop(4, &[i, y], |b, v| b.less_than(v[0], n), body).unwrap()[1];
    let y = b.map(Func::Square, y).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    b.named(y, "y").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::adam(), 0.1).minimize(&mut program, loss).unwrap();
    program
}

#[test]
fn a_planned_run_allocates_nothing() {
    alone("parallel_allocations::a_planned_run_allocates_nothing", runs_allocate_nothing);
}

fn runs_allocate_nothing() {
    let program = program();
    // One after another: the counter is everybody's.
    for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        for num_threads in [1, 2, 3] {
            let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
            let exec = ExecutionStrategy { num_threads, ..ExecutionStrategy::default() };
            let setup = Setup { build, exec, replicas: Some(3), ..Setup::default() };
            let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
            exe.record(true);
            let mut store = Store::new(0);
            let x = Tensor::new(&[41, 20], &[1f32; 820]).unwrap();
            let feeds = [("x", Feed::Split(&x))];
            let fetch = [Fetch::mean("loss"), Fetch::concat("y"), Fetch::unmerged("w")];
            let mut out = Vec::new();
            for _ in 0..3 {
                exe.run_into(&mut store, &feeds, &fetch, &mut out).unwrap();
            }
            let before = count_of_all();
            for _ in 0..20 {
                exe.run_into(&mut store, &feeds, &fetch, &mut out).unwrap();
            }
            let n = count_of_all() - before;
            assert_eq!(n, 0, "PARA-3: {reduce_strategy:?}, {num_threads} threads");
        }
    }
    updates_allocate_nothing(&program);
}

/// Threads and the first batch of each size cost something; a thousand more batches do not.
fn updates_allocate_nothing(program: &Program) {
    let mut store = Store::new(0);
    let mut counted = |n_batches: usize| {
        let exec = ExecutionStrategy { num_iteration_per_run: n_batches, ..ExecutionStrategy::default() };
        let setup = Setup { exec, replicas: Some(3), ..Setup::default() };
        let mut hogwild = Hogwild::new(program, "loss", setup).unwrap();
        let mut updates = Vec::with_capacity(3 * n_batches);
        let before = count_of_all();
        let reader = |batch: &mut NamedFeeds| {
            if batch.is_empty() {
                batch.push(("x".to_string(), Tensor::new(&[41, 20], &[1f32; 820]).unwrap()));
            }
            Ok(true)
        };
        hogwild.run_into(&mut store, reader, &mut updates).unwrap();
        assert_eq!(updates.len(), 3 * n_batches);
        count_of_all() - before
    };
    counted(1);
    assert_eq!(counted(2), counted(300), "HOGWILD-4");
}
