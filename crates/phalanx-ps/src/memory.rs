//! Whether tables fit into this machine.

use crate::error::PsError;

/// Refuses more bytes than the machine can give, or than tables may take; says nothing where the machine does not tell.
pub fn check(bytes: u64, most: Option<u64>) -> Result<(), PsError> {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available(&told).into_iter().chain(most).min() {
        Some(available) if bytes > available => Err(PsError::Memory { bytes, available }),
        _ => Ok(()),
    }
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_larger_than_memory_is_refused_with_both_numbers() {
        assert_eq!(available("MemTotal: 5 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        assert_eq!(available("nonsense"), None);
        assert!(check(1, None).is_ok() && check(10, Some(10)).is_ok());
        assert!(matches!(check(11, Some(10)), Err(PsError::Memory { bytes: 11, available: 10 })));
        let error = check(1 << 60, None).unwrap_err().to_string();
        assert!(
            error.starts_with("1152921504606846976 bytes for tables on this host, but it has "),
            "{error}"
        );
    }
}
