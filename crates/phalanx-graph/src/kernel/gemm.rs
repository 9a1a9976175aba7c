//! Matrix products into given memory, on one thread, with what they pack in given scratch memory.
//! - GEMM-2: an element depends on its row, its column and `k` alone, to the bit: not on the other rows and columns, the
//!   operands' layout, the instruction set, the thread or the run. A sample's result does not depend on its batch.

mod block;
mod tile;
mod turn;

use block::Nest;
pub use block::chains;
pub use tile::Tiled;
pub use turn::Turned;

/// Where the rows of a matrix begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    /// So far apart.
    Even(usize),
    /// Each row is an image seen through one place of a kernel: the image moved by so much.
    Taps(Taps),
}

/// Planes of `plane` elements, each seen through a kernel whose places are `step` apart, down and across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taps {
    pub plane: usize,
    pub kernel: [usize; 2],
    pub step: [usize; 2],
}

impl Lines {
    /// Where rows begin, one after another.
    fn starts(self, rows: std::ops::Range<usize>) -> tile::Starts {
        let Lines::Taps(Taps { plane, kernel: [kh, kw], step: [down, across] }) = self else {
            return tile::Starts::new(rows.map(|r| self.at(r)));
        };
        let (mut x, mut y, mut at) = (rows.start % kw, rows.start / kw % kh, self.at(rows.start));
        tile::Starts::new(rows.map(|_| {
            let here = at;
            (x, at) = (x + 1, at + across);
            if x == kw {
                (x, y, at) = (0, y + 1, at + down - kw * across);
            }
            if y == kh {
                (y, at) = (0, at + plane - kh * down);
            }
            here
        }))
    }

    #[inline(always)]
    fn at(self, row: usize) -> usize {
        match self {
            Lines::Even(stride) => row * stride,
            Lines::Taps(Taps { plane, kernel: [kh, kw], step: [down, across] }) => {
                // Short divisions are fast ones.
                let (row, kh, kw) = (row as u32, kh as u32, kw as u32);
                let (line, x) = (row / kw, row % kw);
                (line / kh) as usize * plane + (line % kh) as usize * down + x as usize * across
            }
        }
    }
}

/// A matrix inside a slice.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, T> {
    data: &'a [T],
    lines: Lines,
    col: usize,
}

impl<'a, T> Mat<'a, T> {
    /// Row after row, `width` elements each.
    pub fn new(data: &'a [T], width: usize) -> Mat<'a, T> {
        Mat { data, lines: Lines::Even(width), col: 1 }
    }

    /// An image as the matrix of what each place of a kernel sees of it.
    pub fn taps(data: &'a [T], taps: Taps) -> Mat<'a, T> {
        Mat { data, lines: Lines::Taps(taps), col: 1 }
    }

    /// The same memory, rows and columns swapped.
    ///
    /// # Panics
    /// If its rows are taps.
    pub fn t(self) -> Mat<'a, T> {
        let Lines::Even(row) = self.lines else {
            panic!("taps cannot be transposed: multiply from the other side")
        };
        Mat { data: self.data, lines: Lines::Even(self.col), col: row }
    }

    pub fn t_if(self, transposed: bool) -> Mat<'a, T> {
        if transposed { self.t() } else { self }
    }

    fn spans(&self, rows: usize, cols: usize) -> bool {
        if rows == 0 || cols == 0 {
            return true;
        }
        let last = match self.lines {
            Lines::Even(row) => (rows - 1) * row,
            Lines::Taps(taps) => {
                let [kh, kw] = taps.kernel;
                self.lines.at(rows.next_multiple_of(kh * kw) - 1)
            }
        };
        last + (cols - 1) * self.col < self.data.len()
    }
}

/// The sizes of a product: `m x k` times `k x n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Size {
    fn t(self) -> Size {
        Size { m: self.n, n: self.m, k: self.k }
    }

    /// Whether computing the transposed product is worth turning its result: a tall right operand that lies the wrong way
    /// would have to be turned itself.
    fn is_flat(self) -> bool {
        2 * self.m * (self.k + self.n) < self.n * self.k
    }
}

/// Who multiplies matrices of this element type.
pub trait Gemm: Tiled + Turned {
    /// Elements of scratch memory that a product of this size wants.
    fn scratch(size: Size) -> usize;
    /// `c = a * b`, or `c += a * b`; `c` lies row after row. What is in the scratch memory does not matter.
    fn gemm(
        size: Size,
        a: Mat<'_, Self>,
        b: Mat<'_, Self>,
        c: &mut [Self],
        accumulate: bool,
        scratch: &mut [Self],
    );
}

macro_rules! product {
    ($($t:ty),*) => {$(
        impl Gemm for $t {
            fn scratch(size: Size) -> usize {
                let turned = if size.is_flat() { size.m * size.n + block::scratch(size.t()) } else { 0 };
                block::scratch(size).max(turned)
            }

            fn gemm(size: Size, a: Mat<'_, $t>, b: Mat<'_, $t>, c: &mut [$t], accumulate: bool, scratch: &mut [$t]) {
                let Size { m, n, k } = size;
                assert!(a.spans(m, k) && b.spans(k, n) && c.len() >= m * n, "operands hold their matrices");
                let tiles = <$t as Tiled>::tiles();
                if k == 0 && !accumulate {
                    c[..m * n].fill(0.0);
                }
                if m == 0 || n == 0 || k == 0 {
                    return;
                }
                if b.col == 1 || !size.is_flat() || matches!(a.lines, Lines::Taps(_)) {
                    return Nest { tiles, size, accumulate }.run(a, b, c, scratch);
                }
                // The product of the transposed, in the other order, is the product transposed; its bits are the same.
                let (turned, scratch) = scratch.split_at_mut(m * n);
                if accumulate {
                    <$t>::transpose(0..m, n, (c, n), (turned, m));
                }
                Nest { tiles, size: size.t(), accumulate }.run(b.t(), a.t(), turned, scratch);
                <$t>::transpose(0..n, m, (turned, m), (c, n));
            }
        }
    )*};
}
product!(f32, f64);

#[cfg(test)]
mod tests;
