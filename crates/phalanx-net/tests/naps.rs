//! WAIT-2, in every order there is: how ranks fall asleep and are woken, compiled against atomics that try them all. Naps never end by
//! themselves here, so a wake-up that is lost is a deadlock, which loom reports.

/// Stand-ins. Loom takes SeqCst accesses for weaker ones, but knows SeqCst fences: with one on either side an access is what it was
/// written as.
mod sync {
    pub use loom::sync::atomic::{Ordering, fence};
    use loom::sync::{Condvar, Mutex, atomic};
    use std::time::Duration;

    fn fenced<T>(order: Ordering, access: impl FnOnce() -> T) -> T {
        if order != Ordering::SeqCst {
            return access();
        }
        fence(order);
        let got = access();
        fence(order);
        got
    }

    #[derive(Debug)]
    pub struct AtomicU64(atomic::AtomicU64);

    impl AtomicU64 {
        pub fn new(value: u64) -> AtomicU64 {
            AtomicU64(atomic::AtomicU64::new(value))
        }

        pub fn load(&self, order: Ordering) -> u64 {
            fenced(order, || self.0.load(order))
        }

        pub fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
            fenced(order, || self.0.fetch_or(bits, order))
        }

        pub fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
            fenced(order, || self.0.fetch_and(bits, order))
        }
    }

    /// A word that threads can sleep on. The system compares it and queues the sleeper under a lock that the waking thread takes, too.
    #[derive(Debug)]
    pub struct AtomicU32 {
        word: atomic::AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl AtomicU32 {
        pub fn new(value: u32) -> AtomicU32 {
            AtomicU32 { word: atomic::AtomicU32::new(value), queue: Mutex::new(()), woken: Condvar::new() }
        }

        pub fn load(&self, order: Ordering) -> u32 {
            fenced(order, || self.word.load(order))
        }

        pub fn fetch_add(&self, by: u32, order: Ordering) -> u32 {
            fenced(order, || self.word.fetch_add(by, order))
        }

        pub fn fetch_sub(&self, by: u32, order: Ordering) -> u32 {
            fenced(order, || self.word.fetch_sub(by, order))
        }
    }

    pub fn wait(word: &AtomicU32, value: u32, _at_most: Duration) {
        let queue = word.queue.lock().unwrap();
        if word.load(Ordering::SeqCst) == value {
            drop(word.woken.wait(queue).unwrap());
        }
    }

    pub fn wake(word: &AtomicU32) {
        drop(word.queue.lock().unwrap());
        word.woken.notify_all();
    }
}

#[path = "../src/arena/doze.rs"]
mod doze;

use doze::Bed;
use loom::{sync::Arc, thread};
use std::{convert::Infallible, time::Duration};
use sync::{AtomicU32, AtomicU64, Ordering};

/// What the ranks of a host share, for one process that waits.
struct Room {
    sleepers: AtomicU64,
    bell: AtomicU32,
    n_sleeping: AtomicU32,
    /// What is waited for.
    flags: [loom::sync::atomic::AtomicU32; 2],
}

impl Room {
    fn new() -> Arc<Room> {
        let flag = || loom::sync::atomic::AtomicU32::new(0);
        Arc::new(Room {
            sleepers: AtomicU64::new(0),
            bell: AtomicU32::new(0),
            n_sleeping: AtomicU32::new(0),
            flags: [flag(), flag()],
        })
    }

    /// What a waiting thread does, without looking about before it sleeps.
    fn wait(&self, flag: usize) {
        let is_set = || self.flags[flag].load(Ordering::Acquire) == 1;
        let bed = Bed { sleepers: &self.sleepers, bit: 1, bell: &self.bell, n_sleeping: &self.n_sleeping };
        while !is_set() {
            let Ok(_) = bed.nap::<Infallible>(Duration::MAX, &|| Ok(is_set()));
        }
    }

    /// What another rank does: it writes, and wakes whom it sees asleep.
    fn write(&self, flag: usize) {
        self.flags[flag].store(1, Ordering::Release);
        doze::after_write();
        if doze::sleepers(&self.sleepers) & 1 != 0 {
            doze::ring(&self.bell);
        }
    }
}

/// Lets these threads wait for these flags, and others write them, in all orders; gives how many there were.
fn in_all_orders(
    waits: &'static [usize],
    writes: &'static [&'static [usize]],
    preemptions: Option<usize>,
) -> usize {
    let n_orders = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = n_orders.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let room = Room::new();
        let waiting = waits.iter().map(|&flag| {
            let room = room.clone();
            thread::spawn(move || room.wait(flag))
        });
        let waiting: Vec<_> = waiting.collect();
        let (mine, others) = writes.split_first().expect("somebody writes");
        let others = others.iter().map(|&flags| {
            let room = room.clone();
            thread::spawn(move || flags.iter().for_each(|&flag| room.write(flag)))
        });
        let others: Vec<_> = others.collect();
        mine.iter().for_each(|&flag| room.write(flag));
        waiting.into_iter().chain(others).for_each(|thread| thread.join().unwrap());
        assert_eq!(room.sleepers.load(Ordering::SeqCst), 0, "nobody is on the list who does not sleep");
        assert_eq!(room.n_sleeping.load(Ordering::SeqCst), 0);
    });
    n_orders.load(Ordering::Relaxed)
}

#[test]
fn a_sleeper_is_woken_by_what_it_waits_for() {
    assert!(in_all_orders(&[0], &[&[0]], None) > 10);
}

#[test]
fn a_sleeper_that_is_woken_for_nothing_sleeps_on_and_is_woken_again() {
    assert!(in_all_orders(&[1], &[&[0, 1]], Some(3)) > 10);
}

#[test]
fn two_threads_of_one_process_are_woken_each_for_its_own() {
    // With any number of preemptions this would take hours; lost wake-ups of this kind need two or three.
    assert!(in_all_orders(&[0, 1], &[&[0, 1]], Some(2)) > 100);
}

#[test]
fn two_writers_wake_two_threads() {
    assert!(in_all_orders(&[0, 1], &[&[1], &[0]], Some(2)) > 100);
}
