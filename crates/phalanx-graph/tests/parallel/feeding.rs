//! What goes in and out: FEED-1, FEED-2, PARA-4, small batches, idle replicas, merges, scales.

use super::models::{adam, bits, digits, mlp, network, on, train};
use phalanx_core::DType;
use phalanx_graph::{
    BATCH, BuildStrategy, Builder, Dim, ExecutionStrategy, Executor, Feed, Fetch, GradientScale, Init, Merge,
    Optimizer, Options, ParallelExecutor, Program, ReduceStrategy, Rule, RunError, Setup, Store, Tensor,
    op::Func,
};

fn scaled(scale: GradientScale) -> Setup {
    Setup { build: BuildStrategy { gradient_scale: scale, ..BuildStrategy::default() }, ..on(4) }
}

/// `relu(x)`, for prediction.
fn relu() -> Program {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3)]).unwrap();
    let y = b.map(Func::Relu, x).unwrap();
    b.named(y, "y").unwrap();
    b.finish().unwrap()
}

#[test]
fn one_to_twelve_samples_on_four_replicas_predict_exactly() {
    let mut exe = ParallelExecutor::new(&relu(), None, on(4)).unwrap();
    let mut store = Store::new(0);
    for n in 1..=12usize {
        let values: Vec<f32> = (0..n * 3).map(|i| (i as f32 * 1.7).sin()).collect();
        let wanted: Vec<f32> = values.iter().map(|v| v.max(0.0)).collect();
        let x = Tensor::new(&[n, 3], &values).unwrap();
        let fetch = [Fetch::concat("y"), Fetch::unmerged("y"), Fetch::concat("x")];
        let out = exe.run(&mut store, &[("x", Feed::Split(&x))], &fetch).unwrap();
        assert_eq!(out[0].one().dims(), [n, 3]);
        assert_eq!(out[0].one().data::<f32>().unwrap(), wanted);
        let each: Vec<f32> = out[1].each().iter().flat_map(|t| t.data::<f32>().unwrap().to_vec()).collect();
        assert_eq!(each, wanted, "merged is the unmerged in a row");
        assert_eq!(out[1].each().len(), n.min(4), "only who has samples answers");
        assert_eq!(out[2].one(), &x, "what is fed comes back");
    }
    let none = Tensor::new(&[0, 3], &[0f32; 0]).unwrap();
    let out = exe.run(&mut store, &[("x", Feed::Split(&none))], &[Fetch::concat("y")]).unwrap();
    assert_eq!(out[0].one().dims(), [0, 3], "nothing in, nothing out");
}

/// LOWER-2: replicas without samples contribute zeros.
#[test]
fn one_to_nine_samples_on_four_replicas_train_as_one_replica_does() {
    let program = mlp(Some(&Optimizer::new(Rule::Sgd, 0.1)));
    for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), Setup { build, ..on(4) }).unwrap();
        let mut one = Executor::new(program.clone(), Options::default()).unwrap();
        let (mut store, mut reference) = (Store::new(3), Store::new(3));
        for n in [1, 5, 2, 9, 3, 4] {
            let (x, y) = digits(n, n as u64);
            let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
            let got = exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap();
            let wanted =
                one.run(&mut reference, &[("image", &x), ("label", &y)], &["loss"]).unwrap()[0].to_f64()[0];
            let got = got[0].one().to_f64()[0];
            assert!((got - wanted).abs() < 2e-6 * wanted.max(1.0), "{n} samples: {got} and {wanted}");
        }
        let (a, b) = (store.get("fc.w").unwrap().to_f64(), reference.get("fc.w").unwrap().to_f64());
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6));
        for replica in 1..4 {
            assert_eq!(
                store.get_copy("fc.w", replica),
                store.get_copy("fc.w", 0),
                "idle replicas learn, too (STORE-1)"
            );
        }
        let (x, y) = digits(0, 0);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        assert_eq!(exe.run(&mut store, &feeds, &[]).unwrap_err(), RunError::NoSamples);
    }
}

