//! Convolutions in which every channel has one filter of its own, with any stride, kernel and width: sixteen channels are at work side by
//! side, one in each lane of a vector, or of two. Planes are transposed on the way in and out.
//!
//! What an element is computed from, and in which order, follows from the sizes of one image alone.

use super::Geometry;
use crate::kernel::{Real, fast};
use std::ops::Range;

/// Channels side by side.
const LANES: usize = 16;
/// With fewer channels than this, lanes would be idle for nothing.
const LEAST_CHANNELS: usize = 4;
/// Output columns that are summed at a time: a sum waits for its last product.
const COLUMNS: usize = 4;
/// Weights whose gradients are summed at a time.
const WEIGHTS: usize = 9;
/// Outputs after which the sums of a filter's gradient begin anew, so that they do not get long.
const CHAIN: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes(Geometry);

/// Scratch memory: filters or their sums, a plane, the same with its padding, an output. Elements are those of [`LANES`] channels.
struct Room<'a, T> {
    filters: &'a mut [[T; LANES]],
    plane: &'a mut [[T; LANES]],
    padded: &'a mut [[T; LANES]],
    output: &'a mut [[T; LANES]],
}

/// Channels at work: which of them are first in images and filters, and how many there are.
#[derive(Clone, Copy, Debug)]
struct Block {
    plane: usize,
    first: usize,
    n: usize,
}

impl Lanes {
    /// `None` if filters see several channels, or if there are too few of them.
    pub(super) fn new(geo: &Geometry) -> Option<Lanes> {
        let (area, n) = geo.window();
        let is_any = geo.volume() > 0 && area > 0 && n > 0;
        (geo.c == 1 && geo.o == 1 && geo.conv.groups >= LEAST_CHANNELS && is_any).then_some(Lanes(*geo))
    }

    /// Rows and columns of a plane with its padding.
    fn padded(&self) -> [usize; 2] {
        [0, 1].map(|side| self.0.image[side] + 2 * self.0.conv.padding[side])
    }

    /// Of as many channels each as there are lanes.
    fn sizes(&self) -> [usize; 4] {
        let (area, n) = self.0.window();
        let padded = self.padded();
        [self.0.conv.groups.div_ceil(LANES) * area, self.0.volume(), padded[0] * padded[1], n]
    }

    pub(super) fn scratch(&self) -> usize {
        self.sizes().iter().sum::<usize>() * LANES
    }

