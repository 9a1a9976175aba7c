//! The allocator of shared-memory buffers: which bytes of this rank's heap are taken. It is pure.
//!
//! - HEAP-1: blocks handed out do not overlap and are aligned to their class.
//! - HEAP-2: freed neighbours are merged, so that an empty heap is one block again.

use std::collections::BTreeMap;

/// Free ranges of one rank's heap, by start.
#[derive(Debug)]
pub struct Heap {
    free: BTreeMap<usize, usize>,
}

/// Small blocks start on a page, so that freed ones can be given back to the system.
const PAGE: usize = 4096;
/// Large ones on a huge page.
const HUGE: usize = 2 << 20;

impl Heap {
    pub fn new(at: usize, len: usize) -> Heap {
        Heap { free: BTreeMap::from([(at, len)]) }
    }

    /// Bytes a request really takes; `None` for more than there can be.
    pub fn rounded(len: usize) -> Option<usize> {
        if len > isize::MAX as usize - HUGE { None } else { Some(len.max(1).next_multiple_of(PAGE)) }
    }

    /// Takes the first fitting block; `None` when there is none.
    pub fn take(&mut self, len: usize) -> Option<usize> {
        let want = Heap::rounded(len)?;
        let align = if want >= HUGE { HUGE } else { PAGE };
        let (at, start, free) = self.free.iter().find_map(|(&at, &free)| {
            let start = at.next_multiple_of(align);
            (start - at + want <= free).then_some((at, start, free))
        })?;
        self.free.remove(&at);
        if start > at {
            self.free.insert(at, start - at);
        }
        let rest = at + free - (start + want);
        if rest > 0 {
            self.free.insert(start + want, rest);
        }
        Some(start)
    }

    /// Gives back a block that `take(len)` returned.
    pub fn give(&mut self, at: usize, len: usize) {
        let Some(taken) = Heap::rounded(len) else { return };
        let mut start = at;
        let mut size = taken;
        if let Some((&before, &free)) = self.free.range(..at).next_back()
            && before + free == at
        {
            self.free.remove(&before);
            start = before;
            size += free;
        }
        if let Some(free) = self.free.remove(&(at + taken)) {
            size += free;
        }
        self.free.insert(start, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_never_overlap_and_everything_comes_back(sizes in prop::collection::vec(1usize..6 << 20, 1..40), order: u64) {
            let (at, len) = (4096, 1 << 30);
            let mut heap = Heap::new(at, len);
            let mut taken: Vec<(usize, usize)> = sizes.iter().filter_map(|&s| Some((heap.take(s)?, s))).collect();
            taken.sort_unstable();
            for pair in taken.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "HEAP-1");
            }
            let mut order = order;
            while !taken.is_empty() {
                order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (at, len) = taken.swap_remove(order as usize % taken.len());
                heap.give(at, len);
            }
            prop_assert_eq!(heap.free, BTreeMap::from([(at, len)]), "HEAP-2");
        }
    }
}
