//! Windows of images that are as wide as their output, with stride 1: what one place of the kernel sees of a padded image is one run of
//! memory, with some columns to leave out. Rows of windows are written and read from their begin to their end, all images side by side.

use super::Geometry;
use crate::kernel::{Real, fast};

/// Elements that are moved at a time.
const BLOCK: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    channels: usize,
    /// Elements of a plane, and of one in the output.
    plane: usize,
    n: usize,
    width: usize,
    kernel: [usize; 2],
    /// How far apart what neighbouring places of the kernel see begins, down and across.
    step: [usize; 2],
    /// Zeros before a padded plane, and its length with all zeros.
    before: usize,
    length: usize,
    /// Columns that the first place of the kernel sees to the left of the image.
    left: usize,
}

impl Runs {
    pub(super) fn can(geo: &Geometry) -> bool {
        geo.conv.stride == [1, 1] && geo.out[1] == geo.image[1]
    }

    pub(super) fn new(geo: &Geometry) -> Runs {
        let (width, [down, across], [rows, left]) = (geo.image[1], geo.conv.dilation, geo.conv.padding);
        let n = geo.out[0] * width;
        let step = [down * width, across];
        let length = n + (geo.kernel[0] - 1) * step[0] + (geo.kernel[1] - 1) * step[1];
        Runs {
            channels: geo.c,
            plane: geo.image[0] * width,
            n,
            width,
            kernel: geo.kernel,
            step,
            before: rows * width + left,
            length,
            left,
        }
    }

    /// Padded planes of `n_images` images, and which columns each column of the kernel sees.
    pub(super) fn scratch(&self, n_images: usize) -> usize {
        n_images * self.channels * self.length + self.kernel[1] * self.n
    }

    /// Ones where a column of the kernel sees the image, zeros where it sees padding.
    fn mark<T: Real>(&self, seen: &mut [T]) {
        for (kx, seen) in seen.chunks_exact_mut(self.n).enumerate() {
            for (i, seen) in seen.iter_mut().enumerate() {
                let x = i % self.width + kx * self.step[1];
                *seen = if (self.left..self.left + self.width).contains(&x) { T::ONE } else { T::ZERO };
            }
        }
    }

    /// Visits the rows of windows of a channel: which row of the kernel's places, where a run begins in a padded plane, and the column.
    #[inline(always)]
    fn places(&self, mut f: impl FnMut(usize, usize, usize)) {
        for ky in 0..self.kernel[0] {
            for kx in 0..self.kernel[1] {
                f(ky * self.kernel[1] + kx, ky * self.step[0] + kx * self.step[1], kx);
            }
        }
    }

    /// Writes the windows of images out, side by side.
    pub(super) fn unroll<'a, T: Real>(
        &self,
        n_images: usize,
        image: impl Fn(usize) -> &'a [T],
        windows: &mut [T],
        scratch: &mut [T],
    ) {
        let (n, length, area) = (self.n, self.length, self.kernel[0] * self.kernel[1]);
        if n == 0 || area == 0 {
            return;
        }
        let (seen, padded) = scratch.split_at_mut(self.kernel[1] * n);
        self.mark(seen);
        padded[..n_images * self.channels * length].fill(T::ZERO);
        for i in 0..n_images {
            for (c, plane) in image(i).chunks_exact(self.plane).enumerate() {
                let at = (c * n_images + i) * length + self.before;
                padded[at..at + self.plane].copy_from_slice(plane);
            }
        }
        fast(
            #[inline(always)]
            || {
                for c in 0..self.channels {
                    let planes = &padded[c * n_images * length..][..n_images * length];
                    self.places(
                        #[inline(always)]
                        |place, begin, kx| {
                            let seen = &seen[kx * n..(kx + 1) * n];
                            let row = &mut windows[(c * area + place) * n_images * n..][..n_images * n];
                            for (plane, to) in planes.chunks_exact(length).zip(row.chunks_exact_mut(n)) {
                                keep(&plane[begin..begin + n], seen, to);
                            }
                        },
                    );
                }
            },
        );
    }

    /// Adds windows back to where they came from, place by place in their order; images begin there in `dx`.
    pub(super) fn roll<T: Real>(
        &self,
        n_images: usize,
        windows: &[T],
        (dx, begins): (&mut [T], impl Fn(usize) -> usize),
        scratch: &mut [T],
    ) {
        let (n, length, area) = (self.n, self.length, self.kernel[0] * self.kernel[1]);
        if self.plane == 0 {
            return;
        }
        let (seen, sums) = scratch.split_at_mut(self.kernel[1] * n);
        let sums = &mut sums[..n_images * length];
        self.mark(seen);
        fast(
            #[inline(always)]
            || {
                for c in 0..self.channels {
                    sums.fill(T::ZERO);
                    self.places(
                        #[inline(always)]
                        |place, begin, kx| {
                            let seen = &seen[kx * n..(kx + 1) * n];
                            let row = &windows[(c * area + place) * n_images * n..][..n_images * n];
                            for (i, sums) in sums.chunks_exact_mut(length).enumerate() {
                                add(&row[i * n..(i + 1) * n], seen, &mut sums[begin..begin + n]);
                            }
                        },
                    );
                    for (i, sums) in sums.chunks_exact(length).enumerate() {
                        let at = begins(i) + c * self.plane;
                        dx[at..at + self.plane].copy_from_slice(&sums[self.before..self.before + self.plane]);
                    }
                }
            },
        );
    }
}

/// What is seen, and zeros.
#[inline(always)]
fn keep<T: Real>(from: &[T], seen: &[T], to: &mut [T]) {
    let ((from, from_rest), (seen, seen_rest)) = (from.as_chunks::<BLOCK>(), seen.as_chunks::<BLOCK>());
    let (to, to_rest) = to.as_chunks_mut::<BLOCK>();
    for ((from, seen), to) in from.iter().zip(seen).zip(to) {
        for i in 0..BLOCK {
            to[i] = if seen[i] == T::ONE { from[i] } else { T::ZERO };
        }
    }
    for ((&from, &seen), to) in from_rest.iter().zip(seen_rest).zip(to_rest) {
        *to = if seen == T::ONE { from } else { T::ZERO };
    }
}

/// Adds what is seen.
#[inline(always)]
fn add<T: Real>(from: &[T], seen: &[T], to: &mut [T]) {
    let ((from, from_rest), (seen, seen_rest)) = (from.as_chunks::<BLOCK>(), seen.as_chunks::<BLOCK>());
    let (to, to_rest) = to.as_chunks_mut::<BLOCK>();
    for ((from, seen), to) in from.iter().zip(seen).zip(to) {
        for i in 0..BLOCK {
            to[i] += if seen[i] == T::ONE { from[i] } else { T::ZERO };
        }
    }
    for ((&from, &seen), to) in from_rest.iter().zip(seen_rest).zip(to_rest) {
        *to += if seen == T::ONE { from } else { T::ZERO };
    }
}
