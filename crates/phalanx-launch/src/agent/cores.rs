//! Which cores a rank gets with `--bind`, and how many threads it should use by default.

use rustix::thread::CpuSet;

/// How many cores' worth of time this process gets: its mask, or less where a control group limits it.
pub fn n_usable() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// The share of one of `n_local` ranks: neighbouring cores, or one core shared in turn when there are more ranks.
pub fn share(allowed: &[u32], local_rank: usize, n_local: usize) -> &[u32] {
    let n = allowed.len();
    if n_local > n {
        let core = local_rank % n.max(1);
        return allowed.get(core..=core).unwrap_or_default();
    }
    &allowed[local_rank * n / n_local..(local_rank + 1) * n / n_local]
}

/// A mask of exactly these cores; `None` for no cores, which the kernel would refuse.
pub fn mask(cores: &[u32]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core as usize));
    (!cores.is_empty()).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_cores_without_overlap() {
        let cores = [0, 2, 4, 6, 8];
        for n in 1..=5 {
            let all: Vec<u32> = (0..n).flat_map(|i| share(&cores, i, n).to_vec()).collect();
            assert_eq!(all, cores, "{n} ranks");
        }
        assert_eq!(share(&cores, 1, 2), [4, 6, 8]);
    }

    #[test]
    fn more_ranks_than_cores_take_turns() {
        let cores: Vec<_> = (0..5).map(|i| share(&[3, 7], i, 5).to_vec()).collect();
        assert_eq!(cores, [[3], [7], [3], [7], [3]]);
        assert_eq!(share(&[], 0, 1), &[] as &[u32]);
        assert!(mask(&[]).is_none());
    }
}