#[test]
fn merges_are_what_they_say_and_a_variable_may_be_fetched_twice() {
    let program = mlp(None);
    let mut exe = ParallelExecutor::new(&program, None, on(2)).unwrap();
    let mut store = Store::new(0);
    let (x, y) = digits(5, 1);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let all = [Merge::Concat, Merge::Unmerged, Merge::Mean, Merge::Sum, Merge::First, Merge::Concat];
    let fetch = all.map(|merge| Fetch { name: "loss", merge });
    let out = exe.run(&mut store, &feeds, &fetch).unwrap();
    let each: Vec<f64> = out[1].each().iter().map(|t| t.to_f64()[0]).collect();
    assert_eq!(out[1].each()[0].dims(), [0usize; 0]);
    assert_eq!((out[0].one().dims(), out[0].one().to_f64()), (&[2][..], each.clone()));
    assert_eq!(out[0], out[5]);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
    assert!(close(out[2].one().to_f64()[0], 0.6 * each[0] + 0.4 * each[1]), "by samples");
    assert!(close(out[3].one().to_f64()[0], each[0] + each[1]));
    assert_eq!(out[4].one().to_f64()[0], each[0]);
    let out = exe.run(&mut store, &feeds, &[Fetch::concat("fc.w"), Fetch::unmerged("fc.w")]).unwrap();
    assert_eq!(out[0].one().dims(), [64, 200], "parameters are alike and come once");
    assert_eq!(out[1].each().len(), 2);
    let error = exe.run(&mut store, &feeds, &[Fetch::sum("scores")]).unwrap_err();
    assert!(matches!(error, RunError::Unlike { .. }), "{error}");
    let error = exe.run(&mut store, &feeds, &[Fetch::mean("label")]).unwrap_err();
    assert!(matches!(error, RunError::NotReal { .. }), "{error}");
}

#[test]
fn the_loss_of_no_samples_is_not_that_of_the_run_before() {
    let mut exe = ParallelExecutor::new(&mlp(None), None, on(2)).unwrap();
    let mut store = Store::new(0);
    let fetch = [Fetch::mean("loss"), Fetch::first("loss"), Fetch::concat("loss"), Fetch::sum("loss")];
    let mut out = Vec::new();
    for n in [1, 0] {
        let (x, y) = digits(n, 1);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        exe.run_into(&mut store, &feeds, &fetch, &mut out).unwrap();
    }
    let values: Vec<f64> = out.iter().flat_map(|fetched| fetched.one().to_f64()).collect();
    assert!(values[..values.len() - 1].iter().all(|value| value.is_nan()), "{values:?}");
    assert_eq!(values.last(), Some(&0.0));
}

#[test]
fn a_batch_in_the_second_axis_is_split_and_joined_there() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [Dim::Fixed(2), BATCH]).unwrap();
    let y = b.scale(x, 2.0, 0.0).unwrap();
    b.named(y, "y").unwrap();
    let mut exe = ParallelExecutor::new(&b.finish().unwrap(), None, on(3)).unwrap();
    let x = Tensor::new(&[2, 4], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
    let out = exe.run(&mut Store::new(0), &[("x", Feed::Split(&x))], &[Fetch::concat("y")]).unwrap();
    assert_eq!(out[0].one().dims(), [2, 4]);
    assert_eq!(out[0].one().to_f64(), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]);
}

#[test]
fn replicas_can_be_fed_one_by_one_or_all_alike() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH]).unwrap();
    let by = b.feed("by", DType::F32, [1]).unwrap();
    let unused = b.feed("unused", DType::F32, [BATCH]).unwrap();
    assert_ne!(x, unused);
    let y = b.mul(x, by).unwrap();
    b.named(y, "y").unwrap();
    let mut exe = ParallelExecutor::new(&b.finish().unwrap(), None, on(3)).unwrap();
    let mut store = Store::new(0);
    let t = |values: &[f32]| Tensor::new(&[values.len()], values).unwrap();
    let (a, b, none, two, three) = (t(&[1.0]), t(&[2.0, 3.0]), t(&[]), t(&[2.0]), t(&[3.0]));
    let per = [&a, &none, &b];
    let feeds = [
        ("x", Feed::PerReplica(&per)),
        ("by", Feed::PerReplica(&[&two, &two, &three])),
        ("unused", Feed::PerReplica(&per)),
    ];
    for _ in 0..10 {
        let out = exe.run(&mut store, &feeds, &[Fetch::concat("y"), Fetch::unmerged("unused")]).unwrap();
        assert_eq!(out[0].one().to_f64(), [2.0, 6.0, 9.0]);
        assert_eq!(out[1].each(), [a.clone(), b.clone()], "what nobody reads is fetched as it was fed");
    }
    assert_eq!((a.to_f64(), b.to_f64()), (vec![1.0], vec![2.0, 3.0]), "feeds are not touched");
    let feeds = [("x", Feed::Replicate(&b)), ("by", Feed::Replicate(&two)), ("unused", Feed::Replicate(&b))];
    let out = exe.run(&mut store, &feeds, &[Fetch::concat("y")]).unwrap();
    assert_eq!(out[0].one().to_f64(), [4.0, 6.0, 4.0, 6.0, 4.0, 6.0]);
}

