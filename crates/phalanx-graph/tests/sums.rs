//! Long sums keep their digits: TOTAL-1, operation by operation.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Clip, Dim, Executor, Init, Optimizer, Options, Rule, Store, Tensor, VarId,
    append_gradients,
    kernel::Stream,
    layers::{BatchNormOptions, EmbeddingOptions},
    op::{Pool, Reduction},
};

const ROWS: usize = 1_000_000;
const CLOSE: f64 = 1e-6;

/// Numbers between 0.1 and 1.1, whose sum in f32, one after another, would be off in the third digit.
fn numbers(n: usize, salt: u64) -> Vec<f32> {
    let dice = Stream::new(salt, 1, 1);
    (0..n as u64).map(|i| 0.1 + dice.uniform(i) as f32).collect()
}

fn close(got: f32, exact: f64, what: &str) {
    let off = (f64::from(got) - exact).abs() / exact.abs();
    assert!(off <= CLOSE, "TOTAL-1: {what} is {got}, not {exact}: off by {off:.1e}");
}

/// The exact sums of columns.
fn columns(x: &[f32], width: usize) -> Vec<f64> {
    let mut sums = vec![0.0; width];
    x.iter().enumerate().for_each(|(i, &v)| sums[i % width] += f64::from(v));
    sums
}

fn run(b: Builder, feeds: &[(&str, &Tensor)], fetches: &[&str]) -> Vec<Vec<f32>> {
    let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let out = executor.run(&mut Store::new(1), feeds, fetches).unwrap();
    out.iter().map(|t| t.data::<f32>().unwrap().to_vec()).collect()
}

/// The gradients of parameters, for the loss `sum(y * weight)`.
fn gradients(mut b: Builder, y: VarId, feeds: &[(&str, &Tensor)], parameters: &[&str]) -> Vec<Vec<f32>> {
    let weight = b.feed("weight", DType::F32, b.program().sig(y).shape.clone()).unwrap();
    let y = b.mul(y, weight).unwrap();
    let loss = b.reduce(Reduction::Sum, y, &[], false).unwrap();
    let mut program = b.finish().unwrap();
    let wrt = program.trainable();
    append_gradients(&mut program, loss, &wrt, &[]).unwrap();
    let names: Vec<String> = parameters.iter().map(|p| format!("{p}@GRAD")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let out = executor.run(&mut Store::new(1), feeds, &names).unwrap();
    out.iter().map(|t| t.data::<f32>().unwrap().to_vec()).collect()
}

#[test]
fn sums_and_means_of_eight_million() {
    for (x, what) in [(numbers(8_000_000, 1), "random"), (vec![0.1; 8_000_000], "equal")] {
        let mut b = Builder::new();
        let v = b.feed("x", DType::F32, [BATCH]).unwrap();
        let sum = b.reduce(Reduction::Sum, v, &[], false).unwrap();
        b.named(sum, "sum").unwrap();
        let mean = b.mean(v).unwrap();
        b.named(mean, "mean").unwrap();
        let exact = columns(&x, 1)[0];
        let out = run(b, &[("x", &Tensor::new(&[x.len()], &x).unwrap())], &["sum", "mean"]);
        close(out[0][0], exact, &format!("the sum of {what} numbers"));
        close(out[1][0], exact / x.len() as f64, &format!("the mean of {what} numbers"));
    }
}

#[test]
fn sums_along_every_axis() {
    let dims = [300, 70, 100];
    let x = numbers(dims.iter().product(), 2);
    for axes in [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2]] {
        let mut b = Builder::new();
        let v = b.feed("x", DType::F32, dims.map(Dim::Fixed)).unwrap();
        let sum = b.reduce(Reduction::Sum, v, &axes, false).unwrap();
        b.named(sum, "sum").unwrap();
        let mut exact = std::collections::BTreeMap::<Vec<usize>, f64>::new();
        for (i, &v) in x.iter().enumerate() {
            let at = [i / 7000, i / 100 % 70, i % 100];
            let kept = (0..3).filter(|a| !axes.contains(a)).map(|a| at[a]).collect();
            *exact.entry(kept).or_default() += f64::from(v);
        }
        let out = run(b, &[("x", &Tensor::new(&dims, &x).unwrap())], &["sum"]);
        assert_eq!(out[0].len(), exact.len());
        out[0].iter().zip(exact.values()).for_each(|(&got, &exact)| close(got, exact, &format!("{axes:?}")));
    }
}

