//! Walks over several tensors at once, each with strides of its own: broadcasts, transposes, reductions.

use crate::ir::MAX_RANK;

pub type Strides = [usize; MAX_RANK];

/// Strides of a tensor that lies row after row.
pub fn strides(dims: &[usize]) -> Strides {
    let mut all = [0; MAX_RANK];
    let mut stride = 1;
    for (axis, &n) in dims.iter().enumerate().rev() {
        all[axis] = stride;
        stride *= n;
    }
    all
}

/// Strides that stretch a tensor to the given dimensions: its first axis lies on `axis`, and what it lacks or has
/// only once is repeated.
pub fn stretched(dims: &[usize], to: &[usize], axis: usize) -> Strides {
    let own = strides(dims);
    let mut all = [0; MAX_RANK];
    for (i, &n) in dims.iter().enumerate() {
        all[axis + i] = if n == 1 && to[axis + i] != 1 { 0 } else { own[i] };
    }
    all
}

/// A walk in row order. Neighbouring dimensions that every tensor crosses evenly are one.
#[derive(Clone, Copy, Debug)]
pub struct Walk<const K: usize> {
    dims: Strides,
    strides: [Strides; K],
    rank: usize,
    is_empty: bool,
}

impl<const K: usize> Walk<K> {
    pub fn new(dims: &[usize], strides: [Strides; K]) -> Walk<K> {
        let mut walk =
            Walk { dims: [1; MAX_RANK], strides: [[0; MAX_RANK]; K], rank: 0, is_empty: dims.contains(&0) };
        for (axis, &n) in dims.iter().enumerate().filter(|&(_, &n)| n != 1) {
            let last = walk.rank.wrapping_sub(1);
            let joins = walk.rank > 0 && (0..K).all(|k| walk.strides[k][last] == n * strides[k][axis]);
            let at = if joins { last } else { walk.rank };
            walk.dims[at] = if joins { walk.dims[last] * n } else { n };
            for (own, given) in walk.strides.iter_mut().zip(&strides) {
                own[at] = given[axis];
            }
            walk.rank = at + 1;
        }
        walk.rank = walk.rank.max(1);
        walk
    }

    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Whether the innermost loop is all of it.
    pub fn is_row(&self) -> bool {
        self.rank == 1
    }

    /// Length and strides of the innermost loop.
    pub fn row(&self) -> (usize, [usize; K]) {
        let last = self.rank - 1;
        (self.dims[last], std::array::from_fn(|k| self.strides[k][last]))
    }

    /// Calls `f` with the offsets at which each innermost row begins.
    #[inline(always)]
    pub fn each(&self, mut f: impl FnMut([usize; K])) {
        if self.is_empty {
            return;
        }
        let outer = self.rank - 1;
        let mut at = [0; MAX_RANK];
        let mut offsets = [0; K];
        loop {
            f(offsets);
            let mut axis = outer;
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                at[axis] += 1;
                for (offset, own) in offsets.iter_mut().zip(&self.strides) {
                    *offset += own[axis];
                }
                if at[axis] < self.dims[axis] {
                    break;
                }
                for (offset, own) in offsets.iter_mut().zip(&self.strides) {
                    *offset -= own[axis] * self.dims[axis];
                }
                at[axis] = 0;
            }
        }
    }
}

impl Walk<2> {
    /// The dimensions that the second tensor has, and those over which it is repeated.
    pub fn split(&self) -> (Walk<2>, Walk<1>) {
        let mut kept = Walk { dims: [1; MAX_RANK], strides: [[0; MAX_RANK]; 2], rank: 0, is_empty: false };
        let mut gone = Walk { dims: [1; MAX_RANK], strides: [[0; MAX_RANK]; 1], rank: 0, is_empty: false };
        for axis in 0..self.rank {
            let (n, [own, other]) = (self.dims[axis], self.strides.map(|s| s[axis]));
            if other == 0 {
                (gone.dims[gone.rank], gone.strides[0][gone.rank]) = (n, own);
                gone.rank += 1;
            } else {
                kept.dims[kept.rank] = n;
                (kept.strides[0][kept.rank], kept.strides[1][kept.rank]) = (own, other);
                kept.rank += 1;
            }
        }
        (kept.rank, gone.rank) = (kept.rank.max(1), gone.rank.max(1));
        (kept, gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited(dims: &[usize], s: Strides) -> Vec<usize> {
        let walk = Walk::new(dims, [s]);
        let (n, [step]) = walk.row();
        let mut all = Vec::new();
        walk.each(|[at]| all.extend((0..n).map(|i| at + i * step)));
        all
    }

    #[test]
    fn walks_visit_in_row_order() {
        assert_eq!(visited(&[2, 3], strides(&[2, 3])), [0, 1, 2, 3, 4, 5]);
        assert_eq!(Walk::new(&[2, 3, 4], [strides(&[2, 3, 4])]).rank, 1);
        assert_eq!(visited(&[2, 3], stretched(&[3], &[2, 3], 1)), [0, 1, 2, 0, 1, 2]);
        assert_eq!(visited(&[2, 3], stretched(&[2, 1], &[2, 3], 0)), [0, 0, 0, 1, 1, 1]);
        assert_eq!(visited(&[], strides(&[])), [0]);
        assert_eq!(visited(&[2, 0, 3], strides(&[2, 0, 3])), [0; 0]);
        let mut swapped = [0; MAX_RANK];
        swapped[..2].copy_from_slice(&[1, 3]);
        assert_eq!(visited(&[3, 2], swapped), [0, 3, 1, 4, 2, 5]);
    }
}