#[test]
fn mistakes_in_feeds_and_fetches_are_told_before_anything_changes() {
    let program = mlp(Some(&adam()));
    let mut exe = ParallelExecutor::new(&program, Some("loss"), on(4)).unwrap();
    let mut store = Store::new(0);
    exe.prepare(&mut store).unwrap();
    let before = store.get("fc.w").unwrap();
    let (x, y) = digits(8, 0);
    let (short, _) = digits(7, 0);
    let (sx, sy) = (Feed::Split(&x), Feed::Split(&y));
    let mut fails =
        |feeds: &[(&str, Feed<'_>)], fetch: &[Fetch<'_>]| exe.run(&mut store, feeds, fetch).unwrap_err();
    assert!(matches!(fails(&[("image", sx)], &[]), RunError::Missing { var, .. } if var == "label"));
    let error = fails(&[("image", sx), ("label", sy), ("scores", sx)], &[]);
    assert!(matches!(error, RunError::UnknownFeed { var } if var == "scores"), "computed, not fed");
    let error = fails(&[("image", sx), ("label", sy), ("nobody", sx)], &[]);
    assert!(matches!(error, RunError::UnknownFeed { var } if var == "nobody"));
    assert!(matches!(fails(&[("image", sx), ("image", sx)], &[]), RunError::FedTwice { .. }));
    let error = fails(&[("image", sy), ("label", sy)], &[]);
    let said = error.to_string();
    assert!(said.contains("`image` wants f32[batch, 64]") && said.contains("i64[8]"), "{said}");
    assert!(said.contains("parallel/models.rs:"), "where it was declared: {said}");
    let error = fails(&[("image", Feed::Split(&short)), ("label", sy)], &[]);
    assert_eq!(error.to_string(), "`image` is fed with 7 samples and `label` with 8", "not share by share");
    let each = [&x, &x, &x, &short];
    let error = fails(&[("image", Feed::PerReplica(&each)), ("label", Feed::Replicate(&y))], &[]);
    assert!(matches!(error, RunError::Shares { replica: 3, wanted: 7, got: 8, .. }), "{error}");
    let error = fails(&[("image", Feed::PerReplica(&[&x, &x])), ("label", sy)], &[]);
    assert_eq!(error.to_string(), "`image` is fed for 2 replicas, but there are 4");
    assert!(matches!(
        fails(&[("image", sx), ("label", sy)], &[Fetch::mean("los")]),
        RunError::UnknownFetch { .. }
    ));
    assert_eq!(store.get("fc.w").unwrap(), before, "PARA-4, FEED-2");
}

#[test]
fn a_variable_of_the_store_can_be_fed() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH]).unwrap();
    let w = b.parameter("w", [1], Init::Constant(2.0)).unwrap();
    let y = b.mul(x, w).unwrap();
    b.named(y, "y").unwrap();
    let mut exe = ParallelExecutor::new(&b.finish().unwrap(), None, on(4)).unwrap();
    let mut store = Store::new(0);
    let x = Tensor::new(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    let five = Tensor::new(&[1], &[5f32]).unwrap();
    let two = Tensor::new(&[2], &[5f32, 6.0]).unwrap();
    let feeds = [("x", Feed::Split(&x)), ("w", Feed::Split(&five))];
    let out = exe.run(&mut store, &feeds, &[Fetch::concat("y")]).unwrap();
    assert_eq!(out[0].one().to_f64(), [5.0, 10.0, 15.0, 20.0]);
    let error = exe.run(&mut store, &[("x", Feed::Split(&x)), ("w", Feed::Split(&two))], &[]).unwrap_err();
    assert!(matches!(error, RunError::FeedMisfit { var, .. } if var == "w"));
    let each = [&five; 4];
    let error = exe.run(&mut store, &[("x", Feed::Split(&x)), ("w", Feed::PerReplica(&each))], &[]);
    assert!(matches!(error.unwrap_err(), RunError::NotPerReplica { .. }));
}

