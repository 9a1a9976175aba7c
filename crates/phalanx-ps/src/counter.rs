//! Where a worker and the station of its own process hand each other letters and numbers.

use crate::{letter::RowLetter, mail::Pouch, office::OfficeCounters};
use phalanx_core::Rank;
use rustix::event::{EventfdFlags, eventfd};
use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long counters wait for a station that is behind.
const COUNTED: Duration = Duration::from_secs(5);

/// The worker's side of a station in its own process.
#[derive(Debug)]
pub struct Counter {
    /// From the worker.
    pub to: Pouch,
    /// For the worker.
    pub from: Pouch,
    bell: OwnedFd,
    /// How many letters the worker has put into `to`.
    posted: AtomicU64,
    /// What the station tells. A lock for numbers; neither side holds it while it does anything else.
    told: Mutex<Told>,
    /// Rings when the station has handled a letter of the worker.
    has_handled: Condvar,
}

#[derive(Debug, Default)]
struct Told {
    /// What the office has counted.
    counters: OfficeCounters,
    /// After how many letters of the own worker.
    n_handled: u64,
    /// Who has not said goodbye.
    awaited: Vec<Rank>,
    /// The step and the partitions with which workers open the tables next, if their goodbyes said so.
    recut: Option<(u64, u32)>,
    bytes_out: u64,
    bytes_in: u64,
}

/// For the worker.
impl Counter {
    pub fn new() -> io::Result<Counter> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Counter {
            to: Pouch::default(),
            from: Pouch::default(),
            bell,
            posted: AtomicU64::new(0),
            told: Mutex::default(),
            has_handled: Condvar::new(),
        })
    }

    /// Gives the station a letter.
    pub fn post(&self, letter: RowLetter) {
        // Relaxed: only the worker reads it, on the thread that writes it.
        self.posted.fetch_add(1, Ordering::Relaxed);
        self.to.put(letter);
        // A bell that is full has rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_le_bytes());
    }

    /// What the office has counted, and the bytes that left and came. Counts all letters that the worker has posted, unless the station
    /// takes longer than `COUNTED` for them.
    pub fn counters(&self) -> (OfficeCounters, u64, u64) {
        let posted = self.posted.load(Ordering::Relaxed);
        let waited =
            self.has_handled.wait_timeout_while(self.told(), COUNTED, |told| told.n_handled < posted);
        let told = waited.unwrap_or_else(PoisonError::into_inner).0;
        (told.counters, told.bytes_out, told.bytes_in)
    }

    /// With which step and how many partitions workers go on, if they do.
    pub fn recut(&self) -> Option<(u64, u32)> {
        self.told().recut
    }

    /// The ranks that have not said goodbye.
    pub fn awaited(&self) -> Vec<Rank> {
        self.told().awaited.clone()
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the station.
impl Counter {
    /// Readable when the worker has posted something.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub fn hush(&self) {
        let mut rung = [0; 8];
        // A bell that has not rung says so.
        let _ = rustix::io::read(&self.bell, &mut rung);
    }

    pub fn count(&self, counters: OfficeCounters) {
        self.told().counters = counters;
    }

    /// This number of further letters of the worker is handled.
    pub fn handled(&self, more: u64) {
        let mut told = self.told();
        told.n_handled = told.n_handled.saturating_add(more);
        drop(told);
        self.has_handled.notify_all();
    }

    pub fn set_recut(&self, recut: Option<(u64, u32)>) {
        self.told().recut = recut;
    }

    pub fn note(&self, awaited: Vec<Rank>, bytes_out: u64, bytes_in: u64) {
        let mut told = self.told();
        (told.awaited, told.bytes_out, told.bytes_in) = (awaited, bytes_out, bytes_in);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::letter::LetterKind;
    use std::{sync::Arc, thread};

    #[test]
    fn counters_wait_for_what_the_worker_has_posted() {
        let counter = Arc::new(Counter::new().unwrap());
        counter.post(RowLetter::new(LetterKind::Push, 0, 0));
        let station = counter.clone();
        let thread = thread::spawn(move || {
            assert!(station.to.take().is_some());
            station.count(OfficeCounters { pushed_rows: 2, ..OfficeCounters::default() });
            station.handled(1);
        });
        assert_eq!(counter.counters().0.pushed_rows, 2);
        thread.join().unwrap();
        counter.handled(u64::MAX);
        counter.post(RowLetter::new(LetterKind::Push, 0, 1));
        assert_eq!(counter.counters().0.pushed_rows, 2, "a station that has ended is not awaited");
    }
}
