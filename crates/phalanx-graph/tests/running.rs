//! Programs from feed to fetch: EXEC-1, EXEC-3, MEMPLAN-3 to MEMPLAN-5, GRAPH-1, GRAPH-2, GRAPH-3.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Clip, Dim, Executor, GraphError, Init, Optimizer, Options, Program, Rule, RunError,
    Schedule, Store, Tensor,
    kernel::Stream,
    layers::{BatchNormOptions, ConvOptions, EmbeddingOptions},
    op::{Pool, Reduction, SquaredNorm},
    plan::Reuse,
};

const WIDTH: usize = 12;

/// A small network with most layers in it; the loss is called `loss`.
fn classifier(optimizer: Option<&Optimizer>) -> Program {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1), Dim::Fixed(WIDTH), Dim::Fixed(WIDTH)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let c = b.conv2d(x, ConvOptions { act: Act::Relu, ..ConvOptions::new(4, 3) }).unwrap();
    let p = b.pool2d(c, Pool::Max, 2, 2).unwrap();
    let n = b.batch_norm(p, BatchNormOptions::default()).unwrap();
    let f = b.flatten(n).unwrap();
    let h = b.fc(f, 16, Act::Tanh).unwrap();
    let h = b.dropout(h, 0.1).unwrap();
    let h = b.named(h, "hidden").unwrap();
    let scores = b.fc(h, 3, Act::None).unwrap();
    let (loss, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(loss).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let accuracy = b.accuracy(scores, label, 1).unwrap();
    b.named(accuracy, "accuracy").unwrap();
    let mut program = b.finish().unwrap();
    if let Some(optimizer) = optimizer {
        optimizer.minimize(&mut program, loss).unwrap();
        program.verify().unwrap();
    }
    program
}

/// Images whose bright third is their class.
fn batch(n: usize, seed: u64) -> (Tensor, Tensor) {
    let dice = Stream::new(seed, 9, 9);
    let labels: Vec<i64> = (0..n).map(|i| (dice.bits(i as u64) % 3) as i64).collect();
    let pixel = |i: usize| {
        let (sample, row) = (i / (WIDTH * WIDTH), i / WIDTH % WIDTH);
        let bright = row / (WIDTH / 3) == labels[sample] as usize;
        dice.uniform((1000 + i) as u64) as f32 + if bright { 0.7 } else { 0.0 }
    };
    let x: Vec<f32> = (0..n * WIDTH * WIDTH).map(pixel).collect();
    (Tensor::new(&[n, 1, WIDTH, WIDTH], &x).unwrap(), Tensor::new(&[n], &labels).unwrap())
}

fn train(optimizer: &Optimizer, options: Options, steps: u64) -> (Vec<f32>, Store) {
    let mut executor = Executor::new(classifier(Some(optimizer)), options).unwrap();
    let mut store = Store::new(7);
    let mut losses = Vec::new();
    for step in 0..steps {
        let (x, label) = batch(8 + (step % 3) as usize, step);
        let out = executor.run(&mut store, &[("x", &x), ("label", &label)], &["loss"]).unwrap();
        losses.push(out[0].data::<f32>().unwrap()[0]);
    }
    (losses, store)
}

fn rules() -> Vec<(Rule, f64)> {
    vec![
        (Rule::Sgd, 0.1),
        (Rule::Momentum { mu: 0.9, nesterov: false }, 0.03),
        (Rule::Momentum { mu: 0.9, nesterov: true }, 0.03),
        (Rule::adam(), 0.01),
        (Rule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.01 }, 0.01),
        (Rule::Adagrad { epsilon: 1e-6 }, 0.05),
        (Rule::RmsProp { rho: 0.95, epsilon: 1e-6, mu: 0.0 }, 0.003),
        (Rule::Lars { mu: 0.9, coefficient: 0.02, decay: 1e-4 }, 1.0),
    ]
}

