//! What control groups allow this process. Reading is thin; the arithmetic is pure.

use std::{fs, path::Path};

/// What binds; `None` where nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    pub cores: Option<f64>,
    pub memory_bytes: Option<u64>,
}

/// Version 2 groups, walking up to the root as the kernel does; then version 1, whose files are where containers put
/// them.
pub fn read() -> Limits {
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let mut limits = Limits::default();
    for dir in Path::new(group).ancestors() {
        let text = |file: &str| fs::read_to_string(root.join(dir).join(file)).unwrap_or_default();
        limits.cores = least(limits.cores, parse_cpu_max(&text("cpu.max")));
        limits.memory_bytes = least(limits.memory_bytes, text("memory.max").trim().parse().ok());
    }
    let number = |file: &str| fs::read_to_string(root.join(file)).ok()?.trim().parse::<u64>().ok();
    let quota = number("cpu/cpu.cfs_quota_us").zip(number("cpu/cpu.cfs_period_us"));
    limits.cores = least(limits.cores, quota.filter(|(_, p)| *p > 0).map(|(q, p)| q as f64 / p as f64));
    // Version 1 says "no limit" with a number near 2^63.
    let memory = number("memory/memory.limit_in_bytes").filter(|bytes| *bytes < 1 << 60);
    limits.memory_bytes = least(limits.memory_bytes, memory);
    limits
}

/// `max 100000` or `150000 100000`.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (period > 0.0).then_some(quota / period)
}

fn least<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a < b { a } else { b }),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_cores() {
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(1.5));
        assert_eq!(parse_cpu_max(""), None);
        assert_eq!(parse_cpu_max("1 0"), None);
        assert_eq!(least(Some(2), Some(1)), Some(1));
        assert_eq!(least(None, Some(1)), Some(1));
    }
}