#[test]
fn the_gradient_of_a_bias_over_a_million_rows() {
    for (width, is_random) in [(1, true), (5, true), (40, true), (1, false), (8, false)] {
        let mut b = Builder::new();
        let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1)]).unwrap();
        let y = b.fc(x, width, Act::None).unwrap();
        let n = if is_random { ROWS / width } else { ROWS };
        let weights = if is_random { numbers(n * width, 3) } else { vec![0.1; n * width] };
        let x = Tensor::new(&[n, 1], &vec![0.0f32; n]).unwrap();
        let w = Tensor::new(&[n, width], &weights).unwrap();
        let out = gradients(b, y, &[("x", &x), ("weight", &w)], &["fc.b"]);
        let exact = columns(&weights, width);
        out[0].iter().zip(exact).for_each(|(&got, exact)| close(got, exact, "a bias's gradient"));
    }
}

#[test]
fn the_statistics_and_gradients_of_batch_norm() {
    let (n, c, side) = (500_000, 2, 1);
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(c), Dim::Fixed(side), Dim::Fixed(side)]).unwrap();
    // All of the running statistics is this batch's.
    let y = b.batch_norm(x, BatchNormOptions { momentum: 0.0, ..BatchNormOptions::default() }).unwrap();
    let (x, w) = (numbers(n * c * side * side, 4), numbers(n * c * side * side, 5));
    let channel = |i: usize| i / (side * side) % c;
    let weight = b.feed("weight", DType::F32, b.program().sig(y).shape.clone()).unwrap();
    let y = b.mul(y, weight).unwrap();
    let loss = b.reduce(Reduction::Sum, y, &[], false).unwrap();
    let mut program = b.finish().unwrap();
    let wrt = program.trainable();
    append_gradients(&mut program, loss, &wrt, &[]).unwrap();
    let mut store = Store::new(1);
    let dims = [n, c, side, side];
    let feeds = [("x", &Tensor::new(&dims, &x).unwrap()), ("weight", &Tensor::new(&dims, &w).unwrap())];
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let out = executor.run(&mut store, &feeds, &["bn.shift@GRAD"]).unwrap();
    for at in 0..c {
        let own = |v: &[f32]| -> Vec<f64> {
            let all = v.iter().enumerate().filter(|(i, _)| channel(*i) == at);
            all.map(|(_, &v)| f64::from(v)).collect()
        };
        let values = own(&x);
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let var = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        let mut read = |name: &str| store.get(name).unwrap().data::<f32>().unwrap()[at];
        close(read("bn.mean"), mean, "a channel's mean");
        close(read("bn.var"), var, "a channel's variance");
        close(out[0].data::<f32>().unwrap()[at], own(&w).iter().sum(), "a shift's gradient");
    }
}

#[test]
fn the_gradients_of_layer_norm_over_many_rows() {
    let (n, width) = (250_000, 4);
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(width)]).unwrap();
    let y = b.layer_norm(x, 1).unwrap();
    // Every row is the same, so that the first column's normal is too.
    let row = [-1.0f32, 0.5, 0.25, 0.25];
    let deviation = (row.iter().map(|v| f64::from(v * v)).sum::<f64>() / 4.0 + 1e-5).sqrt();
    let x: Vec<f32> = row.iter().copied().cycle().take(n * width).collect();
    let weights = numbers(n * width, 6);
    let feeds = [
        ("x", &Tensor::new(&[n, width], &x).unwrap()),
        ("weight", &Tensor::new(&[n, width], &weights).unwrap()),
    ];
    let out = gradients(b, y, &feeds, &["ln.scale", "ln.shift"]);
    for (c, exact) in columns(&weights, width).into_iter().enumerate() {
        close(out[0][c], exact * f64::from(row[c]) / deviation, "a scale's gradient");
        close(out[1][c], exact, "a shift's gradient");
    }
}

