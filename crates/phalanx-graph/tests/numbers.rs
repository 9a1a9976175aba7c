//! What operations make of NaN, of equals and of the ends of the number line: as PyTorch or Paddle do.

use phalanx_core::DType;
use phalanx_graph::{
    BATCH, Builder, Dim, Executor, GraphError, Init, Optimizer, Options, Rule, Shape, Store, Tensor, VarId,
    append_gradients,
    layers::ConvOptions,
    op::{Arith, Func, Pool, Reduction, Unary},
};

const NAN: f32 = f32::NAN;

/// The output and the gradient of the input `x`, for the loss `sum(y * weight)`; `weight` is 1, 2, 3, ...
fn both(
    dims: &[usize],
    x: &[f32],
    net: impl Fn(&mut Builder, VarId) -> Result<VarId, GraphError>,
) -> [Vec<f32>; 2] {
    let mut b = Builder::new();
    let fed = b.parameter("x", Shape(dims.iter().map(|&n| Dim::Fixed(n)).collect()), Init::Given).unwrap();
    let y = net(&mut b, fed).unwrap();
    let shape = b.program().sig(y).shape.clone();
    let n: usize = shape.at(0).iter().product();
    let y = b.named(y, "y").unwrap();
    let weight = b.feed("weight", DType::F32, shape.clone()).unwrap();
    let y = b.mul(y, weight).unwrap();
    let loss = b.reduce(Reduction::Sum, y, &[], false).unwrap();
    let mut program = b.finish().unwrap();
    append_gradients(&mut program, loss, &[fed], &[]).unwrap();
    let weights: Vec<f32> = (1..=n).map(|i| i as f32).collect();
    let weight = Tensor::new(&shape.at(0), &weights).unwrap();
    let mut store = Store::new(1);
    let mut executor = Executor::new(program, Options::default()).unwrap();
    executor.prepare(&mut store).unwrap();
    store.set("x", &Tensor::new(dims, x).unwrap()).unwrap();
    let out = executor.run(&mut store, &[("weight", &weight)], &["y", "x@GRAD"]).unwrap();
    [0, 1].map(|i| out[i].data::<f32>().unwrap().to_vec())
}

/// Equal numbers, and NaN where NaN is wanted.
#[track_caller]
fn alike(got: &[f32], wanted: &[f32]) {
    let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
    assert!(got.len() == wanted.len() && got.iter().zip(wanted).all(same), "{got:?}, not {wanted:?}");
}

#[test]
fn extremes_along_an_axis_are_nan_where_one_of_them_is() {
    let x = [1.0, NAN, 3.0, NAN, 5.0, 4.0, 2.0, 8.0, 7.0];
    for (op, wanted) in [(Reduction::Max, [NAN, NAN, 8.0]), (Reduction::Min, [NAN, NAN, 2.0])] {
        let [y, _] = both(&[3, 3], &x, |b, v| b.reduce(op, v, &[1], false));
        alike(&y, &wanted);
        let [y, _] = both(&[9], &x, |b, v| b.reduce(op, v, &[], false));
        alike(&y, &[NAN]);
        let turned: Vec<f32> = (0..9).map(|i| x[i % 3 * 3 + i / 3]).collect();
        let [y, _] = both(&[3, 3], &turned, |b, v| b.reduce(op, v, &[0], false));
        alike(&y, &wanted);
    }
}

#[test]
fn equal_extremes_share_the_gradient() {
    let x = [1.0, 5.0, 5.0, 2.0, -1.0, -1.0, -1.0, 3.0];
    let [_, d] = both(&[2, 4], &x, |b, v| b.reduce(Reduction::Max, v, &[1], false));
    alike(&d, &[0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 2.0]);
    let [_, d] = both(&[2, 4], &x, |b, v| b.reduce(Reduction::Min, v, &[1], true));
    alike(&d, &[1.0, 0.0, 0.0, 0.0, 2.0 / 3.0, 2.0 / 3.0, 2.0 / 3.0, 0.0]);
    let [_, d] = both(&[2, 4], &x, |b, v| b.reduce(Reduction::Max, v, &[0], false));
    alike(&d, &[1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 4.0]);
    let [_, d] = both(&[4], &[7.0; 4], |b, v| b.reduce(Reduction::Max, v, &[], false));
    alike(&d, &[0.25; 4]);
    // Nothing equals NaN, so there is nobody to give a share to: as in PyTorch all of them are NaN.
    let [_, d] = both(&[2, 2], &[1.0, NAN, 3.0, 4.0], |b, v| b.reduce(Reduction::Max, v, &[1], false));
    alike(&d, &[NAN, NAN, 0.0, 2.0]);
}

