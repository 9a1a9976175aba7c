//! A product as tiles: which part of the operands is packed when, so that what is used again is near.

use super::{
    Lines, Mat, Size, Turned,
    tile::{DEPTH, Left, MAX_TILE, Starts, Tiled, Tiles},
};
use std::ops::Range;

/// Rows of the left operand that are packed at a time: they stay in the second cache.
const HEIGHT: usize = 384;
/// Elements of the right operand that are packed at a time.
const PACKED: usize = 64 * 1024;
/// From this many elements on, the right operand is fetched while the panel before is at work.
const FAR: usize = 256 * 1024;
/// The widest tile of any instruction set.
const WIDEST: usize = 32;

/// `0..n` in pieces of at most `most`, of almost the same size.
fn pieces(n: usize, most: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let count = n.div_ceil(most);
    (0..count).map(move |i| n * i / count..n * (i + 1) / count)
}

/// The steps of `k`, chain by chain: a chain begins at zero, and its end is added to those before.
pub fn chains(k: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    pieces(k, DEPTH)
}

/// Columns of the right operand that are packed at a time.
fn width(size: Size) -> usize {
    // Products of nothing are planned, too.
    let depth = size.k.clamp(1, DEPTH);
    // One panel stays in the first cache while all rows pass by. Short chains rather write their rows one by one.
    let most = if depth >= 128 { WIDEST } else { PACKED / depth / WIDEST * WIDEST };
    most.min(size.n.next_multiple_of(WIDEST))
}

/// Rows of the left operand that are packed at a time, with those that slivers have too many.
fn height(size: Size) -> usize {
    // Slivers of at most twelve rows, or of at most six in the place of eight.
    let m = size.m.min(HEIGHT);
    (m.div_ceil(6) * 8).max(m + 11)
}

pub(super) fn scratch(size: Size) -> usize {
    let depth = size.k.min(DEPTH);
    depth * (height(size) + width(size))
}

/// Slivers that are packed together from steps that lie apart: neighbours share cache lines.
const ABREAST: usize = 4;

/// One part of a product.
struct At<'a> {
    rows: Range<usize>,
    steps: Range<usize>,
    cols: Range<usize>,
    add: bool,
    /// Where rows of packed panels begin, and rows of the right operand itself if its columns lie side by side.
    ready: &'a Starts,
    there: Option<&'a Starts>,
}

/// One product.
pub(super) struct Nest<T: 'static> {
    pub tiles: &'static Tiles<T>,
    pub size: Size,
    pub accumulate: bool,
}

impl<T: Tiled + Turned + std::ops::AddAssign + Default> Nest<T> {
    pub(super) fn run(&self, a: Mat<'_, T>, b: Mat<'_, T>, c: &mut [T], scratch: &mut [T]) {
        let Size { m, n, k } = self.size;
        let (a_scratch, b_scratch) = scratch.split_at_mut(k.min(DEPTH) * height(self.size));
        for rows in pieces(m, HEIGHT) {
            for steps in chains(k) {
                let add = self.accumulate || steps.start > 0;
                let there = self.is_there(a);
                if there.is_none() {
                    self.left(a, &rows, &steps, a_scratch);
                }
                let left = |i: usize, sliver: &Range<usize>| match there {
                    None => Left::Packed(&a_scratch[i * steps.len() * self.tiles.height..]),
                    Some(row) => Left::There(&a.data[(rows.start + sliver.start) * row + steps.start..], row),
                };
                let ready = &Starts::new((0..steps.len()).map(|l| l * self.tiles.max_cols()));
                let there = (b.col == 1).then(|| b.lines.starts(steps.clone()));
                for begin in (0..n).step_by(width(self.size)) {
                    let cols = begin..(begin + width(self.size)).min(n);
                    let at = At {
                        rows: rows.clone(),
                        steps: steps.clone(),
                        cols,
                        add,
                        ready,
                        there: there.as_ref(),
                    };
                    self.right(b, &at, b_scratch);
                    self.tiles(&at, &left, b, b_scratch, c);
                }
            }
        }
    }

    /// How far apart the rows of a left operand are that is used so seldom that packing it costs more than it saves.
    fn is_there(&self, a: Mat<'_, T>) -> Option<usize> {
        let (n, most) = (self.size.n, self.tiles.max_cols());
        match a.lines {
            Lines::Even(row) if a.col == 1 && n.is_multiple_of(most) && n <= 2 * most => Some(row),
            _ => None,
        }
    }

