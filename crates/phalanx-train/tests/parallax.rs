//! Programs whose variables are on servers, reduced, or both: what worlds of ranks learn, and what crosses between hosts.

use crate::worlds::engines;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Feed, Fetch, Init, Optimizer, ParallelExecutor, Program, Rule, Setup, Store,
    Tensor, graph::scale_rows, kernel::Stream, layers::EmbeddingOptions, op::Reduction,
};
use phalanx_train::parallax::{
    AllotmentStrategy, Lodging, ParallaxConfig, ParallaxError, ParallaxRun, parallel_run,
};
use std::collections::BTreeMap;

pub const ROWS: u64 = 24;
/// Divisible by the ranks and replicas of every world here.
const SAMPLES: usize = 24;
pub const STEPS: u64 = 20;

/// A table, and a layer behind it.
pub fn program(rule: Rule) -> Program {
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH, Dim::Fixed(2)]).unwrap();
    let y = b.feed("y", DType::F32, [BATCH, Dim::Fixed(1)]).unwrap();
    let table = b.parameter("table", [ROWS as usize, 4], Init::Normal { mean: 0.0, std: 0.5 }).unwrap();
    let x = b.lookup(table, ids, EmbeddingOptions { sparse: true, padding: None }).unwrap();
    let x = b.reduce(Reduction::Sum, x, &[1], false).unwrap();
    let out = b.fc(x, 1, Act::None).unwrap();
    let error = b.sub(out, y).unwrap();
    let squares = b.mul(error, error).unwrap();
    let loss = b.mean(squares).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(rule, 0.05).minimize(&mut program, loss).unwrap();
    program
}

/// The samples of a rank in a step: of all samples those that are its share.
pub fn share(step: u64, rank: usize, n: usize) -> [Tensor; 2] {
    let dice = Stream::new(11, step, 0);
    let size = SAMPLES / n;
    let own = rank * size..(rank + 1) * size;
    let ids: Vec<i64> =
        own.clone().flat_map(|s| [2 * s, 2 * s + 1]).map(|i| (dice.bits(i as u64) % ROWS) as i64).collect();
    let y: Vec<f32> = own.map(|s| dice.uniform(1000 + s as u64) as f32).collect();
    [Tensor::new(&[size, 2], &ids).unwrap(), Tensor::new(&[size, 1], &y).unwrap()]
}

pub const EVERY: [&str; 3] = ["table", "fc.w", "fc.b"];

/// One process, one replica, all samples; rows count `times` as much.
pub fn serial(rule: Rule, times: usize) -> Vec<Vec<f64>> {
    let program = scale_rows(&program(rule), times as f64).unwrap();
    let setup = Setup { replicas: Some(1), ..Setup::default() };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
    let mut store = Store::new(3);
    for step in 0..STEPS {
        let [ids, y] = share(step, 0, 1);
        exe.run(&mut store, &[("ids", Feed::Split(&ids)), ("y", Feed::Split(&y))], &[]).unwrap();
    }
    EVERY.map(|name| store.get(name).unwrap().to_f64()).to_vec()
}

pub fn train(run: &mut ParallaxRun, steps: std::ops::Range<u64>, rank: usize, n: usize) -> f64 {
    let mut loss = 0.0;
    for step in steps {
        let [ids, y] = share(step, rank, n);
        let feeds = [("ids", Feed::Split(&ids)), ("y", Feed::Split(&y))];
        loss = run.step(&feeds, &[Fetch::mean("loss")]).unwrap()[0].one().to_f64()[0];
    }
    loss
}

pub fn config(strategy: AllotmentStrategy) -> ParallaxConfig {
    ParallaxConfig { strategy, seed: 3, samples_per_worker: 6, ..ParallaxConfig::default() }
}

