//! LeNet learns to read handwritten digits with a session: it resumes by itself, saves, and is evaluated beside the training.
//!
//! ```text
//! phalanx run -np 2 --evaluator -- target/release/examples/session_digits
//! target/release/examples/session_digits --evaluate
//! ```
//!
//! The evaluator reads unseen digits with each checkpoint. Stop the training with SIGTERM and start it again: it goes on where it was, and a
//! training that has made all steps makes no more. `examples/session_digits.py` is the same in Python.

#[path = "material/digits.rs"]
mod digits;
#[path = "material/packed.rs"]
mod packed;

use clap::Parser;
use digits::Digits;
use phalanx_checkpoint::{Follow, Followed, Keep, Newest, Strictness};
use phalanx_core::{DType, Rank};
use phalanx_graph::{
    Act, BATCH, Builder, Collective, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Program, Rule, Schedule,
    Setup, Store, kernel::Stream, layers::ConvOptions, op::Pool,
};
use phalanx_net::task::{TaskSpec, job_began};
use phalanx_train::{
    Ranks,
    data::{Ends, Sampler},
    events::EventWriter,
    session::{Logging, NanLoss, Period, Session, SessionOptions, StopAtStep, StorePart},
};
use std::{
    env,
    error::Error,
    os::unix::process::parent_id,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// An evaluator gives up if nothing is saved for this long.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Trains a network to read digits, with a session.
#[derive(Parser)]
struct Options {
    /// Steps of the whole training
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    /// Steps from one checkpoint to the next
    #[arg(long, default_value_t = 200)]
    save_steps: u64,
    /// Digits in a step, of all ranks together
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Learning rate of the first step
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Where checkpoints are
    #[arg(long, default_value = "session_digits")]
    checkpoints: PathBuf,
    /// Where the digits are
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data"))]
    data: PathBuf,
    /// Evaluate the checkpoints that are there, and those that come, instead of training
    #[arg(long)]
    evaluate: bool,
}

fn lenet(options: &Options) -> Outcome<Program> {
    let mut b = Builder::new();
    let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(1), Dim::Fixed(28), Dim::Fixed(28)])?;
    let label = b.feed("label", DType::I64, [BATCH])?;
    let x = b.conv2d(image, ConvOptions { act: Act::Relu, ..ConvOptions::new(16, 5) })?;
    let x = b.pool2d(x, Pool::Max, 2, 2)?;
    let x = b.conv2d(x, ConvOptions { act: Act::Relu, ..ConvOptions::new(32, 5) })?;
    let x = b.pool2d(x, Pool::Max, 2, 2)?;
    let x = b.flatten(x)?;
    let x = b.fc(x, 128, Act::Relu)?;
    let x = b.dropout(x, 0.3)?;
    let scores = b.fc(x, 10, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
    let loss = b.mean(losses)?;
    let loss = b.named(loss, "loss")?;
    let accuracy = b.accuracy(scores, label, 1)?;
    b.named(accuracy, "accuracy")?;
    let mut program = b.finish()?;
    let rate = Schedule::Cosine { rate: options.lr, steps: options.steps as f64 };
    Optimizer { rate, ..Optimizer::new(Rule::adam(), options.lr) }.minimize(&mut program, loss)?;
    Ok(program)
}