#[test]
fn every_optimizer_learns() {
    for (rule, rate) in rules() {
        let (losses, _) = train(&Optimizer::new(rule, rate), Options::default(), 60);
        let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
        let (first, last) = (mean(&losses[..6]), mean(&losses[54..]));
        assert!(last < first * 0.6, "{rule:?}: {first} to {last}");
    }
}

/// Every step asserts MEMPLAN-1.
#[test]
fn the_memory_plan_changes_no_bit_and_saves_memory() {
    let optimizer = Optimizer {
        clip: Some(Clip::GlobalNorm(1.0)),
        decay: Some(1e-3),
        ..Optimizer::new(Rule::adam(), 0.01)
    };
    let plain = train(&optimizer, Options { reuse: Reuse::NONE, ..Options::default() }, 9);
    for (across, in_place) in [(true, true), (true, false), (false, true)] {
        let reuse = Reuse { across, in_place };
        let mut got = train(&optimizer, Options { reuse, ..Options::default() }, 9);
        assert_eq!(bits(&plain.0), bits(&got.0), "MEMPLAN-5: {reuse:?}");
        let names: Vec<String> = got.1.names().map(String::from).collect();
        let mut plain_store = train(&optimizer, Options { reuse: Reuse::NONE, ..Options::default() }, 9).1;
        for name in names {
            assert_eq!(plain_store.get(&name), got.1.get(&name), "MEMPLAN-5: {name} with {reuse:?}");
        }
    }
    let arena = |reuse| {
        let mut executor =
            Executor::new(classifier(Some(&optimizer)), Options { reuse, ..Options::default() }).unwrap();
        let (x, label) = batch(32, 0);
        executor.run(&mut Store::new(0), &[("x", &x), ("label", &label)], &["loss"]).unwrap();
        executor.arena_bytes()
    };
    let (with, without) = (arena(Reuse::ALL), arena(Reuse::NONE));
    assert!(with * 2 < without, "{with} against {without} bytes");
}

