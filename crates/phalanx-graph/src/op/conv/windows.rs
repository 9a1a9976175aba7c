//! Convolutions with windows that are written out, one below the other: any stride.

use super::{Conv2d, Geometry, Wanted, runs::Runs};
use crate::kernel::{Mat, Real, Size, fast};
use std::ops::Range;

/// Columns that a product should have at least, so that reading the filters is worth it.
const COLUMNS: usize = 256;

/// Channels whose views are visited together: they see the same rows and columns.
const ABREAST: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Windows(pub Geometry);

/// Some images of one group at work: where the first begins in images, filters and outputs, and how many there are.
#[derive(Clone, Copy, Debug)]
struct Share {
    x: usize,
    f: usize,
    y: usize,
    n: usize,
}

impl Windows {
    /// Whether windows are worth writing out where the image could be read as it is: a small image has few columns, and filters that
    /// are read again for each image take longer than the windows.
    pub(super) fn are_worth(geo: &Geometry) -> bool {
        geo.images > 1 && geo.window().1 <= 64 && geo.o >= 64
    }

    /// Images whose windows lie side by side.
    fn at_once(&self) -> usize {
        (COLUMNS / self.0.window().1.max(1)).clamp(1, self.0.images.max(1))
    }

    /// The products of a number of columns: of the output, of the windows' gradient, of the filters' gradient.
    fn sizes(&self, columns: usize) -> [Size; 3] {
        let (k, o) = (self.0.window().0, self.0.o);
        [Size { m: o, n: columns, k }, Size { m: k, n: columns, k: o }, Size { m: o, n: k, k: columns }]
    }

    /// Columns of the widest product.
    fn widest(&self) -> usize {
        self.at_once() * self.0.window().1
    }

    /// Elements of the windows, of the outputs where these do not lie as the product wants them, and of padded images.
    fn buffers(&self) -> [usize; 3] {
        let wide = self.widest();
        let outputs = if self.at_once() > 1 { self.0.o * wide } else { 0 };
        let padded = if self.is_run() { Runs::new(&self.0).scratch(self.at_once()) } else { 0 };
        [self.0.window().0 * wide, outputs, padded]
    }

