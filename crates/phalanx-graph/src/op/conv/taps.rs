//! Convolutions without windows: with stride 1, what one place of the kernel sees of an image is the image, moved. As
//! long as rows keep the width of the (padded) image, that is one run of memory, and the product can read it where it is.
//!
//! Output rows have some columns too many then, where the kernel sees the end of one row and the begin of the next. They
//! are left out when the output is written; in gradients of outputs they are zero. (So an infinite or NaN pixel can spoil
//! more of a filter's gradient than the places that see it.)

use super::{Conv2d, Geometry, Wanted};
use crate::kernel::{Mat, Real, Size, Taps, fast};

/// A convolution with stride 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved(pub(super) Geometry);

impl Moved {
    /// `None` if it has strides, or if too much would be computed in vain.
    pub(super) fn new(geo: Geometry) -> Option<Moved> {
        let moved = Moved(geo);
        let is_worth = 2 * moved.wide() <= 3 * geo.out[0] * geo.out[1];
        (geo.conv.stride == [1, 1] && is_worth).then_some(moved)
    }

    /// The convolution that takes gradients of outputs to those of inputs: with the filters turned around.
    pub(super) fn backwards(geo: Geometry) -> Option<Moved> {
        let mut back = Geometry { c: geo.o, o: geo.c, image: geo.out, out: geo.image, ..geo };
        for side in 0..2 {
            let reach = geo.conv.dilation[side] * (geo.kernel[side] - 1);
            back.conv.padding[side] = reach.checked_sub(geo.conv.padding[side])?;
        }
        Moved::new(back)
    }

    /// Rows of a plane with its padding, how far apart they begin, and what follows the last. The zeros after a row are those before
    /// the next one, unless that would put two columns of the output at one place.
    fn padded(&self) -> [usize; 3] {
        let Geometry { image: [h, w], conv: Conv2d { padding: [rows, cols], .. }, out, .. } = self.0;
        match out[1] <= w + cols {
            true => [h + 2 * rows, w + cols, cols],
            false => [h + 2 * rows, w + 2 * cols, 0],
        }
    }

    fn is_padded(&self) -> bool {
        self.0.conv.padding != [0, 0]
    }

    /// Output columns, those between rows included.
    pub(super) fn wide(&self) -> usize {
        let [oh, ow] = self.0.out;
        if oh == 0 { 0 } else { (oh - 1) * self.padded()[1] + ow }
    }

    fn has_gaps(&self) -> bool {
        self.padded()[1] != self.0.out[1] && self.0.out[0] > 1
    }

    pub(super) fn taps(&self) -> Taps {
        let [hp, wp, last] = self.padded();
        let [down, across] = self.0.conv.dilation;
        Taps { plane: hp * wp + last, kernel: self.0.kernel, step: [down * wp, across] }
    }

    /// Elements of the padded image and of the wide output, where there are such.
    fn buffers(&self) -> [usize; 2] {
        let image = if self.is_padded() { self.0.c * self.taps().plane } else { 0 };
        [image, if self.has_gaps() { self.0.o * self.wide() } else { 0 }]
    }

    fn size(&self) -> Size {
        Size { m: self.0.o, n: self.wide(), k: self.0.window().0 }
    }

    pub(super) fn scratch(&self, wanted: Wanted) -> usize {
        self.buffers().iter().sum::<usize>() + wanted(self.size())
    }

    pub(super) fn forward<T: Real>(&self, x: &[T], f: &[T], y: &mut [T], scratch: &mut [T]) {
        let [n_image, n_wide] = self.buffers();
        let (image, scratch) = scratch.split_at_mut(n_image);
        let (wide, scratch) = scratch.split_at_mut(n_wide);
        let (volume, (k, n)) = (self.0.volume(), self.0.window());
        image.fill(T::ZERO);
        self.0.each(|[xi, fi, yi]| {
            let image = self.pad(&x[xi..xi + volume], image);
            let f = Mat::new(&f[fi..fi + self.0.o * k], k);
            let y = &mut y[yi..yi + self.0.o * n];
            let seen = Mat::taps(image, self.taps());
            if wide.is_empty() {
                return T::gemm(self.size(), f, seen, y, false, scratch);
            }
            T::gemm(self.size(), f, seen, wide, false, scratch);
            self.rows(|narrow, at| {
                y[narrow..narrow + self.0.out[1]].copy_from_slice(&wide[at..at + self.0.out[1]]);
            });
        });
    }

    pub(super) fn turned_scratch(&self, wanted: Wanted) -> usize {
        self.0.conv.groups * self.0.o * self.0.window().0 + self.scratch(wanted)
    }

