//! Small models of every kind: they learn, the same way every time, with any memory plan; and rewritten so that they keep
//! less (AGAIN-1, AGAIN-2) or take large batches in pieces (ACCUM-1).

use crate::models::{self, Model};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Clip, Dim, Executor, Feed, Fetch, GraphError, Optimizer, Options, ParallelExecutor,
    Program, ReduceStrategy, Role, Rule, Schedule, Setup, Store, Tensor, accumulate, append_backward_with,
    plan::Reuse, recompute,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Losses and everything in the store, as bytes.
type Trained = (Vec<f64>, BTreeMap<String, Vec<u8>>);

fn ready(model: &Model, dtype: DType, with_checkpoints: bool) -> Program {
    let built = (model.build)(dtype).unwrap_or_else(|e| panic!("{}: {e}", model.name));
    let mut program = built.program;
    let checkpoints = if with_checkpoints { built.checkpoints } else { Vec::new() };
    model.optimizer.minimize_with(&mut program, built.loss, &checkpoints).unwrap();
    program.verify().unwrap();
    program
}

fn borrowed<'a>(feeds: &'a [(&'static str, Tensor)]) -> Vec<(&'a str, &'a Tensor)> {
    feeds.iter().map(|(name, value)| (*name, value)).collect()
}

/// Steps with batches of 16, 17 and 18 in turn.
fn train(model: &Model, program: Program, reuse: Reuse, steps: u64) -> Trained {
    let mut executor =
        Executor::new(program, Options { reuse, check_finite: true, ..Options::default() }).unwrap();
    let mut store = Store::new(11);
    let mut losses = Vec::new();
    for step in 0..steps {
        let feeds = (model.data)(DType::F32, 16 + step as usize % 3, step);
        let out = executor.run(&mut store, &borrowed(&feeds), &["loss"]).unwrap();
        losses.push(out[0].to_f64()[0]);
    }
    (losses, bytes(&mut store))
}

fn bytes(store: &mut Store) -> BTreeMap<String, Vec<u8>> {
    let names: Vec<String> = store.names().map(str::to_string).collect();
    names.into_iter().map(|n| (n.clone(), store.get(&n).unwrap().bytes().to_vec())).collect()
}

fn mean(part: &[f64]) -> f64 {
    part.iter().sum::<f64>() / part.len() as f64
}

#[test]
fn every_model_learns() {
    for model in models::all() {
        let (losses, _) = train(&model, ready(&model, DType::F32, false), Reuse::ALL, 80);
        let (first, last) = (mean(&losses[..5]), mean(&losses[75..]));
        assert!(last < 0.6 * first, "{}: {first} to {last}", model.name);
    }
}

#[test]
fn no_memory_plan_and_no_checkpoint_changes_a_bit() {
    for model in models::all() {
        let wanted = train(&model, ready(&model, DType::F32, false), Reuse::ALL, 6);
        let again = train(&model, ready(&model, DType::F32, false), Reuse::ALL, 6);
        let apart = train(&model, ready(&model, DType::F32, false), Reuse::NONE, 6);
        let less = train(&model, ready(&model, DType::F32, true), Reuse::ALL, 6);
        assert_eq!(wanted, again, "{}: a second time", model.name);
        assert_eq!(wanted, apart, "MEMPLAN-5: {}", model.name);
        assert_eq!(wanted, less, "AGAIN-1: {}", model.name);
    }
}

#[test]
fn a_model_for_tests_sees_what_was_learned_and_finds_the_tags() {
    let all = models::all();
    let model = all.iter().find(|m| m.name == "tagger, sparse table").unwrap();
    let program = ready(model, DType::F32, true);
    let test = program.clone_for_test();
    test.verify().unwrap();
    let mut trainer = Executor::new(program, Options::default()).unwrap();
    let mut tester = Executor::new(test, Options::default()).unwrap();
    let mut store = Store::new(2);
    let held = (model.data)(DType::F32, 64, 1_000_000);
    let mut right = |store: &mut Store| {
        let path = tester.run(store, &borrowed(&held), &["path"]).unwrap().remove(0);
        let of = |name: &str| held.iter().find(|f| f.0 == name).unwrap().1.data::<i64>().unwrap();
        let (tags, lengths, path) = (of("tags"), of("lengths"), path.data::<i64>().unwrap());
        let time = tags.len() / lengths.len();
        let within = |i: &usize| (i % time) < lengths[i / time] as usize;
        let seen: Vec<usize> = (0..tags.len()).filter(within).collect();
        seen.iter().filter(|&&i| tags[i] == path[i]).count() as f64 / seen.len() as f64
    };
    trainer.prepare(&mut store).unwrap();
    let before = right(&mut store);
    for step in 0..150 {
        let feeds = (model.data)(DType::F32, 24, step);
        trainer.run(&mut store, &borrowed(&feeds), &[]).unwrap();
    }
    let after = right(&mut store);
    assert!(before < 0.6 && after > 0.9, "{before} to {after} of the tags are right");
}

#[test]
fn a_sparse_table_learns_what_a_dense_one_does() {
    let all = models::all();
    let table = |name: &str| {
        let model = all.iter().find(|m| m.name == name).unwrap();
        let mut executor = Executor::new(ready(model, DType::F64, false), Options::default()).unwrap();
        let mut store = Store::new(5);
        for step in 0..10 {
            let feeds = (model.data)(DType::F64, 9, step);
            executor.run(&mut store, &borrowed(&feeds), &[]).unwrap();
        }
        store.get("emb").unwrap().to_f64()
    };
    let (dense, sparse) = (table("tagger, dense table"), table("tagger, sparse table"));
    for (a, b) in dense.iter().zip(&sparse) {
        assert!((a - b).abs() < 1e-12, "{a} and {b}");
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

#[test]
fn losses_of_whole_models_are_those_of_pytorch() {
    let file: Value = serde_json::from_str(include_str!("fixtures/models.json")).unwrap();
    let all = models::all();
    let of = file.as_object().unwrap();
    assert_eq!(of.len(), 4);
    for (name, wanted) in of {
        let model = all.iter().find(|m| m.name == name).unwrap();
        let program = ready(model, DType::F64, false);
        let mut learned: Vec<String> =
            program.trainable().iter().map(|&p| program.var(p).name.clone()).collect();
        learned.sort();
        let given = wanted["parameters"].as_object().unwrap();
        assert!(learned.iter().eq(given.keys()), "{name}: {learned:?}");
        let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
        let start = || {
            let mut store = Store::new(0);
            Executor::new(program.clone(), Options::default()).unwrap().prepare(&mut store).unwrap();
            for (k, (parameter, dims)) in given.iter().enumerate() {
                let dims: Vec<usize> = numbers(dims).iter().map(|&d| d as usize).collect();
                let n = dims.iter().product::<usize>();
                let start: Vec<f64> =
                    (0..n).map(|i| 0.4 * (0.9 * i as f64 + 1.3 * (k + 1) as f64).sin()).collect();
                store.set(parameter, &Tensor::new(&dims, &start).unwrap()).unwrap();
            }
            store
        };
        let mut store = start();
        let feeds: Vec<(&str, Tensor)> = wanted["feeds"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(feed, value)| {
                let dims: Vec<usize> = numbers(&value["dims"]).iter().map(|&d| d as usize).collect();
                let data = numbers(&value["data"]);
                let whole: Vec<i64> = data.iter().map(|&v| v as i64).collect();
                let tensor = match program.sig(program.find(feed).unwrap()).dtype {
                    DType::F64 => Tensor::new(&dims, &data),
                    _ => Tensor::new(&dims, &whole),
                };
                (feed.as_str(), tensor.unwrap())
            })
            .collect();
        let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(feed, t)| (*feed, t)).collect();
        for (step, wanted) in numbers(&wanted["losses"]).into_iter().enumerate() {
            let got = executor.run(&mut store, &feeds, &["loss"]).unwrap()[0].to_f64()[0];
            assert!((got - wanted).abs() < 1e-8, "{name}, step {step}: {got}, PyTorch says {wanted}");
        }
        if name.starts_with("SE-ResNeXt") {
            for (replicas, way) in [(2, ReduceStrategy::Reduce), (4, ReduceStrategy::AllReduce)] {
                // Its loss is a mean over samples: replicas that share statistics have it, too.
                let mut setup = Setup { replicas: Some(replicas), ..Setup::default() };
                (setup.build.reduce_strategy, setup.build.sync_batch_norm) = (way, true);
                let mut executor = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
                let mut store = start();
                let split: Vec<(&str, Feed)> = feeds.iter().map(|(n, t)| (*n, Feed::Split(t))).collect();
                for (step, wanted) in numbers(&wanted["losses"]).into_iter().enumerate() {
                    let out = executor.run(&mut store, &split, &[Fetch::mean("loss")]).unwrap();
                    let got = out[0].one().to_f64()[0];
                    assert!((got - wanted).abs() < 1e-8, "{way:?}, step {step}: {got} and {wanted}");
                }
            }
        }
    }
}

/// A deep network, every fourth layer of which is a checkpoint, with a random number in every layer.
fn deep(checkpoints: bool) -> Program {
    let mut b = Builder::new();
    let mut x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(32)]).unwrap();
    let mut kept = Vec::new();
    for layer in 0..16 {
        x = b.fc(x, 32, Act::Gelu).unwrap();
        x = b.layer_norm(x, 1).unwrap();
        x = b.dropout(x, 0.3).unwrap();
        if layer % 4 == 3 && layer < 15 {
            kept.push(x);
        }
    }
    let loss = b.mse(x, x).unwrap();
    let scores = b.mean(x).unwrap();
    let loss = b.add(loss, scores).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    let kept = if checkpoints { kept } else { Vec::new() };
    Optimizer::new(Rule::Sgd, 0.1).minimize_with(&mut program, loss, &kept).unwrap();
    program.verify().unwrap();
    program
}