fn bits(all: &[f32]) -> Vec<u32> {
    all.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_intermediate_can_be_fetched_as_if_nothing_was_reused() {
    let program = classifier(Some(&Optimizer::new(Rule::Sgd, 0.1)));
    let names: Vec<String> =
        program.vars().filter(|(_, v)| v.sig.is_dense()).map(|(_, v)| v.name.clone()).collect();
    let (x, label) = batch(5, 3);
    let feeds = [("x", &x), ("label", &label)];
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let plain = Options { reuse: Reuse::NONE, ..Options::default() };
    let wanted =
        Executor::new(program.clone(), plain).unwrap().run(&mut Store::new(1), &feeds, &all).unwrap();
    for (name, wanted) in all.iter().zip(wanted) {
        let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
        let got = executor.run(&mut Store::new(1), &feeds, &[name]).unwrap();
        assert_eq!(got[0].bytes(), wanted.bytes(), "MEMPLAN-4: {name}");
    }
}

#[test]
fn bad_feeds_and_fetches_are_named_before_anything_runs() {
    let mut executor =
        Executor::new(classifier(Some(&Optimizer::new(Rule::Sgd, 0.1))), Options::default()).unwrap();
    let mut store = Store::new(0);
    let (x, label) = batch(4, 0);
    executor.prepare(&mut store).unwrap();
    let before = store.get("fc.w").unwrap();
    let short = Tensor::new(&[3], &[0i64, 1, 2]).unwrap();
    let flat = Tensor::new(&[4, 12], &[0f32; 48]).unwrap();
    let mut fails =
        |feeds: &[(&str, &Tensor)], fetch: &[&str]| executor.run(&mut store, feeds, fetch).unwrap_err();
    assert!(matches!(fails(&[("x", &x)], &["loss"]), RunError::Missing { var, .. } if var == "label"));
    assert!(
        matches!(fails(&[("x", &x), ("label", &label), ("z", &x)], &[]), RunError::UnknownFeed { var } if var == "z")
    );
    assert!(matches!(
        fails(&[("x", &x), ("label", &label), ("hidden", &x)], &[]),
        RunError::UnknownFeed { .. }
    ));
    assert!(matches!(fails(&[("x", &x), ("x", &x), ("label", &label)], &[]), RunError::FedTwice { .. }));
    assert!(
        matches!(fails(&[("x", &flat), ("label", &label)], &[]), RunError::FeedMisfit { var, .. } if var == "x")
    );
    assert!(
        matches!(fails(&[("x", &x), ("label", &x)], &[]), RunError::FeedMisfit { var, .. } if var == "label")
    );
    assert!(matches!(
        fails(&[("x", &x), ("label", &short)], &[]),
        RunError::Samples { a_samples: 4, b_samples: 3, .. }
    ));
    let unknown = fails(&[("x", &x), ("label", &label)], &["los"]);
    assert_eq!(unknown.to_string(), "`los` is fetched, but the program has no variable of that name");
    assert_eq!(store.get("fc.w").unwrap(), before, "EXEC-1: nothing ran");
}

#[test]
fn an_operation_that_fails_is_named_and_the_executor_goes_on() {
    let mut executor =
        Executor::new(classifier(Some(&Optimizer::new(Rule::Sgd, 0.1))), Options::default()).unwrap();
    let mut store = Store::new(0);
    let (x, label) = batch(2, 0);
    let wrong = Tensor::new(&[2], &[0i64, 3]).unwrap();
    let error = executor.run(&mut store, &[("x", &x), ("label", &wrong)], &["loss"]).unwrap_err();
    let said = error.to_string();
    let right = ["softmax_with_cross_entropy", "running.rs:", "element 1: 3 is not in 0..3", "f32[2, 3]"];
    assert!(right.iter().all(|part| said.contains(part)), "{said}");
    let loss = executor.run(&mut store, &[("x", &x), ("label", &label)], &["loss"]).unwrap();
    assert!(loss[0].to_f64()[0].is_finite(), "EXEC-3");
}

#[test]
fn numbers_that_are_not_finite_are_found_where_they_arise() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH]).unwrap();
    let y = b.map(phalanx_graph::op::Func::Log, x).unwrap();
    b.mean(y).unwrap();
    let options = Options { check_finite: true, ..Options::default() };
    let mut executor = Executor::new(b.finish().unwrap(), options).unwrap();
    let x = Tensor::new(&[3], &[1f32, 0.0, 2.0]).unwrap();
    let error = executor.run(&mut Store::new(0), &[("x", &x)], &[]).unwrap_err();
    assert!(matches!(error, RunError::NotFinite { op: "log", at: 1, .. }), "{error}");
}

#[test]
fn a_test_program_sees_what_training_left_and_drops_nothing() {
    let optimizer = Optimizer::new(Rule::Sgd, 0.1);
    let program = classifier(Some(&optimizer));
    let test = program.clone_for_test();
    test.verify().unwrap();
    assert!(test.find("fc.w@GRAD").is_none() && test.find("@STEP@").is_none());
    let (mut trainer, mut tester) = (
        Executor::new(program, Options::default()).unwrap(),
        Executor::new(test, Options::default()).unwrap(),
    );
    let mut store = Store::new(0);
    let (x, label) = batch(16, 1);
    let feeds = [("x", &x), ("label", &label)];
    for _ in 0..120 {
        trainer.run(&mut store, &feeds, &[]).unwrap();
    }
    let before = store.get("bn.mean").unwrap();
    let first = tester.run(&mut store, &feeds, &["loss", "accuracy"]).unwrap();
    let again = tester.run(&mut store, &feeds, &["loss", "accuracy"]).unwrap();
    assert_eq!(first, again, "nothing random, nothing learned");
    assert_eq!(store.get("bn.mean").unwrap(), before);
    assert!(first[1].to_f64()[0] > 0.9, "{:?}", first[1]);
}

