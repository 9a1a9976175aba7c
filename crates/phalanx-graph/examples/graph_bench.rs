//! Times matrix products, convolutions and training steps on one thread.
//!
//! Cases are named on the command line, or line by line on stdin, so that somebody else's runs can go between ours
//! (`benches/graph/compare.py`). Prints `name, median us, min us, samples/s`, separated by tabs. With `--memory on` or
//! `--memory off` (the memory plan) it prints how much resident memory a few steps of a case take at most beyond the
//! parameters and what is fed, and the size of the arena.
//!
//! ```text
//! cargo run --release -p phalanx-graph --example graph_bench -- sgemm_32x200x784 mlp_small
//! cargo run --release -p phalanx-graph --example graph_bench -- --memory on mlp_small
//! ```

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Executor, Init, Learn, Optimizer, Options, Program, Rule, Shape, Store, Tensor,
    VarId, append_gradients,
    kernel::{Gemm, Mat, Size, Stream},
    layers::{BatchNormOptions, ConvOptions, EmbeddingOptions},
    op::{
        Arith, Binary, Cast, Conv2d, Conv2dInputGrad, Embedding, Func, HSigmoid, MatMul, Pool, Random,
        Reduction, Slice, SquaredNorm,
    },
    plan::Reuse,
};
use rustix::time::{ClockId, clock_gettime};
use std::{error::Error, io::BufRead};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How long one case is measured, after a quarter of that to warm up.
const SPAN_US: f64 = 400e3;

/// The time this thread was on a core: what others do on the machine counts less.
fn now_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn main() -> Outcome<()> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, plan, name] = &named[..]
        && flag == "--memory"
    {
        let on = Reuse::ALL;
        let off = Reuse { across: false, in_place: false };
        return memory(name, if plan == "off" { off } else { on });
    }
    if !named.is_empty() {
        return named.iter().try_for_each(|name| measure(name));
    }
    for line in std::io::stdin().lock().lines() {
        measure(line?.trim())?;
    }
    Ok(())
}

fn measure(name: &str) -> Outcome<()> {
    let (mut step, samples) = case(name)?;
    let begin = now_us();
    while now_us() - begin < SPAN_US / 4.0 {
        step()?;
    }
    let mut times = Vec::new();
    let begin = now_us();
    while now_us() - begin < SPAN_US || times.len() < 5 {
        let one = now_us();
        step()?;
        times.push(now_us() - one);
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!("{name}\t{median:.1}\t{:.1}\t{:.0}", times[0], samples as f64 * 1e6 / median);
    Ok(())
}

/// Bytes of this process that the kernel counts under this name.
fn resident(name: &str) -> Outcome<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("the kernel does not say")?;
    Ok(kib.parse::<usize>()? << 10)
}

fn memory(name: &str, reuse: Reuse) -> Outcome<()> {
    let Some((program, feeds, _)) = model(name)? else { return Err(format!("{name} is no model").into()) };
    let mut executor = Executor::new(program, Options { reuse, ..Options::default() })?;
    let mut store = Store::new(1);
    executor.prepare(&mut store)?;
    // The peak begins anew.
    std::fs::write("/proc/self/clear_refs", "5")?;
    let before = resident("VmRSS")?;
    let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(n, t)| (*n, t)).collect();
    for _ in 0..3 {
        executor.run(&mut store, &feeds, &["loss"])?;
    }
    println!("{name}\t{}\t{}", resident("VmHWM")?.saturating_sub(before), executor.arena_bytes());
    Ok(())
}

