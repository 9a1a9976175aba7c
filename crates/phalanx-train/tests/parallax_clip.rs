//! Gradients clipped by the norm of all, where some of them are on servers.

use crate::{
    parallax::{config, difference},
    worlds::engines,
};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Chosen, Clip, Dim, Feed, Init, Optimizer, ParallelExecutor, Program, Rule, Setup,
    Store, Tensor, VarId, append_backward_of, graph::scale_rows, kernel::Stream, layers::EmbeddingOptions,
    op::Reduction,
};
use phalanx_train::parallax::{
    AllotmentStrategy, Lodging, ParallaxConfig, ParallaxError, ParallaxRun, parallel_run,
};
use std::collections::BTreeMap;

const ROWS: u64 = 24;
/// The row that no gradient changes.
const PADDING: i64 = 23;
const SAMPLES: usize = 24;
const STEPS: u64 = 20;
/// Less than the norm of any step here.
const LIMIT: f64 = 0.2;
const EVERY: [&str; 4] = ["table", "other", "fc.w", "fc.b"];

/// Two tables and a layer; decay is added to gradients that were clipped.
fn program(rule: Rule, limit: Option<f64>) -> Program {
    let (mut program, loss) = network();
    let clip = limit.map(Clip::GlobalNorm);
    let optimizer = Optimizer { clip, decay: Some(0.01), ..Optimizer::new(rule, 0.05) };
    optimizer.minimize(&mut program, loss).unwrap();
    program
}

fn network() -> (Program, VarId) {
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH, Dim::Fixed(2)]).unwrap();
    let y = b.feed("y", DType::F32, [BATCH, Dim::Fixed(1)]).unwrap();
    let normal = Init::Normal { mean: 0.0, std: 0.5 };
    let table = b.parameter("table", [ROWS as usize, 4], normal).unwrap();
    let other = b.parameter("other", [ROWS as usize, 4], normal).unwrap();
    let options = EmbeddingOptions { sparse: true, padding: Some(PADDING) };
    let x = b.lookup(table, ids, options).unwrap();
    let z = b.lookup(other, ids, options).unwrap();
    let x = b.add(x, z).unwrap();
    let x = b.reduce(Reduction::Sum, x, &[1], false).unwrap();
    let out = b.fc(x, 1, Act::None).unwrap();
    let error = b.sub(out, y).unwrap();
    let squares = b.mul(error, error).unwrap();
    let loss = b.mean(squares).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    (b.finish().unwrap(), loss)
}

/// The samples of a rank in a step; those of the last of several ranks have padding only, so that it touches no row.
fn share(step: u64, ranks: std::ops::Range<usize>, n: usize) -> [Tensor; 2] {
    let dice = Stream::new(17, step, 0);
    let size = SAMPLES / n;
    let last = if n > 1 { (n - 1) * size } else { SAMPLES };
    let own = ranks.start * size..ranks.end * size;
    let row = |i: usize| if i >= 2 * last { PADDING } else { (dice.bits(i as u64) % (ROWS - 1)) as i64 };
    let ids: Vec<i64> = own.clone().flat_map(|s| [row(2 * s), row(2 * s + 1)]).collect();
    let y: Vec<f32> = own.map(|s| 2.0 + dice.uniform(1000 + s as u64) as f32).collect();
    let n = y.len();
    [Tensor::new(&[n, 2], &ids).unwrap(), Tensor::new(&[n, 1], &y).unwrap()]
}

/// One process, one replica, all samples of `n` ranks; rows count `times` as much.
fn serial(rule: Rule, limit: Option<f64>, n: usize, times: usize) -> Vec<Vec<f64>> {
    let program = scale_rows(&program(rule, limit), times as f64).unwrap();
    let setup = Setup { replicas: Some(1), ..Setup::default() };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
    let mut store = Store::new(3);
    for step in 0..STEPS {
        let [ids, y] = share(step, 0..n, n);
        exe.run(&mut store, &[("ids", Feed::Split(&ids)), ("y", Feed::Split(&y))], &[]).unwrap();
    }
    EVERY.map(|name| store.get(name).unwrap().to_f64()).to_vec()
}

fn step(run: &mut ParallaxRun, step: u64, rank: usize, n: usize) -> Result<(), ParallaxError> {
    let [ids, y] = share(step, rank..rank + 1, n);
    run.step(&[("ids", Feed::Split(&ids)), ("y", Feed::Split(&y))], &[]).map(drop)
}

fn values(run: &mut ParallaxRun) -> Vec<Vec<f64>> {
    EVERY.map(|name| run.value(name).unwrap().to_f64()).to_vec()
}

fn assert_near(case: &str, got: &[Vec<Vec<f64>>], wanted: &[Vec<f64>]) {
    for (rank, got) in got.iter().enumerate() {
        for (name, (got, wanted)) in EVERY.iter().zip(got.iter().zip(wanted)) {
            let off = difference(got, wanted);
            assert!(off < 1e-6, "{case}: rank {rank}, {name} is off by {off}");
        }
    }
    assert!(got.iter().all(|other| *other == got[0]), "{case}: ranks differ");
}