#[test]
fn dropout_does_not_depend_on_the_split_of_the_batch() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(10)]).unwrap();
    let y = b.dropout(x, 0.4).unwrap();
    b.named(y, "y").unwrap();
    let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let ones = |n: usize| Tensor::new(&[n, 10], &vec![1f32; n * 10]).unwrap();
    let run = |executor: &mut Executor, n| {
        executor.run(&mut Store::new(3), &[("x", &ones(n))], &["y"]).unwrap().remove(0)
    };
    let (whole, part) = (run(&mut executor, 100), run(&mut executor, 30));
    assert_eq!(whole.data::<f32>().unwrap()[..300], *part.data::<f32>().unwrap());
    let kept = whole.to_f64().iter().filter(|v| **v > 0.0).count();
    assert!((550..650).contains(&kept), "{kept} of 1000 kept");
}

/// A model of words with a table that is used twice.
fn words(sparse: bool, rule: Rule, clip: Option<Clip>) -> (Vec<f64>, Vec<f64>) {
    let mut b = Builder::with_dtype(DType::F64);
    let a = b.feed("a", DType::I64, [BATCH, Dim::Fixed(2)]).unwrap();
    let c = b.feed("c", DType::I64, [BATCH]).unwrap();
    let options = EmbeddingOptions { sparse, padding: None };
    let table = b.parameter("table", [6, 3], Init::Normal { mean: 0.0, std: 0.5 }).unwrap();
    let (ea, ec) = (b.lookup(table, a, options).unwrap(), b.lookup(table, c, options).unwrap());
    let ea = b.reduce(Reduction::Sum, ea, &[1], false).unwrap();
    let joined = b.concat(&[ea, ec], 1).unwrap();
    let y = b.fc(joined, 1, Act::Tanh).unwrap();
    let loss = b.map(phalanx_graph::op::Func::Square, y).unwrap();
    let loss = b.mean(loss).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer {
        clip,
        rate: Schedule::Exponential { rate: 0.2, decay: 0.5, every: 4.0, stairs: false },
        ..Optimizer::new(rule, 0.0)
    }
    .minimize(&mut program, loss)
    .unwrap();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(5);
    let ids = Tensor::new(&[3, 2], &[0i64, 1, 1, 1, 4, 0]).unwrap();
    let more = Tensor::new(&[3], &[1i64, 4, 4]).unwrap();
    let losses = (0..8)
        .map(|_| executor.run(&mut store, &[("a", &ids), ("c", &more)], &["loss"]).unwrap()[0].to_f64()[0]);
    (losses.collect(), store.get("table").unwrap().to_f64())
}

#[test]
fn sparse_gradients_learn_what_dense_ones_do() {
    // Rules for which a row without gradient does not move.
    for rule in [Rule::Sgd, Rule::Adagrad { epsilon: 1e-6 }] {
        for clip in [None, Some(Clip::Norm(0.05)), Some(Clip::GlobalNorm(0.05))] {
            let (dense, sparse) = (words(false, rule, clip), words(true, rule, clip));
            let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close(&dense.0, &sparse.0) && close(&dense.1, &sparse.1), "{rule:?} {clip:?}");
            assert!(dense.0[7] < dense.0[0]);
        }
    }
    for rule in [
        Rule::adam(),
        Rule::Momentum { mu: 0.9, nesterov: false },
        Rule::RmsProp { rho: 0.9, epsilon: 1e-6, mu: 0.0 },
    ] {
        let (losses, _) = words(true, rule, None);
        assert!(losses.iter().all(|l| l.is_finite()));
    }
}

