//! Steps that end badly while tables are on servers.

use crate::worlds::engines;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Clip, CollectiveError, Feed, Init, Optimizer, ParallelExecutor,
    Program, Rule, Setup, Store, Tensor,
    exec::{Done, PushedRows, Served},
    layers::EmbeddingOptions,
};
use phalanx_train::{
    Ranks,
    parallax::{AllotmentStrategy, FirstRows, ParallaxConfig, ServedProgram},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A table and a layer; with a limit, clipped by the norm of both.
fn program(limit: Option<f64>) -> Program {
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH]).unwrap();
    let table = b.parameter("table", [8, 4], Init::Constant(0.5)).unwrap();
    let x = b.lookup(table, ids, EmbeddingOptions { sparse: true, padding: None }).unwrap();
    let y = b.fc(x, 1, Act::None).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    let clip = limit.map(Clip::GlobalNorm);
    Optimizer { clip, ..Optimizer::new(Rule::Sgd, 0.1) }.minimize(&mut program, loss).unwrap();
    program
}

/// Which call fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fails {
    Push,
    Squares,
    Release,
}

/// Servers that this process cannot call in the step of a number.
#[derive(Debug)]
struct Unpushed {
    inner: Arc<dyn Served>,
    what: Fails,
    fails_at: u64,
    called: AtomicU64,
}

impl Unpushed {
    /// Whether this call fails.
    fn fails(&self, what: Fails) -> bool {
        self.what == what && self.called.fetch_add(1, Ordering::Relaxed) == self.fails_at
    }
}

fn wanted(done: Done) {
    let why = "a test wants it".to_string();
    done(Err(CollectiveError::Failed { call: "a call".into(), why }));
}

impl Served for Unpushed {
    fn pull(&self, table: &str, ids: Vec<i64>, done: Done) {
        self.inner.pull(table, ids, done);
    }

    fn push(&self, table: &str, rows: PushedRows, done: Done) {
        match self.fails(Fails::Push) {
            true => wanted(done),
            false => self.inner.push(table, rows, done),
        }
    }

    fn squares(&self, tables: &[String], done: Done) {
        match self.fails(Fails::Squares) {
            true => wanted(done),
            false => self.inner.squares(tables, done),
        }
    }

    fn release(&self, table: &str, factor: f64, done: Done) {
        match self.fails(Fails::Release) {
            true => wanted(done),
            false => self.inner.release(table, factor, done),
        }
    }

    fn abort(&self, why: &str) {
        self.inner.abort(why);
    }
}

/// The others have its share of every exchange, and push; their step can never be complete. They are told who failed, and wait for nothing.
#[test]
fn a_process_that_fails_after_its_last_exchange_ends_the_tables_of_all_by_its_name() {
    fails(Fails::Push, None);
}

/// The same between the push of a gradient that waits for its norm, and the factor: nobody applies it.
#[test]
fn a_process_that_fails_between_a_push_and_its_factor_ends_the_tables_of_all_by_its_name() {
    fails(Fails::Squares, Some(0.1));
    fails(Fails::Release, Some(0.1));
}

fn fails(what: Fails, limit: Option<f64>) {
    let config = ParallaxConfig { strategy: AllotmentStrategy::Hybrid, ..ParallaxConfig::default() };
    let said = engines(&[0, 1, 1], |engine| {
        let tables = ServedProgram::open(&program(limit), engine.world(), &config, FirstRows::Seeded)
            .expect("tables open");
        let fails_at = if engine.rank().index() == 1 { 2 } else { u64::MAX };
        let inner = tables.served().expect("a table is on servers");
        let served = Arc::new(Unpushed { inner, what, fails_at, called: AtomicU64::new(0) });
        let setup = Setup {
            build: BuildStrategy { served: tables.names(), ..BuildStrategy::default() },
            replicas: Some(1),
            collective: Arc::new(Ranks::new(engine.clone())),
            served: Some(served),
            ..Setup::default()
        };
        let mut exe =
            ParallelExecutor::new(tables.program(), Some("loss"), setup).expect("the setup is right");
        let mut store = Store::new(1);
        let ids = Tensor::new(&[2], &[engine.rank().index() as i64, 5]).expect("two numbers");
        for step in 0..20u64 {
            if let Err(why) = exe.run(&mut store, &[("ids", Feed::Split(&ids))], &[]) {
                return (step, why.to_string(), tables.value("table").is_err());
            }
        }
        panic!("a step that was never complete was made");
    });
    let (step, why, _) = &said[1];
    assert!(*step == 2 && why.contains("a test wants it"), "{what:?} {said:?}");
    for (step, why, is_over) in [&said[0], &said[2]] {
        assert!((2..=3).contains(step) && why.contains("rank 1") && *is_over, "{what:?} {said:?}");
    }
}
