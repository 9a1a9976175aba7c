//! One worker of `cargo xtask bench parallax`: two tables, sampled candidates, two dense layers, and what a step takes. Rank 0 prints one line
//! of JSON: the median of steps in milliseconds, what offices counted, and what the placement predicts.

use clap::Parser;
use phalanx_collective::{
    Communicator,
    engine::{Engine, Request},
};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Feed, Init, Optimizer, Program, Rule, Tensor, kernel::Stream,
    layers::EmbeddingOptions, op::Reduction,
};
use phalanx_train::parallax::{AllotmentStrategy, ParallaxConfig, ParallaxRun, measure, parallel_run};
use std::{
    collections::BTreeSet,
    error::Error,
    io::Write,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

#[derive(Parser)]
struct Options {
    /// allreduce, ps, hybrid, or auto
    #[arg(long, default_value = "hybrid")]
    strategy: String,
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Steps before those that count
    #[arg(long, default_value_t = 3)]
    warm: usize,
    /// Rows of each table
    #[arg(long, default_value_t = 100_000)]
    rows: usize,
    #[arg(long, default_value_t = 64)]
    width: usize,
    /// Words in a step of a worker: rows of the first table, five to a sample; the second has nine
    #[arg(long, default_value_t = 1280)]
    tokens: usize,
    #[arg(long)]
    partitions: Option<u32>,
    /// Looks for partitions: the least number
    #[arg(long)]
    search: Option<u32>,
    /// Nobody waits for the others
    #[arg(long)]
    asynchronous: bool,
    /// Every worker asks servers by itself, and rows travel as often as they are touched
    #[arg(long)]
    naive: bool,
    /// Gradients of tables are dense
    #[arg(long)]
    dense: bool,
    /// Milliseconds that every worker sleeps in each step
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// The same of rank 0
    #[arg(long)]
    straggle_ms: Option<u64>,
    /// Milliseconds after which every worker stops, instead of a number of steps
    #[arg(long)]
    for_ms: Option<u64>,
}

/// Words of a sample, and rows of the second table: their targets, and candidates.
const WORDS: usize = 5;
const CANDIDATES: usize = 9;

/// Words, each with a target of its own, and candidates that all words share: about 0.33 million dense numbers beside two tables. The dense layers see the
/// mean of the words, because it is what travels that is measured here.
fn model(options: &Options) -> Result<Program, Box<dyn Error>> {
    let mut b = Builder::new();
    let seen = b.feed("seen", DType::I64, [BATCH, Dim::Fixed(WORDS)])?;
    let next = b.feed("next", DType::I64, [BATCH, Dim::Fixed(CANDIDATES)])?;
    let rows = EmbeddingOptions { sparse: !options.dense, padding: None };
    let table = b.parameter("input", [options.rows, options.width], Init::Normal { mean: 0.0, std: 0.1 })?;
    let out = b.parameter("output", [options.rows, options.width], Init::Normal { mean: 0.0, std: 0.1 })?;
    let x = b.lookup(table, seen, rows)?;
    let x = b.reduce(Reduction::Mean, x, &[0, 1], true)?;
    let x = b.fc(x, 2560, Act::Tanh)?;
    let x = b.fc(x, options.width, Act::None)?;
    let y = b.lookup(out, next, rows)?;
    let product = b.mul(y, x)?;
    let scores = b.reduce(Reduction::Sum, product, &[2], true)?;
    let errors = b.mul(scores, scores)?;
    let loss = b.mean(errors)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::Adagrad { epsilon: 1e-10 }, 0.05).minimize(&mut program, loss)?;
    Ok(program)
}

/// Log-uniform numbers: small ones are frequent, as words are.
fn words(dice: Stream, n: usize, height: usize) -> Vec<i64> {
    let word = |i: usize| (((height as f64 + 1.0).ln() * dice.uniform(i as u64)).exp() as i64 - 1).max(0);
    (0..n).map(|i| word(i).min(height as i64 - 1)).collect()
}

/// The row numbers of a worker in a step, for each table.
fn ids(options: &Options, rank: usize, step: u64) -> [Vec<i64>; 2] {
    let n = options.tokens / WORDS;
    let lengths = [(0, n * WORDS), (1000, n * CANDIDATES)];
    lengths.map(|(table, n)| words(Stream::new(table + rank as u64, step, 0), n, options.rows))
}

fn tensors(options: &Options, rank: usize, step: u64) -> Result<[Tensor; 2], Box<dyn Error>> {
    let [seen, next] = ids(options, rank, step);
    let n = options.tokens / WORDS;
    Ok([Tensor::new(&[n, WORDS], &seen)?, Tensor::new(&[n, CANDIDATES], &next)?])
}