#[test]
fn rows_of_a_table_that_are_used_a_million_times() {
    let width = 3;
    for sparse in [false, true] {
        let mut b = Builder::new();
        let ids = b.feed("ids", DType::I64, [BATCH]).unwrap();
        let table = b.parameter("table", [4, width], Init::Constant(0.0)).unwrap();
        let y = b.lookup(table, ids, EmbeddingOptions { sparse, padding: None }).unwrap();
        let weight = b.feed("weight", DType::F32, b.program().sig(y).shape.clone()).unwrap();
        let y = b.mul(y, weight).unwrap();
        let loss = b.reduce(Reduction::Sum, y, &[], false).unwrap();
        let mut program = b.finish().unwrap();
        Optimizer::new(Rule::Sgd, 1.0).minimize(&mut program, loss).unwrap();
        let n = ROWS / 2;
        let ids = Tensor::new(&[n], &vec![2i64; n]).unwrap();
        let weights = numbers(n * width, 7);
        let feeds = [("ids", &ids), ("weight", &Tensor::new(&[n, width], &weights).unwrap())];
        let mut store = Store::new(1);
        Executor::new(program, Options::default()).unwrap().run(&mut store, &feeds, &[]).unwrap();
        let table = store.get("table").unwrap();
        let table = table.data::<f32>().unwrap();
        for (c, exact) in columns(&weights, width).into_iter().enumerate() {
            close(table[2 * width + c], -exact, &format!("a row, sparse: {sparse}"));
            assert_eq!([table[c], table[width + c], table[3 * width + c]], [0.0; 3], "other rows");
        }
    }
}

#[test]
fn global_norms_softmax_and_large_windows() {
    let n = 4_000_000;
    let x = numbers(n, 8);
    let squares = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>();
    let mut b = Builder::new();
    let p = b.parameter("p", [n], Init::Constant(0.0)).unwrap();
    let weight = b.feed("weight", DType::F32, [Dim::Fixed(n)]).unwrap();
    let y = b.mul(p, weight).unwrap();
    let loss = b.reduce(Reduction::Sum, y, &[], false).unwrap();
    let mut program = b.finish().unwrap();
    let clip = Some(Clip::GlobalNorm(1.0));
    Optimizer { clip, ..Optimizer::new(Rule::Sgd, 1.0) }.minimize(&mut program, loss).unwrap();
    let mut store = Store::new(1);
    let feeds = [("weight", &Tensor::new(&[n], &x).unwrap())];
    Executor::new(program, Options::default()).unwrap().run(&mut store, &feeds, &[]).unwrap();
    let p = store.get("p").unwrap();
    close(-p.data::<f32>().unwrap()[0], f64::from(x[0]) / squares.sqrt(), "a clipped gradient");

    let mut b = Builder::new();
    let v = b.feed("x", DType::F32, [BATCH, Dim::Fixed(n)]).unwrap();
    let y = b.softmax(v).unwrap();
    b.named(y, "softmax").unwrap();
    let all = x.iter().map(|&v| f64::from(v).exp()).sum::<f64>();
    let out = run(b, &[("x", &Tensor::new(&[1, n], &x).unwrap())], &["softmax"]);
    close(out[0][0], f64::from(x[0]).exp() / all, "a probability");

    let mut b = Builder::new();
    let v = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1), Dim::Fixed(2000), Dim::Fixed(2000)]).unwrap();
    let y = b.pool2d(v, Pool::Mean, 2000, 1).unwrap();
    b.named(y, "pool").unwrap();
    let out = run(b, &[("x", &Tensor::new(&[1, 1, 2000, 2000], &x).unwrap())], &["pool"]);
    close(out[0][0], columns(&x, 1)[0] / n as f64, "the mean of a window");
}
