//! Recurrent layers and attention against PyTorch (`python/oracle/graph_sequences.py`): outputs and all gradients.

use phalanx_core::DType;
use phalanx_graph::{
    Builder, Executor, GraphError, Init, Options, Store, Tensor, VarId, append_gradients,
    layers::{AttentionOptions, RnnOptions},
    op::Reduction,
};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn tensor(value: &Value) -> Tensor {
    let dims: Vec<usize> = numbers(&value["dims"]).iter().map(|&d| d as usize).collect();
    Tensor::new(&dims, &numbers(&value["data"])).unwrap()
}

/// The layer of this name, flattened to one row a sample.
fn layer(b: &mut Builder, name: &str, x: VarId, lengths: VarId) -> Result<VarId, GraphError> {
    let lengths = name.contains("ragged").then_some(lengths);
    let options = RnnOptions { width: 2, reverse: name.contains("reverse"), lengths };
    if name.starts_with("attention") {
        let causal = name.contains("causal");
        let y = b.attend(x, x, AttentionOptions { causal, lengths, ..AttentionOptions::new(2) })?;
        return b.flatten(y);
    }
    if name.starts_with("lstm") {
        let states = b.lstm(x, options, None)?;
        let all = b.flatten(states.all)?;
        return b.concat(&[all, states.hidden, states.cell], 1);
    }
    let states = b.gru(x, options, None)?;
    let all = b.flatten(states.all)?;
    b.concat(&[all, states.last], 1)
}

#[test]
fn layers_over_sequences_are_those_of_pytorch() {
    let file: Value = serde_json::from_str(include_str!("fixtures/sequences.json")).unwrap();
    let lengths: Vec<i64> = numbers(&file["lengths"]).iter().map(|&l| l as i64).collect();
    let lengths = Tensor::new(&[lengths.len()], &lengths).unwrap();
    let cases = file["cases"].as_object().unwrap();
    assert_eq!(cases.len(), 12, "both cells, both directions, attention, with lengths and without");
    for (name, wanted) in cases {
        let start = wanted["start"].as_object().unwrap();
        let mut b = Builder::with_dtype(DType::F64);
        let x = b.parameter("x", tensor(&start["x"]).dims(), Init::Given).unwrap();
        let fed = b.feed("lengths", DType::I64, lengths.dims()).unwrap();
        let out = layer(&mut b, name, x, fed).unwrap();
        let out = b.named(out, "out").unwrap();
        let weights = b.state("weights", b.program().sig(out).shape.clone(), Init::Given).unwrap();
        let loss = b.mul(out, weights).unwrap();
        let loss = b.reduce(Reduction::Sum, loss, &[], false).unwrap();
        let mut program = b.finish().unwrap();
        let wrt = program.trainable();
        assert_eq!(wrt.len(), start.len(), "{name}: as many parameters");
        let pairs = append_gradients(&mut program, loss, &wrt, &[]).unwrap();
        let named: Vec<(String, String)> =
            pairs.iter().map(|&(p, g)| (program.var(p).name.clone(), program.var(g).name.clone())).collect();
        let mut executor = Executor::new(program, Options::default()).unwrap();
        let mut store = Store::new(0);
        executor.prepare(&mut store).unwrap();
        for (var, value) in start {
            store.set(var, &tensor(value)).unwrap();
        }
        let out = tensor(&wanted["out"]);
        let steps: Vec<f64> = (1..=out.to_f64().len()).map(|i| i as f64 / 10.0).collect();
        store.set("weights", &Tensor::new(out.dims(), &steps).unwrap()).unwrap();
        let mut fetch = vec!["out"];
        fetch.extend(named.iter().map(|(_, g)| g.as_str()));
        let got = executor.run(&mut store, &[("lengths", &lengths)], &fetch).unwrap();
        close(name, "out", &got[0], &out);
        for ((p, _), got) in named.iter().zip(&got[1..]) {
            close(name, p, got, &tensor(&wanted["grads"][p]));
        }
    }
}

fn close(case: &str, what: &str, got: &Tensor, wanted: &Tensor) {
    assert_eq!(got.dims(), wanted.dims(), "{case}: {what}");
    for (i, (a, b)) in got.to_f64().iter().zip(wanted.to_f64()).enumerate() {
        assert!((a - b).abs() < 1e-9 * (1.0 + b.abs()), "{case}: {what}[{i}] is {a}, PyTorch says {b}");
    }
}