    fn slivers(&self, rows: &Range<usize>) -> impl ExactSizeIterator<Item = Range<usize>> {
        pieces(rows.len(), self.tiles.max_rows())
    }

    /// All tiles of these rows and columns. The first sliver takes full panels from where they are and packs them in
    /// passing, if anybody comes after it.
    fn tiles<'a>(
        &self,
        at: &At<'_>,
        left: &dyn Fn(usize, &Range<usize>) -> Left<'a, T>,
        b: Mat<'_, T>,
        packed: &mut [T],
        c: &mut [T],
    ) where
        T: 'a,
    {
        let n = self.size.n;
        let (k, most) = (at.steps.len(), self.tiles.max_cols());
        let n_slivers = self.slivers(&at.rows).len();
        for (i, sliver) in self.slivers(&at.rows).enumerate() {
            let a = left(i, &sliver);
            for (panel, packed) in (0..at.cols.len()).step_by(most).zip(packed.chunks_exact_mut(k * most)) {
                let wide = (at.cols.len() - panel).min(most);
                let col = at.cols.start + panel;
                let c = &mut c[(at.rows.start + sliver.start) * n + col..];
                match at.there {
                    Some(there) if wide == most && n_slivers == 1 => {
                        self.tiles.run([sliver.len(), 2], a, (&b.data[col..], there), (c, n), at.add);
                    }
                    Some(there) if wide == most && i == 0 => {
                        self.tiles.run_and_keep(
                            sliver.len(),
                            a,
                            (&b.data[col..], there),
                            (c, n),
                            (at.add, packed),
                        );
                    }
                    Some(there)
                        if i == 1
                            && at.cols.len() == most
                            && self.is_far(at.cols.end + most)
                            && let Left::Packed(a) = a =>
                    {
                        let next = (at.add, &b.data[at.cols.end..], there);
                        self.tiles.run_and_fetch(sliver.len(), a, (packed, at.ready), (c, n), next);
                    }
                    Some(there) if wide < most && self.is_direct(b, there, &(col..col + wide)) => {
                        self.part([sliver.len(), wide], a, (&b.data[col..], there), c, at.add);
                    }
                    _ => self.part([sliver.len(), wide], a, (packed, at.ready), c, at.add),
                }
            }
        }
    }

    /// Whether the right operand is too large for the caches, and has a panel that ends here.
    fn is_far(&self, end: usize) -> bool {
        self.size.k * self.size.n > FAR && end <= self.size.n
    }

    /// A tile, or as much of it as there are columns: those at the edge go through memory of their own.
    fn part(&self, [rows, wide]: [usize; 2], a: Left<'_, T>, b: (&[T], &Starts), c: &mut [T], add: bool) {
        let (lanes, n) = (self.tiles.lanes, self.size.n);
        let vectors = wide.div_ceil(lanes);
        if wide == vectors * lanes {
            return self.tiles.run([rows, vectors], a, b, (c, n), add);
        }
        let mut edge = [T::default(); MAX_TILE];
        self.tiles.run([rows, vectors], a, b, (&mut edge, vectors * lanes), false);
        for (r, line) in edge.chunks_exact(vectors * lanes).take(rows).enumerate() {
            let to = &mut c[r * n..r * n + wide];
            match add {
                true => to.iter_mut().zip(line).for_each(|(c, &v)| *c += v),
                false => to.copy_from_slice(&line[..wide]),
            }
        }
    }

    /// Packs a left operand whose rows lie side by side and whose steps lie apart, slivers of `N` rows. Returns how many slivers are
    /// packed: all, or those before the end of the operand, where fewer than `N` rows may follow.
    fn across<const N: usize>(
        &self,
        a: Mat<'_, T>,
        rows: &Range<usize>,
        steps: &Range<usize>,
        to: &mut [T],
    ) -> usize {
        if a.lines != Lines::Even(1) || a.col == 1 {
            return 0;
        }
        let k = steps.len();
        let (mut begins, mut packed) = (self.slivers(rows).map(|sliver| rows.start + sliver.start), 0);
        for to in to.chunks_mut(ABREAST * k * N) {
            let (mut some, mut n) = ([0; ABREAST], 0);
            for begin in begins.by_ref().take(ABREAST) {
                some[n] = begin;
                n += 1;
            }
            if n == 0 || (steps.end - 1) * a.col + some[n - 1] + N > a.data.len() {
                break;
            }
            for l in 0..k {
                let from = &a.data[(steps.start + l) * a.col..];
                for (&begin, to) in some[..n].iter().zip(to.chunks_exact_mut(k * N)) {
                    to[l * N..(l + 1) * N].copy_from_slice(&from[begin..begin + N]);
                }
            }
            packed += n;
        }
        packed
    }

    /// Packs rows of the left operand: sliver after sliver, in each step after step, its rows beside each other.
    fn left(&self, a: Mat<'_, T>, rows: &Range<usize>, steps: &Range<usize>, to: &mut [T]) {
        let (k, height) = (steps.len(), self.tiles.height);
        let packed = match height {
            12 => self.across::<12>(a, rows, steps, to),
            8 => self.across::<8>(a, rows, steps, to),
            _ => 0,
        };
        for (sliver, to) in self.slivers(rows).zip(to.chunks_exact_mut(k * height)).skip(packed) {
            // Rows that are missing at the end of a sliver are packed, but not used.
            let place = |r: usize| a.lines.at(rows.start + (sliver.start + r).min(sliver.end - 1));
            for quad in (0..sliver.len()).step_by(4) {
                let at: [usize; 4] = std::array::from_fn(|i| place(quad + i));
                let to = &mut to[quad..];
                if a.col == 1 {
                    T::weave(at.map(|at| &a.data[at + steps.start..at + steps.end]), to, height);
                } else if a.lines == Lines::Even(1) && at[3] == at[0] + 3 {
                    for (l, to) in steps.clone().zip(to.chunks_mut(height)) {
                        let from = at[0] + l * a.col;
                        to[..4].copy_from_slice(&a.data[from..from + 4]);
                    }
                } else {
                    for (l, to) in steps.clone().zip(to.chunks_mut(height)) {
                        to.iter_mut().zip(at).for_each(|(to, at)| *to = a.data[at + l * a.col]);
                    }
                }
            }
        }
    }

    /// Packs what tiles do not pack in passing: columns that lie apart, and those at the edge.
    fn right(&self, b: Mat<'_, T>, at: &At<'_>, to: &mut [T]) {
        let (most, n) = (self.tiles.max_cols(), at.cols.len());
        for (panel, to) in (0..n).step_by(most).zip(to.chunks_exact_mut(most * at.steps.len())) {
            let wide = (n - panel).min(most);
            let cols = at.cols.start + panel..at.cols.start + panel + wide;
            match at.there {
                None => self.panel(b, &at.steps, cols, to),
                Some(there) if self.is_direct(b, there, &cols) => {}
                Some(there) => {
                    for (row, to) in there.iter().zip(to.chunks_exact_mut(most)) {
                        to[..wide].copy_from_slice(&b.data[row + cols.start..row + cols.end]);
                        to[wide..].fill(T::default());
                    }
                }
            }
        }
    }

    /// Whether tiles can take these columns from where they are: what lies behind them is read, too, and left out later.
    fn is_direct(&self, b: Mat<'_, T>, there: &Starts, cols: &Range<usize>) -> bool {
        let width = cols.len().next_multiple_of(self.tiles.lanes);
        there.fits(width, b.data.len() - cols.start)
    }

    /// Columns that lie apart, side by side.
    fn panel(&self, b: Mat<'_, T>, steps: &Range<usize>, cols: Range<usize>, to: &mut [T]) {
        let (most, wide) = (self.tiles.max_cols(), cols.len());
        if wide < most {
            to.fill(T::default());
        }
        match b.lines {
            Lines::Even(1) => {
                let from = &b.data[steps.start..];
                T::transpose(cols, steps.len(), (from, b.col), (to, most));
            }
            lines => {
                for (l, to) in steps.clone().zip(to.chunks_exact_mut(most)) {
                    let from = b.data[lines.at(l) + cols.start * b.col..].iter().step_by(b.col);
                    to[..wide].iter_mut().zip(from).for_each(|(t, &v)| *t = v);
                }
            }
        }
    }
}