pub fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn every_strategy_learns_what_one_process_learns() {
    // PARALLAX-1; hosts of one, of two, and of three and one.
    for rule in [Rule::Sgd, Rule::Adagrad { epsilon: 1e-6 }] {
        for (hosts, replicas) in [(&[0][..], 2), (&[0, 1], 1), (&[0, 0, 1, 1], 1), (&[0, 0, 0, 1], 1)] {
            for average_sparse in [false, true] {
                let n = hosts.len() * replicas;
                let wanted = serial(rule, if average_sparse { 1 } else { n });
                let ways = [AllotmentStrategy::AllReduce, AllotmentStrategy::Ps, AllotmentStrategy::Hybrid];
                for strategy in ways {
                    let case = format!("{rule:?} {hosts:?} {strategy:?} average {average_sparse}");
                    let config = ParallaxConfig { average_sparse, replicas, ..config(strategy) };
                    let got = engines(hosts, |engine| {
                        parallel_run(&program(rule), "loss", &engine, &config, |run, seat| {
                            assert_eq!(seat.num_workers, hosts.len());
                            train(run, 0..STEPS, seat.worker_id, seat.num_workers);
                            EVERY.map(|name| run.value(name).unwrap().to_f64()).to_vec()
                        })
                        .unwrap()
                    });
                    for (rank, got) in got.iter().enumerate() {
                        for (name, (got, wanted)) in EVERY.iter().zip(got.iter().zip(&wanted)) {
                            let off = difference(got, wanted);
                            assert!(off < 1e-6, "{case}: rank {rank}, {name} is off by {off}");
                        }
                    }
                    assert!(got.iter().all(|other| *other == got[0]), "{case}: ranks differ");
                }
            }
        }
    }
}

/// Gradients that are multiples of 1/16 of few bits: every order of sums has the same bits.
#[test]
fn exact_sums_have_the_same_bits_in_every_strategy() {
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH]).unwrap();
    let slope = b.feed("slope", DType::F32, [BATCH, Dim::Fixed(2)]).unwrap();
    let table = b.parameter("table", [6, 2], Init::Constant(0.5)).unwrap();
    let shift = b.parameter("shift", [2], Init::Constant(0.25)).unwrap();
    let x = b.lookup(table, ids, EmbeddingOptions { sparse: true, padding: None }).unwrap();
    let x = b.add(x, shift).unwrap();
    let x = b.mul(x, slope).unwrap();
    let loss = b.mean(x).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, 0.5).minimize(&mut program, loss).unwrap();
    let samples = |step: u64, rank: usize, n: usize| {
        let size = 8 / n;
        let own = rank * size..(rank + 1) * size;
        let ids: Vec<i64> = own.clone().map(|s| ((s as u64 * 5 + step) % 6) as i64).collect();
        let slopes: Vec<f32> =
            own.flat_map(|s| [s as u64 + step, 3 * s as u64 + step]).map(|i| (i % 9) as f32 - 4.0).collect();
        [Tensor::new(&[size], &ids).unwrap(), Tensor::new(&[size, 2], &slopes).unwrap()]
    };
    let mut all = Vec::new();
    for hosts in [&[0][..], &[0, 1], &[0, 0, 0, 1]] {
        for strategy in [AllotmentStrategy::AllReduce, AllotmentStrategy::Ps, AllotmentStrategy::Hybrid] {
            let config = ParallaxConfig { average_sparse: true, ..config(strategy) };
            let got = engines(hosts, |engine| {
                parallel_run(&program, "loss", &engine, &config, |run, seat| {
                    for step in 0..4 {
                        let [ids, slope] = samples(step, seat.worker_id, seat.num_workers);
                        let feeds = [("ids", Feed::Split(&ids)), ("slope", Feed::Split(&slope))];
                        run.step(&feeds, &[]).unwrap();
                    }
                    ["table", "shift"].map(|name| run.value(name).unwrap().bytes().to_vec())
                })
                .unwrap()
            });
            all.extend(got);
        }
    }
    assert!(all.iter().all(|other| *other == all[0]));
}

/// What `explain` and the counters say of the behaviours that Parallax documents.
#[test]
fn counters_show_one_pull_a_host_and_pushes_of_the_union() {
    let rule = Rule::Sgd;
    let hosts = [0, 0, 1, 1];
    let config = config(AllotmentStrategy::Hybrid);
    let got = engines(&hosts, |engine| {
        parallel_run(&program(rule), "loss", &engine, &config, |run, seat| {
            train(run, 0..1, seat.worker_id, seat.num_workers);
            let told = run.explain().unwrap();
            // Everybody's push of the step has been applied when its rows can be read.
            run.value("table").unwrap();
            (told, run.counters().unwrap(), run.executor.graph().to_json())
        })
        .unwrap()
    });
    let rows = |ranks: [usize; 2]| {
        let of = |rank| share(0, rank, 4)[0].data::<i64>().unwrap().to_vec();
        let mut all = [of(ranks[0]), of(ranks[1])].concat();
        all.sort_unstable();
        all.dedup();
        all.len() as u64
    };
    for (rank, union) in [(0, rows([0, 1])), (2, rows([2, 3]))] {
        let (told, counters, graph) = &got[rank];
        assert!(told.contains("table -> servers") && told.contains("fc.w -> allreduce"), "{told}");
        assert!(told.contains("table table: 24 x 4 f32, 4 partitions"), "{told}");
        assert_eq!(counters.office.pulled_rows, union, "one pull a host");
        assert_eq!(counters.office.pushed_rows, union, "R6: pushed rows are the union");
        assert!(counters.office.given_rows >= union, "what workers of the host gave");
        assert!(counters.bytes_out > 0 && graph.contains("\"pull\""));
    }
    assert_eq!(got[1].1.office.pulls, 0, "the other rank of the host asks no server");
}