    /// The buffers, and what is left for the product.
    fn split<'a, T>(&self, scratch: &'a mut [T]) -> [&'a mut [T]; 4] {
        let [n_windows, n_outputs, n_padded] = self.buffers();
        let (windows, scratch) = scratch.split_at_mut(n_windows);
        let (outputs, scratch) = scratch.split_at_mut(n_outputs);
        let (padded, scratch) = scratch.split_at_mut(n_padded);
        [windows, outputs, padded, scratch]
    }

    pub(super) fn scratch(&self, wanted: Wanted) -> usize {
        // The last product may be narrower, and want more for it.
        let last = self.0.images % self.at_once() * self.0.window().1;
        let sizes = self.sizes(self.widest()).into_iter().chain(self.sizes(last));
        self.buffers().iter().sum::<usize>() + sizes.map(wanted).max().unwrap_or(0)
    }

    /// Group after group, in each its images in their order.
    fn shares(&self, mut f: impl FnMut(Share)) {
        let Geometry { images, o, conv, .. } = self.0;
        let (k, n) = self.0.window();
        for g in 0..conv.groups {
            for first in (0..images).step_by(self.at_once()) {
                let at = first * conv.groups + g;
                let x = at * self.0.volume();
                f(Share { x, f: g * o * k, y: at * o * n, n: self.at_once().min(images - first) });
            }
        }
    }

    /// Where an image of a share begins, and its output.
    fn image(&self, share: Share, i: usize) -> (Range<usize>, Range<usize>) {
        let (volume, out) = (self.0.volume(), self.0.o * self.0.window().1);
        let at = i * self.0.conv.groups;
        let (x, y) = (share.x + at * volume, share.y + at * out);
        (x..x + volume, y..y + out)
    }

    pub(super) fn forward<T: Real>(&self, x: &[T], f: &[T], y: &mut [T], scratch: &mut [T]) {
        let (k, n) = self.0.window();
        let [windows, outputs, padded, scratch] = self.split(scratch);
        self.shares(|share| {
            let wide = share.n * n;
            self.unroll_all(share, x, windows, padded);
            let f = Mat::new(&f[share.f..share.f + self.0.o * k], k);
            let (size, windows) = (self.sizes(wide)[0], Mat::new(windows, wide));
            if share.n == 1 {
                return T::gemm(size, f, windows, &mut y[self.image(share, 0).1], false, scratch);
            }
            T::gemm(size, f, windows, outputs, false, scratch);
            for i in 0..share.n {
                let y = &mut y[self.image(share, i).1];
                for (to, from) in y.chunks_exact_mut(n).zip(outputs.chunks_exact(wide)) {
                    to.copy_from_slice(&from[i * n..(i + 1) * n]);
                }
            }
        });
    }

    /// The outputs of a share as one matrix: where they are, or side by side in `to`.
    fn gathered<'a, T: Real>(&self, share: Share, dy: &'a [T], to: &'a mut [T]) -> &'a [T] {
        if share.n == 1 {
            return &dy[self.image(share, 0).1];
        }
        let n = self.0.window().1;
        let wide = share.n * n;
        for i in 0..share.n {
            let dy = &dy[self.image(share, i).1];
            for (to, from) in to.chunks_exact_mut(wide).zip(dy.chunks_exact(n)) {
                to[i * n..(i + 1) * n].copy_from_slice(from);
            }
        }
        to
    }

    pub(super) fn input_grad<T: Real>(&self, f: &[T], dy: &[T], dx: &mut [T], scratch: &mut [T]) {
        let (k, n) = self.0.window();
        let [windows, outputs, padded, scratch] = self.split(scratch);
        self.shares(|share| {
            let wide = share.n * n;
            let f = Mat::new(&f[share.f..share.f + self.0.o * k], k).t();
            let dy = Mat::new(self.gathered(share, dy, outputs), wide);
            T::gemm(self.sizes(wide)[1], f, dy, windows, false, scratch);
            self.roll_all(share, windows, dx, padded);
        });
    }

    /// Images in their order, some at a time.
    pub(super) fn filter_grad<T: Real>(&self, x: &[T], dy: &[T], df: &mut [T], scratch: &mut [T]) {
        let (k, n) = self.0.window();
        let [windows, outputs, padded, scratch] = self.split(scratch);
        if self.0.images == 0 {
            df.fill(T::ZERO);
        }
        self.shares(|share| {
            let (wide, is_first) = (share.n * n, share.x < self.0.conv.groups * self.0.volume());
            self.unroll_all(share, x, windows, padded);
            let dy = Mat::new(self.gathered(share, dy, outputs), wide);
            let df = &mut df[share.f..share.f + self.0.o * k];
            T::gemm(self.sizes(wide)[2], dy, Mat::new(windows, wide).t(), df, !is_first, scratch);
        });
    }

    fn unroll_all<T: Real>(&self, share: Share, x: &[T], windows: &mut [T], padded: &mut [T]) {
        let n = self.0.window().1;
        if self.is_run() {
            let image = |i| &x[self.image(share, i).0];
            return Runs::new(&self.0).unroll(share.n, image, windows, padded);
        }
        for i in 0..share.n {
            self.unroll(&x[self.image(share, i).0], windows, (share.n * n, i * n));
        }
    }

    fn roll_all<T: Real>(&self, share: Share, windows: &[T], dx: &mut [T], padded: &mut [T]) {
        let n = self.0.window().1;
        if self.is_run() {
            let begin = |i| self.image(share, i).0.start;
            return Runs::new(&self.0).roll(share.n, windows, (dx, begin), padded);
        }
        for i in 0..share.n {
            let dx = &mut dx[self.image(share, i).0];
            dx.fill(T::ZERO);
            self.roll(windows, dx, (share.n * n, i * n));
        }
    }

    /// Visits what each place of the kernel sees of each channel: some channels at a time, in each the places in their order.
    #[inline(always)]
    fn views(&self, mut f: impl FnMut(View)) {
        let Geometry { kernel: [kh, kw], image: [h, w], c: n_channels, .. } = self.0;
        for first in (0..n_channels).step_by(ABREAST) {
            for ky in 0..kh {
                let (rows, y) = self.seen(0, ky);
                for kx in 0..kw {
                    let (cols, x) = self.seen(1, kx);
                    for c in first..(first + ABREAST).min(n_channels) {
                        let row = (c * kh + ky) * kw + kx;
                        f(View { row, first: (c * h + y) * w + x, rows: rows.clone(), cols: cols.clone() });
                    }
                }
            }
        }
    }

    /// Which rows or columns of the output see the image through this one of the kernel, and where the first looks.
    fn seen(&self, side: usize, k: usize) -> (Range<usize>, usize) {
        let Conv2d { stride, padding, dilation, .. } = self.0.conv;
        let (stride, pad, at) = (stride[side], padding[side], k * dilation[side]);
        let begin = pad.saturating_sub(at).div_ceil(stride).min(self.0.out[side]);
        let end = (self.0.image[side] + pad).saturating_sub(at).div_ceil(stride);
        (begin..end.clamp(begin, self.0.out[side]), (begin * stride + at).saturating_sub(pad))
    }

    fn is_run(&self) -> bool {
        Runs::can(&self.0)
    }

    /// Writes the windows of an image out; rows are so wide, and the image's begin at this column.
    fn unroll<T: Real>(&self, image: &[T], windows: &mut [T], (wide, column): (usize, usize)) {
        let ([_, width], n, [down, across]) = (self.0.out, self.0.window().1, self.0.conv.stride);
        fast(
            #[inline(always)]
            || {
                self.views(
                    #[inline(always)]
                    |view| {
                        let to = &mut windows[view.row * wide + column..][..n];
                        if view.is_empty() {
                            return to.fill(T::ZERO);
                        }
                        let View { first, rows, cols, .. } = view;
                        to[..rows.start * width].fill(T::ZERO);
                        to[rows.end * width..].fill(T::ZERO);
                        for (i, oy) in rows.enumerate() {
                            let to = &mut to[oy * width..(oy + 1) * width];
                            to[..cols.start].fill(T::ZERO);
                            to[cols.end..].fill(T::ZERO);
                            let from = &image[first + i * down * self.0.image[1]..];
                            pick(from, across, &mut to[cols.clone()]);
                        }
                    },
                );
            },
        );
    }

    /// Adds windows back to where they came from.
    fn roll<T: Real>(&self, windows: &[T], image: &mut [T], (wide, column): (usize, usize)) {
        let ([_, width], n, [down, across]) = (self.0.out, self.0.window().1, self.0.conv.stride);
        fast(
            #[inline(always)]
            || {
                self.views(
                    #[inline(always)]
                    |view| {
                        if view.is_empty() {
                            return;
                        }
                        let from = &windows[view.row * wide + column..][..n];
                        let View { first, rows, cols, .. } = view;
                        for (i, oy) in rows.enumerate() {
                            let from = &from[oy * width..][cols.clone()];
                            let to = &mut image[first + i * down * self.0.image[1]..];
                            put(from, across, to);
                        }
                    },
                );
            },
        );
    }
}