#[test]
fn checkpoints_save_memory_and_change_nothing() {
    let x: Vec<f32> = (0..256 * 32).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = Tensor::new(&[256, 32], &x).unwrap();
    let run = |checkpoints| {
        let mut executor = Executor::new(deep(checkpoints), Options::default()).unwrap();
        let mut store = Store::new(3);
        let losses: Vec<Vec<f64>> =
            (0..4).map(|_| executor.run(&mut store, &[("x", &x)], &["loss"]).unwrap()[0].to_f64()).collect();
        (losses, bytes(&mut store), executor.arena_bytes())
    };
    let (all, few) = (run(false), run(true));
    assert_eq!((&all.0, &all.1), (&few.0, &few.1), "AGAIN-1");
    assert!(few.2 * 2 < all.2, "{} bytes instead of {}", few.2, all.2);
}

#[test]
fn what_writes_to_the_store_runs_once_and_nothing_runs_again_in_vain() {
    let count = |program: &Program, kind: &str, role: Option<Role>| {
        let fits = |op: &phalanx_graph::ir::Op| op.kind.kind() == kind && role.is_none_or(|r| op.role == r);
        program.ops().filter(|(_, op)| fits(op)).count()
    };
    let all = models::all();
    let model = all.iter().find(|m| m.name == "SE-ResNeXt").unwrap();
    let (plain, less) = (ready(model, DType::F32, false), ready(model, DType::F32, true));
    for kind in ["BatchNorm", "Sgd", "Momentum"] {
        assert_eq!(count(&plain, kind, None), count(&less, kind, None), "AGAIN-2: {kind}");
    }
    for model in &all {
        let program = ready(model, DType::F32, true);
        for (_, op) in program.ops().filter(|(_, op)| op.role == Role::Backward) {
            let again = op.outputs.iter().all(|&o| program.var(o).name.contains("@AGAIN"));
            let is_read = |id| program.ops().any(|(_, other)| other.inputs.contains(id));
            assert!(!again || op.outputs.iter().any(is_read), "{}: `{}` in vain", model.name, op.name());
        }
    }
    let test = ready(model, DType::F32, true).clone_for_test();
    assert!(test.vars().all(|(_, v)| !v.name.contains("@AGAIN")));
}

