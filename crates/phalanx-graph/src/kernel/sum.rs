//! Sums in one fixed order that vector units like: sixteen partial sums, then a tree.

use super::number::Real;

const LANES: usize = 16;

#[inline(always)]
fn fold<T: Real>(lanes: [T; LANES]) -> T {
    let mut lanes = lanes;
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            lanes[i] += lanes[i + n];
        }
        n /= 2;
    }
    lanes[0]
}

#[inline(always)]
pub fn sum<T: Real>(x: &[T]) -> T {
    let (body, tail) = x.as_chunks::<LANES>();
    let mut lanes = [T::ZERO; LANES];
    for chunk in body {
        for i in 0..LANES {
            lanes[i] += chunk[i];
        }
    }
    tail.iter().fold(fold(lanes), |s, &v| s + v)
}

#[inline(always)]
pub fn dot<T: Real>(x: &[T], y: &[T]) -> T {
    let ((xb, xt), (yb, yt)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let mut lanes = [T::ZERO; LANES];
    for (a, b) in xb.iter().zip(yb) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    xt.iter().zip(yt).fold(fold(lanes), |s, (&a, &b)| s + a * b)
}

/// `f(0) + f(1) + ...`, in the same order as the others.
#[inline(always)]
pub fn total<T: Real>(n: usize, f: impl Fn(usize) -> T) -> T {
    let body = n / LANES * LANES;
    let mut lanes = [T::ZERO; LANES];
    let mut at = 0;
    while at < body {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += f(at + i);
        }
        at += LANES;
    }
    (body..n).fold(fold(lanes), |s, i| s + f(i))
}

/// The largest element; NaN counts as smaller than anything.
#[inline(always)]
pub fn largest<T: Real>(x: &[T]) -> T {
    let (body, tail) = x.as_chunks::<LANES>();
    let mut lanes = [T::LOWEST; LANES];
    for chunk in body {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = lane.larger(v);
        }
    }
    lanes.iter().chain(tail).fold(T::LOWEST, |top, &v| top.larger(v))
}

/// Runs a loop with the widest vector unit of the machine. Bits do not depend on it: nothing here fuses a product with
/// a sum.
#[inline(always)]
pub fn fast<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_right_and_do_not_depend_on_the_vector_unit() {
        for n in [0, 1, 15, 16, 17, 100, 1000] {
            let x: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
            let exact: f64 = x.iter().map(|&v| f64::from(v)).sum();
            assert!((f64::from(sum(&x)) - exact).abs() < 1e-4);
            assert_eq!(sum(&x).to_bits(), fast(|| sum(&x)).to_bits());
            assert_eq!(dot(&x, &x).to_bits(), fast(|| dot(&x, &x)).to_bits());
            assert_eq!(dot(&x, &x).to_bits(), fast(|| total(n, |i| x[i] * x[i])).to_bits());
            assert_eq!(largest(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