#[test]
fn idle_replicas_take_no_weight_from_the_last_short_batch() {
    let program = network(Some(&Optimizer::new(Rule::Sgd, 0.1)), &[8], false, 0.0);
    let grad = |setup: Setup, n: usize| {
        let (x, y) = digits(n, 5);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
        exe.run(&mut Store::new(1), &feeds, &[Fetch::concat("fc.w@GRAD")]).unwrap().remove(0).one().to_f64()
    };
    // One sample each, so that both scales weigh alike.
    for n in [1, 2, 3] {
        let wanted = grad(on(1), n);
        let got = grad(scaled(GradientScale::CoeffNumDevice), n);
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
        assert!(wanted.iter().any(|v| v.abs() > 1e-4));
        assert!(got.iter().zip(&wanted).all(close), "{n} samples on four replicas");
    }
}

#[test]
fn gradients_begin_with_what_the_scale_says() {
    let program = network(Some(&Optimizer::new(Rule::Sgd, 0.1)), &[8], false, 0.0);
    let grad = |setup: Setup, feeds: &[(&str, Feed<'_>)]| {
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
        exe.run(&mut Store::new(1), feeds, &[Fetch::concat("fc.w@GRAD")]).unwrap().remove(0).one().to_f64()
    };
    let (x, y) = digits(8, 5);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let close = |a: &[f64], b: &[f64], times: f64| a.iter().zip(b).all(|(a, b)| (a - b * times).abs() < 1e-6);
    let by_samples = grad(scaled(GradientScale::BySamples), &feeds);
    assert!(by_samples.iter().any(|v| v.abs() > 1e-4));
    assert_eq!(by_samples, grad(scaled(GradientScale::CoeffNumDevice), &feeds), "equal shares");
    assert!(close(&grad(scaled(GradientScale::One), &feeds), &by_samples, 4.0));
    let custom = Tensor::new(&[4], &[0.5f32; 4]).unwrap();
    let mut with = feeds.to_vec();
    with.push(("loss@GRAD", Feed::Split(&custom)));
    assert!(close(&grad(scaled(GradientScale::Customized), &with), &by_samples, 2.0));
    let mut exe = ParallelExecutor::new(&program, Some("loss"), scaled(GradientScale::Customized)).unwrap();
    let error = exe.run(&mut Store::new(1), &feeds, &[]).unwrap_err();
    assert!(matches!(error, RunError::Missing { var, .. } if var == "loss@GRAD"));
    let three = Tensor::new(&[3], &[0.5f32; 3]).unwrap();
    with[2] = ("loss@GRAD", Feed::Split(&three));
    let error = exe.run(&mut Store::new(1), &with, &[]).unwrap_err();
    assert!(matches!(error, RunError::Scales { wanted: 4, got: 3, .. }), "{error}");
    // Only the first replica counts: its share alone.
    let first = Tensor::new(&[4], &[1f32, 0.0, 0.0, 0.0]).unwrap();
    with[2] = ("loss@GRAD", Feed::Split(&first));
    let got = grad(scaled(GradientScale::Customized), &with);
    let (x2, y2) = (digits(8, 5).0, digits(8, 5).1);
    let head = Tensor::new(&[2, 64], &x2.data::<f32>().unwrap()[..128]).unwrap();
    let tail = Tensor::new(&[2], &y2.data::<i64>().unwrap()[..2]).unwrap();
    let alone = grad(on(1), &[("image", Feed::Split(&head)), ("label", Feed::Split(&tail))]);
    assert!(close(&got, &alone, 1.0));
}

#[test]
fn every_intermediate_can_be_fetched_under_every_memory_plan() {
    let program = network(Some(&Optimizer::new(Rule::Sgd, 0.1)), &[9, 7], true, 0.1);
    let names: Vec<String> =
        program.vars().filter(|(_, v)| v.sig.is_dense()).map(|(_, v)| v.name.clone()).collect();
    let (x, y) = digits(7, 3);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let run = |build: BuildStrategy, names: &[&str]| {
        let exec = ExecutionStrategy { num_threads: 2, ..ExecutionStrategy::default() };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), Setup { build, exec, ..on(3) }).unwrap();
        let fetch: Vec<Fetch<'_>> = names.iter().map(|n| Fetch::unmerged(n)).collect();
        exe.run(&mut Store::new(1), &feeds, &fetch).unwrap()
    };
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let plain = BuildStrategy { memory_optimize: false, enable_inplace: false, ..BuildStrategy::default() };
    let wanted = run(plain, &all);
    for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
        for (name, wanted) in all.iter().zip(&wanted) {
            let got = &run(build.clone(), &[name])[0];
            assert_eq!(got.each().len(), wanted.each().len(), "{name}");
            for (a, b) in got.each().iter().zip(wanted.each()) {
                assert_eq!(a.bytes(), b.bytes(), "{name}, {reduce_strategy:?}");
            }
        }
    }
}

