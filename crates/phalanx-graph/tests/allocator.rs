//! The system's allocator, which counts: for each thread, and for all of them together.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering},
};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// Whether allocations of all threads are counted: finding out which thread it is costs a system call.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static OF_ALL: AtomicUsize = AtomicUsize::new(0);
/// Bytes that are allocated now, by any thread.
static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note(bytes: isize) {
    // Relaxed, all of them: numbers that nothing is ordered by.
    LIVE.fetch_add(bytes, Ordering::Relaxed);
    // A thread that is ending has no such memory any more; nothing is tested there.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
    if bytes < 0 {
        return;
    }
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
    // The main thread is the test harness, which goes its own way meanwhile.
    if IS_WATCHED.load(Ordering::Relaxed) && rustix::thread::gettid() != rustix::process::getpid() {
        OF_ALL.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract; `note` allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both exist for a moment.
        note(bytes as isize);
        note(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Allocations of this thread so far.
pub fn count() -> usize {
    COUNT.with(Cell::get)
}

/// Allocations of all threads but the main one since the first call. Only in a process of the test's own.
pub fn count_of_all() -> usize {
    IS_WATCHED.store(true, Ordering::Relaxed);
    OF_ALL.load(Ordering::Relaxed)
}

/// Bytes that all threads hold now. Only in a process of the test's own.
pub fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

/// The most that `f` holds at once on this thread, beside what was held before.
pub fn most_held<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(Cell::get);
    MOST.with(|most| most.set(before));
    let out = f();
    (out, (MOST.with(Cell::get) - before).max(0) as usize)
}