/// PARALLAX-1 with the norm of all gradients, rows merged over all ranks; hosts of one, of two, of two and two, and of three and one.
#[test]
fn the_norm_of_all_gradients_is_that_of_one_process() {
    for rule in [Rule::Sgd, Rule::Adagrad { epsilon: 1e-6 }] {
        for (hosts, replicas) in
            [(&[0][..], 1), (&[0], 2), (&[0, 1], 1), (&[0, 0, 1, 1], 1), (&[0, 0, 0, 1], 1)]
        {
            for average_sparse in [false, true] {
                let n = hosts.len() * replicas;
                let times = if average_sparse { 1 } else { n };
                let wanted = serial(rule, Some(LIMIT), hosts.len(), times);
                let free = serial(rule, None, hosts.len(), times);
                assert!(wanted.iter().zip(&free).any(|(a, b)| difference(a, b) > 1e-3), "the limit acts");
                // One of two tables on servers, and tables and layer apart, are between HYBRID and PS.
                let one = [("other".to_string(), Lodging::AllReduce)].into();
                let shift = [("fc.b".to_string(), Lodging::Servers)].into();
                let ways = [
                    (AllotmentStrategy::AllReduce, BTreeMap::new()),
                    (AllotmentStrategy::Ps, BTreeMap::new()),
                    (AllotmentStrategy::Hybrid, BTreeMap::new()),
                    (AllotmentStrategy::Hybrid, one),
                    (AllotmentStrategy::Hybrid, shift),
                ];
                for (strategy, overrides) in ways {
                    let case =
                        format!("{rule:?} {hosts:?} {strategy:?} {overrides:?} average {average_sparse}");
                    let config = ParallaxConfig { average_sparse, replicas, overrides, ..config(strategy) };
                    let got = engines(hosts, |engine| {
                        let program = program(rule, Some(LIMIT));
                        parallel_run(&program, "loss", &engine, &config, |run, seat| {
                            for at in 0..STEPS {
                                step(run, at, seat.worker_id, seat.num_workers).unwrap();
                            }
                            values(run)
                        })
                        .unwrap()
                    });
                    assert_near(&case, &got, &wanted);
                }
            }
        }
    }
}

/// Steps that fail in the network of one rank push nothing where something is reduced (PARA-2), and tables are cut anew in between; the rest is
/// as if neither had been.
#[test]
fn clipping_goes_on_after_failed_steps_and_with_other_partitions() {
    let rule = Rule::Adagrad { epsilon: 1e-6 };
    let ways = [
        (AllotmentStrategy::Ps, false),
        (AllotmentStrategy::Ps, true),
        (AllotmentStrategy::Hybrid, false),
        (AllotmentStrategy::Hybrid, true),
    ];
    for (strategy, naive) in ways {
        let hosts = [0, 0, 1];
        let wanted = serial(rule, Some(LIMIT), 3, 1);
        let config = ParallaxConfig {
            average_sparse: true,
            local_aggregation: !naive,
            merge_rows: !naive,
            ..config(strategy.clone())
        };
        let got = engines(&hosts, |engine| {
            parallel_run(&program(rule, Some(LIMIT)), "loss", &engine, &config, |run, seat| {
                for at in 0..STEPS {
                    if at % 6 == 2 && strategy == AllotmentStrategy::Hybrid {
                        let row = if seat.worker_id == 1 { ROWS as i64 } else { 0 };
                        let ids = Tensor::new(&[8, 2], &[row; 16]).unwrap();
                        let y = Tensor::new(&[8, 1], &[0f32; 8]).unwrap();
                        let failed = run.step(&[("ids", Feed::Split(&ids)), ("y", Feed::Split(&y))], &[]);
                        assert!(failed.is_err(), "there is no row {ROWS}");
                    }
                    if at % 8 == 5 {
                        run.reshard(2 + at as u32).unwrap();
                    }
                    step(run, at, seat.worker_id, seat.num_workers).unwrap();
                }
                values(run)
            })
            .unwrap()
        });
        assert_near(&format!("{strategy:?} naive {naive}"), &got, &wanted);
    }
}

#[test]
fn without_sync_there_is_no_norm_of_all() {
    for clip in [Clip::GlobalNorm(LIMIT), Clip::Norm(LIMIT)] {
        let (mut program, loss) = network();
        let pairs = append_backward_of(&mut program, loss, Chosen::default()).unwrap();
        let is_clipped = |(p, _): &(VarId, VarId)| ["table", "fc.w"].contains(&program.var(*p).name.as_str());
        let (clipped, rest): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_clipped);
        for (clip, pairs) in [(Some(clip), clipped), (None, rest)] {
            let optimizer = Optimizer { clip, ..Optimizer::new(Rule::Sgd, 0.1) };
            optimizer.apply(&mut program, &pairs).unwrap();
        }
        let config = ParallaxConfig { sync: false, ..config(AllotmentStrategy::Ps) };
        let refused = engines(&[0], |engine| {
            ParallaxRun::new(&program, "loss", &engine, &config).unwrap_err().to_string()
        });
        assert_eq!(
            refused[0],
            "without sync every push is applied by itself, and no gradient of all workers is there to be clipped, but those of `table`, `fc.w` are; leave clipping out, or use sync"
        );
    }
}
