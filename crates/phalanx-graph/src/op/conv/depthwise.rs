//! Convolutions in which every channel has one filter of its own, with stride 1: products with one row, computed where the
//! image is, without packing. Sums are the chains of fused products that tiles compute (GEMM-1), to the bit.

use super::taps::Moved;
use crate::kernel::{Real, chains, fast};

/// Output columns that are summed at a time; narrower rows take a half or a quarter.
const BLOCK: usize = 32;
/// Elements behind an image that are read, and left out.
const BEHIND: usize = 8;
/// Channels whose filters' gradients are summed at a time: a sum waits for its last product.
const AT_ONCE: usize = 4;

/// Filters of 3 x 3 or 5 x 5.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depthwise(Moved);

impl Depthwise {
    /// `None` if filters see several channels, or if there are no loops for their size.
    pub(super) fn new(moved: Moved) -> Option<Depthwise> {
        let geo = moved.0;
        let is_square = matches!(geo.kernel, [3, 3] | [5, 5]) && geo.conv.dilation == [1, 1];
        let is_wide = geo.out[1] >= BLOCK / 4 && geo.out[0] > 0 && geo.volume() > 0;
        (geo.c == 1 && geo.o == 1 && is_square && is_wide).then_some(Depthwise(moved))
    }

    /// Padded images side by side, and filters turned around.
    pub(super) fn scratch(&self) -> usize {
        let geo = self.0.0;
        AT_ONCE * (self.0.taps().plane + BEHIND) + geo.conv.groups * geo.kernel[0] * geo.kernel[1]
    }

    pub(super) fn forward<T: Real>(&self, x: &[T], f: &[T], y: &mut [T], scratch: &mut [T]) {
        let (plane, pitch) = (self.0.taps().plane, self.0.taps().step[0]);
        let (volume, (area, n), width) = (self.0.0.volume(), self.0.0.window(), self.0.0.out[1]);
        let image = &mut scratch[..plane + BEHIND];
        image.fill(T::ZERO);
        self.0.0.each(|[xi, fi, yi]| {
            self.0.pad_into(&x[xi..xi + volume], &mut image[..plane]);
            let (f, y) = (&f[fi..fi + area], &mut y[yi..yi + n]);
            match area {
                9 => rows::<T, 3>(image, pitch, f, (y, width)),
                _ => rows::<T, 5>(image, pitch, f, (y, width)),
            }
        });
    }

    /// `forward` with the filters of the other convolution, for which in is out.
    pub(super) fn turned<T: Real>(&self, x: &[T], f: &[T], y: &mut [T], scratch: &mut [T]) {
        let (turned, scratch) = scratch.split_at_mut(f.len());
        for (to, f) in turned.chunks_exact_mut(self.0.0.window().0).zip(f.chunks_exact(self.0.0.window().0)) {
            to.iter_mut().zip(f.iter().rev()).for_each(|(to, &v)| *to = v);
        }
        self.forward(x, turned, y, scratch);
    }

    /// Image after image, in their order.
    pub(super) fn filter_grad<T: Real>(&self, x: &[T], dy: &[T], df: &mut [T], scratch: &mut [T]) {
        let (volume, (area, n), groups) = (self.0.0.volume(), self.0.0.window(), self.0.0.conv.groups);
        let length = self.0.taps().plane + BEHIND;
        let padded = &mut scratch[..AT_ONCE * length];
        padded.fill(T::ZERO);
        df.fill(T::ZERO);
        for (x, dy) in x.chunks_exact(groups * volume).zip(dy.chunks_exact(groups * n)) {
            let xs = x.chunks(AT_ONCE * volume).zip(dy.chunks(AT_ONCE * n));
            for ((x, dy), df) in xs.zip(df.chunks_mut(AT_ONCE * area)) {
                for (x, to) in x.chunks_exact(volume).zip(padded.chunks_exact_mut(length)) {
                    self.0.pad_into(x, to);
                }
                match (area, df.len() / area) {
                    (9, AT_ONCE) => self.filters::<T, 3, 4, AT_ONCE>(padded, dy, df),
                    _ => {
                        for (i, df) in df.chunks_exact_mut(area).enumerate() {
                            let (padded, dy) = (&padded[i * length..], &dy[i * n..]);
                            match area {
                                9 => self.filters::<T, 3, 4, 1>(padded, dy, df),
                                _ => self.filters::<T, 5, 8, 1>(padded, dy, df),
                            }
                        }
                    }
                }
            }
        }
    }

