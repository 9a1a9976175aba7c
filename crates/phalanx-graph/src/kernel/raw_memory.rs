//! Aligned memory that planned operations share.

use crate::ir::ALIGN;
use bytemuck::Pod;
use std::{
    alloc::{Layout, alloc_zeroed, handle_alloc_error},
    cell::UnsafeCell,
    fmt,
    ops::Range,
    ptr,
};

/// Memory whose parts are lent out by the plan, not by the borrow checker: only [`super::Call`] takes slices of it
/// while operations run, under MEMPLAN-1. Everything else goes through `&mut`.
pub struct RawMemory {
    /// With room to begin at a multiple of `ALIGN`. Not aligned by its type: then the system's zeros would not do, and every page be
    /// written before it is used.
    words: Box<[UnsafeCell<u64>]>,
    bytes: usize,
}

// SAFETY: all shared access goes through `part` and `part_mut`, whose callers promise that no two of them overlap
// unless both only read.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// This much memory, all zero; for sizes that are known to be had.
    pub fn new(bytes: usize) -> RawMemory {
        RawMemory::try_new(bytes).unwrap_or_else(|| handle_alloc_error(Layout::new::<u64>()))
    }

    /// The same, if there is so much.
    pub fn try_new(bytes: usize) -> Option<RawMemory> {
        if bytes == 0 {
            return Some(RawMemory { words: Box::new([]), bytes });
        }
        let n = bytes.checked_next_multiple_of(ALIGN)?.checked_add(ALIGN)? / size_of::<u64>();
        let layout = Layout::array::<UnsafeCell<u64>>(n).ok()?;
        // SAFETY: the layout has a size. Pages that nothing touches cost nothing.
        let at: *mut UnsafeCell<u64> = unsafe { alloc_zeroed(layout) }.cast();
        if at.is_null() {
            return None;
        }
        // SAFETY: allocated just now with the layout of this slice, and zero bytes are words.
        let words = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(at, n)) };
        Some(RawMemory { words, bytes })
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn base(&self) -> *mut u8 {
        let words: *mut u8 = UnsafeCell::raw_get(self.words.as_ptr()).cast();
        words.wrapping_add(words.align_offset(ALIGN))
    }

    pub fn duplicate(&mut self) -> RawMemory {
        let mut copy = RawMemory::new(self.bytes);
        copy.as_slice::<u8>().copy_from_slice(self.as_slice());
        copy
    }

    pub fn as_slice<T: Pod>(&mut self) -> &mut [T] {
        let n = self.bytes / size_of::<T>();
        // SAFETY: `&mut self` excludes every other access, and the whole buffer lies inside the words.
        unsafe { self.part_mut(0, n) }
    }

    fn checked<T: Pod>(&self, offset: usize, n: usize) -> Range<usize> {
        let end = n.checked_mul(size_of::<T>()).and_then(|b| b.checked_add(offset));
        let end = end.filter(|&e| e <= self.bytes.next_multiple_of(ALIGN));
        assert!(offset.is_multiple_of(align_of::<T>()), "the plan aligns buffers for their elements");
        offset..end.expect("the plan keeps every buffer inside its arena")
    }

    /// # Safety
    /// Nobody writes to these bytes as long as the slice lives.
    pub(super) unsafe fn part<T: Pod>(&self, offset: usize, n: usize) -> &[T] {
        let range = self.checked::<T>(offset, n);
        // SAFETY: inside the allocation and aligned, as checked; any bytes are a `T`; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.base().add(range.start).cast(), n) }
    }

    /// # Safety
    /// Nobody else reads or writes these bytes as long as the slice lives.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub(super) unsafe fn part_mut<T: Pod>(&self, offset: usize, n: usize) -> &mut [T] {
        let range = self.checked::<T>(offset, n);
        // SAFETY: inside the allocation and aligned, as checked; any bytes are a `T`; the caller rules out others.
        unsafe { std::slice::from_raw_parts_mut(self.base().add(range.start).cast(), n) }
    }
}

impl fmt::Debug for RawMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawMemory").field("bytes", &self.bytes).finish()
    }
}
