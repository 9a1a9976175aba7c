//! How many samples a second one and two replicas learn from, in both modes, and what the scheduler costs. One and two
//! take turns, and the best round of each counts. Prints `scaling, mode, of one, of two, ratio` and `dry run, threads, tasks,
//! ns a task`, separated by tabs.
//!
//! ```text
//! cargo run --release -p phalanx-graph --example graph_scaling
//! ```

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Dim, ExecutionStrategy, Feed, Fetch, Fetched, Optimizer,
    ParallelExecutor, Program, ReduceStrategy, Rule, Setup, Store, Tensor, kernel::Stream,
};
use std::{error::Error, time::Instant};

const PIXELS: usize = 784;

fn main() -> Result<(), Box<dyn Error>> {
    let program = network(&[512, 512, 512])?;
    for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let mut sides = [Side::new(&program, reduce_strategy, 1)?, Side::new(&program, reduce_strategy, 2)?];
        for _ in 0..ROUNDS {
            sides.iter_mut().try_for_each(Side::round)?;
        }
        let [one, two] = [&sides[0], &sides[1]].map(|side| side.best);
        println!("scaling\t{reduce_strategy:?}\t{one:.0}\t{two:.0}\t{:.2}", two / one);
    }
    let deep = network(&[64; 40])?;
    for threads in [1, 2] {
        let exec = ExecutionStrategy { num_threads: threads, ..ExecutionStrategy::default() };
        let setup = Setup { exec, replicas: Some(2), ..Setup::default() };
        let mut exe = ParallelExecutor::new(&deep, Some("loss"), setup)?;
        let mut store = Store::new(0);
        exe.dry_run(&mut store, 100)?;
        let seen = exe.dry_run(&mut store, 2000)?;
        println!("dry run\t{threads}\t{}\t{:.0}", seen.n_tasks, seen.ns_per_task);
    }
    Ok(())
}

/// How often one replica and two take turns.
const ROUNDS: usize = 9;
/// Samples for each replica in a step.
const EACH: usize = 64;

/// A number of replicas, and the most samples in a second that they have learned from.
struct Side {
    exe: ParallelExecutor,
    store: Store,
    x: Tensor,
    y: Tensor,
    out: Vec<Fetched>,
    best: f64,
}

impl Side {
    fn new(
        program: &Program,
        reduce_strategy: ReduceStrategy,
        replicas: usize,
    ) -> Result<Side, Box<dyn Error>> {
        let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
        let setup = Setup { build, replicas: Some(replicas), ..Setup::default() };
        let exe = ParallelExecutor::new(program, Some("loss"), setup)?;
        let n = EACH * replicas;
        let dice = Stream::new(1, 2, 3);
        let pixels: Vec<f32> = (0..n * PIXELS).map(|i| dice.uniform(i as u64) as f32).collect();
        let labels: Vec<i64> = (0..n).map(|i| (dice.bits(i as u64) % 10) as i64).collect();
        let (x, y) = (Tensor::new(&[n, PIXELS], &pixels)?, Tensor::new(&[n], &labels)?);
        Ok(Side { exe, store: Store::new(1), x, y, out: Vec::new(), best: 0.0 })
    }

    fn round(&mut self) -> Result<(), Box<dyn Error>> {
        const STEPS: usize = 20;
        let feeds = [("image", Feed::Split(&self.x)), ("label", Feed::Split(&self.y))];
        let begin = Instant::now();
        for _ in 0..STEPS {
            self.exe.run_into(&mut self.store, &feeds, &[Fetch::mean("loss")], &mut self.out)?;
        }
        let samples = STEPS * EACH * self.exe.replicas();
        self.best = self.best.max(samples as f64 / begin.elapsed().as_secs_f64());
        Ok(())
    }
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
