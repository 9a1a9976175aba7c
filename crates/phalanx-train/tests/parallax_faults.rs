//! Steps that end badly while tables are on servers.

use crate::worlds::engines;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, CollectiveError, Feed, Init, Optimizer, ParallelExecutor, Program,
    Rule, Setup, Store, Tensor,
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

fn program() -> Program {
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH]).unwrap();
    let table = b.parameter("table", [8, 4], Init::Constant(0.5)).unwrap();
    let x = b.lookup(table, ids, EmbeddingOptions { sparse: true, padding: None }).unwrap();
    let y = b.fc(x, 1, Act::None).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, 0.1).minimize(&mut program, loss).unwrap();
    program
}

/// Servers to which this process cannot push the step of a number.
#[derive(Debug)]
struct Unpushed {
    inner: Arc<dyn Served>,
    fails_at: u64,
    pushed: AtomicU64,
}

impl Served for Unpushed {
    fn pull(&self, table: &str, ids: Vec<i64>, done: Done) {
        self.inner.pull(table, ids, done);
    }

    fn push(&self, table: &str, rows: PushedRows, done: Done) {
        if self.pushed.fetch_add(1, Ordering::Relaxed) == self.fails_at {
            let why = "a test wants it".to_string();
            return done(Err(CollectiveError::Failed { call: "a push".into(), why }));
        }
        self.inner.push(table, rows, done);
    }

    fn abort(&self, why: &str) {
        self.inner.abort(why);
    }
}

/// The others have its share of every exchange, and push; their step can never be complete. They are told who failed, and wait for nothing.
#[test]
fn a_process_that_fails_after_its_last_exchange_ends_the_tables_of_all_by_its_name() {
    let config = ParallaxConfig { strategy: AllotmentStrategy::Hybrid, ..ParallaxConfig::default() };
    let said = engines(&[0, 1, 1], |engine| {
        let tables =
            ServedProgram::open(&program(), engine.world(), &config, FirstRows::Seeded).expect("tables open");
        let fails_at = if engine.rank().index() == 1 { 2 } else { u64::MAX };
        let inner = tables.served().expect("a table is on servers");
        let served = Arc::new(Unpushed { inner, fails_at, pushed: AtomicU64::new(0) });
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
    assert!(*step == 2 && why.contains("a test wants it"), "{said:?}");
    for (step, why, is_over) in [&said[0], &said[2]] {
        assert!((2..=3).contains(step) && why.contains("rank 1") && *is_over, "{said:?}");
    }
}