/// Trains until the last step, wherever it begins.
fn train(options: &Options, program: &Program) -> Outcome<()> {
    let ranks = Arc::new(Ranks::from_env()?);
    let (rank, size) = (ranks.index(), ranks.processes());
    if options.batch == 0 || !options.batch.is_multiple_of(size) {
        return Err(format!("--batch {} cannot be shared equally by {size} ranks", options.batch).into());
    }
    let digits = Digits::read(&options.data, "train")?;
    // All of them stay, so that an evaluator that is slower than the training misses none.
    let keep = Keep { last: options.steps.div_ceil(options.save_steps.max(1)).max(1) as usize, every: None };
    let with = SessionOptions::new()
        .ranks(ranks)
        .setup(Setup { replicas: Some(1), ..Setup::default() })
        .checkpoints(&options.checkpoints)
        .save(Some(Period::Steps(options.save_steps)))
        .keep(keep)
        .hook(StopAtStep::at(options.steps))
        .hook(NanLoss::new("loss", true))
        .hook(Logging::new(Period::Steps(50)));
    let mut session = Session::new(program, "loss", with)?;
    let mut sampler = Sampler {
        n: digits.len() as u64,
        world: size as u32,
        rank: Rank(rank as u32),
        seed: 1,
        epoch: 0,
        ends: Ends::Drop,
    };
    let n_batches = (digits.len() / options.batch) as u64;
    while !session.should_stop() {
        // Samples and random numbers of a step do not depend on where the session began.
        let step = session.global_step();
        sampler.epoch = step / n_batches;
        let own = sampler.indices(step % n_batches * options.batch as u64)?;
        let own: Vec<usize> = own.take(options.batch / size).map(|i| i as usize).collect();
        let dice = Stream::new(8, step, 0);
        let moved = |i| {
            let bits = dice.bits(i as u64);
            ((bits % 5) as isize - 2, (bits / 5 % 5) as isize - 2)
        };
        let (images, labels) = digits.pick_moved(&own, moved)?;
        let feeds = [("image", Feed::Split(&images)), ("label", Feed::Split(&labels))];
        session.run(&feeds, &[Fetch::mean("loss")])?;
    }
    if let (0, Some(stopped)) = (rank, session.stopped()) {
        println!("step {}: stopped by {}: {}", stopped.step, stopped.reason.by, stopped.reason.why);
    }
    session.close()?;
    Ok(())
}

/// Reads the unseen digits with each checkpoint, until the training has ended.
fn evaluate(options: &Options, program: &Program, mut follow: Follow) -> Outcome<()> {
    let unseen = Digits::read(&options.data, "t10k")?;
    let (images, labels) = unseen.all()?;
    let program = program.clone_for_test();
    let setup = Setup { replicas: Some(1), ..Setup::default() };
    let mut tester = ParallelExecutor::new(&program, None, setup)?;
    let mut store = Store::new(1);
    store.admit(&program)?;
    let mut events = EventWriter::create(&options.checkpoints.join("evaluation"))?;
    loop {
        let checkpoint = match follow.next(Instant::now() + PATIENCE)? {
            Followed::Checkpoint(checkpoint) => checkpoint,
            Followed::Done => return Ok(()),
            Followed::TimedOut => return Err(format!("nothing was saved for {PATIENCE:?}").into()),
        };
        checkpoint.load(&mut StorePart::new(&program, &mut store), Strictness::Subset)?;
        let feeds = [("image", Feed::Split(&images)), ("label", Feed::Split(&labels))];
        let out = tester.run(&mut store, &feeds, &[Fetch::mean("accuracy")])?;
        let accuracy = out[0].one().to_f64()[0];
        let (step, n) = (checkpoint.step(), unseen.len());
        println!("step {step}: accuracy {:.1}% on {n} unseen digits", 100.0 * accuracy);
        events.scalar(step, "accuracy", accuracy as f32)?;
        events.flush()?;
    }
}

fn run() -> Outcome<()> {
    let options = Options::parse();
    let program = lenet(&options)?;
    let follow = Follow::new(&options.checkpoints, Newest::Each);
    if options.evaluate {
        return evaluate(&options, &program, follow);
    }
    let var = |name: &str| env::var(name).ok();
    if !TaskSpec::from_vars(&var)?.is_some_and(|task| task.is_evaluator()) {
        return train(&options, &program);
    }
    // An earlier training may have ended in this directory: its mark is not the end of this one.
    let follow = match job_began(&var, parent_id())? {
        Some(began) => follow.of_job(began),
        None => follow,
    };
    evaluate(&options, &program, follow)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("session_digits: {why}");
            ExitCode::FAILURE
        }
    }
}
