//! Sums in one fixed order that vector units like and that keeps their digits.
//! - TOTAL-1: a sum of f32 of one sign is off by at most 1e-6 of itself, however long it is: at most [`BLOCK`] elements, or
//!   [`DEEP`] rows, are added up in f32, and the rest in f64. Its bits depend on the elements and their number alone.

use super::{number::Real, walk::Walk};
use phalanx_core::kernel::fast;

/// Partial sums.
const LANES: usize = 16;
/// Elements that are added up at a time, in partial sums and a tree.
const BLOCK: usize = 8 * LANES;
/// Rows that are added up at a time, column by column.
pub const DEEP: usize = 16;
/// Columns that are added up at a time: their sums stay in the first cache.
const TILE: usize = 1024;
/// The same, of rows that are no wider.
const SMALL: usize = 128;
/// Rows that are narrower than this are added up in registers.
const NARROW: usize = 32;

#[inline(always)]
fn fold<T: Real, const N: usize>(mut lanes: [T; N]) -> T {
    let mut n = N / 2;
    while n > 0 {
        for i in 0..n {
            lanes[i] += lanes[i + n];
        }
        n /= 2;
    }
    lanes[0]
}

/// The sum of `f` of one element of each slice, all as long as the first, where they lie side by side.
#[inline(always)]
pub fn total<T: Real, const K: usize>(x: [&[T]; K], f: impl Fn([T; K]) -> T) -> f64 {
    let n = x[0].len();
    let blocks: [&[[T; BLOCK]]; K] = std::array::from_fn(
        #[inline(always)]
        |k| x[k][..n].as_chunks().0,
    );
    let whole = blocks[0].len() * BLOCK;
    let mut total = 0.0;
    #[expect(clippy::needless_range_loop, reason = "several slices are walked side by side")]
    for b in 0..blocks[0].len() {
        // Of a known length, so that nothing is checked on the way.
        let part: [&[T; BLOCK]; K] = std::array::from_fn(
            #[inline(always)]
            |k| &blocks[k][b],
        );
        let mut own = [T::ZERO; LANES];
        for c in 0..BLOCK / LANES {
            for i in 0..LANES {
                own[i] += f(std::array::from_fn(
                    #[inline(always)]
                    |k| part[k][c * LANES + i],
                ));
            }
        }
        total += fold(own).wide();
    }
    if whole == n {
        return total;
    }
    // What is left: the longer part of it like a block, the shorter ones before it, so that no chain is long.
    let rest = side_by_side(x, whole, n - whole);
    let (long, eights) = ((n - whole) / LANES * LANES, (n - whole) / 8 * 8);
    let mut last = (eights..n - whole).fold(
        T::ZERO,
        #[inline(always)]
        |s, i| {
            s + f(std::array::from_fn(
                #[inline(always)]
                |k| rest[k][i],
            ))
        },
    );
    if eights > long {
        last += fold::<T, 8>(lanes(side_by_side(rest, long, eights - long), &f));
    }
    if long > 0 {
        last += fold::<T, LANES>(lanes(side_by_side(rest, 0, long), &f));
    }
    total + last.wide()
}

/// The first elements of each slice.
#[inline(always)]
fn side_by_side<T, const K: usize>(x: [&[T]; K], at: usize, n: usize) -> [&[T]; K] {
    std::array::from_fn(
        #[inline(always)]
        |k| &x[k][at..at + n],
    )
}

/// Every `N`th element added up.
#[inline(always)]
fn lanes<T: Real, const K: usize, const N: usize>(x: [&[T]; K], f: &impl Fn([T; K]) -> T) -> [T; N] {
    let mut lanes = [T::ZERO; N];
    for c in 0..x[0].len() / N {
        let row: [&[T; N]; K] = std::array::from_fn(
            #[inline(always)]
            |k| &x[k].as_chunks().0[c],
        );
        for i in 0..N {
            lanes[i] += f(std::array::from_fn(
                #[inline(always)]
                |k| row[k][i],
            ));
        }
    }
    lanes
}

#[inline(always)]
pub fn sum<T: Real>(x: &[T]) -> f64 {
    total(
        [x],
        #[inline(always)]
        |[v]| v,
    )
}

#[inline(always)]
pub fn dot<T: Real>(x: &[T], y: &[T]) -> f64 {
    total(
        [x, y],
        #[inline(always)]
        |[a, b]| a * b,
    )
}

