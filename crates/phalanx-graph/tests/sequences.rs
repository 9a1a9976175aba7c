//! Sequences of different lengths: SEQ-1, tags against all taggings, and what bad lengths get.

use phalanx_core::DType;
use phalanx_graph::{
    BATCH, Builder, Dim, Executor, GraphError, Init, Options, Program, RunError, Store, Tensor, VarId,
    append_gradients,
    kernel::Stream,
    layers::{AttentionOptions, RnnOptions},
    op::{CrfDecoding, LinearChainCrf, Reduction, SequenceOp},
};

const TIME: usize = 5;
const WIDTH: usize = 4;
const LENGTHS: [i64; 4] = [3, 0, 5, 1];

fn draw(seed: u64, n: usize) -> Vec<f64> {
    let dice = Stream::new(seed, 1, 2);
    (0..n).map(|i| dice.normal(i as u64)).collect()
}

type Layer = (&'static str, fn(&mut Builder, VarId, Option<VarId>) -> Result<VarId, GraphError>);

/// Layers that take lengths, with parameters of their own or none; each gives something behind no end.
const LAYERS: [Layer; 9] = [
    ("lstm", |b, x, lengths| {
        let states = b.lstm(x, RnnOptions { lengths, ..RnnOptions::new(3) }, None)?;
        let last = b.add(states.hidden, states.cell)?;
        let all = b.reduce(Reduction::Sum, states.all, &[1], false)?;
        b.add(all, last)
    }),
    ("reverse lstm", |b, x, lengths| {
        let states = b.lstm(x, RnnOptions { lengths, reverse: true, ..RnnOptions::new(3) }, None)?;
        b.reduce(Reduction::Sum, states.all, &[1], false)
    }),
    ("gru", |b, x, lengths| {
        let states = b.gru(x, RnnOptions { lengths, ..RnnOptions::new(3) }, None)?;
        let all = b.reduce(Reduction::Sum, states.all, &[1], false)?;
        b.add(all, states.last)
    }),
    ("reverse gru", |b, x, lengths| {
        Ok(b.gru(x, RnnOptions { lengths, reverse: true, ..RnnOptions::new(3) }, None)?.last)
    }),
    ("sum", |b, x, lengths| b.sequence_pool(x, SequenceOp::Sum, lengths)),
    ("mean", |b, x, lengths| b.sequence_pool(x, SequenceOp::Mean, lengths)),
    ("max", |b, x, lengths| b.sequence_pool(x, SequenceOp::Max, lengths)),
    ("last", |b, x, lengths| b.sequence_pool(x, SequenceOp::Last, lengths)),
    ("attention", |b, x, lengths| {
        let y = b.attend(x, x, AttentionOptions { lengths, ..AttentionOptions::new(2) })?;
        b.sequence_pool(y, SequenceOp::Sum, lengths)
    }),
];

/// The layer's output and all gradients, for these inputs and sequences of these lengths.
fn run(layer: &Layer, x: &[f64], n: usize, time: usize, lengths: Option<&[i64]>) -> Vec<Tensor> {
    let mut b = Builder::with_dtype(DType::F64);
    let data = b.parameter("data", [n, time, WIDTH], Init::Given).unwrap();
    let fed = lengths.map(|_| b.feed("lengths", DType::I64, [n]).unwrap());
    let out = layer.1(&mut b, data, fed).unwrap();
    let out = b.named(out, "out").unwrap();
    let weights = b.state("weights", b.program().sig(out).shape.clone(), Init::Given).unwrap();
    let loss = b.mul(out, weights).unwrap();
    let loss = b.reduce(Reduction::Sum, loss, &[], false).unwrap();
    let mut program: Program = b.finish().unwrap();
    let wrt = program.trainable();
    let pairs = append_gradients(&mut program, loss, &wrt, &[]).unwrap();
    let mut fetch: Vec<String> = vec!["out".into()];
    fetch.extend(pairs.iter().map(|&(_, g)| program.var(g).name.clone()));
    let names: Vec<&str> = fetch.iter().map(String::as_str).collect();
    let dims = program.sig(weights).shape.at(0);
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(4);
    executor.prepare(&mut store).unwrap();
    store.set("data", &Tensor::new(&[n, time, WIDTH], x).unwrap()).unwrap();
    let weights = draw(8, dims.iter().product());
    store.set("weights", &Tensor::new(&dims, &weights).unwrap()).unwrap();
    let lengths = lengths.map(|l| Tensor::new(&[n], l).unwrap());
    let feeds: Vec<(&str, &Tensor)> = lengths.iter().map(|l| ("lengths", l)).collect();
    executor.run(&mut store, &feeds, &names).unwrap()
}

#[test]
fn what_lies_behind_the_end_of_a_sequence_influences_nothing() {
    let n = LENGTHS.len();
    let clean = draw(1, n * TIME * WIDTH);
    let behind = |i: usize| i / WIDTH % TIME >= LENGTHS[i / WIDTH / TIME] as usize;
    let dirty: Vec<f64> =
        clean.iter().enumerate().map(|(i, &v)| if behind(i) { 1e30 * (v + 7.0) } else { v }).collect();
    for layer in &LAYERS {
        let wanted = run(layer, &clean, n, TIME, Some(&LENGTHS));
        let got = run(layer, &dirty, n, TIME, Some(&LENGTHS));
        for (which, (a, b)) in wanted.iter().zip(&got).enumerate() {
            assert_eq!(a.bytes(), b.bytes(), "SEQ-1: {}, result {which}", layer.0);
        }
        let d_data = got.iter().find(|t| t.dims() == [n, TIME, WIDTH]).unwrap().to_f64();
        for (i, d) in d_data.into_iter().enumerate().filter(|(i, _)| behind(*i)) {
            assert_eq!(d, 0.0, "SEQ-1: {}, the gradient of element {i}", layer.0);
        }
    }
}

#[test]
fn a_padded_sequence_gives_what_it_gives_alone() {
    let n = LENGTHS.len();
    let x = draw(1, n * TIME * WIDTH);
    for layer in &LAYERS {
        let all = run(layer, &x, n, TIME, Some(&LENGTHS));
        let width = all[0].dims()[1];
        for (s, &len) in LENGTHS.iter().enumerate().filter(|(_, l)| **l > 0) {
            let len = len as usize;
            let own = &x[s * TIME * WIDTH..][..len * WIDTH];
            let alone = run(layer, own, 1, len, None)[0].to_f64();
            let padded = all[0].to_f64()[s * width..][..width].to_vec();
            let close = alone.iter().zip(&padded).all(|(a, b)| (a - b).abs() < 1e-12 * (1.0 + a.abs()));
            assert!(close, "{}, sample {s}: {alone:?} alone, {padded:?} in the batch", layer.0);
        }
        if layer.0 != "attention" {
            assert!(all[0].to_f64()[width..2 * width].iter().all(|v| *v == 0.0), "{}: empty", layer.0);
        }
    }
}

/// The score of one tagging.
fn score(x: &[f64], w: &[f64], tags: usize, path: &[usize]) -> f64 {
    let ends = w[path[0]] + w[tags + path[path.len() - 1]];
    let own: f64 = path.iter().enumerate().map(|(t, &p)| x[t * tags + p]).sum();
    let go: f64 = path.windows(2).map(|p| w[(2 + p[0]) * tags + p[1]]).sum();
    ends + own + go
}

fn taggings(tags: usize, len: usize) -> Vec<Vec<usize>> {
    let all = tags.pow(len as u32);
    (0..all).map(|k| (0..len).map(|t| k / tags.pow(t as u32) % tags).collect()).collect()
}

#[test]
fn a_chain_weighs_all_taggings_and_finds_the_best() {
    for seed in 0..6 {
        let (n, tags) = (4, 1 + seed as usize % 3);
        let (x, w) = (draw(seed, n * TIME * tags), draw(100 + seed, (tags + 2) * tags));
        let dice = Stream::new(seed, 3, 3);
        let labels: Vec<i64> = (0..n * TIME).map(|i| (dice.bits(i as u64) % tags as u64) as i64).collect();
        // Behind the ends the labels are no tags at all.
        let labels: Vec<i64> = labels
            .iter()
            .enumerate()
            .map(|(i, &l)| if i % TIME >= LENGTHS[i / TIME] as usize { -77 } else { l })
            .collect();
        let mut b = Builder::with_dtype(DType::F64);
        let scores = b.state("x", [n, TIME, tags], Init::Given).unwrap();
        let weights = b.state("w", [tags + 2, tags], Init::Given).unwrap();
        let label = b.feed("label", DType::I64, [n, TIME]).unwrap();
        let lengths = b.feed("lengths", DType::I64, [n]).unwrap();
        let cost = b.op1(LinearChainCrf { ragged: true }, &[scores, weights, label, lengths]).unwrap();
        let path = b.op1(CrfDecoding { ragged: true }, &[scores, weights, lengths]).unwrap();
        b.named(cost, "cost").unwrap();
        b.named(path, "path").unwrap();
        let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
        let mut store = Store::new(0);
        executor.prepare(&mut store).unwrap();
        store.set("x", &Tensor::new(&[n, TIME, tags], &x).unwrap()).unwrap();
        store.set("w", &Tensor::new(&[tags + 2, tags], &w).unwrap()).unwrap();
        let (label, lengths) =
            (Tensor::new(&[n, TIME], &labels).unwrap(), Tensor::new(&[n], &LENGTHS).unwrap());
        let feeds = [("label", &label), ("lengths", &lengths)];
        let out = executor.run(&mut store, &feeds, &["cost", "path"]).unwrap();
        let (cost, path) = (out[0].to_f64(), out[1].data::<i64>().unwrap());
        for (s, &len) in LENGTHS.iter().enumerate() {
            let (x, len) = (&x[s * TIME * tags..], len as usize);
            let (path, rest) = path[s * TIME..][..TIME].split_at(len);
            assert!(rest.iter().all(|p| *p == 0));
            if len == 0 {
                assert_eq!(cost[s], 0.0);
                continue;
            }
            let all = taggings(tags, len);
            let total = all.iter().map(|p| score(x, &w, tags, p).exp()).sum::<f64>().ln();
            let own: Vec<usize> = labels[s * TIME..][..len].iter().map(|&l| l as usize).collect();
            let wanted = total - score(x, &w, tags, &own);
            assert!((cost[s] - wanted).abs() < 1e-10, "seed {seed}, sample {s}: {} not {wanted}", cost[s]);
            let best =
                all.iter().max_by(|a, b| score(x, &w, tags, a).total_cmp(&score(x, &w, tags, b))).unwrap();
            let got: Vec<usize> = path.iter().map(|&p| p as usize).collect();
            assert_eq!(got, *best, "seed {seed}, sample {s}");
        }
    }
}

#[test]
fn a_chain_of_huge_scores_stays_finite() {
    let mut b = Builder::new();
    let scores = b.state("x", [1, 3, 2], Init::Constant(3e4)).unwrap();
    let label = b.feed("label", DType::I64, [1, 3]).unwrap();
    let (cost, _) = b.linear_chain_crf(scores, label, None).unwrap();
    b.named(cost, "cost").unwrap();
    let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let label = Tensor::new(&[1, 3], &[0i64, 1, 0]).unwrap();
    let cost = executor.run(&mut Store::new(0), &[("label", &label)], &["cost"]).unwrap();
    assert!(cost[0].to_f64()[0].is_finite() && cost[0].to_f64()[0] > 0.0, "{cost:?}");
}

#[test]
fn lengths_and_tags_that_cannot_be_are_named() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3), Dim::Fixed(2)]).unwrap();
    let lengths = b.feed("lengths", DType::I64, [BATCH]).unwrap();
    let y = b.lstm(x, RnnOptions { lengths: Some(lengths), ..RnnOptions::new(2) }, None).unwrap();
    b.named(y.all, "y").unwrap();
    let label = b.feed("label", DType::I64, [BATCH, Dim::Fixed(3)]).unwrap();
    let (cost, _) = b.linear_chain_crf(x, label, Some(lengths)).unwrap();
    b.named(cost, "cost").unwrap();
    let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let mut store = Store::new(0);
    let x = Tensor::new(&[2, 3, 2], &[0.5f32; 12]).unwrap();
    let mut run = |lengths: [i64; 2], label: [i64; 6]| {
        let (lengths, label) = (Tensor::new(&[2], &lengths).unwrap(), Tensor::new(&[2, 3], &label).unwrap());
        executor.run(&mut store, &[("x", &x), ("lengths", &lengths), ("label", &label)], &["y", "cost"])
    };
    let said = |r: Result<Vec<Tensor>, RunError>| r.unwrap_err().to_string();
    let long = said(run([3, 4], [0; 6]));
    assert!(long.contains("`lstm` at") && long.contains("element 1: 4 is not in 0..4"), "{long}");
    assert!(said(run([-1, 3], [0; 6])).contains("element 0: -1 is not in 0..4"));
    let tag = said(run([3, 2], [0, 1, 0, 1, 2, 0]));
    assert!(tag.contains("`linear_chain_crf` at") && tag.contains("element 4: 2 is not in 0..2"), "{tag}");
    assert!(run([3, 1], [0, 1, 0, 1, 2, -5]).is_ok(), "EXEC-3, and tags behind the end are not looked at");
}