/// What one place of the kernel sees of one channel.
#[derive(Clone, Debug)]
struct View {
    /// Of the windows.
    row: usize,
    /// Where the first pixel is that is seen, and by which rows and columns of the output.
    first: usize,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl View {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.cols.is_empty()
    }
}

/// Every `step`th element.
#[inline(always)]
fn pick<T: Real>(from: &[T], step: usize, to: &mut [T]) {
    let n = to.len();
    match step {
        1 => to.copy_from_slice(&from[..n]),
        // Blocks, the last of which ends with the row.
        2 if n >= 8 && from.len() >= 2 * n => {
            for begin in (0..n).step_by(8) {
                let at = begin.min(n - 8);
                let from: &[T; 16] = from[2 * at..].first_chunk().expect("there are two for each");
                let to: &mut [T; 8] = to[at..].first_chunk_mut().expect("a block");
                for i in 0..8 {
                    to[i] = from[2 * i];
                }
            }
        }
        _ => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, &v)| *to = v),
    }
}

/// Adds to every `step`th element.
#[inline(always)]
fn put<T: Real>(from: &[T], step: usize, to: &mut [T]) {
    match step {
        1 => to.iter_mut().zip(from).for_each(|(to, &v)| *to += v),
        // Blocks, as long as there are two elements for each of theirs.
        2 => {
            let n = from.len().min(to.len() / 2) / 4 * 4;
            let blocks = from[..n].as_chunks::<4>().0.iter().zip(to[..2 * n].as_chunks_mut::<8>().0);
            for (from, to) in blocks {
                let mut sums = *to;
                for i in 0..4 {
                    sums[2 * i] += from[i];
                }
                *to = sums;
            }
            to[2 * n..].iter_mut().step_by(2).zip(&from[n..]).for_each(|(to, &v)| *to += v);
        }
        _ => to.iter_mut().step_by(step).zip(from).for_each(|(to, &v)| *to += v),
    }
}
