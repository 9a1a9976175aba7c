//! Layers over sequences against PyTorch (`python/oracle/graph_recurrent.py`).

use phalanx_core::DType;
use phalanx_graph::{BATCH, Builder, Dim, Executor, Options, Store, Tensor, append_gradients};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn close(name: &str, got: &Tensor, wanted: &Value) {
    let (got, wanted) = (got.to_f64(), numbers(wanted));
    let far = got.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(got.len() == wanted.len() && far < 1e-9, "{name} differs by {far}");
}

#[test]
fn outputs_and_gradients_are_those_of_pytorch() {
    let file: Value = serde_json::from_str(include_str!("fixtures/recurrent.json")).unwrap();
    let [n, t, width, h] = [3, 5, 4, 6];
    let x = Tensor::new(&[n, t, width], &numbers(&file["x"])).unwrap();
    for (kind, reverse) in [("lstm", false), ("lstm", true), ("gru", false), ("gru", true)] {
        let wanted = &file[format!("{kind}{}", if reverse { "_reverse" } else { "" })];
        let mut b = Builder::with_dtype(DType::F64);
        let input = b.feed("x", DType::F64, [BATCH, Dim::Fixed(t), Dim::Fixed(width)]).unwrap();
        let y = if kind == "lstm" { b.lstm(input, h, reverse) } else { b.gru(input, h, reverse) }.unwrap();
        let y = b.named(y, "y").unwrap();
        let squares = b.map(phalanx_graph::op::Func::Square, y).unwrap();
        let loss = b.mean(squares).unwrap();
        let mut program = b.finish().unwrap();
        let wrt = program.trainable();
        let pairs = append_gradients(&mut program, loss, &wrt, &[]).unwrap();
        let names: Vec<[String; 2]> =
            pairs.iter().map(|&(p, g)| [p, g].map(|v| program.var(v).name.clone())).collect();
        let mut executor = Executor::new(program, Options::default()).unwrap();
        let mut store = Store::new(0);
        executor.prepare(&mut store).unwrap();
        for [parameter, _] in &names {
            let start = &wanted["start"][parameter];
            let dims = store.get(parameter).unwrap().dims().to_vec();
            store.set(parameter, &Tensor::new(&dims, &numbers(start)).unwrap()).unwrap();
        }
        let mut fetch = vec!["y"];
        fetch.extend(names.iter().map(|[_, g]| g.as_str()));
        let got = executor.run(&mut store, &[("x", &x)], &fetch).unwrap();
        close(&format!("{kind}, reverse {reverse}: output"), &got[0], &wanted["y"]);
        for ([parameter, _], got) in names.iter().zip(&got[1..]) {
            close(&format!("{kind}, reverse {reverse}: d{parameter}"), got, &wanted["grad"][parameter]);
        }
    }
}