fn main() -> ExitCode {
    match train() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("parallax_bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn train() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let engine = Arc::new(Engine::start(Communicator::from_env()?)?);
    let program = model(&options)?;
    let strategy = match options.strategy.as_str() {
        "allreduce" => AllotmentStrategy::AllReduce,
        "ps" => AllotmentStrategy::Ps,
        "hybrid" => AllotmentStrategy::Hybrid,
        "auto" => {
            let [seen, next] = tensors(&options, engine.rank().index(), 0)?;
            let feeds = [("seen", Feed::Split(&seen)), ("next", Feed::Split(&next))];
            AllotmentStrategy::Auto(measure(&program, &engine, &feeds)?)
        }
        other => {
            return Err(format!("there is no strategy {other}; use allreduce, ps, hybrid or auto").into());
        }
    };
    let config = ParallaxConfig {
        strategy,
        average_sparse: true,
        partitions: options.partitions,
        search: options.search.map(|least| (least, 3, 5)),
        local_aggregation: !options.naive,
        merge_rows: !options.naive,
        sync: !options.asynchronous,
        samples_per_worker: options.tokens / WORDS,
        ..ParallaxConfig::default()
    };
    parallel_run(&program, "loss", &engine, &config, |run, seat| {
        worker(&options, run, seat.worker_id, &engine)
    })?
}

fn worker(
    options: &Options,
    run: &mut ParallaxRun,
    rank: usize,
    engine: &Arc<Engine>,
) -> Result<(), Box<dyn Error>> {
    let mut took = Vec::new();
    let mut n_steps = 0u64;
    let begin = Instant::now();
    let searches = options.search.is_some();
    // With a search, steps count from its end on.
    let mut first = options.warm as u64;
    let pause = options.straggle_ms.filter(|_| rank == 0).unwrap_or(options.pause_ms);
    loop {
        if searches && run.found_partitions().is_none() {
            first = n_steps + 1;
        }
        let goes_on = match options.for_ms {
            Some(ms) => begin.elapsed() < Duration::from_millis(ms),
            None => n_steps < first + options.steps as u64,
        };
        if !goes_on {
            break;
        }
        let [seen, next] = tensors(options, rank, n_steps)?;
        let start = Instant::now();
        if pause > 0 {
            // Not a wait for anything: it is the slow worker that R14 measures.
            std::thread::sleep(Duration::from_millis(pause));
        }
        run.step(&[("seen", Feed::Split(&seen)), ("next", Feed::Split(&next))], &[])?;
        if n_steps >= first {
            took.push(start.elapsed().as_secs_f64() * 1e3);
        }
        n_steps += 1;
    }
    if !options.asynchronous {
        // An age is answered behind the pushes before it: after the barrier, offices have counted what all workers gave.
        let served: Vec<String> = run.allotment().served().map(|var| var.name.clone()).collect();
        for name in &served {
            let age = run.age(name)?;
            run.set_age(name, age)?;
        }
        engine.submit(Request::barrier().name("counted"))?.wait()?;
    }
    // The first worker of a host knows what all of them touch.
    let workers = engine.world().workers().hosts().iter().find(|ranks| ranks[0].index() == rank);
    let of_step = |step: u64| -> usize {
        let of = |table: usize| {
            let all = workers.iter().flat_map(|ranks| ranks.iter());
            let all = all.flat_map(|rank| ids(options, rank.index(), step)[table].clone());
            all.collect::<BTreeSet<i64>>().len()
        };
        of(0) + of(1)
    };
    let union: usize = (0..n_steps).map(of_step).sum();
    took.sort_by(f64::total_cmp);
    let counters = run.counters()?;
    let line = serde_json::json!({
        "rank": rank,
        "size": engine.size(),
        "ms": took.get(took.len() / 2),
        "steps": n_steps,
        "predicted_bytes": run.allotment().bytes_per_host(),
        "wanted_rows": counters.office.wanted_rows,
        "pulled_rows": counters.office.pulled_rows,
        "given_rows": counters.office.given_rows,
        "pushed_rows": counters.office.pushed_rows,
        "union_rows": union,
        "bytes_out": counters.bytes_out,
        "bytes_in": counters.bytes_in,
        "partitions": run.found_partitions(),
    });
    // One write: lines of several ranks in one pipe stay whole.
    std::io::stdout().write_all(format!("{line}\n").as_bytes())?;
    Ok(())
}