#[test]
fn of_two_equal_operands_each_gets_half_and_nan_is_the_extreme_of_all() {
    let other = |b: &mut Builder| b.parameter("other", [4], Init::Constant(2.0)).unwrap();
    for (op, wanted, slopes) in [
        (Arith::Max, [2.0, 2.0, 3.0, NAN], [0.0, 1.0, 3.0, 4.0]),
        (Arith::Min, [1.0, 2.0, 2.0, NAN], [1.0, 1.0, 0.0, 4.0]),
    ] {
        let x = [1.0, 2.0, 3.0, NAN];
        let [y, d] = both(&[4], &x, |b, v| {
            let o = other(b);
            b.arith(op, v, o)
        });
        alike(&y, &wanted);
        alike(&d, &slopes);
        let [y, d] = both(&[4], &x, |b, v| {
            let o = other(b);
            b.arith(op, o, v)
        });
        alike(&y, &wanted);
        alike(&d, &slopes);
    }
}

#[test]
fn windows_with_nan_are_nan_and_it_has_the_gradient() {
    // The pool of two by two has a kernel of its own; that of three has not.
    let x: Vec<f32> = (0..16).map(|i| if i == 5 { NAN } else { i as f32 }).collect();
    let [y, d] = both(&[1, 1, 4, 4], &x, |b, v| b.pool2d(v, Pool::Max, 2, 2));
    alike(&y, &[NAN, 7.0, 13.0, 15.0]);
    let at = |places: &[(usize, f32)]| {
        let mut all = vec![0.0; 16];
        places.iter().for_each(|&(i, v)| all[i] = v);
        all
    };
    alike(&d, &at(&[(5, 1.0), (7, 2.0), (13, 3.0), (15, 4.0)]));
    let [y, d] = both(&[1, 1, 4, 4], &x, |b, v| b.pool2d(v, Pool::Max, 3, 1));
    alike(&y, &[NAN, NAN, NAN, NAN]);
    alike(&d, &at(&[(5, 10.0)]));
}