    fn room<'a, T: Real>(&self, scratch: &'a mut [T]) -> Room<'a, T> {
        let scratch = &mut scratch[..self.scratch()];
        // Borders stay zero, and so do lanes without a channel.
        scratch.fill(T::ZERO);
        let [filters, plane, padded, _] = self.sizes();
        let (filters, rest) = scratch.as_chunks_mut().0.split_at_mut(filters);
        let (plane, rest) = rest.split_at_mut(plane);
        let (padded, output) = rest.split_at_mut(padded);
        Room { filters, plane, padded, output }
    }

    /// Image after image, in each all channels.
    fn blocks(&self, mut f: impl FnMut(Block)) {
        let groups = self.0.conv.groups;
        for image in 0..self.0.images {
            for first in (0..groups).step_by(LANES) {
                f(Block { plane: image * groups + first, first, n: LANES.min(groups - first) });
            }
        }
    }

    /// Filters with their channels side by side.
    fn turn_filters<T: Real>(&self, f: &[T], to: &mut [[T; LANES]]) {
        let area = self.0.window().0;
        for (f, to) in f.chunks(LANES * area).zip(to.chunks_exact_mut(area)) {
            turn_in(f, area, to);
        }
    }

    pub(super) fn forward<T: Real>(&self, x: &[T], f: &[T], y: &mut [T], scratch: &mut [T]) {
        let (volume, (area, n)) = (self.0.volume(), self.0.window());
        let room = self.room(scratch);
        self.turn_filters(f, room.filters);
        self.blocks(|block| {
            turn_in(&x[block.range(volume)], volume, room.plane);
            self.pad(room.plane, room.padded);
            let filter = &room.filters[block.first / LANES * area..][..area];
            match self.0.out[1] {
                COLUMNS.. => self.sum::<T, COLUMNS>(room.padded, filter, room.output),
                _ => self.sum::<T, 1>(room.padded, filter, room.output),
            }
            turn_out(room.output, n, &mut y[block.range(n)]);
        });
    }

    pub(super) fn input_grad<T: Real>(&self, f: &[T], dy: &[T], dx: &mut [T], scratch: &mut [T]) {
        let (volume, (area, n)) = (self.0.volume(), self.0.window());
        let room = self.room(scratch);
        self.turn_filters(f, room.filters);
        self.blocks(|block| {
            turn_in(&dy[block.range(n)], n, room.output);
            let filter = &room.filters[block.first / LANES * area..][..area];
            room.padded.fill([T::ZERO; LANES]);
            self.spread(room.output, filter, room.padded);
            self.crop(room.padded, room.plane);
            turn_out(room.plane, volume, &mut dx[block.range(volume)]);
        });
    }

    /// Image after image, in their order.
    pub(super) fn filter_grad<T: Real>(&self, x: &[T], dy: &[T], df: &mut [T], scratch: &mut [T]) {
        let (volume, (area, n)) = (self.0.volume(), self.0.window());
        let room = self.room(scratch);
        self.blocks(|block| {
            turn_in(&x[block.range(volume)], volume, room.plane);
            self.pad(room.plane, room.padded);
            turn_in(&dy[block.range(n)], n, room.output);
            let sums = &mut room.filters[block.first / LANES * area..][..area];
            // Parts of equal size, or one apart.
            let parts = area.div_ceil(WEIGHTS);
            for part in 0..parts {
                let (begin, end) = (part * area / parts, (part + 1) * area / parts);
                self.weights(room.padded, room.output, begin, &mut sums[begin..end]);
            }
        });
        for (sums, df) in room.filters.chunks_exact(area).zip(df.chunks_mut(LANES * area)) {
            turn_out(sums, area, df);
        }
    }

    fn pad<T: Real>(&self, plane: &[[T; LANES]], padded: &mut [[T; LANES]]) {
        let (width, [_, wide], [top, left]) = (self.0.image[1], self.padded(), self.0.conv.padding);
        for (row, to) in plane.chunks_exact(width).zip(padded.chunks_exact_mut(wide).skip(top)) {
            to[left..left + width].copy_from_slice(row);
        }
    }

    fn crop<T: Real>(&self, padded: &[[T; LANES]], plane: &mut [[T; LANES]]) {
        let (width, [_, wide], [top, left]) = (self.0.image[1], self.padded(), self.0.conv.padding);
        for (row, from) in plane.chunks_exact_mut(width).zip(padded.chunks_exact(wide).skip(top)) {
            row.copy_from_slice(&from[left..left + width]);
        }
    }

    /// What a weight sees first, from the first output.
    fn offset(&self, weight: usize) -> usize {
        let ([_, wide], [down, across], width) = (self.padded(), self.0.conv.dilation, self.0.kernel[1]);
        weight / width * down * wide + weight % width * across
    }

    /// Outputs, some columns at a time. The last ones end with the row: columns that they share with those before are computed again.
    fn sum<T: Real, const N: usize>(
        &self,
        image: &[[T; LANES]],
        filter: &[[T; LANES]],
        out: &mut [[T; LANES]],
    ) {
        let ([_, wide], [down, across], width) = (self.padded(), self.0.conv.stride, self.0.out[1]);
        let [_, kw] = self.0.kernel;
        fast(
            #[inline(always)]
            || {
                for (oy, out) in out.chunks_exact_mut(width).enumerate() {
                    for begin in (0..width).step_by(N) {
                        let at = begin.min(width - N);
                        let image = &image[oy * down * wide + at * across..];
                        let mut sums = [[T::ZERO; LANES]; N];
                        for (ky, filter) in filter.chunks_exact(kw).enumerate() {
                            let line = &image[self.offset(ky * kw)..];
                            for (kx, f) in filter.iter().enumerate() {
                                let seen = &line[kx * self.0.conv.dilation[1]..][..(N - 1) * across + 1];
                                for i in 0..N {
                                    sums[i] = added(sums[i], f, &seen[i * across]);
                                }
                            }
                        }
                        out[at..at + N].copy_from_slice(&sums);
                    }
                }
            },
        );
    }

    /// Adds what outputs give to all that they have seen.
    fn spread<T: Real>(&self, dy: &[[T; LANES]], filter: &[[T; LANES]], image: &mut [[T; LANES]]) {
        let ([_, wide], [down, across], width) = (self.padded(), self.0.conv.stride, self.0.out[1]);
        fast(
            #[inline(always)]
            || {
                for (oy, dy) in dy.chunks_exact(width).enumerate() {
                    for (weight, f) in filter.iter().enumerate() {
                        let line = &mut image[oy * down * wide + self.offset(weight)..];
                        let line = line[..(width - 1) * across + 1].iter_mut().step_by(across);
                        for (seen, dy) in line.zip(dy) {
                            *seen = added(*seen, f, dy);
                        }
                    }
                }
            },
        );
    }

    /// Adds to the gradients of some weights, of which the first is `begin`.
    fn weights<T: Real>(
        &self,
        image: &[[T; LANES]],
        dy: &[[T; LANES]],
        begin: usize,
        sums: &mut [[T; LANES]],
    ) {
        match sums.len() {
            1 => self.some::<T, 1>(image, dy, begin, sums),
            2 => self.some::<T, 2>(image, dy, begin, sums),
            3 => self.some::<T, 3>(image, dy, begin, sums),
            4 => self.some::<T, 4>(image, dy, begin, sums),
            5 => self.some::<T, 5>(image, dy, begin, sums),
            6 => self.some::<T, 6>(image, dy, begin, sums),
            7 => self.some::<T, 7>(image, dy, begin, sums),
            8 => self.some::<T, 8>(image, dy, begin, sums),
            _ => self.some::<T, WEIGHTS>(image, dy, begin, sums),
        }
    }

    fn some<T: Real, const N: usize>(
        &self,
        image: &[[T; LANES]],
        dy: &[[T; LANES]],
        begin: usize,
        sums: &mut [[T; LANES]],
    ) {
        let ([_, wide], [down, across], width) = (self.padded(), self.0.conv.stride, self.0.out[1]);
        let rows = (CHAIN / width).max(1);
        let offsets: [usize; N] = std::array::from_fn(|i| self.offset(begin + i));
        fast(
            #[inline(always)]
            || {
                for (chain, dy) in dy.chunks(rows * width).enumerate() {
                    let mut own = [[T::ZERO; LANES]; N];
                    for (oy, dy) in dy.chunks_exact(width).enumerate() {
                        let line = &image[(chain * rows + oy) * down * wide..];
                        let lines = offsets.map(|at| &line[at..][..(width - 1) * across + 1]);
                        for (ox, dy) in dy.iter().enumerate() {
                            for i in 0..N {
                                own[i] = added(own[i], dy, &lines[i][ox * across]);
                            }
                        }
                    }
                    for (sum, own) in sums.iter_mut().zip(&own) {
                        for lane in 0..LANES {
                            sum[lane] += own[lane];
                        }
                    }
                }
            },
        );
    }
}

impl Block {
    /// Where its planes lie, of this length each.
    fn range(&self, length: usize) -> Range<usize> {
        self.plane * length..(self.plane + self.n) * length
    }
}

#[inline(always)]
fn added<T: Real>(mut sum: [T; LANES], a: &[T; LANES], b: &[T; LANES]) -> [T; LANES] {
    for lane in 0..LANES {
        sum[lane] = a[lane].mul_add(b[lane], sum[lane]);
    }
    sum
}

/// Planes of this length, one below the other, become lanes.
fn turn_in<T: Real>(planes: &[T], length: usize, to: &mut [[T; LANES]]) {
    T::transpose(0..planes.len() / length, length, (planes, length), (to.as_flattened_mut(), LANES));
}

/// Lanes become planes.
fn turn_out<T: Real>(from: &[[T; LANES]], length: usize, planes: &mut [T]) {
    let n = planes.len() / length;
    T::transpose(0..length, n, (from.as_flattened(), LANES), (planes, length));
}
