//! Large pages for memory that is about to be written from end to end, or touched here and there for a long time.
//!
//! A fault for each page of 4 KiB takes longer than what is then done with its bytes, and so does finding it again in a large table.

use rustix::mm::{Advice, madvise};

/// A large page, where the kernel has them.
const LARGE: usize = 2 << 20;
/// Less memory than this is not worth a call of the kernel. At least one large page lies whole in it.
const LEAST: usize = 2 * LARGE;

/// Pages of this memory that were never touched will be large ones. Nothing else changes.
pub fn prefer(memory: &mut [u8]) {
    if memory.len() < LEAST {
        return;
    }
    let at = memory.as_ptr().addr();
    let skipped = at.next_multiple_of(LARGE) - at;
    let whole = &mut memory[skipped..];
    let n = whole.len() / LARGE * LARGE;
    // SAFETY: the range lies within `memory`, which is the caller's alone. The advice changes no byte of it.
    // Where the kernel has no large pages, or none for such memory, it refuses, and everything is as before.
    let _ = unsafe { madvise(whole.as_mut_ptr().cast(), n, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_its_bytes_wherever_it_begins() {
        for n in [0, LEAST - 1, LEAST, LEAST + LARGE + 4097] {
            let mut bytes: Vec<u8> = (0..=255).cycle().take(n + 3).collect();
            let wanted = bytes.clone();
            prefer(&mut bytes[3..]);
            assert!(bytes == wanted, "{n} bytes");
        }
    }

    #[test]
    fn the_kernel_has_heard_of_the_whole_range() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let mut large = vec![0u8; 4 * LARGE];
        prefer(&mut large);
        let middle = large.as_ptr().addr() + 2 * LARGE;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_there = false;
        for line in smaps.lines() {
            let bounds = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16).ok();
            if let Some((first, end)) = bounds.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
                is_there = (first..end).contains(&middle);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_there) {
                assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
                return;
            }
        }
        panic!("the kernel does not know the memory at {middle:#x}");
    }
}