#[test]
fn a_row_of_nan_is_never_right_and_nan_is_the_highest_score() {
    let mut b = Builder::new();
    let scores = b.feed("scores", DType::F32, [BATCH, Dim::Fixed(3)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let accuracy = b.accuracy(scores, label, 1).unwrap();
    b.named(accuracy, "accuracy").unwrap();
    let best = b.argmax(scores).unwrap();
    b.named(best, "best").unwrap();
    let (_, top) = b.top_k(scores, 2).unwrap();
    b.named(top, "top").unwrap();
    let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let rows = [[NAN, NAN, NAN], [1.0, NAN, 9.0], [5.0, 1.0, 2.0], [NAN, 2.0, 1.0]];
    let scores = Tensor::new(&[4, 3], rows.as_flattened()).unwrap();
    let label = Tensor::new(&[4], &[0i64, 1, 0, 0]).unwrap();
    let feeds = [("scores", &scores), ("label", &label)];
    let out = executor.run(&mut Store::new(1), &feeds, &["accuracy", "best", "top"]).unwrap();
    assert_eq!(out[0].data::<f32>().unwrap(), [0.25]);
    assert_eq!(out[1].data::<i64>().unwrap(), [0, 1, 0, 0]);
    assert_eq!(out[2].data::<i64>().unwrap(), [0, 1, 1, 2, 0, 2, 0, 1]);
}

#[test]
fn powers_of_zero_have_the_slopes_of_powers() {
    let pow = |by: f64| move |b: &mut Builder, v: VarId| b.op1(Unary(Func::Pow { by }), &[v]);
    for (by, y, d) in [
        (0.0, [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
        (1.0, [0.0, -2.0, 3.0], [1.0, 2.0, 3.0]),
        (2.0, [0.0, 4.0, 9.0], [0.0, -8.0, 18.0]),
        (0.5, [0.0, NAN, 3f32.sqrt()], [f32::INFINITY, NAN, 1.5 / 3f32.sqrt()]),
    ] {
        let [got, slope] = both(&[3], &[0.0, -2.0, 3.0], pow(by));
        alike(&got, &y);
        let close = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() < 1e-6;
        assert!(slope.iter().zip(&d).all(close), "x^{by}: {slope:?}, not {d:?}");
    }
}

#[test]
fn softplus_and_the_loss_of_two_outcomes_keep_their_digits_far_from_zero() {
    let x = [-80.0, -20.0, -5.0, 0.0, 5.0, 20.0, 80.0];
    let exact = x.map(|v| f64::from(v).exp().ln_1p());
    let close = |got: &[f32]| {
        for (got, exact) in got.iter().zip(exact) {
            assert!((f64::from(*got) - exact).abs() <= exact * 1e-6, "{got}, not {exact}");
        }
    };
    let [y, d] = both(&[7], &x, |b, v| b.map(Func::Softplus, v));
    close(&y);
    assert!((f64::from(d[1]) / 2.0 - 2.061_153_618e-9).abs() < 1e-14, "{d:?}");
    let [y, _] = both(&[7], &x, |b, v| {
        let zero = b.fill(DType::F32, [7], 0.0)?;
        b.sigmoid_cross_entropy(v, zero)
    });
    close(&y);
}

#[test]
fn dropping_everything_leaves_zeros_and_no_gradient() {
    let [y, d] = both(&[4], &[1.0, -2.0, f32::INFINITY, 4.0], |b, v| b.dropout(v, 1.0));
    alike(&y, &[0.0; 4]);
    alike(&d, &[0.0; 4]);
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [4]).unwrap();
    assert!(b.dropout(x, 1.5).is_err() && b.dropout(x, f64::NAN).is_err() && b.dropout(x, -0.1).is_err());
}

#[test]
fn the_loss_of_a_probability_of_zero_is_large_and_not_infinite() {
    let [y, d] = both(&[2, 2], &[0.0, 1.0, 0.5, 0.5], |b, p| {
        let label = b.fill(DType::I64, [2], 0.0)?;
        b.cross_entropy(p, label)
    });
    alike(&y, &[1e20, -(0.5f32.ln())]);
    assert!(d.iter().all(|v| v.is_finite()), "{d:?}");
    assert_eq!(d[1..], [0.0, -4.0, 0.0]);
}

#[test]
fn a_classifier_goes_on_learning_where_a_probability_is_zero() {
    let mut b = Builder::new();
    let w = b.parameter("w", [1, 2], Init::Given).unwrap();
    let label = b.feed("label", DType::I64, [1]).unwrap();
    let p = b.softmax(w).unwrap();
    let losses = b.cross_entropy(p, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, 1.0).minimize(&mut program, loss).unwrap();
    let mut store = Store::new(1);
    let mut executor = Executor::new(program, Options::default()).unwrap();
    executor.prepare(&mut store).unwrap();
    store.set("w", &Tensor::new(&[1, 2], &[-500.0f32, 500.0]).unwrap()).unwrap();
    let label = Tensor::new(&[1], &[0i64]).unwrap();
    for _ in 0..3 {
        executor.run(&mut store, &[("label", &label)], &[]).unwrap();
    }
    let w = store.get("w").unwrap();
    alike(w.data::<f32>().unwrap(), &[-497.0, 497.0]);
}

#[test]
fn filters_of_groups_begin_as_small_as_those_of_all_channels() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(256), Dim::Fixed(8), Dim::Fixed(8)]).unwrap();
    b.conv2d(x, ConvOptions { groups: 32, ..ConvOptions::new(256, 3) }).unwrap();
    let executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let mut store = Store::new(1);
    executor.prepare(&mut store).unwrap();
    let w = store.get("conv.w").unwrap();
    let w = w.data::<f32>().unwrap();
    let deviation = (w.iter().map(|&v| f64::from(v * v)).sum::<f64>() / w.len() as f64).sqrt();
    let wanted = (2.0f64 / (256.0 * 9.0)).sqrt();
    assert!((deviation / wanted - 1.0).abs() < 0.05, "{deviation}, not {wanted}");
}
