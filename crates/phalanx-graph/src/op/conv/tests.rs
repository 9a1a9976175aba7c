use super::*;
use crate::kernel::Stream;

fn numbers(n: usize, salt: u64) -> Vec<f64> {
    let dice = Stream::new(salt, 0, 0);
    (0..n as u64).map(|i| dice.uniform(i) - 0.5).collect()
}

/// Every product of a pixel, a weight and an output, one by one.
fn each(geo: &Geometry, mut f: impl FnMut(usize, usize, usize)) {
    let ([h, w], [kh, kw], [oh, ow]) = (geo.image, geo.kernel, geo.out);
    let conv = geo.conv;
    geo.each(|[xi, fi, yi]| {
        for o in 0..geo.o {
            for at in 0..oh * ow * geo.c * kh * kw {
                let (place, tap) = (at / (geo.c * kh * kw), at % (geo.c * kh * kw));
                let (c, ky, kx) = (tap / (kh * kw), tap / kw % kh, tap % kw);
                let y = (place / ow * conv.stride[0] + ky * conv.dilation[0]).checked_sub(conv.padding[0]);
                let x = (place % ow * conv.stride[1] + kx * conv.dilation[1]).checked_sub(conv.padding[1]);
                if let (Some(y), Some(x)) = (y.filter(|&y| y < h), x.filter(|&x| x < w)) {
                    f(xi + (c * h + y) * w + x, fi + o * geo.c * kh * kw + tap, yi + o * oh * ow + place);
                }
            }
        }
    });
}

fn close(name: &str, got: &[f64], wanted: &[f64]) {
    let far = got.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(got.len() == wanted.len() && far < 1e-12, "{name}: differs by {far}");
}

/// Images, channels, filters, sides, kernel, then the convolution.
fn check([images, c, o]: [usize; 3], image: [usize; 2], kernel: [usize; 2], conv: Conv2d) {
    let name = format!("{images}x{c}x{image:?} by {o}x{kernel:?}, {conv:?}");
    let geo = conv.geometry(&[images, c, image[0], image[1]], &[o, c / conv.groups, kernel[0], kernel[1]]);
    let n_y = images * o * geo.out[0] * geo.out[1];
    let (x, f, dy) =
        (numbers(images * c * image[0] * image[1], 1), numbers(o * geo.window().0, 2), numbers(n_y, 3));
    let [mut y, mut dx, mut df] = [vec![0.0; n_y], vec![0.0; x.len()], vec![0.0; f.len()]];
    each(&geo, |xi, fi, yi| {
        y[yi] += x[xi] * f[fi];
        dx[xi] += dy[yi] * f[fi];
        df[fi] += dy[yi] * x[xi];
    });
    let dirty = |n: usize, len: usize| (vec![f64::NAN; n], vec![f64::NAN; len]);
    let wanted: Wanted = <f64 as Gemm>::scratch;
    let windows = Windows(geo);
    let (mut scratch, mut got) = dirty(windows.scratch(wanted), y.len());
    windows.forward(&x, &f, &mut got, &mut scratch);
    close(&format!("{name}: windows"), &got, &y);
    let (mut scratch, mut got) = dirty(windows.scratch(wanted), x.len());
    windows.input_grad(&f, &dy, &mut got, &mut scratch);
    close(&format!("{name}: windows' input gradient"), &got, &dx);
    let (mut scratch, mut got) = dirty(windows.scratch(wanted), f.len());
    windows.filter_grad(&x, &dy, &mut got, &mut scratch);
    close(&format!("{name}: windows' filter gradient"), &got, &df);
    if let Some(lanes) = Lanes::new(&geo) {
        let (mut scratch, mut got) = dirty(lanes.scratch(), y.len());
        lanes.forward(&x, &f, &mut got, &mut scratch);
        close(&format!("{name}: lanes"), &got, &y);
        let (mut scratch, mut got) = dirty(lanes.scratch(), x.len());
        lanes.input_grad(&f, &dy, &mut got, &mut scratch);
        close(&format!("{name}: lanes' input gradient"), &got, &dx);
        let (mut scratch, mut got) = dirty(lanes.scratch(), f.len());
        lanes.filter_grad(&x, &dy, &mut got, &mut scratch);
        close(&format!("{name}: lanes' filter gradient"), &got, &df);
    }
    if conv.stride != [1, 1] {
        assert!(Moved::new(geo).is_none() && Moved::backwards(geo).is_none(), "{name}: strides are no moves");
        return;
    }
    let moved = Moved(geo);
    let (mut scratch, mut got) = dirty(moved.scratch(wanted), y.len());
    moved.forward(&x, &f, &mut got, &mut scratch);
    close(&format!("{name}: moved"), &got, &y);
    let (mut scratch, mut got) = dirty(moved.filter_scratch(wanted), f.len());
    moved.filter_grad(&x, &dy, &mut got, &mut scratch);
    close(&format!("{name}: moved filter gradient"), &got, &df);
    if let Some(back) = Moved::backwards(geo) {
        let (mut scratch, mut got) = dirty(back.turned_scratch(wanted), x.len());
        back.turned(&dy, &f, &mut got, &mut scratch);
        close(&format!("{name}: moved input gradient"), &got, &dx);
    }
}