type Run = Box<dyn FnMut() -> Outcome<()>>;
/// A program that learns, what is fed to it, and how many samples that is.
type Model = (Program, Vec<(&'static str, Tensor)>, usize);

fn model(name: &str) -> Outcome<Option<Model>> {
    Ok(Some(match name {
        "lenet_20_50" => training(|b| lenet(b, [20, 50], &[500], Act::Relu), &[1, 28, 28], 64, 10)?,
        "lenet_6_16" => training(|b| lenet(b, [6, 16], &[120, 84], Act::Relu), &[1, 28, 28], 64, 10)?,
        "mlp_small" => training(|b| mlp(b, 784, &[200, 200, 200], 10, Act::Tanh), &[784], 64, 10)?,
        "mlp_large" => training(|b| mlp(b, 1024, &[4096, 4096], 1000, Act::Relu), &[1024], 32, 1000)?,
        "deep" => training(|b| deep(b, 8, 32), &[3, 32, 32], 32, 10)?,
        "block" => block()?,
        "resnet_18" => training(resnet, &[3, 32, 32], 8, 10)?,
        "bag_of_words" => bag_of_words()?,
        _ => return Ok(None),
    }))
}

fn case(name: &str) -> Outcome<(Run, usize)> {
    if let Some((program, feeds, samples)) = model(name)? {
        return Ok((steps(program, feeds)?, samples));
    }
    match name.split_once('_') {
        Some(("sgemm", rest)) => sgemm(rest),
        Some(("conv", rest)) => conv(rest),
        Some(("deconv", rest)) => deconv(rest),
        Some((kind @ ("hsigmoid" | "nce"), rest)) => classes(kind, rest),
        Some((kind @ ("sum" | "squares" | "rows" | "columns" | "channels"), rest)) => sums(kind, rest),
        Some((kind @ ("softmax" | "layernorm" | "batchnorm" | "table"), rest)) => norms(kind, rest),
        _ => Err(format!("no case is named `{name}`").into()),
    }
}

fn numbers(text: &str) -> Outcome<Vec<usize>> {
    text.split('x').map(|n| n.parse::<usize>().map_err(|e| format!("`{text}`: {e}").into())).collect()
}

fn random(n: usize, stream: u64) -> Vec<f32> {
    let dice = Stream::new(1, stream, 0);
    (0..n as u64).map(|i| dice.uniform(i) as f32 - 0.5).collect()
}

/// `MxNxK`, or `MxNxK_nt` and `MxNxK_tn` with the second or first operand transposed.
fn sgemm(rest: &str) -> Outcome<(Run, usize)> {
    let (sizes, form) = rest.split_once('_').unwrap_or((rest, "nn"));
    let &[m, n, k] = numbers(sizes)?.as_slice() else { return Err("wanted MxNxK".into()) };
    let (a, b) = (random(m * k, 1), random(k * n, 2));
    let (ta, tb) = (form.starts_with('t'), form.ends_with('t'));
    let size = Size { m, n, k };
    let (mut c, mut scratch) = (vec![0f32; m * n], vec![0f32; f32::scratch(size)]);
    let run = move || {
        let a = Mat::new(&a, if ta { m } else { k }).t_if(ta);
        let b = Mat::new(&b, if tb { k } else { n }).t_if(tb);
        f32::gemm(size, a, b, &mut c, false, &mut scratch);
        std::hint::black_box(&mut c);
        Ok(())
    };
    Ok((Box::new(run), m))
}

fn lenet(b: &mut Builder, filters: [usize; 2], hidden: &[usize], act: Act) -> Outcome<(VarId, VarId)> {
    let d = Dim::Fixed;
    let x = b.feed("x", DType::F32, [BATCH, d(1), d(28), d(28)])?;
    let mut y = x;
    for n in filters {
        y = b.conv2d(y, ConvOptions { act, ..ConvOptions::new(n, 5) })?;
        y = b.pool2d(y, Pool::Max, 2, 2)?;
    }
    y = b.flatten(y)?;
    for &n in hidden {
        y = b.fc(y, n, act)?;
    }
    Ok((x, b.fc(y, 10, Act::None)?))
}

/// A number of convolutions of 3 x 3, and one layer.
fn deep(b: &mut Builder, n: usize, width: usize) -> Outcome<(VarId, VarId)> {
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3), Dim::Fixed(32), Dim::Fixed(32)])?;
    let mut y = x;
    for _ in 0..n {
        let options = ConvOptions { padding: [1; 2], act: Act::Relu, ..ConvOptions::new(width, 3) };
        y = b.conv2d(y, options)?;
    }
    y = b.pool2d(y, Pool::Mean, 4, 4)?;
    y = b.flatten(y)?;
    Ok((x, b.fc(y, 10, Act::None)?))
}

fn mlp(b: &mut Builder, n_in: usize, hidden: &[usize], n_out: usize, act: Act) -> Outcome<(VarId, VarId)> {
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(n_in)])?;
    let mut y = x;
    for &n in hidden {
        y = b.fc(y, n, act)?;
    }
    Ok((x, b.fc(y, n_out, Act::None)?))
}

