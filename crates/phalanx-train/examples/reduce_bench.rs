//! AllReduce and Reduce on several processes: the time of a step, and the memory of the optimizer's states.
//!
//! Both train the same network with Adam, block by block in turns, in one world. By hand: `phalanx run -np 4 -- reduce_bench [BLOCKS]`. Lines of rank 0:
//! `step<TAB>ranks<TAB>AllReduce ms<TAB>Reduce ms<TAB>ratio` with the medians of blocks and of the ratios of blocks that follow each other; of every rank:
//! `states<TAB>rank<TAB>AllReduce bytes<TAB>Reduce bytes<TAB>ratio`; and `same`, if both have learned the same bits.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Collective, Dim, Feed, Optimizer, ParallelExecutor, Program, ReduceStrategy, Rule,
    Setup, Store, Tensor, VarKind,
};
use phalanx_train::Ranks;
use std::{error::Error, sync::Arc, time::Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const WIDTH: usize = 768;
const N_LAYERS: usize = 8;
const N_SAMPLES: usize = 8;
const N_STEPS: usize = 10;
const N_WARM: usize = 4;

fn network() -> Outcome<Program> {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(WIDTH)])?;
    let mut y = x;
    for _ in 0..N_LAYERS {
        y = b.fc(y, WIDTH, Act::Tanh)?;
    }
    let y = b.mul(y, y)?;
    let loss = b.mean(y)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::adam(), 1e-4).minimize(&mut program, loss)?;
    Ok(program)
}

struct Side {
    exe: ParallelExecutor,
    store: Store,
}

impl Side {
    fn new(program: &Program, ranks: &Arc<Ranks>, reduce: ReduceStrategy) -> Outcome<Side> {
        let mut setup = Setup { replicas: Some(1), collective: ranks.clone(), ..Setup::default() };
        setup.build.reduce_strategy = reduce;
        Ok(Side { exe: ParallelExecutor::new(program, Some("loss"), setup)?, store: Store::new(1) })
    }

    /// Milliseconds of a step.
    fn block(&mut self, x: &Tensor) -> Outcome<f64> {
        let mut begin = Instant::now();
        for step in 0..N_WARM + N_STEPS {
            if step == N_WARM {
                begin = Instant::now();
            }
            self.exe.run(&mut self.store, &[("x", Feed::Split(x))], &[])?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e3 / N_STEPS as f64)
    }

    fn states(&self, program: &Program) -> usize {
        let states = program.vars().filter(|(_, var)| matches!(var.kind, VarKind::State(_)));
        states.map(|(_, var)| self.store.bytes_of(&var.name)).sum()
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Outcome<()> {
    let n_blocks: usize = std::env::args().nth(1).map_or(Ok(9), |n| n.parse())?;
    let ranks = Arc::new(Ranks::from_env()?);
    let (me, n) = (ranks.index(), ranks.processes());
    let program = network()?;
    let mut sides =
        [ReduceStrategy::AllReduce, ReduceStrategy::Reduce].map(|reduce| Side::new(&program, &ranks, reduce));
    let [Ok(all), Ok(owned)] = &mut sides else {
        return Err("the executors cannot be made".into());
    };
    let values: Vec<f32> = (0..N_SAMPLES * WIDTH).map(|i| ((i * 7 + me) % 13) as f32 / 13.0 - 0.5).collect();
    let x = Tensor::new(&[N_SAMPLES, WIDTH], &values)?;
    let mut times = Vec::new();
    for block in 0..=n_blocks {
        let pair = (all.block(&x)?, owned.block(&x)?);
        // The first block is for plans.
        if block > 0 {
            times.push(pair);
        }
    }
    let (a, b) = (all.states(&program), owned.states(&program));
    println!("states\t{me}\t{a}\t{b}\t{:.3}", b as f64 / a as f64);
    owned.exe.gather(&mut owned.store)?;
    let names: Vec<String> = all.store.names().map(str::to_string).collect();
    let mut is_same = true;
    for name in names {
        is_same &= all.store.get(&name) == owned.store.get(&name);
    }
    if me == 0 {
        let ratio = median(times.iter().map(|(a, b)| b / a).collect());
        let of = |pick: fn(&(f64, f64)) -> f64| median(times.iter().map(pick).collect());
        println!("step\t{n}\t{:.2}\t{:.2}\t{ratio:.3}", of(|t| t.0), of(|t| t.1));
        println!("{}", if is_same { "same" } else { "different bits" });
    }
    Ok(())
}
