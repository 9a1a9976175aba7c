//! BELL-1, in every order there is: the bell of the engine's threads, compiled against locks and atomics that try them all.

/// Stand-ins for what the bell uses. Loom's `wait_timeout` never ends by itself, so that a wake-up which is lost is a deadlock, and loom reports those.
mod sync {
    pub use loom::sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, Ordering, fence},
    };
    use std::time::{Duration, Instant};

    /// The memory of a world that is over: it wakes nobody, and the bell has to do it.
    #[derive(Debug)]
    pub struct Arena;

    impl Arena {
        pub fn nudge(&self) {}

        pub fn rouse(&self) {}

        pub fn linger(&self, _for: Duration, ready: &dyn Fn() -> bool, _idle: &dyn Fn() -> bool) -> bool {
            ready()
        }

        pub fn look_out(&self, _deadline: Instant, ready: &dyn Fn() -> bool) -> bool {
            ready()
        }
    }
}

#[expect(clippy::module_inception, reason = "what is tested keeps its name")]
#[expect(dead_code, reason = "who looks out waits in the arena, which has tests of its own")]
#[path = "../src/engine/bell.rs"]
mod bell;

use bell::Bell;
use loom::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};
use std::sync::atomic::AtomicUsize;

/// Pieces of news come one after the other, and threads wait for each of them. Gives how many orders there are.
fn in_all_orders(n_news: u32, n_sleepers: usize, with_arena: bool) -> usize {
    static ORDERS: AtomicUsize = AtomicUsize::new(0);
    let before = ORDERS.load(Ordering::Relaxed);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        ORDERS.fetch_add(1, Ordering::Relaxed);
        let bell = Arc::new(Bell::new(with_arena.then(|| Arc::new(sync::Arena))));
        // As the version of a set, and what the mover then finds.
        let (news, data) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let sleep = |_| {
            let (bell, news, data) = (bell.clone(), news.clone(), data.clone());
            thread::spawn(move || {
                for i in 1..=n_news {
                    bell.wait(&|| news.load(Ordering::Acquire) >= i, &|| false);
                    assert!(data.load(Ordering::Relaxed) >= i, "what was written before is seen");
                }
            })
        };
        let sleepers: Vec<_> = (0..n_sleepers).map(sleep).collect();
        for i in 1..=n_news {
            data.store(i, Ordering::Relaxed);
            news.store(i, Ordering::Release);
            bell.ring();
        }
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
    ORDERS.load(Ordering::Relaxed) - before
}

#[test]
fn no_wake_up_is_lost_in_any_order() {
    for (n_news, n_sleepers, with_arena) in [(1, 1, false), (1, 1, true), (2, 1, false), (1, 2, false)] {
        let orders = in_all_orders(n_news, n_sleepers, with_arena);
        assert!(orders > 5, "{n_news} news, {n_sleepers} sleepers: only {orders} orders were tried");
    }
}
