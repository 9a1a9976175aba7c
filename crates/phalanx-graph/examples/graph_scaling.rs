//! How many samples a second one and two replicas learn from, in both modes, and what the scheduler costs.
//!
//! ```text
//! cargo run --release -p phalanx-graph --example graph_scaling
//! ```

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Dim, ExecutionStrategy, Feed, Fetch, Optimizer, ParallelExecutor,
    Program, ReduceStrategy, Rule, Setup, Store, Tensor, kernel::Stream,
};
use std::{error::Error, time::Instant};

const PIXELS: usize = 784;

fn main() -> Result<(), Box<dyn Error>> {
    let program = network(&[512, 512, 512])?;
    for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let mut one = 0.0;
        for replicas in [1, 2] {
            let rate = rate(&program, reduce_strategy, replicas)?;
            one = if replicas == 1 { rate } else { one };
            println!(
                "{reduce_strategy:?}, {replicas} replicas: {rate:.0} samples/s, {:.2} times one",
                rate / one
            );
        }
    }
    let deep = network(&[64; 40])?;
    for threads in [1, 2] {
        let exec = ExecutionStrategy { num_threads: threads, ..ExecutionStrategy::default() };
        let setup = Setup { exec, replicas: Some(2), ..Setup::default() };
        let mut exe = ParallelExecutor::new(&deep, Some("loss"), setup)?;
        let mut store = Store::new(0);
        exe.dry_run(&mut store, 100)?;
        let seen = exe.dry_run(&mut store, 2000)?;
        println!("dry run, {threads} threads: {} tasks, {:.0} ns a task", seen.n_tasks, seen.ns_per_task);
    }
    Ok(())
}

/// Samples in a second, each replica having the same number of them: the best of several rounds.
fn rate(program: &Program, reduce_strategy: ReduceStrategy, replicas: usize) -> Result<f64, Box<dyn Error>> {
    const EACH: usize = 64;
    let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
    let setup = Setup { build, replicas: Some(replicas), ..Setup::default() };
    let mut exe = ParallelExecutor::new(program, Some("loss"), setup)?;
    let mut store = Store::new(1);
    let n = EACH * replicas;
    let dice = Stream::new(1, 2, 3);
    let pixels: Vec<f32> = (0..n * PIXELS).map(|i| dice.uniform(i as u64) as f32).collect();
    let labels: Vec<i64> = (0..n).map(|i| (dice.bits(i as u64) % 10) as i64).collect();
    let (x, y) = (Tensor::new(&[n, PIXELS], &pixels)?, Tensor::new(&[n], &labels)?);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let mut out = Vec::new();
    let mut best = 0f64;
    for _ in 0..7 {
        let begin = Instant::now();
        for _ in 0..20 {
            exe.run_into(&mut store, &feeds, &[Fetch::mean("loss")], &mut out)?;
        }
        best = best.max((20 * n) as f64 / begin.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn network(widths: &[usize]) -> Result<Program, Box<dyn Error>> {
    let mut b = Builder::new();
    let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(PIXELS)])?;
    let label = b.feed("label", DType::I64, [BATCH])?;
    let mut h = image;
    for &width in widths {
        h = b.fc(h, width, Act::Tanh)?;
    }
    let scores = b.fc(h, 10, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
    let loss = b.mean(losses)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::adam(), 1e-3).minimize(&mut program, loss)?;
    Ok(program)
}
