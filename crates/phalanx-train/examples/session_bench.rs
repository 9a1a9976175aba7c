//! What a session costs beside its steps, and how soon a checkpoint is seen.
//!
//! The bare loop and a session with all hooks take turns, block by block, in one world. Started by `cargo xtask bench session`; by hand:
//! `phalanx run -np 2 -- session_bench [DIR] [BLOCKS]`; `-` is the folder for temporary files. Lines: `session<TAB>case<TAB>bare us<TAB>session us`, `seen<TAB>ms`.

use phalanx_checkpoint::{Follow, Followed, Newest};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Collective, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Program, Rule, Setup,
    Store, Tensor, layers::ConvOptions, op::Pool,
};
use phalanx_train::{
    Ranks,
    session::{
        Better, EarlyStopping, Logging, NanLoss, Period, Profiler, Session, SessionOptions, StepCounter,
        StopAtStep, StopAtTime, Summaries,
    },
};
use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const N_BLOCKS: usize = 81;
const N_SAMPLES: usize = 16;
const N_WARM: usize = 6;

/// Steps of about a millisecond.
fn small() -> Outcome<Program> {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(784)])?;
    let y = b.fc(x, 384, Act::Tanh)?;
    let y = b.fc(y, 384, Act::Tanh)?;
    let y = b.fc(y, 10, Act::None)?;
    let y = b.mul(y, y)?;
    let loss = b.mean(y)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::Sgd, 1e-3).minimize(&mut program, loss)?;
    Ok(program)
}

fn lenet() -> Outcome<Program> {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(784)])?;
    let x = b.reshape(x, [BATCH, Dim::Fixed(1), Dim::Fixed(28), Dim::Fixed(28)])?;
    let x = b.conv2d(x, ConvOptions { act: Act::Relu, ..ConvOptions::new(20, 5) })?;
    let x = b.pool2d(x, Pool::Max, 2, 2)?;
    let x = b.conv2d(x, ConvOptions { act: Act::Relu, ..ConvOptions::new(50, 5) })?;
    let x = b.pool2d(x, Pool::Max, 2, 2)?;
    let x = b.flatten(x)?;
    let x = b.fc(x, 500, Act::Relu)?;
    let y = b.fc(x, 10, Act::None)?;
    let y = b.mul(y, y)?;
    let loss = b.mean(y)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::Sgd, 1e-3).minimize(&mut program, loss)?;
    Ok(program)
}

fn setup(ranks: &Arc<Ranks>) -> Setup {
    Setup { replicas: Some(1), collective: ranks.clone(), ..Setup::default() }
}

