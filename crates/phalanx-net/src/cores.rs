//! How many cores the ranks of a host really have.

use rustix::thread::{CpuSet, sched_getaffinity};
use std::fs;

/// Cores this process may run on.
pub fn allowed() -> Vec<u32> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let cores: Vec<u32> = (0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).map(|c| c as u32).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// How many cores' worth of time the control group grants (rounded down, at least one); `u32::MAX` without a limit.
pub fn quota() -> u32 {
    let read = |path: &str| fs::read_to_string(path).ok();
    let cores = |quota: f64, period: f64| {
        if quota > 0.0 && period > 0.0 { (quota / period).max(1.0) as u32 } else { u32::MAX }
    };
    let number = |text: Option<String>| text.and_then(|t| t.trim().parse::<f64>().ok()).unwrap_or(-1.0);
    if let Some(limit) = read("/sys/fs/cgroup/cpu.max") {
        let mut words = limit.split_whitespace().map(|w| w.parse::<f64>().unwrap_or(-1.0));
        return cores(words.next().unwrap_or(-1.0), words.next().unwrap_or(-1.0));
    }
    let quota = number(read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
    cores(quota, number(read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")))
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
    fn this_process_has_a_core() {
        assert!(!allowed().is_empty() && quota() >= 1);
    }
}