#[test]
fn without_rows_no_server_starts_and_with_rows_only_nothing_is_reduced() {
    let hosts = [0, 1];
    let dense = [("table".to_string(), Lodging::AllReduce)].into();
    let sparse: BTreeMap<_, _> = ["fc.w", "fc.b"].map(|name| (name.to_string(), Lodging::Servers)).into();
    for (overrides, servers, exchanges) in [(dense, false, true), (sparse, true, false)] {
        let config = ParallaxConfig { overrides, ..config(AllotmentStrategy::Hybrid) };
        engines(&hosts, |engine| {
            parallel_run(&program(Rule::Sgd), "loss", &engine, &config, |run, seat| {
                train(run, 0..2, seat.worker_id, seat.num_workers);
                assert_eq!(run.allotment().has_servers(), servers);
                let graph = run.executor.graph().to_json();
                let reduces = graph.contains("\"exchange\"") || graph.contains("\"gather\"");
                assert_eq!(reduces, exchanges, "{graph}");
                assert_eq!(run.counters().unwrap() != Default::default(), servers);
            })
            .unwrap();
        });
    }
}

/// Values with 4 partitions go into tables with 7, and tables are cut anew while they train: the same bits, also of the steps that follow.
#[test]
fn saved_with_4_partitions_restored_with_7_and_cut_anew_in_between() {
    for rule in [Rule::Adagrad { epsilon: 1e-6 }, Rule::adam()] {
        let names = match rule {
            Rule::Adagrad { .. } => {
                vec!["table", "table.squares", "fc.w", "fc.w.squares", "fc.b", "fc.b.squares"]
            }
            _ => vec!["table", "table.moment1", "table.moment2"],
        };
        let hosts = [0, 0, 1];
        let with = |partitions| ParallaxConfig {
            partitions: Some(partitions),
            average_sparse: true,
            ..config(AllotmentStrategy::Hybrid)
        };
        let values = |run: &mut ParallaxRun| -> Vec<Tensor> {
            names.iter().map(|name| run.value(name).unwrap()).collect()
        };
        let cut = |again: Option<u32>, partitions| {
            engines(&hosts, |engine| {
                parallel_run(&program(rule), "loss", &engine, &with(partitions), |run, seat| {
                    train(run, 0..5, seat.worker_id, seat.num_workers);
                    let middle = values(run);
                    if let Some(again) = again {
                        run.reshard(again).unwrap();
                        assert!(run.explain().unwrap().contains(&format!("{again} partitions")));
                    }
                    let after = values(run);
                    assert!(middle.iter().zip(&after).all(|(a, b)| a.bytes() == b.bytes()), "RESHARD-1");
                    train(run, 5..10, seat.worker_id, seat.num_workers);
                    (middle, values(run))
                })
                .unwrap()
            })
        };
        let kept = cut(None, 4);
        let moved = cut(Some(7), 4);
        let same = |a: &[Tensor], b: &[Tensor]| a.iter().zip(b).all(|(a, b)| a.bytes() == b.bytes());
        for (kept, moved) in kept.iter().zip(&moved) {
            assert!(same(&kept.0, &moved.0) && same(&kept.1, &moved.1), "{rule:?}");
        }
        if !matches!(rule, Rule::Adagrad { .. }) {
            // The steps that Adam counts for what is reduced are among other values; of the table they are its age.
            continue;
        }
        let restored = engines(&hosts, |engine| {
            parallel_run(&program(rule), "loss", &engine, &with(7), |run, seat| {
                for (name, value) in names.iter().zip(&kept[0].0) {
                    run.set(name, value).unwrap();
                }
                run.set_age("table", 5).unwrap();
                assert!(same(&values(run), &kept[0].0));
                train(run, 5..10, seat.worker_id, seat.num_workers);
                values(run)
            })
            .unwrap()
        });
        assert!(restored.iter().all(|got| same(got, &kept[0].1)), "restored with 7 partitions");
    }
}

