//! BOARD-1 and BOARD-2, in every order there is: the board, compiled against an arena whose words try them all.

use loom::{
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
    thread,
};
use std::sync::{Arc, atomic::AtomicUsize};

mod sync {
    pub use loom::sync::atomic::{Ordering, fence};
}

mod tenants {
    /// Whose words they are; nobody else wants them here.
    #[derive(Debug)]
    pub struct Tenancy;
}

#[expect(clippy::module_inception, reason = "what is tested keeps its name")]
#[expect(dead_code, reason = "a rank that freezes rings everybody; tests of whole engines do that")]
#[path = "../src/arena/board.rs"]
mod board;

use board::Board;

/// Two ranks.
const N: usize = 2;

#[derive(Debug)]
struct Map {
    words: Vec<AtomicU64>,
    /// Bits of ranks that sleep or are about to.
    sleepers: AtomicU64,
    /// The doorbells: a word that changes with every ring, and what a sleeper in the kernel waits for.
    bells: Vec<(Mutex<u32>, Condvar)>,
}

impl Map {
    fn u64_at(&self, at: usize) -> &AtomicU64 {
        &self.words[at]
    }

    fn ring(&self, rank: usize) {
        *self.bells[rank].0.lock().unwrap() += 1;
        self.bells[rank].1.notify_all();
    }
}

/// As the arena's (WAIT-2).
#[derive(Debug)]
struct Bells;

impl Bells {
    fn ring_sleepers(&self, map: &Map) {
        fence(Ordering::SeqCst);
        let sleepers = map.sleepers.load(Ordering::Relaxed);
        (0..N).filter(|rank| sleepers & 1 << rank != 0).for_each(|rank| map.ring(rank));
    }
}

/// What both ranks share, as one of them sees it.
#[derive(Debug)]
struct Arena {
    map: Arc<Map>,
    bells: Bells,
    me: usize,
    n_sleeping: AtomicU32,
}

impl Arena {
    fn alarm(&self) {
        (0..N).for_each(|rank| self.map.ring(rank));
    }

    /// Sleeps until `ready`, as a thread of the engine does.
    fn linger(&self, ready: impl Fn() -> bool) {
        let bit = 1 << self.me;
        while !ready() {
            let (bell, rung) = &self.map.bells[self.me];
            let heard = *bell.lock().unwrap();
            self.n_sleeping.fetch_add(1, Ordering::SeqCst);
            self.map.sleepers.fetch_or(bit, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !ready() {
                let mut bell = bell.lock().unwrap();
                while *bell == heard {
                    bell = rung.wait(bell).unwrap();
                }
            }
            self.n_sleeping.fetch_sub(1, Ordering::SeqCst);
            self.map.sleepers.fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

fn boards() -> [(Arc<Arena>, Board); N] {
    let map = Arc::new(Map {
        words: (0..N).map(|_| AtomicU64::new(0)).collect(),
        sleepers: AtomicU64::new(0),
        bells: (0..N).map(|_| (Mutex::new(0), Condvar::new())).collect(),
    });
    [0, 1].map(|me| {
        let arena = Arc::new(Arena { map: map.clone(), bells: Bells, me, n_sleeping: AtomicU32::new(0) });
        (arena.clone(), Board::new(arena, (0..N).collect(), me, Arc::new(tenants::Tenancy)))
    })
}

/// All orders with a bounded number of preemptions; gives how many there were.
fn explored(preemptions: usize, run: impl Fn() + Sync + Send + 'static) -> usize {
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = orders.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    });
    orders.load(Ordering::Relaxed)
}

#[test]
fn whoever_sees_a_word_sees_what_was_written_before_it() {
    let orders = explored(3, || {
        let [(arena, mine), (_, theirs)] = boards();
        let data = Arc::new(AtomicU32::new(0));
        let written = data.clone();
        let other = thread::spawn(move || {
            // Relaxed: the board alone orders it.
            written.store(7, Ordering::Relaxed);
            theirs.show(3);
            theirs.ring();
        });
        arena.linger(|| mine.words().nth(1) == Some(3));
        assert_eq!(data.load(Ordering::Relaxed), 7, "BOARD-1");
        assert_eq!(mine.words().next(), Some(0), "BOARD-1");
        other.join().unwrap();
    });
    assert!(orders > 5, "only {orders} orders were tried");
}

/// What a rank does that wakes others only if they can go on.
fn show_and_ring_if_last(board: &Board) {
    board.show(1);
    if board.words().all(|w| w >= 1) {
        board.ring();
    }
}

#[test]
fn ranks_that_show_and_wait_for_each_other_all_wake_up() {
    let orders = explored(2, || {
        let [(arena, mine), (their_arena, theirs)] = boards();
        let other = thread::spawn(move || {
            show_and_ring_if_last(&theirs);
            their_arena.linger(|| theirs.words().all(|w| w >= 1));
        });
        show_and_ring_if_last(&mine);
        // A wake-up that is lost is a deadlock, which loom reports (BOARD-2).
        arena.linger(|| mine.words().all(|w| w >= 1));
        other.join().unwrap();
    });
    assert!(orders > 5, "only {orders} orders were tried");
}