/// Every hook there is; none of them ends the session.
fn with_all_hooks(options: SessionOptions, folder: &Path) -> SessionOptions {
    let often = Period::Steps(100);
    options
        .checkpoints(folder.join("checkpoints"))
        .summaries(folder.join("events"))
        .hook(StopAtStep::at(u64::MAX))
        .hook(StopAtTime::new(Duration::from_secs(100_000)))
        .hook(NanLoss::new("loss", true))
        .hook(EarlyStopping::new("loss", Better::Lower, 0.0, u64::MAX, Period::Steps(1)))
        .hook(Profiler::range(u64::MAX - 1..u64::MAX))
        .hook(StepCounter::new(often))
        .hook(Logging::new(often))
        .chief_only_hook(Summaries::new(often))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Case {
    n_steps: usize,
    n_blocks: usize,
    /// Of the session, among those of this process.
    number: u64,
}

/// Microseconds of a step: of the bare loop, and of a session, which adds the median difference of two blocks that follow each other.
fn compare(ranks: &Arc<Ranks>, program: &Program, folder: &Path, case: Case) -> Outcome<(f64, f64)> {
    let Case { n_steps, n_blocks, number } = case;
    let x = Tensor::new(&[N_SAMPLES, 784], &vec![0.25f32; N_SAMPLES * 784])?;
    let (feeds, fetch) = ([("x", Feed::Split(&x))], [Fetch::mean("loss")]);
    let mut bare = ParallelExecutor::new(program, Some("loss"), setup(ranks))?;
    let mut store = Store::new(1);
    let options = SessionOptions::new().ranks(ranks.clone()).setup(setup(ranks)).number(number);
    let mut session = Session::new(program, "loss", with_all_hooks(options, folder))?;
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for block in 0..n_blocks {
        // Blocks begin with steps that are not measured: the engine negotiates until the order has repeated.
        let (mut begin, mut middle) = (Instant::now(), Instant::now());
        for step in 0..N_WARM + n_steps {
            if step == N_WARM {
                begin = Instant::now();
            }
            bare.run(&mut store, &feeds, &fetch)?;
        }
        let own = begin.elapsed();
        for step in 0..N_WARM + n_steps {
            if step == N_WARM {
                middle = Instant::now();
            }
            session.run(&feeds, &fetch)?;
        }
        let step_us = |time: Duration| time.as_secs_f64() * 1e6 / n_steps as f64;
        // The first block is for plans.
        if block > 0 {
            alone.push(step_us(own));
            with.push(step_us(middle.elapsed()));
        }
    }
    session.close()?;
    // Two blocks that follow each other meet the same machine: their difference is what counts, not that of two medians.
    let added = median(with.iter().zip(&alone).map(|(with, alone)| with - alone).collect());
    let bare = median(alone);
    Ok((bare, bare + added))
}

/// Milliseconds from a commit until a follower has the checkpoint.
fn seen(ranks: &Arc<Ranks>, folder: &Path) -> Outcome<f64> {
    let dir = folder.join("followed");
    std::fs::create_dir_all(&dir)?;
    let program = small()?;
    let options = SessionOptions::new().ranks(ranks.clone()).setup(setup(ranks)).number(9);
    let mut session = Session::new(&program, "loss", options.checkpoints(&dir).save(Some(Period::Steps(1))))?;
    let follower = (ranks.index() == 0).then(|| {
        let dir = dir.clone();
        std::thread::spawn(move || {
            let mut follow = Follow::new(&dir, Newest::Each);
            let mut late = Vec::new();
            while let Ok(Followed::Checkpoint(found)) = follow.next(Instant::now() + Duration::from_secs(20))
            {
                let made = found.path().join("manifest.json").metadata().and_then(|m| m.modified());
                if let Some(age) = made.ok().and_then(|made| made.elapsed().ok()) {
                    late.push(age.as_secs_f64() * 1e3);
                }
            }
            late
        })
    });
    let x = Tensor::new(&[N_SAMPLES, 784], &vec![0.25f32; N_SAMPLES * 784])?;
    for _ in 0..20 {
        session.run(&[("x", Feed::Split(&x))], &[])?;
    }
    session.close()?;
    let late = follower.map(|f| f.join().unwrap_or_default()).unwrap_or_default();
    Ok(if late.is_empty() { f64::NAN } else { median(late) })
}

fn main() -> Outcome<()> {
    let ranks = Arc::new(Ranks::from_env()?);
    let mut args = std::env::args().skip(1);
    let folder = args.next().filter(|folder| folder != "-").map_or_else(std::env::temp_dir, PathBuf::from);
    let n_blocks = args.next().map_or(Ok(N_BLOCKS), |n| n.parse())?.max(2);
    // Ranks of one job have one parent, and two jobs two.
    let parent = std::os::unix::process::parent_id();
    let folder = folder.join(format!("phalanx-session-bench-{parent}"));
    let is_chief = ranks.index() == 0;
    for (number, (case, program, n_steps)) in
        [("1 ms", small()?, 50), ("LeNet", lenet()?, 10)].into_iter().enumerate()
    {
        let of = Case { n_steps, n_blocks, number: number as u64 + 1 };
        let (bare, session) = compare(&ranks, &program, &folder.join(case), of)?;
        if is_chief {
            println!("session\t{case}\t{bare:.1}\t{session:.1}");
        }
    }
    let late = seen(&ranks, &folder)?;
    if is_chief {
        println!("seen\t{late:.1}");
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}