/// What Adam has learned with everything on servers, straight or resumed in the middle with other partitions.
#[test]
fn adam_on_servers_resumes_at_its_step() {
    let hosts = [0, 0, 1];
    let with = |partitions| ParallaxConfig { partitions: Some(partitions), ..config(AllotmentStrategy::Ps) };
    let names: Vec<String> = EVERY
        .iter()
        .flat_map(|name| [name.to_string(), format!("{name}.moment1"), format!("{name}.moment2")])
        .collect();
    let all = |run: &mut ParallaxRun| -> Vec<Tensor> {
        names.iter().map(|name| run.value(name).unwrap()).collect()
    };
    let straight = engines(&hosts, |engine| {
        parallel_run(&program(Rule::adam()), "loss", &engine, &with(4), |run, seat| {
            train(run, 0..5, seat.worker_id, seat.num_workers);
            let middle = (all(run), EVERY.map(|name| run.age(name).unwrap()));
            train(run, 5..10, seat.worker_id, seat.num_workers);
            (middle, all(run))
        })
        .unwrap()
    });
    let ((middle, ages), wanted) = &straight[0];
    assert_eq!(*ages, [5; 3]);
    let resumed = engines(&hosts, |engine| {
        parallel_run(&program(Rule::adam()), "loss", &engine, &with(7), |run, seat| {
            for (name, value) in names.iter().zip(middle) {
                run.set(name, value).unwrap();
            }
            for (name, age) in EVERY.iter().zip(ages) {
                run.set_age(name, *age).unwrap();
            }
            train(run, 5..10, seat.worker_id, seat.num_workers);
            all(run)
        })
        .unwrap()
    });
    let bytes = |all: &[Tensor]| all.iter().map(|t| t.bytes().to_vec()).collect::<Vec<_>>();
    assert!(resumed.iter().all(|got| bytes(got) == bytes(wanted)));
}

/// The naive ways, which benchmarks compare with, learn the same.
#[test]
fn workers_that_ask_servers_by_themselves_learn_the_same() {
    let hosts = [0, 0, 1, 1];
    let wanted = serial(Rule::Sgd, 1);
    for strategy in [AllotmentStrategy::Ps, AllotmentStrategy::Hybrid] {
        let naive = ParallaxConfig {
            average_sparse: true,
            local_aggregation: false,
            merge_rows: false,
            ..config(strategy)
        };
        let got = engines(&hosts, |engine| {
            parallel_run(&program(Rule::Sgd), "loss", &engine, &naive, |run, seat| {
                train(run, 0..STEPS, seat.worker_id, seat.num_workers);
                let values = EVERY.map(|name| run.value(name).unwrap().to_f64()).to_vec();
                (values, run.counters().unwrap().office)
            })
            .unwrap()
        });
        for (values, office) in &got {
            assert!(values.iter().zip(&wanted).all(|(got, wanted)| difference(got, wanted) < 1e-6));
            assert_eq!(office.given_rows, office.pushed_rows, "nothing is merged on the way");
        }
    }
}

/// CLIENT-1: a worker's pull has all its pushes before it, at whatever pace.
#[test]
fn without_sync_workers_learn_at_their_own_pace() {
    let config = ParallaxConfig { sync: false, ..config(AllotmentStrategy::Ps) };
    let hosts = [0, 0, 1];
    let losses = engines(&hosts, |engine| {
        let rank = engine.rank().index();
        parallel_run(&program(Rule::Sgd), "loss", &engine, &config, |run, seat| {
            let first = train(run, 0..1, seat.worker_id, seat.num_workers);
            // Nobody waits for the others: they do not even run the same number of steps.
            for _ in 0..60 + 40 * rank {
                train(run, 0..1, seat.worker_id, seat.num_workers);
            }
            (first, train(run, 0..1, seat.worker_id, seat.num_workers))
        })
        .unwrap()
    });
    for (first, last) in losses {
        assert!(last < 0.7 * first, "{first} -> {last}");
    }
    let hybrid = ParallaxConfig { sync: false, ..self::config(AllotmentStrategy::Hybrid) };
    let refused = engines(&[0], |engine| {
        let run = ParallaxRun::new(&program(Rule::Sgd), "loss", &engine, &hybrid);
        run.unwrap_err().to_string()
    });
    assert_eq!(
        refused[0],
        "without sync nobody waits for the others, but `fc.w`, `fc.b` would be reduced between them; use AllotmentStrategy::Ps"
    );
    let stale = ParallaxConfig { staleness: Some(2), sync: true, ..hybrid };
    engines(&[0], |engine| {
        let run = ParallaxRun::new(&program(Rule::Sgd), "loss", &engine, &stale);
        assert!(matches!(run, Err(ParallaxError::Stale(2))));
    });
}
