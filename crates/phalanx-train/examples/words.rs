//! A language model whose embedding has sparse gradients, on any number of processes and replicas, tested while it trains.
//!
//! ```text
//! phalanx run -np 2 -- target/release/examples/words
//! ```

#[path = "material/packed.rs"]
mod packed;
#[path = "material/plot.rs"]
mod plot;
#[path = "material/text.rs"]
mod text;

use clap::Parser;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Collective, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Program, Rule, Setup,
    Store, Tensor, layers::EmbeddingOptions,
};
use phalanx_train::Ranks;
use plot::{Curve, draw};
use std::{error::Error, path::PathBuf, process::ExitCode, sync::Arc, time::Instant};

/// Guesses words of a text from the few before them.
#[derive(Parser)]
struct Options {
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
    /// Dense gradients of the embedding, to see what sparse ones save
    #[arg(long)]
    dense: bool,
    /// A text, packed by gzip
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/kjv.txt.gz"))]
    text: PathBuf,
    /// A picture of the loss
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn model(options: &Options) -> Result<Program, Box<dyn Error>> {
    let mut b = Builder::new();
    let seen = b.feed("seen", DType::I64, [BATCH, Dim::Fixed(options.context)])?;
    let next = b.feed("next", DType::I64, [BATCH])?;
    let table = EmbeddingOptions { sparse: !options.dense, padding: None };
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
            eprintln!("words: {why}");
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
    let text = text::words(&options.text, options.words)?;
    let (train, unseen) = text.split_at(text.len() - text.len() / 50);
    let places: Vec<usize> = (0..unseen.len() - options.context).step_by(8).collect();
    let (test_seen, test_next) = samples(unseen, &places, options.context)?;

    let program = model(&options)?;
    let setup = Setup { replicas: Some(options.replicas), collective: Arc::new(ranks), ..Setup::default() };
    let mut trainer = ParallelExecutor::new(&program, Some("loss"), setup)?;
    let test = Setup { replicas: Some(options.replicas), ..Setup::default() };
    let mut tester = ParallelExecutor::new(&program.clone_for_test(), None, test)?;
    let mut store = Store::new(1);

    let share = options.batch / size;
    let (mut losses, mut tests) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    for step in 0..options.steps {
        let dice = phalanx_graph::kernel::Stream::new(7, step as u64, 0);
        let limit = (train.len() - options.context) as u64;
        let places: Vec<usize> =
            (rank * share..(rank + 1) * share).map(|i| (dice.bits(i as u64) % limit) as usize).collect();
        let (seen, next) = samples(train, &places, options.context)?;
        let feeds = [("seen", Feed::Split(&seen)), ("next", Feed::Split(&next))];
        let out = trainer.run(&mut store, &feeds, &[Fetch::mean("loss")])?;
        losses.push((step as f64, out[0].one().to_f64()[0]));
        if (step + 1) % 100 == 0 || step + 1 == options.steps {
            let feeds = [("seen", Feed::Split(&test_seen)), ("next", Feed::Split(&test_next))];
            let out = tester.run(&mut store, &feeds, &[Fetch::mean("loss")])?;
            let perplexity = out[0].one().to_f64()[0].exp();
            tests.push((step as f64, perplexity));
            if rank == 0 {
                let at = begin.elapsed().as_secs_f64();
                println!(
                    "step {}: perplexity {perplexity:.0} of {} words on unseen text, {at:.1} s",
                    step + 1,
                    options.words
                );
            }
        }
    }
    if let (0, Some(file)) = (rank, options.plot) {
        let curves =
            [Curve { name: "loss", points: &losses }, Curve { name: "test perplexity", points: &tests }];
        draw(&file, "A language model", "step", &curves)?;
        println!("picture in {}", file.display());
    }
    Ok(())
}