#[test]
fn checkpoints_that_nothing_computes_are_refused() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(2)]).unwrap();
    let y = b.fc(x, 2, Act::Tanh).unwrap();
    let loss = b.mean(y).unwrap();
    let mut program = b.finish().unwrap();
    let before = program.clone();
    let error = append_backward_with(&mut program, loss, &[], &[x]).unwrap_err();
    assert!(matches!(&error, GraphError::Checkpoint { var, .. } if var == "x"), "{error}");
    assert!(error.to_string().contains("acceptance.rs:"), "{error}");
    assert_eq!(program, before);
    let mut again = ready(&models::all()[0], DType::F32, false);
    let before = again.clone();
    assert_eq!(recompute(&mut again, &[]).unwrap(), 0);
    assert!(matches!(recompute(&mut program, &[x]), Ok(0)), "without gradients there is nothing to do");
    assert_eq!(again, before);
}

/// The first samples of a batch, and the others.
fn cut(feeds: &[(&'static str, Tensor)], from: usize, n: usize) -> Vec<(&'static str, Tensor)> {
    let part = |t: &Tensor| {
        let mut dims = t.dims().to_vec();
        let each = dims[1..].iter().product::<usize>();
        dims[0] = n;
        Tensor::new(&dims, &t.data::<i64>().unwrap()[from * each..][..n * each]).unwrap()
    };
    feeds.iter().map(|(name, t)| (*name, part(t))).collect()
}

#[test]
fn a_batch_in_pieces_teaches_what_it_does_at_once() {
    let rules = [
        Optimizer::new(Rule::Sgd, 0.3),
        Optimizer { clip: Some(Clip::GlobalNorm(0.2)), ..Optimizer::new(Rule::adam(), 0.01) },
        Optimizer {
            decay: Some(0.01),
            rate: Schedule::Exponential { rate: 0.2, decay: 0.5, every: 2.0, stairs: false },
            ..Optimizer::new(Rule::Momentum { mu: 0.9, nesterov: true }, 0.0)
        },
        Optimizer::new(Rule::Lars { mu: 0.9, coefficient: 0.02, decay: 1e-4 }, 1.0),
    ];
    let all = models::all();
    let model = all.iter().find(|m| m.name == "tagger, dense table").unwrap();
    for (optimizer, pieces) in rules.iter().zip([3, 2, 4, 1]) {
        let built = (model.build)(DType::F64).unwrap();
        let mut whole = built.program;
        optimizer.minimize(&mut whole, built.loss).unwrap();
        let mut parts = whole.clone();
        accumulate(&mut parts, pieces).unwrap();
        parts.verify().unwrap();
        let read: Program = serde_json::from_str(&serde_json::to_string(&parts).unwrap()).unwrap();
        assert_eq!(read, parts);
        let mut at_once = Executor::new(whole, Options::default()).unwrap();
        let mut in_pieces = Executor::new(parts, Options::default()).unwrap();
        let (mut one, mut other) = (Store::new(6), Store::new(6));
        in_pieces.prepare(&mut other).unwrap();
        for step in 0..5 {
            let feeds = (model.data)(DType::F64, 4 * pieces, step);
            at_once.run(&mut one, &borrowed(&feeds), &[]).unwrap();
            for piece in 0..pieces {
                let before = other.get("emb").unwrap();
                in_pieces.run(&mut other, &borrowed(&cut(&feeds, 4 * piece, 4)), &[]).unwrap();
                let changed = other.get("emb").unwrap() != before;
                assert_eq!(changed, piece + 1 == pieces, "{optimizer:?}: step {step}, piece {piece}");
            }
        }
        let names: Vec<String> = one.names().map(str::to_string).collect();
        assert!(names.len() >= 18, "16 parameters, a rate and a counter at least: {names:?}");
        for name in names {
            let (a, b) = (one.get(&name).unwrap().to_f64(), other.get(&name).unwrap().to_f64());
            let far = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / (1.0 + a.abs())).fold(0.0, f64::max);
            assert!(far < 1e-9, "ACCUM-1: {optimizer:?}: {name} differs by {far}");
        }
    }
}

#[test]
fn programs_whose_gradients_cannot_be_accumulated_stay_as_they_are() {
    let all = models::all();
    let find = |name: &str| all.iter().find(|m| m.name == name).unwrap();
    let refused = |program: &mut Program, runs| {
        let before = program.clone();
        let error = accumulate(program, runs).unwrap_err();
        assert_eq!(*program, before, "{error}");
        assert!(error.to_string().contains("acceptance.rs:"), "{error}");
        error
    };
    let mut bare = (find("transformer").build)(DType::F32).unwrap().program;
    assert!(refused(&mut bare, 2).to_string().contains("minimize"));
    let mut program = ready(find("transformer"), DType::F32, false);
    assert!(refused(&mut program, 0).to_string().contains("at least one run"));
    accumulate(&mut program, 2).unwrap();
    assert!(refused(&mut program, 2).to_string().contains("already"));
    let error = refused(&mut ready(find("tagger, sparse table"), DType::F32, false), 2);
    assert!(matches!(error, GraphError::SparseGradient { var, .. } if var == "emb"));
}
