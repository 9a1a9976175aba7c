//! How much memory this machine has left.

/// How many bytes the machine can give; nothing where it does not tell.
pub fn free() -> Option<u64> {
    available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_tells_what_it_has() {
        assert_eq!(available("MemTotal: 5 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        assert_eq!(available("nonsense"), None);
        assert!(free().is_none_or(|bytes| bytes > 0));
    }
}