    /// Adds what `CHANNELS` channels of one image give: filters of `SIDE x SIDE`, row by row in `LANES`.
    fn filters<T: Real, const SIDE: usize, const LANES: usize, const CHANNELS: usize>(
        &self,
        padded: &[T],
        dy: &[T],
        df: &mut [T],
    ) {
        let ([_, width], (area, n)) = (self.0.0.out, self.0.0.window());
        let (plane, pitch) = (self.0.taps().plane + BEHIND, self.0.taps().step[0]);
        fast(
            #[inline(always)]
            || {
                for chain in chains(self.0.wide()) {
                    let mut sums = [[[T::ZERO; LANES]; SIDE]; CHANNELS];
                    for oy in chain.start / pitch..chain.end.div_ceil(pitch) {
                        // Columns between rows have no gradient.
                        let begin = chain.start.saturating_sub(oy * pitch).min(width);
                        let count = (chain.end - oy * pitch).min(width) - begin;
                        let (mut lines, mut gradients) =
                            ([[&padded[..0]; SIDE]; CHANNELS], [&dy[..0]; CHANNELS]);
                        for c in 0..CHANNELS {
                            gradients[c] = &dy[c * n + oy * width + begin..][..count];
                            for ky in 0..SIDE {
                                lines[c][ky] =
                                    &padded[c * plane + (oy + ky) * pitch + begin..][..count + LANES];
                            }
                        }
                        for x in 0..count {
                            for c in 0..CHANNELS {
                                let dy = [gradients[c][x]; LANES];
                                for ky in 0..SIDE {
                                    let seen: &[T; LANES] =
                                        lines[c][ky][x..].first_chunk().expect("lines are long enough");
                                    let mut sum = sums[c][ky];
                                    for i in 0..LANES {
                                        sum[i] = seen[i].mul_add(dy[i], sum[i]);
                                    }
                                    sums[c][ky] = sum;
                                }
                            }
                        }
                    }
                    for (df, sums) in df.chunks_exact_mut(area).zip(&sums) {
                        for (df, sums) in df.chunks_exact_mut(SIDE).zip(sums) {
                            df.iter_mut().zip(sums).for_each(|(df, &sum)| *df += sum);
                        }
                    }
                }
            },
        );
    }
}

/// All rows of one output.
fn rows<T: Real, const SIDE: usize>(image: &[T], pitch: usize, f: &[T], (y, width): (&mut [T], usize)) {
    fast(
        #[inline(always)]
        || {
            // A copy that no store to the output can be thought to change.
            let mut filter = [[T::ZERO; SIDE]; SIDE];
            for (to, f) in filter.iter_mut().zip(f.as_chunks::<SIDE>().0) {
                *to = *f;
            }
            match width {
                BLOCK.. => blocks::<T, SIDE, BLOCK>(image, pitch, &filter, (y, width)),
                16.. => blocks::<T, SIDE, 16>(image, pitch, &filter, (y, width)),
                9.. => short_rows::<T, SIDE, 16>(image, pitch, &filter, (y, width)),
                _ => blocks::<T, SIDE, 8>(image, pitch, &filter, (y, width)),
            }
        },
    );
}

/// Rows in blocks. The last block ends with the row: columns that it shares with the one before are computed again.
#[inline(always)]
fn blocks<T: Real, const SIDE: usize, const N: usize>(
    image: &[T],
    pitch: usize,
    filter: &[[T; SIDE]; SIDE],
    (y, width): (&mut [T], usize),
) {
    for (oy, y) in y.chunks_exact_mut(width).enumerate() {
        for begin in (0..width).step_by(N) {
            let at = begin.min(width - N);
            let sums = block::<T, SIDE, N>(&image[oy * pitch + at..], pitch, filter);
            y[at..at + N].copy_from_slice(&sums);
        }
    }
}

/// Rows that are shorter than a block, but longer than half of it. What a block has computed behind its row is overwritten by the next one.
#[inline(always)]
fn short_rows<T: Real, const SIDE: usize, const N: usize>(
    image: &[T],
    pitch: usize,
    filter: &[[T; SIDE]; SIDE],
    (y, width): (&mut [T], usize),
) {
    let last = y.len() - width;
    for (oy, at) in (0..last).step_by(width).enumerate() {
        y[at..at + N].copy_from_slice(&block::<T, SIDE, N>(&image[oy * pitch..], pitch, filter));
    }
    let sums = block::<T, SIDE, N>(&image[last / width * pitch..], pitch, filter);
    y[last..].copy_from_slice(&sums[..width]);
}

/// `N` outputs side by side, of which the first sees the image from its beginning.
#[inline(always)]
fn block<T: Real, const SIDE: usize, const N: usize>(
    image: &[T],
    pitch: usize,
    filter: &[[T; SIDE]; SIDE],
) -> [T; N] {
    let mut sums = [T::ZERO; N];
    for ky in 0..SIDE {
        let line = &image[ky * pitch..][..N + SIDE - 1];
        for kx in 0..SIDE {
            let (f, seen) = (filter[ky][kx], &line[kx..kx + N]);
            for i in 0..N {
                sums[i] = f.mul_add(seen[i], sums[i]);
            }
        }
    }
    sums
}
