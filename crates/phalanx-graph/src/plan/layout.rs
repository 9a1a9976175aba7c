//! Offsets: the largest buffer first, each at the lowest place that is free as long as it lives.

use super::{Reuse, liveness::Class, liveness::Classes};
use crate::ir::ALIGN;

#[derive(Debug)]
pub(super) struct Layout {
    pub bytes: usize,
    /// Offsets of the buffers.
    pub classes: Vec<usize>,
    /// Offsets of the operations' scratch memory.
    pub scratch: Vec<usize>,
}

pub(super) fn lay(classes: &Classes, scratch: &[usize], n_ops: usize, reuse: Reuse) -> Layout {
    let whole = |class: Class| if reuse.across { class } else { Class { first: 0, last: n_ops, ..class } };
    let mut wanted: Vec<Class> = classes.all.iter().map(|&c| whole(c)).collect();
    wanted.extend(scratch.iter().enumerate().map(|(at, &bytes)| whole(Class { bytes, first: at, last: at })));
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(wanted[i].bytes), wanted[i].first, i));
    let mut offsets = vec![0; wanted.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let want = wanted[i];
        if want.bytes == 0 {
            continue;
        }
        // What is placed already and lives at the same time, from low to high: the first gap that is wide enough.
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&p| wanted[p].first <= want.last && want.first <= wanted[p].last)
            .map(|&p| (offsets[p], offsets[p] + wanted[p].bytes))
            .collect();
        busy.sort_unstable();
        let mut at = 0;
        for (begin, end) in busy {
            if begin >= at + want.bytes {
                break;
            }
            at = at.max(end.next_multiple_of(ALIGN));
        }
        offsets[i] = at;
        total = total.max(at + want.bytes);
        placed.push(i);
    }
    let scratch = offsets.split_off(classes.all.len());
    Layout { bytes: total.next_multiple_of(ALIGN), classes: offsets, scratch }
}
