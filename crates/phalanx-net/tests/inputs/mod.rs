//! Inputs for decoders: random ones, and valid ones that were tampered with; and an allocator that knows how much was asked for at once.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Inputs for each decoder in one run of the tests.
pub const N_INPUTS: u64 = 1_000_000;

/// The system's allocator, which remembers the largest request of each thread.
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    // A thread that is ending has no such memory any more; nothing is tested there.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract; `note` allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The largest allocation that `f` makes on this thread.
pub fn largest_allocation(f: impl FnOnce()) -> usize {
    LARGEST.with(|largest| largest.set(0));
    f();
    LARGEST.with(Cell::get)
}

/// Repeatable randomness (SplitMix64).
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Tampers with valid bytes: flips, cuts, repeats, and numbers that are larger than anybody means.
    pub fn tamper(&mut self, valid: &[u8]) -> Vec<u8> {
        let mut bytes = valid.to_vec();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len().max(1));
            match self.below(8) {
                _ if bytes.is_empty() => bytes = self.bytes(8),
                0 | 1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes[at] = self.next() as u8,
                3 => bytes.truncate(at),
                4 => {
                    let again = bytes[at..].to_vec();
                    bytes.extend(again.iter().take(64));
                }
                5 => drop(bytes.drain(at..(at + 1 + self.below(4)).min(bytes.len()))),
                6 => {
                    let more = self.bytes(8);
                    bytes.splice(at..at, more);
                }
                // A length of up to 2^63, as messages write it.
                _ => {
                    let n = 1 + self.below(9);
                    let length = (0..n).map(|i| if i + 1 < n { 0xff } else { 0x7f });
                    let end = (at + n).min(bytes.len());
                    bytes.splice(at..end, length);
                }
            }
        }
        bytes
    }
}