#[test]
fn earlier_results_stay_and_the_same_memory_is_used_again_on_request() {
    let program = mlp(Some(&Optimizer::new(Rule::Sgd, 0.5)));
    let mut exe = ParallelExecutor::new(&program, Some("loss"), on(2)).unwrap();
    let mut store = Store::new(0);
    let (x, y) = digits(8, 0);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let first = exe.run(&mut store, &feeds, &[Fetch::concat("scores")]).unwrap();
    let copy = first.clone();
    let second = exe.run(&mut store, &feeds, &[Fetch::concat("scores")]).unwrap();
    assert_eq!(first, copy);
    assert_ne!(first, second);
    let repeated = ExecutionStrategy { num_iteration_per_run: 3, ..ExecutionStrategy::default() };
    let mut thrice =
        ParallelExecutor::new(&program, Some("loss"), Setup { exec: repeated, ..on(2) }).unwrap();
    let mut other = Store::new(0);
    thrice.run(&mut other, &feeds, &[]).unwrap();
    exe.run(&mut store, &feeds, &[]).unwrap();
    assert_eq!(store.get("fc.w"), other.get("fc.w"), "three runs are three runs");
}

#[test]
fn dropout_does_not_depend_on_the_number_of_replicas() {
    let program = network(Some(&Optimizer::new(Rule::Sgd, 0.05)), &[30], false, 0.4);
    let (one, _) = train(&program, on(1), 5, 12);
    for n in [2, 3, 5] {
        let (many, _) = train(&program, on(n), 5, 12);
        assert!(one.iter().zip(&many).all(|(a, b)| (a - b).abs() < 2e-6), "{one:?} {many:?}");
        assert_ne!(bits(&one), bits(&[0.0; 5]));
    }
}

#[test]
fn random_numbers_belong_to_samples_wherever_the_batch_stands() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(6)]).unwrap();
    // Two rows for each sample; samples in the second axis; no samples at all.
    let rows = b.reshape(x, [Dim::Batch(2), Dim::Fixed(3)]).unwrap();
    let rows = b.dropout(rows, 0.5).unwrap();
    let rows = b.reshape(rows, [BATCH, Dim::Fixed(6)]).unwrap();
    b.named(rows, "rows").unwrap();
    let turned = b.transpose(x, &[1, 0]).unwrap();
    let turned = b.dropout(turned, 0.5).unwrap();
    b.named(turned, "turned").unwrap();
    let weight = b.parameter("w", [4, 5], Init::Constant(1.0)).unwrap();
    let weight = b.dropout(weight, 0.5).unwrap();
    b.named(weight, "weight").unwrap();
    let noise = b.gaussian([Dim::Fixed(3), BATCH], 0.0, 1.0).unwrap();
    b.named(noise, "noise").unwrap();
    let program = b.finish().unwrap();
    let ones = Tensor::new(&[7, 6], &[1f32; 42]).unwrap();
    let run = |n: usize| {
        let mut exe = ParallelExecutor::new(&program, None, on(n)).unwrap();
        let fetch = ["rows", "turned", "noise"].map(Fetch::concat);
        let mut out = exe.run(&mut Store::new(3), &[("x", Feed::Split(&ones))], &fetch).unwrap();
        let each = [Fetch::unmerged("weight")];
        out.extend(exe.run(&mut Store::new(3), &[("x", Feed::Split(&ones))], &each).unwrap());
        out
    };
    let one = run(1);
    for n in [2, 3, 5] {
        let many = run(n);
        assert_eq!(many[..3], one[..3], "{n} replicas");
        assert!(many[3].each().iter().all(|w| *w == one[3].each()[0]), "{n} replicas drop the same weights");
    }
    let kept = one[1].one().to_f64().iter().filter(|v| **v > 0.0).count();
    assert!((8..34).contains(&kept), "{kept} of 42 kept");
}
