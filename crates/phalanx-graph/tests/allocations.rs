//! EXEC-2: a run that was planned before allocates nothing; what products pack is planned, too.

use crate::allocator::count;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Executor, Optimizer, Options, Rule, Store, Tensor, VarId,
    layers::{ConvOptions, RnnOptions},
    op::{Func, Pool, SequenceOp},
};

/// Convolutions of either kind, a pool and a product.
fn images(b: &mut Builder, y: VarId) -> VarId {
    let y = b.reshape(y, [BATCH, Dim::Fixed(1), Dim::Fixed(4), Dim::Fixed(5)]).unwrap();
    let y = b.conv2d(y, ConvOptions { padding: [1, 1], ..ConvOptions::new(6, 3) }).unwrap();
    let y = b.pool2d(y, Pool::Max, 2, 1).unwrap();
    let y = b.conv2d(y, ConvOptions { stride: [2, 2], ..ConvOptions::new(3, 2) }).unwrap();
    let y = b.flatten(y).unwrap();
    b.fc(y, 70, Act::Gelu).unwrap()
}

/// Allocations of the fourth run of a program with these layers, after its plan is known.
fn allocations(matrices: bool) -> usize {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(20)]).unwrap();
    let w = b.parameter("w", [20], phalanx_graph::Init::Constant(0.5)).unwrap();
    let y = b.mul(x, w).unwrap();
    let y = if matrices { images(&mut b, y) } else { b.map(Func::Tanh, y).unwrap() };
    let y = b.layer_norm(y, 1).unwrap();
    let y = b.dropout(y, 0.5).unwrap();
    let y = b.softmax(y).unwrap();
    let y = b.map(Func::Square, y).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::adam(), 0.1).minimize(&mut program, loss).unwrap();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(0);
    let x = Tensor::new(&[40, 20], &[1f32; 800]).unwrap();
    let mut out = executor.run(&mut store, &[("x", &x)], &["loss"]).unwrap();
    for _ in 0..2 {
        executor.run_into(&mut store, &[("x", &x)], &["loss"], &mut out).unwrap();
    }
    let before = count();
    executor.run_into(&mut store, &[("x", &x)], &["loss"], &mut out).unwrap();
    count() - before
}

/// The same for layers over sequences: all that is not a matrix product, or a recurrent layer too.
fn sequence_allocations(recurrent: bool) -> usize {
    let (time, width, batch) = (6, 3, 8);
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(time), Dim::Fixed(width)]).unwrap();
    let lengths = b.feed("lengths", DType::I64, [BATCH]).unwrap();
    let tags = b.feed("tags", DType::I64, [BATCH, Dim::Fixed(time)]).unwrap();
    let w = b.parameter("w", [width], phalanx_graph::Init::Constant(0.5)).unwrap();
    let mut y = b.mul(x, w).unwrap();
    if recurrent {
        let options = RnnOptions { lengths: Some(lengths), ..RnnOptions::new(width) };
        y = b.lstm(y, options, None).unwrap().all;
        y = b.gru(y, RnnOptions { reverse: true, ..options }, None).unwrap().all;
    }
    let best = b.sequence_pool(y, SequenceOp::Max, Some(lengths)).unwrap();
    let best = b.sequence_expand(best, time, Some(lengths)).unwrap();
    let y = b.add(y, best).unwrap();
    let (costs, weights) = b.linear_chain_crf(y, tags, Some(lengths)).unwrap();
    b.crf_decoding(y, weights, Some(lengths)).unwrap();
    let loss = b.mean(costs).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::adam(), 0.1).minimize(&mut program, loss).unwrap();
    phalanx_graph::accumulate(&mut program, 2).unwrap();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(0);
    let x = Tensor::new(&[batch, time, width], &vec![0.3f32; batch * time * width]).unwrap();
    let lengths = Tensor::new(&[batch], &[1i64, 6, 0, 2, 3, 4, 5, 6]).unwrap();
    let tags = Tensor::new(&[batch, time], &vec![1i64; batch * time]).unwrap();
    let feeds = [("x", &x), ("lengths", &lengths), ("tags", &tags)];
    let mut out = executor.run(&mut store, &feeds, &["loss"]).unwrap();
    for _ in 0..2 {
        executor.run_into(&mut store, &feeds, &["loss"], &mut out).unwrap();
    }
    let before = count();
    for _ in 0..2 {
        executor.run_into(&mut store, &feeds, &["loss"], &mut out).unwrap();
    }
    count() - before
}

/// The same for loops and branches within one another.
fn control_allocations() -> usize {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(4)]).unwrap();
    let limit = b.feed("limit", DType::I64, [1]).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    let out = b
        .while_loop(
            9,
            &[i, x],
            |b, v| b.less_than(v[0], limit),
            |b, v| {
                let one = b.fill(DType::I64, [1], 1.0)?;
                let early = b.less_than(v[0], one)?;
                let y = b.fc(v[1], 4, Act::Tanh)?;
                let y = b.cond(
                    early,
                    |b| Ok(vec![b.dropout(y, 0.5)?]),
                    |b| {
                        let j = b.fill(DType::I64, [1], 0.0)?;
                        let deep = b.while_loop(
                            9,
                            &[j, y],
                            |b, u| b.less_than(u[0], v[0]),
                            |b, u| Ok(vec![b.increment(u[0], 1)?, b.scale(u[1], 0.5, 0.1)?]),
                        )?;
                        Ok(vec![deep[1]])
                    },
                )?;
                Ok(vec![b.increment(v[0], 1)?, y[0]])
            },
        )
        .unwrap();
    let y = b.map(Func::Square, out[1]).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::adam(), 0.1).minimize(&mut program, loss).unwrap();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(0);
    let x = Tensor::new(&[5, 4], &[0.3f32; 20]).unwrap();
    let limits = [4i64, 0, 6].map(|n| Tensor::new(&[1], &[n]).unwrap());
    let mut out = executor.run(&mut store, &[("x", &x), ("limit", &limits[0])], &["loss"]).unwrap();
    let before = count();
    for limit in &limits {
        executor.run_into(&mut store, &[("x", &x), ("limit", limit)], &["loss"], &mut out).unwrap();
    }
    count() - before
}

#[test]
fn a_planned_run_of_loops_and_branches_allocates_nothing() {
    assert_eq!(control_allocations(), 0);
}

#[test]
fn a_planned_run_over_sequences_allocates_nothing() {
    assert_eq!(sequence_allocations(false), 0);
    assert_eq!(sequence_allocations(true), 0);
}

#[test]
fn a_planned_run_allocates_nothing() {
    assert_eq!(allocations(false), 0);
    assert_eq!(allocations(true), 0);
}
