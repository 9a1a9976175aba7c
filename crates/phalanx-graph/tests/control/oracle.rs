//! Loops and branches against PyTorch (`python/oracle/graph_control.py`): outputs and all gradients.

use phalanx_core::DType;
use phalanx_graph::{
    Builder, Executor, GraphError, Init, Options, Shape, Store, Tensor, VarId, append_gradients,
    op::{Func, Reduction},
};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn tensor(value: &Value) -> Tensor {
    let dims: Vec<usize> = numbers(&value["dims"]).iter().map(|&d| d as usize).collect();
    Tensor::new(&dims, &numbers(&value["data"])).unwrap()
}

fn recurrent(b: &mut Builder, given: &dyn Fn(&str) -> VarId) -> Result<VarId, GraphError> {
    let (x, u, w) = (given("x"), given("u"), given("w"));
    let dims = b.program().sig(x).shape.at(0);
    let by_time = b.transpose(x, &[1, 0, 2])?;
    let time = b.fill(DType::I64, [1], dims[1] as f64)?;
    let t = b.fill(DType::I64, [1], 0.0)?;
    let going = |b: &mut Builder, v: &[VarId]| b.less_than(v[0], time);
    let out = b.while_loop(dims[1] as u64, &[t, given("first")], going, |b, v| {
        let now = b.gather(by_time, v[0])?;
        let now = b.reshape(now, [dims[0], dims[2]])?;
        let (now, past) = (b.matmul(now, u, false, false)?, b.matmul(v[1], w, false, false)?);
        let sum = b.add(now, past)?;
        Ok(vec![b.increment(v[0], 1)?, b.map(Func::Tanh, sum)?])
    })?;
    Ok(out[1])
}

fn growing(b: &mut Builder, given: &dyn Fn(&str) -> VarId, limit: f64) -> Result<VarId, GraphError> {
    let w = given("w");
    let limit = b.fill(DType::F64, Shape::scalar(), limit)?;
    let rounds = b.fill(DType::I64, [1], 0.0)?;
    let small = |b: &mut Builder, v: &[VarId]| {
        let squares = b.map(Func::Square, v[1])?;
        let sum = b.reduce(Reduction::Sum, squares, &[], false)?;
        b.less_than(sum, limit)
    };
    let out = b.while_loop(40, &[rounds, given("x")], small, |b, v| {
        let two = b.fill(DType::I64, [1], 2.0)?;
        let early = b.less_than(v[0], two)?;
        let next = b.cond(
            early,
            |b| {
                let more = b.scale(v[1], 1.5, 0.0)?;
                Ok(vec![b.add(more, w)?])
            },
            |b| {
                let (square, half) = (b.map(Func::Square, v[1])?, b.scale(w, 0.5, 1.0)?);
                Ok(vec![b.add(square, half)?])
            },
        )?;
        Ok(vec![b.increment(v[0], 1)?, next[0]])
    })?;
    Ok(out[1])
}

#[test]
fn loops_and_branches_are_those_of_pytorch() {
    let file: Value = serde_json::from_str(include_str!("../fixtures/control.json")).unwrap();
    for (name, case) in file.as_object().unwrap() {
        let mut b = Builder::with_dtype(DType::F64);
        let start = case["start"].as_object().unwrap();
        for (var, value) in start {
            b.parameter(var, tensor(value).dims(), Init::Given).unwrap();
        }
        let program = b.program().clone();
        let given = |name: &str| program.find(name).unwrap();
        let out = match case["limit"].as_f64() {
            Some(limit) => growing(&mut b, &given, limit).unwrap(),
            None => recurrent(&mut b, &given).unwrap(),
        };
        let out = b.named(out, "out").unwrap();
        let shape = b.program().sig(out).shape.clone();
        let weights = b.state("weights", shape.clone(), Init::Given).unwrap();
        let weighed = b.mul(out, weights).unwrap();
        let loss = b.reduce(Reduction::Sum, weighed, &[], false).unwrap();
        let mut program = b.finish().unwrap();
        let wrt = program.trainable();
        let pairs = append_gradients(&mut program, loss, &wrt, &[]).unwrap();
        assert_eq!(pairs.len(), start.len(), "{name}: every parameter has a gradient");
        let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
        let mut store = Store::new(0);
        executor.prepare(&mut store).unwrap();
        for (var, value) in start {
            store.set(var, &tensor(value)).unwrap();
        }
        let dims = shape.at(0);
        let tenths: Vec<f64> = (1..=dims.iter().product()).map(|i: usize| i as f64 / 10.0).collect();
        store.set("weights", &Tensor::new(&dims, &tenths).unwrap()).unwrap();
        let close = |got: &Tensor, wanted: &Value, what: &str| {
            for (a, b) in got.to_f64().iter().zip(numbers(&wanted["data"])) {
                assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{name}, {what}: {a}, PyTorch says {b}");
            }
        };
        let names: Vec<String> = pairs.iter().map(|&(_, g)| program.var(g).name.clone()).collect();
        let mut fetch = vec!["out"];
        fetch.extend(names.iter().map(String::as_str));
        let got = executor.run(&mut store, &[], &fetch).unwrap();
        close(&got[0], &case["out"], "out");
        for (&(p, _), got) in pairs.iter().zip(&got[1..]) {
            let of = &program.var(p).name;
            close(got, &case["grads"][of], of);
        }
    }
}
