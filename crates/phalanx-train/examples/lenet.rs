//! LeNet learns to read handwritten digits, on any number of processes and replicas, and is tested while it trains.
//!
//! ```text
//! cargo run --release -p phalanx-train --example lenet
//! phalanx run -np 2 -- target/release/examples/lenet --replicas 2
//! ```
//!
//! Two processes with two replicas each end with the same bits as one process with four.

#[path = "material/digits.rs"]
mod digits;
#[path = "material/packed.rs"]
mod packed;
#[path = "material/plot.rs"]
mod plot;

use clap::Parser;
use digits::Digits;
use indicatif::{ProgressBar, ProgressStyle};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Collective, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Program, ReduceStrategy,
    Rule, Setup, Store, kernel::Stream, layers::ConvOptions, op::Pool,
};
use phalanx_train::Ranks;
use plot::{Curve, draw};
use std::{error::Error, path::PathBuf, process::ExitCode, sync::Arc, time::Instant};

/// Trains LeNet on handwritten digits.
#[derive(Parser)]
struct Options {
    /// Replicas in each process
    #[arg(long, default_value_t = 2)]
    replicas: usize,
    /// How often all digits are seen
    #[arg(long, default_value_t = 10)]
    epochs: usize,
    /// Digits in a step, of all processes together
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Every replica updates its own parameters, instead of sharing them
    #[arg(long)]
    all_reduce: bool,
    /// Where the digits are
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data"))]
    data: PathBuf,
    /// A picture of loss and accuracy
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn lenet() -> Result<Program, Box<dyn Error>> {
    let mut b = Builder::new();
    let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(1), Dim::Fixed(28), Dim::Fixed(28)])?;
    let label = b.feed("label", DType::I64, [BATCH])?;
    let x = b.conv2d(image, ConvOptions { act: Act::Relu, ..ConvOptions::new(20, 5) })?;
    let x = b.pool2d(x, Pool::Max, 2, 2)?;
    let x = b.conv2d(x, ConvOptions { act: Act::Relu, ..ConvOptions::new(50, 5) })?;
    let x = b.pool2d(x, Pool::Max, 2, 2)?;
    let x = b.flatten(x)?;
    let x = b.fc(x, 200, Act::Relu)?;
    let x = b.dropout(x, 0.3)?;
    let scores = b.fc(x, 10, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
    let loss = b.mean(losses)?;
    let loss = b.named(loss, "loss")?;
    let accuracy = b.accuracy(scores, label, 1)?;
    b.named(accuracy, "accuracy")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::adam(), 1e-3).minimize(&mut program, loss)?;
    Ok(program)
}

fn main() -> ExitCode {
    match train() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("lenet: {why}");
            ExitCode::FAILURE
        }
    }
}

fn train() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let ranks = Ranks::from_env()?;
    let (rank, size) = (ranks.index(), ranks.processes());
    if options.batch == 0 || options.batch % size != 0 {
        return Err(format!("--batch {} cannot be shared equally by {size} processes", options.batch).into());
    }
    let train = Digits::read(&options.data, "train")?;
    let (test_images, test_labels) = Digits::read(&options.data, "t10k")?.all()?;

    let program = lenet()?;
    let mut setup =
        Setup { replicas: Some(options.replicas), collective: Arc::new(ranks), ..Setup::default() };
    setup.build.reduce_strategy =
        if options.all_reduce { ReduceStrategy::AllReduce } else { ReduceStrategy::Reduce };
    let mut trainer = ParallelExecutor::new(&program, Some("loss"), setup)?;
    let test = Setup { replicas: Some(options.replicas), ..Setup::default() };
    let mut tester = ParallelExecutor::new(&program.clone_for_test(), None, test)?;
    let mut store = Store::new(1);

    let steps = train.len() / options.batch;
    let bar = progress(rank, options.epochs * steps);
    let (mut losses, mut accuracies) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    for epoch in 0..options.epochs {
        let order = shuffled(train.len(), epoch as u64);
        for (step, batch) in order.chunks_exact(options.batch).enumerate() {
            let share = options.batch / size;
            let dice = Stream::new(8, epoch as u64, 0);
            let moved = |i| {
                let bits = dice.bits(i as u64);
                ((bits % 5) as isize - 2, (bits / 5 % 5) as isize - 2)
            };
            let (images, labels) = train.pick_moved(&batch[rank * share..][..share], moved)?;
            let feeds = [("image", Feed::Split(&images)), ("label", Feed::Split(&labels))];
            let out = trainer.run(&mut store, &feeds, &[Fetch::mean("loss")])?;
            losses.push(((epoch * steps + step) as f64, out[0].one().to_f64()[0]));
            bar.inc(1);
        }
        let feeds = [("image", Feed::Split(&test_images)), ("label", Feed::Split(&test_labels))];
        let out = tester.run(&mut store, &feeds, &[Fetch::mean("accuracy")])?;
        let accuracy = out[0].one().to_f64()[0];
        accuracies.push((((epoch + 1) * steps) as f64, accuracy));
        bar.set_message(format!("test accuracy {:.1} %", 100.0 * accuracy));
        if rank == 0 && bar.is_hidden() {
            line(epoch + 1, options.epochs, accuracy, begin);
        }
    }
    bar.finish();
    // With Reduce, processes keep the optimizer's states of the parameters that they own.
    trainer.gather(&mut store)?;
    if rank > 0 {
        return Ok(());
    }
    let accuracy = accuracies.last().map_or(0.0, |a| a.1);
    println!(
        "test accuracy {:.2} % after {} epochs in {:.1} s, {size} processes x {} replicas",
        100.0 * accuracy,
        options.epochs,
        begin.elapsed().as_secs_f64(),
        options.replicas
    );
    println!("parameters {:016x}", digest(&mut store));
    if let Some(file) = options.plot {
        let curves =
            [Curve { name: "loss", points: &losses }, Curve { name: "test accuracy", points: &accuracies }];
        draw(&file, "LeNet on handwritten digits", "step", &curves)?;
        println!("picture in {}", file.display());
    }
    Ok(())
}

/// A bar where somebody watches; hidden elsewhere.
fn progress(rank: usize, n: usize) -> ProgressBar {
    if rank > 0 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps, {elapsed}, {msg}");
    ProgressBar::new(n as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The bar for those who read a log.
fn line(done: usize, of: usize, accuracy: f64, begin: Instant) {
    let (full, at) = (30 * done / of, begin.elapsed().as_secs_f64());
    let (full, rest) = ("#".repeat(full), "-".repeat(30 - full));
    eprintln!("[{full}{rest}] {done}/{of} epochs, test accuracy {:.1} %, {at:.1} s", 100.0 * accuracy);
}

/// All numbers below `n`, in an order that depends on the seed alone.
fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let dice = Stream::new(7, seed, 0);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, (dice.bits(i as u64) % (i as u64 + 1)) as usize);
    }
    order
}

/// One number for all parameters and states: two runs with the same one ended with the same bits.
fn digest(store: &mut Store) -> u64 {
    let names: Vec<String> = store.names().map(str::to_string).collect();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for name in names {
        let value = store.get(&name).expect("it was listed");
        for &byte in value.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}
