//! The language model of `words`, with its table on servers: no rank has all of it, and only the rows of a step travel.
//!
//! ```text
//! phalanx run -np 2 -- target/release/examples/parallax_words
//! ```

#[path = "material/packed.rs"]
mod packed;
#[path = "material/text.rs"]
mod text;

use clap::{Parser, ValueEnum};
use phalanx_collective::{Communicator, engine::Engine};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Program, Rule, Setup, Store, Tensor,
    VarKind, layers::EmbeddingOptions,
};
use phalanx_train::parallax::{AllotmentStrategy, ParallaxConfig, ParallaxRun, parallel_run};
use std::{error::Error, path::PathBuf, process::ExitCode, sync::Arc, time::Instant};

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Strategy {
    Allreduce,
    Ps,
    Hybrid,
}

/// Guesses words of a text from the few before them.
#[derive(Parser)]
struct Options {
    /// Where variables go
    #[arg(long, value_enum, default_value_t = Strategy::Hybrid)]
    strategy: Strategy,
    /// Replicas in each process
    #[arg(long, default_value_t = 2)]
    replicas: usize,
    #[arg(long, default_value_t = 300)]
    steps: usize,
    /// Samples in a step, of all processes together
    #[arg(long, default_value_t = 240)]
    batch: usize,
    /// Size of the vocabulary
    #[arg(long, default_value_t = 4000)]
    words: usize,
    /// Words that are seen
    #[arg(long, default_value_t = 4)]
    context: usize,
    /// Width of the embedding
    #[arg(long, default_value_t = 64)]
    width: usize,
    /// A text, packed by gzip
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/kjv.txt.gz"))]
    text: PathBuf,
}

fn model(options: &Options) -> Result<Program, Box<dyn Error>> {
    let mut b = Builder::new();
    let seen = b.feed("seen", DType::I64, [BATCH, Dim::Fixed(options.context)])?;
    let next = b.feed("next", DType::I64, [BATCH])?;
    let table = EmbeddingOptions { sparse: true, padding: None };
    let x = b.embedding(seen, options.words, options.width, table)?;
    let x = b.reshape(x, [BATCH, Dim::Fixed(options.context * options.width)])?;
    let x = b.fc(x, options.width, Act::Tanh)?;
    let scores = b.fc(x, options.words, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, next)?;
    let loss = b.mean(losses)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::Adagrad { epsilon: 1e-10 }, 0.05).minimize(&mut program, loss)?;
    Ok(program)
}

/// The words before each place, and the word there.
fn samples(text: &[i64], places: &[usize], context: usize) -> Result<(Tensor, Tensor), Box<dyn Error>> {
    let seen: Vec<i64> = places.iter().flat_map(|&at| text[at..at + context].iter().copied()).collect();
    let next: Vec<i64> = places.iter().map(|&at| text[at + context]).collect();
    Ok((Tensor::new(&[places.len(), context], &seen)?, Tensor::new(&[places.len()], &next)?))
}

fn main() -> ExitCode {
    match train() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("parallax_words: {why}");
            ExitCode::FAILURE
        }
    }
}

fn train() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let engine = Arc::new(Engine::start(Communicator::from_env()?)?);
    let program = model(&options)?;
    let config = ParallaxConfig {
        strategy: match options.strategy {
            Strategy::Allreduce => AllotmentStrategy::AllReduce,
            Strategy::Ps => AllotmentStrategy::Ps,
            Strategy::Hybrid => AllotmentStrategy::Hybrid,
        },
        // As the samples of all workers together: what `words` learns.
        average_sparse: true,
        replicas: options.replicas,
        seed: 1,
        samples_per_worker: options.batch / engine.size() as usize,
        ..ParallaxConfig::default()
    };
    parallel_run(&program, "loss", &engine, &config, |run, seat| {
        worker(&options, &program, run, seat.worker_id, seat.num_workers)
    })?
}

fn worker(
    options: &Options,
    program: &Program,
    run: &mut ParallaxRun,
    rank: usize,
    size: usize,
) -> Result<(), Box<dyn Error>> {
    if options.batch == 0 || !options.batch.is_multiple_of(size) {
        return Err(format!("--batch {} cannot be shared equally by {size} processes", options.batch).into());
    }
    let text = text::words(&options.text, options.words)?;
    let (train, unseen) = text.split_at(text.len() - text.len() / 50);
    let share = options.batch / size;
    let begin = Instant::now();
    for step in 0..options.steps {
        let dice = phalanx_graph::kernel::Stream::new(7, step as u64, 0);
        let limit = (train.len() - options.context) as u64;
        let places: Vec<usize> =
            (rank * share..(rank + 1) * share).map(|i| (dice.bits(i as u64) % limit) as usize).collect();
        let (seen, next) = samples(train, &places, options.context)?;
        run.step(&[("seen", Feed::Split(&seen)), ("next", Feed::Split(&next))], &[])?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    // Everybody reads, because a read waits for the last pushes of all.
    let mut store = Store::new(1);
    let test = Setup { replicas: Some(options.replicas), ..Setup::default() };
    let mut tester = ParallelExecutor::new(&program.clone_for_test(), None, test)?;
    tester.prepare(&mut store)?;
    for (_, var) in program.vars().filter(|(_, var)| matches!(var.kind, VarKind::Parameter(_))) {
        store.set(&var.name, &run.value(&var.name)?)?;
    }
    if rank > 0 {
        return Ok(());
    }
    let places: Vec<usize> = (0..unseen.len() - options.context).step_by(8).collect();
    let (seen, next) = samples(unseen, &places, options.context)?;
    let feeds = [("seen", Feed::Split(&seen)), ("next", Feed::Split(&next))];
    let out = tester.run(&mut store, &feeds, &[Fetch::mean("loss")])?;
    let perplexity = out[0].one().to_f64()[0].exp();
    print!("{}", run.explain()?);
    println!(
        "step {}: perplexity {perplexity:.0} of {} words on unseen text, {seconds:.1} s",
        options.steps, options.words
    );
    Ok(())
}
