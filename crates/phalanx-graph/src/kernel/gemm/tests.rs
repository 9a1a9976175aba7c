use super::{block::Nest, tile::DEPTH, *};

fn numbers(n: usize, salt: u64) -> Vec<f32> {
    let dice = crate::kernel::Stream::new(salt, 0, 0);
    (0..n as u64).map(|i| dice.uniform(i) as f32 - 0.5).collect()
}

/// GEMM-1, element by element: fused chains of equal depth, added in their order.
fn element(k: usize, begin: Option<f32>, at: impl Fn(usize) -> (f32, f32)) -> f32 {
    let count = k.div_ceil(DEPTH);
    let mut sum = begin;
    for i in 0..count {
        let chain = (k * i / count..k * (i + 1) / count).fold(0f32, |s, l| at(l).0.mul_add(at(l).1, s));
        sum = Some(sum.map_or(chain, |s| s + chain));
    }
    sum.unwrap_or(0.0)
}

const SHAPES: [[usize; 3]; 16] = [
    [3, 2, 0],
    [0, 3, 2],
    [1, 1, 1],
    [2, 3, 4],
    [17, 5, 33],
    [64, 10, 200],
    [13, 70, 600],
    [400, 70, 30],
    [770, 33, 9],
    [3, 1000, 257],
    [25, 40, 512],
    [12, 32, 256],
    [1, 64, 1025],
    [30, 16, 129],
    [5, 2000, 4],
    [8, 300, 700],
];

#[test]
fn every_layout_gives_the_same_bits_and_they_are_those_of_the_chains() {
    for [m, n, k] in SHAPES {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let turned = |x: &[f32], rows: usize, cols: usize| {
            let mut to = vec![0.0; x.len()];
            f32::transpose(0..rows, cols, (x, cols), (&mut to, rows));
            to
        };
        let (at, bt) = (turned(&a, m, k), turned(&b, k, n));
        let size = Size { m, n, k };
        for accumulate in [false, true] {
            let begin = accumulate.then_some(0.25);
            let wanted: Vec<f32> =
                (0..m * n).map(|i| element(k, begin, |l| (a[i / n * k + l], b[l * n + i % n]))).collect();
            for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
                let left = if ta { Mat::new(&at, m).t() } else { Mat::new(&a, k) };
                let right = if tb { Mat::new(&bt, k).t() } else { Mat::new(&b, n) };
                let mut c = vec![0.25; m * n];
                let mut scratch = vec![f32::NAN; f32::scratch(size)];
                f32::gemm(size, left, right, &mut c, accumulate, &mut scratch);
                let same = c.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "GEMM-2: {m}x{n}x{k}, transposed {ta} {tb}, accumulate {accumulate}");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for [m, n, k] in SHAPES {
        let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
        let size = Size { m, n, k };
        let mut results = f32::all().into_iter().map(|tiles| {
            let (mut c, mut scratch) = (vec![0.0; m * n], vec![f32::NAN; f32::scratch(size)]);
            Nest { tiles, size, accumulate: false }.run(
                Mat::new(&a, k),
                Mat::new(&b, n),
                &mut c,
                &mut scratch,
            );
            c.iter().map(|v| v.to_bits()).collect::<Vec<u32>>()
        });
        let first = results.next().expect("there is always one");
        assert!(results.all(|c| c == first), "GEMM-1: {m}x{n}x{k}");
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let (n, k) = (200, 784);
    let (a, b) = (numbers(64 * k, 5), numbers(k * n, 6));
    let product = |m: usize| {
        let size = Size { m, n, k };
        let (mut c, mut scratch) = (vec![0.0; m * n], vec![f32::NAN; f32::scratch(size)]);
        f32::gemm(size, Mat::new(&a[..m * k], k), Mat::new(&b, n), &mut c, false, &mut scratch);
        c
    };
    let all = product(64);
    for m in [1, 2, 7, 31, 32, 63] {
        assert_eq!(product(m), all[..m * n], "GEMM-2: {m} rows");
    }
}

#[test]
fn moved_images_are_rows_on_either_side() {
    let (planes, height, width, kernel) = (3, 9, 11, [3, 2]);
    let taps = Taps { plane: height * width, kernel, step: [2 * width, 3] };
    let image = numbers(planes * height * width, 7);
    let (k, n) = (planes * 6, (height - 5) * width + 5);
    let place = |r: usize| r / 6 * 99 + r / 2 % 3 * 22 + r % 2 * 3;
    let rows: Vec<f32> = (0..k).flat_map(|r| image[place(r)..place(r) + n].to_vec()).collect();
    let other = numbers(40 * k.max(n), 8);
    let run = |size: Size, a: Mat<'_, f32>, b: Mat<'_, f32>| {
        let (mut c, mut scratch) = (vec![0.0; size.m * size.n], vec![f32::NAN; f32::scratch(size)]);
        f32::gemm(size, a, b, &mut c, false, &mut scratch);
        c
    };
    for m in [1, 5, 40] {
        let (right, left) = (Size { m, n, k }, Size { m: k, n: m, k: n });
        let few = &other[..m * k];
        let got = run(right, Mat::new(few, k), Mat::taps(&image, taps));
        assert_eq!(got, run(right, Mat::new(few, k), Mat::new(&rows, n)));
        let few = Mat::new(&other[..m * n], n).t();
        assert_eq!(run(left, Mat::taps(&image, taps), few), run(left, Mat::new(&rows, n), few));
    }
}

#[test]
fn operands_that_do_not_hold_their_matrices_are_refused() {
    let size = Size { m: 4, n: 4, k: 4 };
    let refused = |a: usize, b: usize, c: usize, scratch: usize| {
        let (a, b) = (vec![0f32; a], vec![0f32; b]);
        let (mut c, mut scratch) = (vec![0f32; c], vec![0f32; scratch]);
        let run = move || f32::gemm(size, Mat::new(&a, 4), Mat::new(&b, 4), &mut c, false, &mut scratch);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
    };
    let enough = f32::scratch(size);
    assert!(!refused(16, 16, 16, enough));
    assert!(refused(15, 16, 16, enough) && refused(16, 15, 16, enough) && refused(16, 16, 15, enough));
    assert!(refused(16, 16, 16, 0));
}