/// Adds `n` rows of `x`, so wide, to `all`; `at` says where each begins. `few` is for what the last ones come to, and zero.
#[inline(always)]
fn add<T: Real>(
    x: &[T],
    (n, width): (usize, usize),
    at: impl Fn(usize) -> usize,
    (few, all): (&mut [T], &mut [f64]),
) {
    let (few, all) = (&mut few[..width], &mut all[..width]);
    for first in (0..n).step_by(DEEP) {
        let rows = first..n.min(first + DEEP);
        if width < NARROW {
            narrow(x, rows, &at, all);
            continue;
        }
        for row in rows {
            let from = &x[at(row)..][..width];
            few.iter_mut().zip(from).for_each(|(s, &v)| *s += v);
        }
        widen(few, all);
    }
}

/// Moves what a few rows came to into the sums of all.
#[inline(always)]
pub fn widen<T: Real>(few: &mut [T], all: &mut [f64]) {
    for (few, all) in few.iter_mut().zip(all) {
        *all += few.wide();
        *few = T::ZERO;
    }
}

/// Adds a few rows so narrow that their sums are in registers.
#[inline(always)]
fn narrow<T: Real>(x: &[T], rows: std::ops::Range<usize>, at: &impl Fn(usize) -> usize, all: &mut [f64]) {
    let (eights, rest) = all.as_chunks_mut::<8>();
    let end = eights.len() * 8;
    for (i, all) in eights.iter_mut().enumerate() {
        beside(x, rows.clone(), at, i * 8, all);
    }
    for (i, all) in rest.iter_mut().enumerate() {
        beside(x, rows.clone(), at, end + i, std::array::from_mut(all));
    }
}

#[inline(always)]
fn beside<T: Real, const N: usize>(
    x: &[T],
    rows: std::ops::Range<usize>,
    at: &impl Fn(usize) -> usize,
    col: usize,
    all: &mut [f64; N],
) {
    let mut few = [T::ZERO; N];
    for row in rows {
        let begin = at(row) + col;
        let from = &x[begin..begin + N];
        for i in 0..N {
            few[i] += from[i];
        }
    }
    for i in 0..N {
        all[i] += few[i].wide();
    }
}

/// The sum of rows, column by column; `at` says where each begins in `x`.
#[inline(always)]
pub fn columns<T: Real>(x: &[T], n: usize, at: impl Fn(usize) -> usize, out: &mut [T]) {
    if n <= DEEP {
        // The same bits, without a detour.
        out.fill(T::ZERO);
        for row in 0..n {
            let from = &x[at(row)..][..out.len()];
            out.iter_mut().zip(from).for_each(|(o, &v)| *o += v);
        }
        return;
    }
    in_tiles(
        out,
        #[inline(always)]
        |col: usize, width: usize, few: &mut [T], all: &mut [f64]| {
            add(
                x,
                (n, width),
                #[inline(always)]
                |row| at(row) + col,
                (few, all),
            );
        },
        &|s| s,
    );
}

/// Adds up columns, several at a time, and rounds their sums.
#[inline(always)]
fn in_tiles<T: Real>(
    out: &mut [T],
    add: impl Fn(usize, usize, &mut [T], &mut [f64]),
    end: &impl Fn(f64) -> f64,
) {
    match out.len() <= SMALL {
        true => tiles::<T, SMALL>(out, add, end),
        false => tiles::<T, TILE>(out, add, end),
    }
}

#[inline(always)]
fn tiles<T: Real, const N: usize>(
    out: &mut [T],
    add: impl Fn(usize, usize, &mut [T], &mut [f64]),
    end: &impl Fn(f64) -> f64,
) {
    for (tile, out) in out.chunks_mut(N).enumerate() {
        let (mut few, mut all) = ([T::ZERO; N], [0.0; N]);
        add(tile * N, out.len(), &mut few, &mut all);
        out.iter_mut().zip(&all).for_each(|(o, s)| *o = T::of(end(*s)));
    }
}

/// The sum of all elements of `x` that the walk brings to each place of `out`, as `end` leaves it.
pub fn sums<T: Real>(walk: Walk<2>, x: &[T], out: &mut [T], end: impl Fn(f64) -> f64) {
    if walk.is_empty() {
        return out.fill(T::of(end(0.0)));
    }
    let (kept, gone) = walk.split();
    let is_last = walk.row().1[1] == 0;
    fast(
        #[inline(always)]
        || {
            kept.each(
                #[inline(always)]
                |[from, to]| match is_last {
                    true => of_rows(&x[from..], &mut out[to..], kept.row(), &gone, &end),
                    false => of_columns(&x[from..], &mut out[to..], kept.row().0, &gone, &end),
                },
            );
        },
    );
}