/// Forward, backward and SGD of a classifier.
fn training(
    net: impl Fn(&mut Builder) -> Outcome<(VarId, VarId)>,
    sample: &[usize],
    batch: usize,
    classes: i64,
) -> Outcome<Model> {
    let mut b = Builder::new();
    let label = b.feed("label", DType::I64, [BATCH])?;
    let (_, scores) = net(&mut b)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
    let loss = b.mean(losses)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::Sgd, 0.01).minimize(&mut program, loss)?;
    let mut dims = vec![batch];
    dims.extend(sample);
    let labels: Vec<i64> = (0..batch as i64).map(|i| i % classes).collect();
    let x = Tensor::new(&dims, &random(dims.iter().product(), 3))?;
    let label = Tensor::new(&[batch], &labels)?;
    Ok((program, vec![("x", x), ("label", label)], batch))
}

fn steps(program: Program, feeds: Vec<(&'static str, Tensor)>) -> Outcome<Run> {
    let mut executor = Executor::new(program, Options::default())?;
    let mut store = Store::new(1);
    let mut out = vec![Tensor::zeros(DType::F32, &[0])];
    Ok(Box::new(move || {
        let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(n, t)| (*n, t)).collect();
        Ok(executor.run_into(&mut store, &feeds, &["loss"], &mut out)?)
    }))
}

/// One block of a transformer: attention and two layers, each behind a norm, added to what they read.
fn block() -> Outcome<Model> {
    let (batch, time, width) = (8, 64, 256);
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(time), Dim::Fixed(width)])?;
    let y = b.layer_norm(x, 2)?;
    let y = b.attention(y, 4, None)?;
    let x = b.add(x, y)?;
    let y = b.layer_norm(x, 2)?;
    let y = b.fc(y, 4 * width, Act::Gelu)?;
    let y = b.fc(y, width, Act::None)?;
    let y = b.add(x, y)?;
    let y = b.map(Func::Square, y)?;
    let loss = b.mean(y)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::Sgd, 1e-4).minimize(&mut program, loss)?;
    let x = Tensor::new(&[batch, time, width], &random(batch * time * width, 4))?;
    Ok((program, vec![("x", x)], batch))
}

/// The ResNet of 18 layers for images of 32 x 32: four stages of two blocks of two convolutions each.
fn resnet(b: &mut Builder) -> Outcome<(VarId, VarId)> {
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3), Dim::Fixed(32), Dim::Fixed(32)])?;
    let layer = |b: &mut Builder, x, width, side: usize, step: usize, act| {
        let options = ConvOptions {
            stride: [step; 2],
            padding: [side / 2; 2],
            bias: false,
            ..ConvOptions::new(width, side)
        };
        let y = b.conv2d(x, options)?;
        b.batch_norm(y, BatchNormOptions { act, ..BatchNormOptions::default() })
    };
    let mut y = layer(b, x, 64, 3, 1, Act::Relu)?;
    for (width, steps) in [(64, [1, 1]), (128, [2, 1]), (256, [2, 1]), (512, [2, 1])] {
        for step in steps {
            let inner = layer(b, y, width, 3, step, Act::Relu)?;
            let inner = layer(b, inner, width, 3, 1, Act::None)?;
            let across = if step == 1 { y } else { layer(b, y, width, 1, step, Act::None)? };
            y = b.add(inner, across)?;
            y = b.act(y, Act::Relu)?;
        }
    }
    y = b.pool2d(y, Pool::Mean, 4, 4)?;
    y = b.flatten(y)?;
    Ok((x, b.fc(y, 10, Act::None)?))
}

/// Texts of 64 words from a table of 50000: the mean of their rows, and one layer. Gradients of the table are sparse.
fn bag_of_words() -> Outcome<Model> {
    let (batch, time, words, width) = (64, 64, 50_000, 128);
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH, Dim::Fixed(time)])?;
    let label = b.feed("label", DType::I64, [BATCH])?;
    let y = b.embedding(ids, words, width, EmbeddingOptions { sparse: true, padding: None })?;
    let y = b.reduce(Reduction::Mean, y, &[1], false)?;
    let y = b.fc(y, 10, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(y, label)?;
    let loss = b.mean(losses)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::Sgd, 0.01).minimize(&mut program, loss)?;
    let drawn: Vec<i64> = random(batch * time, 6).iter().map(|v| ((v + 0.5) * words as f32) as i64).collect();
    let labels: Vec<i64> = (0..batch as i64).map(|i| i % 10).collect();
    let feeds =
        vec![("ids", Tensor::new(&[batch, time], &drawn)?), ("label", Tensor::new(&[batch], &labels)?)];
    Ok((program, feeds, batch))
}

