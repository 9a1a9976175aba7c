//! Convolutions with windows that are written out, one below the other: any stride.

use super::{Geometry, Wanted};
use crate::kernel::{Mat, Real, Size};

#[derive(Clone, Copy, Debug)]
pub(super) struct Windows(pub Geometry);

impl Windows {
    /// The products: of the output, of the windows' gradient, of the filters' gradient.
    fn sizes(&self) -> [Size; 3] {
        let (k, n) = self.0.window();
        let o = self.0.o;
        [Size { m: o, n, k }, Size { m: k, n, k: o }, Size { m: o, n: k, k: n }]
    }

    pub(super) fn scratch(&self, wanted: Wanted) -> usize {
        let (k, n) = self.0.window();
        k * n + self.sizes().map(wanted).into_iter().max().unwrap_or(0)
    }

    pub(super) fn forward<T: Real>(&self, x: &[T], f: &[T], y: &mut [T], scratch: &mut [T]) {
        let (k, n) = self.0.window();
        let (windows, scratch) = scratch.split_at_mut(k * n);
        let (image, out) = (self.0.volume(), self.0.o * n);
        self.0.each(|[xi, fi, yi]| {
            self.unroll(&x[xi..xi + image], windows);
            let f = Mat::new(&f[fi..fi + self.0.o * k], k);
            T::gemm(self.sizes()[0], f, Mat::new(windows, n), &mut y[yi..yi + out], false, scratch);
        });
    }

    pub(super) fn input_grad<T: Real>(&self, f: &[T], dy: &[T], dx: &mut [T], scratch: &mut [T]) {
        let (k, n) = self.0.window();
        let (windows, scratch) = scratch.split_at_mut(k * n);
        self.0.each(|[xi, fi, yi]| {
            let f = Mat::new(&f[fi..fi + self.0.o * k], k).t();
            let dy = Mat::new(&dy[yi..yi + self.0.o * n], n);
            T::gemm(self.sizes()[1], f, dy, windows, false, scratch);
            let dx = &mut dx[xi..xi + self.0.volume()];
            dx.fill(T::ZERO);
            self.roll(windows, dx);
        });
    }

    /// Image after image, in their order.
    pub(super) fn filter_grad<T: Real>(&self, x: &[T], dy: &[T], df: &mut [T], scratch: &mut [T]) {
        let (k, n) = self.0.window();
        let (windows, scratch) = scratch.split_at_mut(k * n);
        df.fill(T::ZERO);
        self.0.each(|[xi, fi, yi]| {
            self.unroll(&x[xi..xi + self.0.volume()], windows);
            let dy = Mat::new(&dy[yi..yi + self.0.o * n], n);
            let df = &mut df[fi..fi + self.0.o * k];
            T::gemm(self.sizes()[2], dy, Mat::new(windows, n).t(), df, true, scratch);
        });
    }

    /// Visits every row of the unrolled windows: its place there, its channel, and for each output row the row of the
    /// image it comes from, if any.
    fn rows(&self, mut f: impl FnMut(usize, usize, Option<usize>)) {
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
                            (row * self.0.out[0] + oy) * self.0.out[1],
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

    fn unroll<T: Real>(&self, image: &[T], windows: &mut [T]) {
        let (width, stride) = (self.0.out[1], self.0.conv.stride[1]);
        self.rows(|at, kx, from| {
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
    fn roll<T: Real>(&self, windows: &[T], image: &mut [T]) {
        let (width, stride) = (self.0.out[1], self.0.conv.stride[1]);
        self.rows(|at, kx, to| {
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
