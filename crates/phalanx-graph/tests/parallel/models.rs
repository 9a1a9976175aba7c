//! Networks and data that the tests of the parallel executor have in common.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Program, Rule, Setup, Store, Tensor,
    kernel::Stream, layers::BatchNormOptions,
};

pub const PIXELS: usize = 64;

/// Four layers of 200 with tanh, as in the example that everybody knows, on small digits; the loss is called `loss`.
pub fn mlp(optimizer: Option<&Optimizer>) -> Program {
    network(optimizer, &[200, 200, 200, 200], false, 0.0)
}

pub fn network(optimizer: Option<&Optimizer>, widths: &[usize], norm: bool, dropout: f64) -> Program {
    let mut b = Builder::new();
    let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(PIXELS)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let mut h = image;
    for &width in widths {
        h = b.fc(h, width, Act::Tanh).unwrap();
        if norm {
            h = b.batch_norm(h, BatchNormOptions::default()).unwrap();
        }
        if dropout > 0.0 {
            h = b.dropout(h, dropout).unwrap();
        }
    }
    b.named(h, "hidden").unwrap();
    let scores = b.fc(h, 10, Act::None).unwrap();
    b.named(scores, "scores").unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let accuracy = b.accuracy(scores, label, 1).unwrap();
    b.named(accuracy, "accuracy").unwrap();
    let mut program = b.finish().unwrap();
    if let Some(optimizer) = optimizer {
        optimizer.minimize(&mut program, loss).unwrap();
    }
    program
}

pub fn adam() -> Optimizer {
    Optimizer::new(Rule::adam(), 1e-3)
}

/// Digits of 8 by 8 points: a bright spot whose place is the class, and noise.
pub fn digits(n: usize, seed: u64) -> (Tensor, Tensor) {
    let dice = Stream::new(11, seed, 0);
    let labels: Vec<i64> = (0..n).map(|i| (dice.bits(i as u64) % 10) as i64).collect();
    let pixel = |i: usize| {
        let (sample, at) = (i / PIXELS, i % PIXELS);
        let bright = at / 6 == labels[sample] as usize;
        dice.uniform((10_000 + i) as u64) as f32 - 0.5 + if bright { 1.0 } else { 0.0 }
    };
    let images: Vec<f32> = (0..n * PIXELS).map(pixel).collect();
    (Tensor::new(&[n, PIXELS], &images).unwrap(), Tensor::new(&[n], &labels).unwrap())
}

pub fn on(replicas: usize) -> Setup {
    Setup { replicas: Some(replicas), ..Setup::default() }
}

/// Losses of a number of steps and the store after them.
pub fn train(program: &Program, setup: Setup, steps: u64, batch: usize) -> (Vec<f32>, Store) {
    let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
    let mut store = Store::new(3);
    let losses = (0..steps).map(|step| {
        let (x, y) = digits(batch, step);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        let out = exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap();
        out[0].one().data::<f32>().unwrap()[0]
    });
    (losses.collect(), store)
}

pub fn bits(all: &[f32]) -> Vec<u32> {
    all.iter().map(|v| v.to_bits()).collect()
}

/// Everything in the two stores is the same, bit for bit.
pub fn assert_same(a: &mut Store, b: &mut Store, why: &str) {
    let names: Vec<String> = a.names().map(String::from).collect();
    assert_eq!(names, b.names().map(String::from).collect::<Vec<_>>());
    for name in names {
        assert_eq!(a.get(&name).unwrap().bytes(), b.get(&name).unwrap().bytes(), "{why}: {name}");
    }
}