/// `BxCxHxOxK`: a convolution of B images of C channels and H x H pixels with O filters of K x K, as large as its
/// input, and both its gradients. `BxCxHxOxKxS` has stride S, `BxCxHxOxKxSxG` also G groups.
fn conv(rest: &str) -> Outcome<(Run, usize)> {
    let sizes = numbers(rest)?;
    let (&[batch, c, side, o, k], more) = sizes.split_first_chunk().ok_or("wanted BxCxHxOxK")?;
    let stride = more.first().copied().unwrap_or(1);
    let groups = more.get(1).copied().unwrap_or(1);
    let out = (side - 1) / stride + 1;
    let mut b = Builder::new();
    let learn = || Learn::from(Init::Normal { mean: 0.0, std: 0.1 });
    let x = b.parameter("x", [batch, c, side, side], learn())?;
    let weight = b.feed("weight", DType::F32, [batch, o, out, out])?;
    let (stride, padding) = ([stride; 2], [k / 2; 2]);
    let options = ConvOptions { stride, padding, groups, bias: false, ..ConvOptions::new(o, k) };
    let y = b.conv2d(x, options)?;
    let y = b.mul(y, weight)?;
    let loss = b.reduce(Reduction::Sum, y, &[], false)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    let wrt = program.trainable();
    append_gradients(&mut program, loss, &wrt, &[])?;
    let weight = Tensor::new(&[batch, o, out, out], &random(batch * o * out * out, 5))?;
    Ok((steps(program, vec![("weight", weight)])?, batch))
}

/// `BxCxHxOxKxS`: a transposed convolution of B images of C channels and H x H pixels with O filters of K x K and stride S, which
/// gives S times as large images, and both its gradients.
fn deconv(rest: &str) -> Outcome<(Run, usize)> {
    let &[batch, c, side, o, k, s] = numbers(rest)?.as_slice() else {
        return Err("wanted BxCxHxOxKxS".into());
    };
    let out = side * s;
    let mut b = Builder::new();
    let learn = || Learn::from(Init::Normal { mean: 0.0, std: 0.1 });
    let x = b.parameter("x", [batch, c, side, side], learn())?;
    let filters = b.parameter("filters", [c, o, k, k], learn())?;
    let weight = b.feed("weight", DType::F32, [batch, o, out, out])?;
    let conv = Conv2d { stride: [s; 2], padding: [(k - s) / 2; 2], dilation: [1; 2], groups: 1 };
    let y = b.op1(Conv2dInputGrad { conv, shape: Shape::from([batch, o, out, out]) }, &[filters, x])?;
    let y = b.mul(y, weight)?;
    let loss = b.reduce(Reduction::Sum, y, &[], false)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    let wrt = program.trainable();
    append_gradients(&mut program, loss, &wrt, &[])?;
    let weight = Tensor::new(&[batch, o, out, out], &random(batch * o * out * out, 5))?;
    Ok((steps(program, vec![("weight", weight)])?, batch))
}

/// Training steps with losses over many classes: `hsigmoid_NxWxC` over a tree of C classes, `nce_NxWxCxK` against K random ones.
fn classes(kind: &str, rest: &str) -> Outcome<(Run, usize)> {
    let sizes = numbers(rest)?;
    let (&[n, width, classes], more) = sizes.split_first_chunk().ok_or("wanted NxWxC")?;
    let mut b = Builder::new();
    let learn = || Learn::from(Init::Normal { mean: 0.0, std: 0.1 });
    let x = b.parameter("x", [n, width], learn())?;
    let label = b.feed("label", DType::I64, [n, 1])?;
    let cost = match (kind, more) {
        ("hsigmoid", []) => {
            let (w, bias) =
                (b.parameter("w", [classes - 1, width], learn())?, b.parameter("b", [classes - 1], learn())?);
            b.op1(HSigmoid { classes }, &[x, w, bias, label])?
        }
        ("nce", &[k]) => {
            let (w, bias) =
                (b.parameter("w", [classes, width], learn())?, b.parameter("b", [classes, 1], learn())?);
            let shape = Shape::from([n, k]);
            let drawn =
                Random { dtype: DType::F64, shape, normal: false, a: 0.0, b: classes as f64, stream: 0 };
            let drawn = b.op1(drawn, &[])?;
            let noise = b.map(Func::Floor, drawn)?;
            let noise = b.op1(Cast { to: DType::I64 }, &[noise])?;
            let ids = b.concat(&[label, noise], 1)?;
            let rows = b.op1(Embedding { sparse: false, padding: None }, &[w, ids])?;
            let column = b.reshape(x, [n, width, 1])?;
            let scores = b.op1(MatMul { trans_a: false, trans_b: false }, &[rows, column])?;
            let biases = b.op1(Embedding { sparse: false, padding: None }, &[bias, ids])?;
            let scores = b.add(scores, biases)?;
            let scores = b.reshape(scores, [n, 1 + k])?;
            let (log_e, log_more) = ((k as f64 / classes as f64).ln(), (k as f64 / classes as f64).ln_1p());
            let nearer = b.map(Func::Scale { a: -1.0, b: log_e - log_more }, scores)?;
            let each = b.map(Func::Softplus, nearer)?;
            let under = b.map(Func::Scale { a: -1.0, b: 0.0 }, scores)?;
            let noisy = b.map(Func::Softplus, under)?;
            let wrong = b.op1(Slice { axis: 1, begin: 1, end: 1 + k }, &[noisy])?;
            let each = b.reduce(Reduction::Sum, each, &[1], true)?;
            let wrong = b.reduce(Reduction::Sum, wrong, &[1], true)?;
            b.op1(Binary::same(Arith::Sub), &[each, wrong])?
        }
        _ => return Err("wanted NxWxC, and how many for nce".into()),
    };
    let loss = b.mean(cost)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::Sgd, 0.01).minimize(&mut program, loss)?;
    let labels: Vec<i64> = (0..n as i64).map(|i| i * 37 % classes as i64).collect();
    Ok((steps(program, vec![("label", Tensor::new(&[n, 1], &labels)?)])?, n))
}

