//! Eight steps of a small network under every optimizer, against PyTorch (`python/oracle/graph_training.py`).

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Clip, Dim, Executor, Optimizer, Options, Program, Rule, Store, Tensor,
    layers::{BatchNormOptions, ConvOptions},
    op::Pool,
};
use serde_json::Value;

fn network(optimizer: &Optimizer) -> Program {
    let mut b = Builder::with_dtype(DType::F64);
    let x = b.feed("x", DType::F64, [BATCH, Dim::Fixed(1), Dim::Fixed(8), Dim::Fixed(8)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let y = b.conv2d(x, ConvOptions { act: Act::Relu, ..ConvOptions::new(2, 3) }).unwrap();
    let y = b.batch_norm(y, BatchNormOptions::default()).unwrap();
    let y = b.pool2d(y, Pool::Max, 2, 2).unwrap();
    let y = b.flatten(y).unwrap();
    let y = b.fc(y, 5, Act::Gelu).unwrap();
    let y = b.layer_norm(y, 1).unwrap();
    let scores = b.fc(y, 3, Act::None).unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    optimizer.minimize(&mut program, loss).unwrap();
    program
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

#[test]
fn eight_steps_are_those_of_pytorch() {
    let file: Value = serde_json::from_str(include_str!("fixtures/training.json")).unwrap();
    let plain = |rule, rate| Optimizer::new(rule, rate);
    let optimizers = [
        ("sgd", plain(Rule::Sgd, 0.1)),
        ("momentum", plain(Rule::Momentum { mu: 0.9, nesterov: false }, 0.1)),
        ("nesterov", plain(Rule::Momentum { mu: 0.9, nesterov: true }, 0.1)),
        ("adam", plain(Rule::adam(), 0.1)),
        ("adamw", plain(Rule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.05 }, 0.1)),
        ("adagrad", plain(Rule::Adagrad { epsilon: 1e-8 }, 0.1)),
        ("rmsprop", plain(Rule::RmsProp { rho: 0.95, epsilon: 1e-6, mu: 0.5 }, 0.01)),
        ("decay", Optimizer { decay: Some(0.05), ..plain(Rule::Sgd, 0.1) }),
        ("clip", Optimizer { clip: Some(Clip::GlobalNorm(0.3)), ..plain(Rule::Sgd, 0.1) }),
    ];
    let x = Tensor::new(&[6, 1, 8, 8], &numbers(&file["x"])).unwrap();
    let labels: Vec<i64> = numbers(&file["label"]).iter().map(|&l| l as i64).collect();
    let label = Tensor::new(&[6], &labels).unwrap();
    for (name, optimizer) in optimizers {
        let mut executor = Executor::new(network(&optimizer), Options::default()).unwrap();
        let mut store = Store::new(0);
        executor.prepare(&mut store).unwrap();
        for (var, start) in file["start"].as_object().unwrap() {
            let dims: Vec<usize> = numbers(&start["dims"]).iter().map(|&d| d as usize).collect();
            store.set(var, &Tensor::new(&dims, &numbers(&start["data"])).unwrap()).unwrap();
        }
        let wanted = &file["runs"][name];
        for (step, wanted) in numbers(&wanted["losses"]).into_iter().enumerate() {
            let got =
                executor.run(&mut store, &[("x", &x), ("label", &label)], &["loss"]).unwrap()[0].to_f64()[0];
            // A clipped norm has 1e-6 added to it there.
            assert!((got - wanted).abs() < 2e-6, "{name}, step {step}: {got}, PyTorch says {wanted}");
        }
        let weights = store.get("fc.w").unwrap().to_f64();
        let far =
            weights.iter().zip(numbers(&wanted["fc.w"])).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far < 2e-6, "{name}: weights differ by {far}");
    }
}
