//! The number of cores that the ranks of a host can use, and how a rank moves to others.

mod moving;
mod quota;

pub use moving::{MOVABLE, busy, movable, move_to};

use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::Path;

/// Cores this process may run on.
pub fn allowed() -> Vec<u32> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let cores: Vec<u32> = (0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).map(|c| c as u32).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// How many cores' worth of time the control groups grant (rounded down, at least one); `u32::MAX` without a limit.
pub fn quota() -> u32 {
    quota::quota_below(Path::new("/"))
}

/// Whether every rank can have a core of its own: each has a list of allowed cores, all share the quota.
pub fn enough(allowed: &[&[u32]], quota: u32) -> bool {
    if allowed.len() as u64 > u64::from(quota) {
        return false;
    }
    // A matching of ranks and cores, by augmenting paths.
    let mut owner: std::collections::BTreeMap<u32, usize> = std::collections::BTreeMap::new();
    (0..allowed.len()).all(|rank| seat(rank, allowed, &mut owner, &mut Vec::new()))
}

fn seat(
    rank: usize,
    allowed: &[&[u32]],
    owner: &mut std::collections::BTreeMap<u32, usize>,
    tried: &mut Vec<u32>,
) -> bool {
    for &core in allowed[rank] {
        if tried.contains(&core) {
            continue;
        }
        tried.push(core);
        let free = match owner.get(&core).copied() {
            None => true,
            Some(other) => seat(other, allowed, owner, tried),
        };
        if free {
            owner.insert(core, rank);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_each_or_not() {
        assert!(enough(&[&[0, 1], &[0, 1]], u32::MAX));
        assert!(enough(&[&[0, 1], &[0]], u32::MAX), "the first must move to core 1");
        assert!(!enough(&[&[0], &[0], &[1, 2, 3]], u32::MAX), "two ranks are pinned to one core");
        assert!(!enough(&[&[0, 1], &[0, 1], &[0, 1]], u32::MAX));
        assert!(!enough(&[&[0, 1], &[0, 1]], 1), "the quota counts too");
    }

    #[test]
    fn a_narrower_mask_is_what_is_allowed() {
        // Of a thread of its own: the mask is a thread's, and new threads inherit it.
        let narrowed = std::thread::spawn(|| {
            let last = *allowed().last().expect("this thread runs somewhere");
            let mut one = CpuSet::new();
            one.set(last as usize);
            rustix::thread::sched_setaffinity(None, &one).expect("a thread may narrow its own mask");
            (allowed(), vec![last])
        });
        let (seen, wanted) = narrowed.join().expect("the thread does not panic");
        assert_eq!(seen, wanted);
    }
}