/// The bits of the loops for single channels are those of the product, of every output and both gradients.
fn check_depthwise(images: usize, channels: usize, image: [usize; 2], side: usize, padding: [usize; 2]) {
    let name = format!("{images}x{channels}x{image:?} by {side}");
    let conv = Conv2d { stride: [1, 1], padding, dilation: [1, 1], groups: channels };
    let geo = conv.geometry(&[images, channels, image[0], image[1]], &[channels, 1, side, side]);
    let narrow = |n: usize, salt: u64| numbers(n, salt).into_iter().map(|v| v as f32).collect::<Vec<f32>>();
    let x = narrow(images * channels * image[0] * image[1], 1);
    let (f, dy) = (narrow(channels * side * side, 2), narrow(images * channels * geo.window().1, 3));
    let wanted: Wanted = <f32 as Gemm>::scratch;
    let (moved, back) = (Moved::new(geo).unwrap(), Moved::backwards(geo).unwrap());
    let (each, each_back) = (Depthwise::new(moved).unwrap(), Depthwise::new(back).unwrap());
    let same = |what: &str,
                ours: &dyn Fn(&mut [f32], &mut [f32]),
                n: [usize; 2],
                theirs: &dyn Fn(&mut [f32], &mut [f32]),
                n_out: usize| {
        let [mut a, mut b] = [vec![f32::NAN; n_out], vec![f32::NAN; n_out]];
        ours(&mut a, &mut vec![f32::NAN; n[0]]);
        theirs(&mut b, &mut vec![f32::NAN; n[1]]);
        assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: {what}");
    };
    same(
        "output",
        &|y, s| each.forward(&x, &f, y, s),
        [each.scratch(), moved.scratch(wanted)],
        &|y, s| moved.forward(&x, &f, y, s),
        dy.len(),
    );
    same(
        "input gradient",
        &|dx, s| each_back.turned(&dy, &f, dx, s),
        [each_back.scratch(), back.turned_scratch(wanted)],
        &|dx, s| back.turned(&dy, &f, dx, s),
        x.len(),
    );
    same(
        "filter gradient",
        &|df, s| each.filter_grad(&x, &dy, df, s),
        [each.scratch(), moved.filter_scratch(wanted)],
        &|df, s| moved.filter_grad(&x, &dy, df, s),
        f.len(),
    );
}

#[test]
fn single_channels_have_the_bits_of_products() {
    check_depthwise(2, 7, [28, 28], 3, [1, 1]);
    check_depthwise(1, 4, [14, 14], 3, [1, 1]);
    check_depthwise(2, 3, [9, 12], 5, [2, 2]);
    check_depthwise(1, 5, [40, 37], 3, [0, 0]);
    check_depthwise(3, 1, [33, 70], 5, [0, 1]);
    check_depthwise(2, 6, [8, 10], 3, [1, 0]);
    check_depthwise(2, 3, [1, 9], 3, [1, 1]);
    check_depthwise(1, 2, [3, 15], 5, [2, 2]);
    check_depthwise(1, 19, [7, 11], 3, [0, 0]);
}