    /// `forward` with filters `[o, c, kh, kw]` of the other convolution, for which in is out.
    pub(super) fn turned<T: Real>(&self, x: &[T], f: &[T], y: &mut [T], scratch: &mut [T]) {
        let Geometry { c, o, kernel, conv, .. } = self.0;
        let area = kernel[0] * kernel[1];
        let (turned, scratch) = scratch.split_at_mut(conv.groups * o * c * area);
        let groups = f.chunks_exact(c * o * area).zip(turned.chunks_exact_mut(c * o * area));
        for (f, turned) in groups {
            for (i, f) in f.chunks_exact(area).enumerate() {
                // Filter `i / o`, channel `i % o` there.
                let to = &mut turned[(i % o * c + i / o) * area..][..area];
                to.iter_mut().zip(f.iter().rev()).for_each(|(to, &v)| *to = v);
            }
        }
        self.forward(x, turned, y, scratch);
    }

    fn filter_size(&self) -> Size {
        Size { m: self.0.window().0, n: self.0.o, k: self.wide() }
    }

    pub(super) fn filter_scratch(&self, wanted: Wanted) -> usize {
        let sums = self.0.conv.groups * self.0.o * self.0.window().0;
        sums + self.buffers().iter().sum::<usize>() + wanted(self.filter_size())
    }

    /// Image after image, in their order. The product is the transposed one: of the image as it is moved, row by row, and
    /// of the output's gradient.
    pub(super) fn filter_grad<T: Real>(&self, x: &[T], dy: &[T], df: &mut [T], scratch: &mut [T]) {
        let [n_image, n_wide] = self.buffers();
        let (sums, scratch) = scratch.split_at_mut(df.len());
        let (image, scratch) = scratch.split_at_mut(n_image);
        let (wide, scratch) = scratch.split_at_mut(n_wide);
        let (volume, (k, n), o) = (self.0.volume(), self.0.window(), self.0.o);
        sums.fill(T::ZERO);
        image.fill(T::ZERO);
        wide.fill(T::ZERO);
        self.0.each(|[xi, fi, yi]| {
            let image = self.pad(&x[xi..xi + volume], image);
            let dy = &dy[yi..yi + o * n];
            if !wide.is_empty() {
                self.rows(|narrow, at| {
                    wide[at..at + self.0.out[1]].copy_from_slice(&dy[narrow..narrow + self.0.out[1]]);
                });
            }
            let dy = Mat::new(if wide.is_empty() { dy } else { wide }, self.wide()).t();
            let seen = Mat::taps(image, self.taps());
            T::gemm(self.filter_size(), seen, dy, &mut sums[fi..fi + o * k], true, scratch);
        });
        for (sums, df) in sums.chunks_exact(o * k).zip(df.chunks_exact_mut(o * k)) {
            T::transpose(0..k, o, (sums, o), (df, k));
        }
    }

    /// The image with its padding; the border of `to` is zero already.
    fn pad<'a, T: Real>(&self, image: &'a [T], to: &'a mut [T]) -> &'a [T] {
        if !self.is_padded() {
            return image;
        }
        self.pad_into(image, to);
        to
    }

    /// The same, padded or not.
    pub(super) fn pad_into<T: Real>(&self, image: &[T], to: &mut [T]) {
        let Geometry { image: [h, w], conv, .. } = self.0;
        let (wp, plane) = (self.padded()[1], self.taps().plane);
        if h * w == 0 {
            return;
        }
        fast(
            #[inline(always)]
            || {
                for (image, to) in image.chunks_exact(h * w).zip(to.chunks_mut(plane)) {
                    let to = &mut to[conv.padding[0] * wp + conv.padding[1]..];
                    for (row, to) in image.chunks_exact(w).zip(to.chunks_mut(wp)) {
                        copy_row(row, &mut to[..w]);
                    }
                }
            },
        );
    }

    /// Where each row of the output lies, and where among the wide ones.
    fn rows(&self, mut f: impl FnMut(usize, usize)) {
        let [oh, ow] = self.0.out;
        for o in 0..self.0.o {
            for oy in 0..oh {
                f((o * oh + oy) * ow, o * self.wide() + oy * self.padded()[1]);
            }
        }
    }
}

/// Copies a row in blocks, the last of which ends with it: rows are short, and a call for each would cost more than the copy.
#[inline(always)]
fn copy_row<T: Real>(from: &[T], to: &mut [T]) {
    const N: usize = 8;
    let n = from.len();
    if !(N..=8 * N).contains(&n) {
        return to.copy_from_slice(from);
    }
    for begin in (0..n).step_by(N) {
        let at = begin.min(n - N);
        to[at..at + N].copy_from_slice(&from[at..at + N]);
    }
}
