//! Fifty steps of four layers of 200 with tanh, on one replica and on several, against PyTorch; and the same bits
//! whenever they are done again (PARA-1).

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Dim, ExecutionStrategy, Executor, Feed, Fetch, Optimizer, Options,
    ParallelExecutor, Program, ReduceStrategy, Rule, Setup, Store, Tensor, layers::BatchNormOptions,
};
use serde_json::Value;

const PIXELS: usize = 64;
const WIDTH: usize = 200;
const CLASSES: usize = 10;
const SAMPLES: usize = 32;
const STEPS: u64 = 50;

/// The noise of python/oracle/graph_curves.py.
fn mixed(i: u64, salt: u64) -> u64 {
    const LOW: u64 = 0xffff_ffff;
    let mut x = (i * 2_654_435_761 + salt * 40_503 + 12_345) & LOW;
    x ^= x >> 15;
    x = (x * 2_246_822_519) & LOW;
    x ^= x >> 13;
    x = (x * 3_266_489_917) & LOW;
    x ^ (x >> 16)
}

fn noise(i: usize, salt: u64) -> f32 {
    (mixed(i as u64, salt) as f64 / f64::from(1u32 << 31) - 1.0) as f32
}

fn network(norm: bool) -> Program {
    let mut b = Builder::new();
    let mut build = || {
        let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(PIXELS)])?;
        let label = b.feed("label", DType::I64, [BATCH])?;
        let mut x = image;
        for _ in 0..4 {
            x = b.fc(x, WIDTH, Act::Tanh)?;
            if norm {
                x = b.batch_norm(x, BatchNormOptions::default())?;
            }
        }
        let scores = b.fc(x, CLASSES, Act::None)?;
        let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
        let loss = b.mean(losses)?;
        b.named(loss, "loss")
    };
    let loss = build().unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::adam(), 1e-3).minimize(&mut program, loss).unwrap();
    program
}

/// A store that begins where PyTorch did.
fn start(program: &Program) -> Store {
    let mut store = Store::new(1);
    Executor::new(program.clone(), Options::default()).unwrap().prepare(&mut store).unwrap();
    let sizes = [PIXELS, WIDTH, WIDTH, WIDTH, WIDTH, CLASSES];
    for (layer, size) in sizes.windows(2).enumerate() {
        let ending = if layer == 0 { String::new() } else { format!(".{layer}") };
        let limit = (6.0 / (size[0] + size[1]) as f64).sqrt();
        let weights: Vec<f32> =
            (0..size[0] * size[1]).map(|i| (limit * f64::from(noise(i, layer as u64))) as f32).collect();
        store.set(&format!("fc.w{ending}"), &Tensor::new(size, &weights).unwrap()).unwrap();
        store.set(&format!("fc.b{ending}"), &Tensor::zeros(DType::F32, &size[1..])).unwrap();
    }
    store
}

fn batch(step: u64) -> (Tensor, Tensor) {
    let label: Vec<i64> =
        (0..SAMPLES as u64).map(|i| (mixed(i, 1000 + step) % CLASSES as u64) as i64).collect();
    let pixel = |i: usize| {
        let bright = (i % PIXELS / 6) as i64 == label[i / PIXELS];
        (f64::from(noise(i, 2000 + step)) + if bright { 0.5 } else { 0.0 }) as f32
    };
    let image: Vec<f32> = (0..SAMPLES * PIXELS).map(pixel).collect();
    (Tensor::new(&[SAMPLES, PIXELS], &image).unwrap(), Tensor::new(&[SAMPLES], &label).unwrap())
}

/// The losses, and everything that was learned.
type Curve = (Vec<f32>, Vec<(String, Vec<u8>)>);

fn train(program: &Program, build: BuildStrategy, replicas: usize) -> Curve {
    let exec = ExecutionStrategy { num_threads: 2, ..ExecutionStrategy::default() };
    let setup = Setup { build, exec, replicas: Some(replicas), ..Setup::default() };
    let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
    let mut store = start(program);
    let losses = (0..STEPS).map(|step| {
        let (image, label) = batch(step);
        let feeds = [("image", Feed::Split(&image)), ("label", Feed::Split(&label))];
        exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap()[0].one().data::<f32>().unwrap()[0]
    });
    let losses = losses.collect();
    let names: Vec<String> = store.names().map(str::to_string).collect();
    (losses, names.into_iter().map(|n| (n.clone(), store.get(&n).unwrap().bytes().to_vec())).collect())
}

fn wanted(name: &str) -> Vec<f64> {
    let file: Value = serde_json::from_str(include_str!("fixtures/curves.json")).unwrap();
    let list = file[name].as_array().unwrap();
    assert_eq!(list.len() as u64, STEPS);
    list.iter().map(|v| v.as_f64().unwrap()).collect()
}

/// On 1, 2 and 4 replicas, in both modes, twice.
fn is_the_curve_of_pytorch(name: &str, norm: bool) {
    let (program, wanted) = (network(norm), wanted(name));
    for replicas in [1, 2, 4] {
        let build = |reduce_strategy| BuildStrategy {
            reduce_strategy,
            sync_batch_norm: norm && replicas > 1,
            ..BuildStrategy::default()
        };
        let first = train(&program, build(ReduceStrategy::AllReduce), replicas);
        for (step, (&got, wanted)) in first.0.iter().zip(&wanted).enumerate() {
            let far = (f64::from(got) - wanted).abs();
            assert!(
                far <= 1e-4 * wanted.abs(),
                "{name}, {replicas} replicas, step {step}: {got}, PyTorch says {wanted}"
            );
        }
        assert!(first.0[STEPS as usize - 1] < 0.6 * first.0[0], "{name}: {:?}", first.0);
        assert!(first.0[0].is_finite() && first.1.len() >= 10);
        let again = train(&program, build(ReduceStrategy::AllReduce), replicas);
        assert!(first == again, "PARA-1: {name}, {replicas} replicas, a second time");
        let shared = train(&program, build(ReduceStrategy::Reduce), replicas);
        assert!(first == shared, "PARA-1: {name}, {replicas} replicas, Reduce");
    }
}

#[test]
fn fifty_steps_have_the_losses_of_pytorch_on_any_number_of_replicas() {
    is_the_curve_of_pytorch("plain", false);
}

#[test]
fn so_they_have_with_batch_norm_over_all_replicas() {
    is_the_curve_of_pytorch("normed", true);
}
