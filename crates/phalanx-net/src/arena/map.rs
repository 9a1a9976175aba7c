//! The mapping: one sparse memfd that the ranks of a host map, each at its own address.
//!
//! - MAP-1: the memory has no name in any file system, so nothing is left behind however the ranks die.
//! - MAP-2: every access to the mapping goes through this file's bounds checks.

use rustix::fs::{FallocateFlags, MemfdFlags};
use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicU32, AtomicU64},
};

/// A shared mapping. Pages appear when they are first touched.
#[derive(Debug)]
pub struct Map {
    file: File,
    map: memmap2::MmapRaw,
}

impl Map {
    /// New zeroed memory of this (virtual) size.
    pub fn create(len: usize) -> io::Result<Map> {
        let fd: OwnedFd = rustix::fs::memfd_create("phalanx-arena", MemfdFlags::CLOEXEC)?;
        let file = File::from(fd);
        file.set_len(len as u64)?;
        Map::of(file, len)
    }

    /// The memory that another process of this host made and still holds.
    pub fn open(pid: u32, fd: i32, len: usize) -> io::Result<Map> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))?;
        if file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the arena is smaller than announced"));
        }
        Map::of(file, len)
    }

    fn of(file: File, len: usize) -> io::Result<Map> {
        let map = memmap2::MmapOptions::new().len(len).map_raw(&file)?;
        // A core dump would fill every hole of the sparse memory: all of the host's memory, and the disk.
        map.advise(memmap2::Advice::DontDump)?;
        Ok(Map { file, map })
    }

    /// The descriptor under which others can open it while this process lives.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The address of `len` bytes from `at`.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    #[inline]
    pub fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len() && len <= self.len() - at, "MAP-2: {at}+{len} is outside the arena");
        // SAFETY: `at <= len` was just checked, so the result stays inside (or one past) the one mapping.
        unsafe { self.map.as_mut_ptr().add(at) }
    }

    /// Where a private address lies in the mapping, if it does.
    #[inline]
    pub fn offset_of(&self, address: *const u8, len: usize) -> Option<usize> {
        let at = (address as usize).checked_sub(self.map.as_ptr() as usize)?;
        (at <= self.len() && len <= self.len() - at).then_some(at)
    }

    #[inline]
    pub fn u64_at(&self, at: usize) -> &AtomicU64 {
        let address = self.at(at, 8).cast::<u64>();
        assert!(address.is_aligned());
        // SAFETY: in bounds and aligned; the mapping lives as long as `self`, and every process touches these words only as atomics.
        unsafe { AtomicU64::from_ptr(address) }
    }

    #[inline]
    pub fn u32_at(&self, at: usize) -> &AtomicU32 {
        let address = self.at(at, 4).cast::<u32>();
        assert!(address.is_aligned());
        // SAFETY: as in `u64_at`.
        unsafe { AtomicU32::from_ptr(address) }
    }

    /// Makes sure that the pages of a range exist, so that touching them later cannot fail.
    pub fn reserve(&self, at: usize, len: usize) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::empty(), at as u64, len as u64)?)
    }

    /// Gives the pages of a range back to the system; they read as zeros afterwards.
    pub fn punch(&self, at: usize, len: usize) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, at as u64, len as u64)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// Both maps are reached through the checks of MAP-2 only.
    #[test]
    fn two_maps_of_one_memory_see_each_other() {
        let a = Map::create(1 << 20).unwrap();
        let b = Map::open(std::process::id(), a.fd(), 1 << 20).unwrap();
        a.u64_at(4096).store(7, Ordering::Release);
        assert_eq!(b.u64_at(4096).load(Ordering::Acquire), 7);
        a.punch(4096, 4096).unwrap();
        assert_eq!(b.u64_at(4096).load(Ordering::Acquire), 0);
    }

    #[test]
    fn addresses_outside_belong_to_nobody() {
        let map = Map::create(8192).unwrap();
        assert_eq!(map.offset_of(map.at(100, 1), 8092), Some(100));
        assert_eq!(map.offset_of(map.at(100, 1), 8093), None);
        assert_eq!(map.offset_of(std::ptr::null(), 1), None);
    }
}