#[test]
fn programs_are_written_down_and_read_back() {
    let program = classifier(Some(&Optimizer::new(Rule::adam(), 0.1)));
    let json = serde_json::to_string(&program).unwrap();
    let back: Program = serde_json::from_str(&json).unwrap();
    assert_eq!(program, back);
    let text = program.to_string();
    assert!(text.contains("param fc.w: f32[100, 16] = Xavier") && text.contains("running.rs:"), "{text}");
    // An operation that names a variable that is not there, and one that reads what nothing wrote.
    let mut parts: serde_json::Value = serde_json::from_str(&json).unwrap();
    parts["ops"][0]["inputs"][0] = 9999.into();
    assert!(serde_json::from_value::<Program>(parts.clone()).unwrap_err().to_string().contains("9999"));
    let mut parts: serde_json::Value = serde_json::from_str(&json).unwrap();
    parts["ops"].as_array_mut().unwrap().remove(2);
    assert!(serde_json::from_value::<Program>(parts).is_err(), "GRAPH-1");
}

#[test]
fn mistakes_in_programs_are_named_with_their_place() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(4)]).unwrap();
    let w = b.parameter("w", [5, 2], Init::Xavier).unwrap();
    let error = b.matmul(x, w, false, false).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("`matmul` at") && said.contains("running.rs") && said.contains("x: f32[batch, 4]"),
        "GRAPH-3: {said}"
    );
    assert!(matches!(b.feed("x", DType::F32, [2]), Err(GraphError::Duplicate { .. })));
    let y = b.fc(x, 2, Act::None).unwrap();
    let optimizer = Optimizer::new(Rule::Sgd, 0.1);
    assert!(matches!(optimizer.minimize(b.program_mut(), y), Err(GraphError::NotScalar { .. })));
    let s = b.mean(x).unwrap();
    assert!(matches!(optimizer.minimize(b.program_mut(), s), Err(GraphError::NothingToLearn { .. })));
    let (_, best) = b.top_k(y, 1).unwrap();
    let best = b.cast(best, DType::F32).unwrap();
    let bad = b.mean(best).unwrap();
    assert!(matches!(optimizer.minimize(b.program_mut(), bad), Err(GraphError::NothingToLearn { .. })));
    let bad = b.op1(SquaredNorm, &[y]).unwrap();
    let error = optimizer.minimize(b.program_mut(), bad).unwrap_err();
    assert!(matches!(error, GraphError::NoGradient { op: "squared_norm", .. }), "{error}");
}

#[test]
fn parameters_that_were_never_given_stop_a_run() {
    let mut b = Builder::new();
    let w = b.parameter("w", [2], Init::Given).unwrap();
    let y = b.mean(w).unwrap();
    b.named(y, "y").unwrap();
    let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let mut store = Store::new(0);
    assert!(
        matches!(executor.run(&mut store, &[], &["y"]), Err(RunError::Uninitialised { var, .. }) if var == "w")
    );
    store.set("w", &Tensor::new(&[2], &[1f32, 3.0]).unwrap()).unwrap();
    assert_eq!(executor.run(&mut store, &[], &["y"]).unwrap()[0], Tensor::scalar(2f32));
    assert!(matches!(store.set("w", &Tensor::scalar(1f32)), Err(RunError::StateMisfit { .. })));
}

#[test]
fn nothing_is_learned_of_no_samples_and_prediction_of_none_is_empty() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(2)]).unwrap();
    let y = b.fc(x, 3, Act::None).unwrap();
    let y = b.named(y, "y").unwrap();
    let loss = b.mean(y).unwrap();
    let mut program = b.finish().unwrap();
    let test = program.clone_for_test();
    Optimizer::new(Rule::Sgd, 0.1).minimize(&mut program, loss).unwrap();
    let none = Tensor::new::<f32>(&[0, 2], &[]).unwrap();
    let mut store = Store::new(0);
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let error = executor.run(&mut store, &[("x", &none)], &[]).unwrap_err();
    assert_eq!(error, RunError::NoSamples);
    let mut executor = Executor::new(test, Options::default()).unwrap();
    assert_eq!(executor.run(&mut store, &[("x", &none)], &["y"]).unwrap()[0].dims(), [0, 3]);
}
