//! POOL-2, in every order there is: the queues of the pool, compiled against locks and atomics that try them all.

/// Stand-ins for what the pool uses. Loom takes SeqCst accesses for weaker ones, but knows SeqCst fences: with one on
/// either side an access is what it was written as.
mod sync {
    use loom::sync::atomic;
    pub use loom::sync::{Condvar, Mutex, MutexGuard, atomic::Ordering};

    fn fenced<T>(order: Ordering, access: impl FnOnce() -> T) -> T {
        assert_eq!(order, Ordering::SeqCst, "everything that is shared there is SeqCst");
        atomic::fence(order);
        let got = access();
        atomic::fence(order);
        got
    }

    #[derive(Debug)]
    pub struct AtomicUsize(atomic::AtomicUsize);

    impl AtomicUsize {
        pub fn new(value: usize) -> AtomicUsize {
            AtomicUsize(atomic::AtomicUsize::new(value))
        }

        pub fn load(&self, order: Ordering) -> usize {
            fenced(order, || self.0.load(order))
        }

        pub fn store(&self, value: usize, order: Ordering) {
            fenced(order, || self.0.store(value, order));
        }

        pub fn fetch_add(&self, by: usize, order: Ordering) -> usize {
            fenced(order, || self.0.fetch_add(by, order))
        }

        pub fn fetch_sub(&self, by: usize, order: Ordering) -> usize {
            fenced(order, || self.0.fetch_sub(by, order))
        }
    }

    #[derive(Debug)]
    pub struct AtomicBool(atomic::AtomicBool);

    impl AtomicBool {
        pub fn new(value: bool) -> AtomicBool {
            AtomicBool(atomic::AtomicBool::new(value))
        }

        pub fn load(&self, order: Ordering) -> bool {
            fenced(order, || self.0.load(order))
        }

        pub fn store(&self, value: bool, order: Ordering) {
            fenced(order, || self.0.store(value, order));
        }
    }
}

#[path = "../src/exec/parallel/ready.rs"]
mod ready;

use loom::{sync::Arc, thread};
use ready::Ready;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What each task makes possible.
type Next = &'static [&'static [u32]];

/// What a worker does, without looking about before it sleeps.
fn work(ready: &Ready, worker: usize, next: Next, breaks_at: Option<usize>) -> usize {
    let mut done = 0;
    loop {
        if let Some(task) = ready.next(worker) {
            done += 1;
            if breaks_at == Some(task) {
                ready.break_off();
                return done;
            }
            next[task].iter().for_each(|&t| ready.push(worker, u64::from(t), t));
            ready.done();
        } else if ready.is_over() {
            return done;
        } else {
            // A wake-up that is lost is a deadlock, which loom reports.
            ready.sleep();
            // Who has taken a task off but not off the count keeps others awake; they go on when it has.
            thread::yield_now();
        }
    }
}

/// Runs these tasks on two workers in all orders; gives how many there were.
fn in_all_orders(next: Next, breaks_at: Option<usize>) -> usize {
    explored(move || {
        let ready = prepared(next);
        let other = {
            let ready = ready.clone();
            thread::spawn(move || work(&ready, 1, next, breaks_at))
        };
        ready.push(1, 0, 0);
        let done = work(&ready, 0, next, breaks_at) + other.join().unwrap();
        assert!(ready.is_over());
        match breaks_at {
            None => assert_eq!(done, next.len(), "each task once"),
            Some(_) => assert!(ready.is_broken()),
        }
    })
}

/// The same for tasks that somebody puts down who does not do any.
fn by_others_in_all_orders(next: Next, n_workers: usize) -> usize {
    explored(move || {
        let ready = prepared(next);
        let start = |worker| {
            let ready = ready.clone();
            thread::spawn(move || work(&ready, worker, next, None))
        };
        let others: Vec<_> = (0..n_workers).map(start).collect();
        (0..next.len() as u32).for_each(|task| ready.push(0, 0, task));
        let done: usize = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert_eq!(done, next.len(), "each task once");
    })
}

fn prepared(next: Next) -> Arc<Ready> {
    let ready = Ready::new(2);
    ready.reserve(next.len());
    ready.begin(next.len());
    Arc::new(ready)
}

/// All orders with three preemptions at most.
fn explored(run: impl Fn() + Sync + Send + 'static) -> usize {
    static ORDERS: AtomicUsize = AtomicUsize::new(0);
    let before = ORDERS.load(Ordering::Relaxed);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        ORDERS.fetch_add(1, Ordering::Relaxed);
        run();
    });
    ORDERS.load(Ordering::Relaxed) - before
}

#[test]
fn no_wake_up_is_lost_in_any_order() {
    const CHAIN: Next = &[&[1], &[]];
    const APART: Next = &[&[], &[]];
    const FORK: Next = &[&[1, 2], &[], &[]];
    for next in [CHAIN, FORK] {
        let orders = in_all_orders(next, None);
        assert!(orders > 50, "{next:?}: only {orders} orders were tried");
    }
    for (apart, n_workers) in [(APART, 1), (&APART[..1], 1), (&APART[..1], 2)] {
        let orders = by_others_in_all_orders(apart, n_workers);
        assert!(orders > 5, "{n_workers} workers: only {orders} orders were tried");
    }
    for at in [0, 1] {
        let orders = in_all_orders(CHAIN, Some(at));
        assert!(orders > 20, "broken at {at}: only {orders} orders were tried");
    }
}