#[test]
fn layers_over_sequences_refuse_what_does_not_fit() {
    let mut b = Builder::new();
    let flat = b.feed("flat", DType::F32, [BATCH, Dim::Fixed(3)]).unwrap();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3), Dim::Fixed(4)]).unwrap();
    let other = b.feed("other", DType::F32, [BATCH, Dim::Fixed(2), Dim::Fixed(4)]).unwrap();
    let wrong = b.feed("wrong", DType::I64, [7]).unwrap();
    let fails = |what: &str, made: Result<VarId, GraphError>| {
        let error = made.expect_err(what);
        assert!(error.to_string().contains("sequences.rs:"), "{what}: {error}");
    };
    fails("two dimensions", b.lstm(flat, RnnOptions::new(2), None).map(|s| s.all));
    fails("no width", b.gru(x, RnnOptions::new(0), None).map(|s| s.all));
    let options = RnnOptions { lengths: Some(wrong), ..RnnOptions::new(2) };
    fails("lengths of something else", b.gru(x, options, None).map(|s| s.all));
    fails("floating lengths", b.sequence_pool(x, SequenceOp::Max, Some(flat)));
    fails("a first state of another width", b.lstm(x, RnnOptions::new(2), Some((flat, flat))).map(|s| s.all));
    let causal = AttentionOptions { causal: true, ..AttentionOptions::new(2) };
    fails("causal over another sequence", b.attend(x, other, causal));
    fails("heads that do not divide", b.attend(x, x, AttentionOptions::new(3)));
    fails("no heads", b.attend(x, x, AttentionOptions::new(0)));
    fails("tags of another time", b.linear_chain_crf(x, wrong, None).map(|c| c.0));
}