/// Where the walk ends with what is added up: places of `out`, each the sum of rows of `x`.
#[inline(always)]
fn of_rows<T: Real>(
    x: &[T],
    out: &mut [T],
    (n, [apart, across]): (usize, [usize; 2]),
    gone: &Walk<1>,
    end: &impl Fn(f64) -> f64,
) {
    let (long, _) = gone.row();
    if gone.is_row() {
        for i in 0..n {
            out[i * across] = T::of(end(sum(&x[i * apart..][..long])));
        }
        return;
    }
    // Row after row as they lie in memory, whichever place they are for.
    for first in (0..n).step_by(TILE) {
        let mut all = [0.0; TILE];
        let all = &mut all[..TILE.min(n - first)];
        gone.each(
            #[inline(always)]
            |[at]| {
                for (i, all) in all.iter_mut().enumerate() {
                    *all += sum(&x[(first + i) * apart + at..][..long]);
                }
            },
        );
        for (i, all) in all.iter().enumerate() {
            out[(first + i) * across] = T::of(end(*all));
        }
    }
}

/// Where the walk ends with what is kept: rows of `out`, each the sum of rows of `x`.
#[inline(always)]
fn of_columns<T: Real>(x: &[T], out: &mut [T], width: usize, gone: &Walk<1>, end: &impl Fn(f64) -> f64) {
    let (n, [step]) = gone.row();
    if gone.is_row() && n <= DEEP {
        columns(
            x,
            n,
            #[inline(always)]
            |row| row * step,
            &mut out[..width],
        );
        return out[..width].iter_mut().for_each(|o| *o = T::of(end(o.wide())));
    }
    in_tiles(
        &mut out[..width],
        #[inline(always)]
        |col: usize, width: usize, few: &mut [T], all: &mut [f64]| {
            gone.each(
                #[inline(always)]
                |[at]| {
                    add(
                        x,
                        (n, width),
                        #[inline(always)]
                        |row| at + col + row * step,
                        (&mut *few, &mut *all),
                    );
                },
            );
        },
        end,
    );
}

/// The largest element; NaN counts as smaller than anything.
#[inline(always)]
pub fn largest<T: Real>(x: &[T]) -> T {
    let (body, tail) = x.as_chunks::<16>();
    let mut lanes = [T::LOWEST; 16];
    for chunk in body {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = if *lane < v { v } else { *lane };
        }
    }
    lanes.iter().chain(tail).fold(T::LOWEST, |top, &v| if top < v { v } else { top })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Stream, stretched, strides};

    fn numbers(n: usize) -> Vec<f32> {
        let dice = Stream::new(3, 0, 0);
        (0..n as u64).map(|i| 0.1 + dice.uniform(i) as f32).collect()
    }

    #[test]
    fn sums_are_right_and_do_not_depend_on_the_vector_unit() {
        for n in [0, 1, 7, 8, 15, 16, 17, 100, 127, 128, 129, 1000, 100_000] {
            let x = numbers(n);
            let exact: f64 = x.iter().map(|&v| f64::from(v)).sum();
            assert!((sum(&x) - exact).abs() <= exact * 1e-6, "TOTAL-1: {n}");
            assert_eq!(sum(&x).to_bits(), fast(|| sum(&x)).to_bits());
            assert_eq!(dot(&x, &x).to_bits(), fast(|| total([&x], |[v]| v * v)).to_bits());
            assert_eq!(largest(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }

    #[test]
    fn columns_are_right_whatever_their_number_and_order() {
        for (n, width) in [(1, 1), (3, 7), (16, 40), (17, 300), (1000, 33), (40, 1600), (40, 128)] {
            let x = numbers(n * width);
            let mut exact = vec![0.0; width];
            x.iter().enumerate().for_each(|(i, &v)| exact[i % width] += f64::from(v));
            let mut out = vec![f32::NAN; width];
            columns(&x, n, |i| i * width, &mut out);
            let close = |a: &f32, b: &f64| (f64::from(*a) - b).abs() <= b * 1e-6;
            assert!(out.iter().zip(&exact).all(|(a, b)| close(a, b)), "TOTAL-1: {n} x {width}");
            let (dims, mut again) = ([n, width], vec![f32::NAN; width]);
            let walk = Walk::new(&dims, [strides(&dims), stretched(&[width], &dims, 1)]);
            sums(walk, &x, &mut again, |s| s);
            let close = |a: &f32, b: &f32| (a - b).abs() <= b * 1e-6;
            assert!(out.iter().zip(&again).all(|(a, b)| close(a, b)), "{n} x {width}");
        }
    }

    #[test]
    fn of_nothing_the_sum_is_what_its_end_makes_of_zero() {
        let mut out = [1.0f32; 3];
        let dims = [0, 3];
        let walk = Walk::new(&dims, [strides(&dims), stretched(&[3], &dims, 1)]);
        sums(walk, &[], &mut out, |s| s + 2.0);
        assert_eq!(out, [2.0; 3]);
    }
}
