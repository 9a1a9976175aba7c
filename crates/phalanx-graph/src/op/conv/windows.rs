//! Convolutions with windows that are written out, one below the other: any stride.

use super::{Geometry, Wanted};
use crate::kernel::{Mat, Real, Size};
use std::ops::Range;

/// Columns that a product should have at least, so that reading the filters is worth it.
const COLUMNS: usize = 256;

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

    /// The products of so many columns: of the output, of the windows' gradient, of the filters' gradient.
    fn sizes(&self, columns: usize) -> [Size; 3] {
        let (k, o) = (self.0.window().0, self.0.o);
        [Size { m: o, n: columns, k }, Size { m: k, n: columns, k: o }, Size { m: o, n: k, k: columns }]
    }

    /// Columns of the widest product.
    fn widest(&self) -> usize {
        self.at_once() * self.0.window().1
    }

    /// Elements of the windows, and of the outputs where these do not lie as the product wants them.
    fn buffers(&self) -> [usize; 2] {
        let wide = self.widest();
        [self.0.window().0 * wide, if self.at_once() > 1 { self.0.o * wide } else { 0 }]
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
        let [n_windows, n_outputs] = self.buffers();
        let (windows, scratch) = scratch.split_at_mut(n_windows);
        let (outputs, scratch) = scratch.split_at_mut(n_outputs);
        self.shares(|share| {
            let wide = share.n * n;
            for i in 0..share.n {
                self.unroll(&x[self.image(share, i).0], windows, (wide, i * n));
            }
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
        let [n_windows, n_outputs] = self.buffers();
        let (windows, scratch) = scratch.split_at_mut(n_windows);
        let (outputs, scratch) = scratch.split_at_mut(n_outputs);
        self.shares(|share| {
            let wide = share.n * n;
            let f = Mat::new(&f[share.f..share.f + self.0.o * k], k).t();
            let dy = Mat::new(self.gathered(share, dy, outputs), wide);
            T::gemm(self.sizes(wide)[1], f, dy, windows, false, scratch);
            for i in 0..share.n {
                let dx = &mut dx[self.image(share, i).0];
                dx.fill(T::ZERO);
                self.roll(windows, dx, (wide, i * n));
            }
        });
    }

    /// Images in their order, some at a time.
    pub(super) fn filter_grad<T: Real>(&self, x: &[T], dy: &[T], df: &mut [T], scratch: &mut [T]) {
        let (k, n) = self.0.window();
        let [n_windows, n_outputs] = self.buffers();
        let (windows, scratch) = scratch.split_at_mut(n_windows);
        let (outputs, scratch) = scratch.split_at_mut(n_outputs);
        df.fill(T::ZERO);
        self.shares(|share| {
            let wide = share.n * n;
            for i in 0..share.n {
                self.unroll(&x[self.image(share, i).0], windows, (wide, i * n));
            }
            let dy = Mat::new(self.gathered(share, dy, outputs), wide);
            let df = &mut df[share.f..share.f + self.0.o * k];
            T::gemm(self.sizes(wide)[2], dy, Mat::new(windows, wide).t(), df, true, scratch);
        });
    }

    /// Visits every row of the unrolled windows, which are so wide and begin at this column: its place there, its channel, and for
    /// each output row the row of the image it comes from, if any.
    fn rows(&self, (wide, column): (usize, usize), mut f: impl FnMut(usize, usize, Option<usize>)) {
        let [kh, kw] = self.0.kernel;
        for c in 0..self.0.c {
            for ky in 0..kh {
                for kx in 0..kw {
                    let row = (c * kh + ky) * kw + kx;
                    for oy in 0..self.0.out[0] {
                        let y = (oy * self.0.conv.stride[0] + ky * self.0.conv.dilation[0])
                            .checked_sub(self.0.conv.padding[0]);
                        let y = y.filter(|&y| y < self.0.image[0]);
                        f(
                            row * wide + column + oy * self.0.out[1],
                            kx,
                            y.map(|y| (c * self.0.image[0] + y) * self.0.image[1]),
                        );
                    }
                }
            }
        }
    }

    /// Which output columns of a row see the image through this column of the kernel, and where the first looks.
    fn columns(&self, kx: usize) -> (usize, usize, usize) {
        let (stride, pad, at) = (self.0.conv.stride[1], self.0.conv.padding[1], kx * self.0.conv.dilation[1]);
        let begin = pad.saturating_sub(at).div_ceil(stride).min(self.0.out[1]);
        let end = (self.0.image[1] + pad).saturating_sub(at).div_ceil(stride).clamp(begin, self.0.out[1]);
        (begin, end, (begin * stride + at).saturating_sub(pad))
    }

    fn unroll<T: Real>(&self, image: &[T], windows: &mut [T], at: (usize, usize)) {
        let (width, stride) = (self.0.out[1], self.0.conv.stride[1]);
        self.rows(at, |at, kx, from| {
            let out = &mut windows[at..at + width];
            let Some(from) = from else { return out.fill(T::ZERO) };
            let (begin, end, x) = self.columns(kx);
            out[..begin].fill(T::ZERO);
            out[end..].fill(T::ZERO);
            if begin < end {
                let line = &image[from + x..from + self.0.image[1]];
                match stride {
                    1 => out[begin..end].copy_from_slice(&line[..end - begin]),
                    _ => {
                        out[begin..end]
                            .iter_mut()
                            .zip(line.iter().step_by(stride))
                            .for_each(|(o, &v)| *o = v);
                    }
                }
            }
        });
    }

    /// Adds windows back to where they came from.
    fn roll<T: Real>(&self, windows: &[T], image: &mut [T], at: (usize, usize)) {
        let (width, stride) = (self.0.out[1], self.0.conv.stride[1]);
        self.rows(at, |at, kx, to| {
            let Some(to) = to else { return };
            let (begin, end, x) = self.columns(kx);
            if begin < end {
                let line = &mut image[to + x..to + self.0.image[1]];
                let from = &windows[at..at + width][begin..end];
                match stride {
                    1 => line.iter_mut().zip(from).for_each(|(o, &v)| *o += v),
                    _ => line.iter_mut().step_by(stride).zip(from).for_each(|(o, &v)| *o += v),
                }
            }
        });
    }
}