/// Sums of what lies in memory: all of it (`sum_N`, `squares_N`), of each row or column (`rows_RxC`, `columns_RxC`), or
/// of each channel of images (`channels_BxCxHxW`).
fn sums(kind: &str, rest: &str) -> Outcome<(Run, usize)> {
    let dims = numbers(rest)?;
    let mut b = Builder::new();
    let learn = Learn::from(Init::Uniform { low: 0.1, high: 1.1 });
    let x = b.parameter("x", Shape(dims.iter().map(|&n| Dim::Fixed(n)).collect()), learn)?;
    let axes: &[usize] = match kind {
        "rows" => &[1],
        "columns" => &[0],
        "channels" => &[0, 2, 3],
        _ => &[],
    };
    let y = match kind {
        "squares" => b.op1(SquaredNorm, &[x])?,
        _ => b.reduce(Reduction::Sum, x, axes, false)?,
    };
    b.named(y, "loss")?;
    Ok((steps(b.finish()?, Vec::new())?, dims[0]))
}

/// Forward and backward of what has sums within: `softmax_RxC`, `layernorm_RxC`, `batchnorm_BxCxHxW`, and `table_NxHxW`,
/// which looks N rows up in a table of H rows.
fn norms(kind: &str, rest: &str) -> Outcome<(Run, usize)> {
    let dims = numbers(rest)?;
    let mut b = Builder::new();
    let learn = || Learn::from(Init::Uniform { low: 0.1, high: 1.1 });
    let all = |dims: &[usize]| Shape(dims.iter().map(|&n| Dim::Fixed(n)).collect());
    let mut feeds = Vec::new();
    let y = match (kind, &dims[..]) {
        ("table", &[n, height, width]) => {
            let ids = b.feed("ids", DType::I64, [n])?;
            let drawn: Vec<i64> = random(n, 6).iter().map(|v| ((v + 0.5) * height as f32) as i64).collect();
            feeds.push(("ids", Tensor::new(&[n], &drawn)?));
            let table = b.parameter("table", [height, width], learn())?;
            b.lookup(table, ids, EmbeddingOptions { sparse: false, padding: None })?
        }
        _ => {
            let x = b.parameter("x", all(&dims), learn())?;
            match kind {
                "softmax" => b.softmax(x)?,
                "layernorm" => b.layer_norm(x, 1)?,
                _ => b.batch_norm(x, BatchNormOptions::default())?,
            }
        }
    };
    let shape = b.program().sig(y).shape.clone();
    let weight = b.parameter("weight", shape, Learn { trainable: false, ..learn() })?;
    let y = b.mul(y, weight)?;
    let loss = b.reduce(Reduction::Sum, y, &[], false)?;
    let loss = b.named(loss, "loss")?;
    let mut program = b.finish()?;
    let wrt = program.trainable();
    append_gradients(&mut program, loss, &wrt, &[])?;
    Ok((steps(program, feeds)?, dims[0]))
}