#[test]
fn both_ways_are_the_sums_they_stand_for() {
    let plain = Conv2d { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1 };
    check([2, 1, 6], [12, 12], [5, 5], plain);
    check([2, 3, 4], [7, 9], [1, 1], plain);
    check([1, 5, 1], [3, 3], [3, 3], plain);
    check([2, 3, 33], [9, 8], [3, 3], Conv2d { padding: [1, 1], ..plain });
    check([2, 4, 6], [9, 8], [3, 2], Conv2d { padding: [1, 0], dilation: [2, 3], groups: 2, ..plain });
    check([1, 6, 6], [10, 10], [3, 3], Conv2d { padding: [1, 1], groups: 6, ..plain });
    check([2, 2, 3], [6, 6], [1, 3], Conv2d { padding: [2, 1], ..plain });
    check([2, 2, 3], [6, 6], [3, 3], Conv2d { padding: [4, 4], ..plain });
    check([2, 3, 4], [11, 10], [3, 3], Conv2d { stride: [2, 3], padding: [1, 1], ..plain });
    check([1, 70, 40], [20, 20], [3, 3], Conv2d { padding: [1, 1], ..plain });
    // Small images, of which several are at work at once, and a rest of them.
    check([7, 3, 5], [4, 4], [3, 3], Conv2d { padding: [1, 1], ..plain });
    check([20, 4, 6], [4, 4], [3, 3], Conv2d { padding: [1, 1], groups: 2, ..plain });
    check([9, 2, 3], [8, 9], [3, 3], Conv2d { stride: [2, 2], padding: [1, 1], ..plain });
}

#[test]
fn channels_side_by_side_are_the_sums_they_stand_for() {
    let each = |n| Conv2d { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: n };
    check([3, 16, 16], [7, 7], [3, 3], Conv2d { padding: [1, 1], ..each(16) });
    check([2, 13, 13], [9, 12], [3, 3], Conv2d { stride: [2, 2], padding: [1, 1], ..each(13) });
    check([1, 4, 4], [11, 9], [5, 5], Conv2d { stride: [2, 3], padding: [2, 0], ..each(4) });
    check([2, 9, 9], [8, 3], [2, 3], Conv2d { stride: [3, 1], dilation: [2, 1], ..each(9) });
    check([1, 8, 8], [10, 12], [7, 1], Conv2d { padding: [3, 2], dilation: [1, 2], ..each(8) });
    // Sums of a filter's gradient that begin anew.
    check([1, 8, 8], [40, 30], [3, 3], Conv2d { padding: [1, 1], ..each(8) });
    assert!(Lanes::new(&each(3).geometry(&[1, 3, 8, 8], &[3, 1, 3, 3])).is_none(), "too few channels");
    assert!(Lanes::new(&each(4).geometry(&[1, 8, 8, 8], &[8, 2, 3, 3])).is_none(), "filters of two channels");
}

/// An image gives the same bits alone and among others.
#[test]
fn channels_side_by_side_do_not_depend_on_the_batch() {
    let conv = Conv2d { stride: [2, 2], padding: [1, 1], dilation: [1, 1], groups: 10 };
    let sized = |n| conv.geometry(&[n, 10, 9, 9], &[10, 1, 3, 3]);
    let narrow = |n: usize, salt: u64| numbers(n, salt).into_iter().map(|v| v as f32).collect::<Vec<f32>>();
    let (x, f) = (narrow(3 * 810, 1), narrow(90, 2));
    let run = |n: usize, x: &[f32]| {
        let lanes = Lanes::new(&sized(n)).unwrap();
        let mut y = vec![f32::NAN; n * 250];
        lanes.forward(x, &f, &mut y, &mut vec![f32::NAN; lanes.scratch()]);
        y.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
    };
    assert_eq!(run(3, &x)[250..500], run(1, &x[810..1620]));
}

#[test]
fn padding_beyond_the_kernels_reach_has_no_convolution_backwards() {
    let conv = Conv2d { stride: [1, 1], padding: [3, 0], dilation: [1, 1], groups: 1 };
    assert!(Moved::backwards(conv.geometry(&[1, 1, 8, 8], &[1, 1, 3, 3])).is_none());
}
