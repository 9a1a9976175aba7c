//! Many cases at the same time: those that wait for a silence cost time but no cores.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// A number from the environment, for more cases than a change needs.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Runs every case, `n_at_once` of them at a time, and reports how long after the blow the survivors spoke.
///
/// # Panics
/// After the last case, if any of them failed; each has said why by then.
pub fn run<C: Sync>(what: &str, n_at_once: usize, cases: &[C], run: impl Fn(&C) -> Vec<Duration> + Sync) {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    // Locks because the threads of the cases add to what is reported at the end.
    let (times, failures) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..n_at_once {
            scope.spawn(|| {
                // Relaxed: the number itself is all that is shared.
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // The other cases go on: whether one in a hundred fails or all of them tells a lot.
                    match catch_unwind(AssertUnwindSafe(|| run(case))) {
                        Ok(took) => times.lock().expect("nobody panics with it").extend(took),
                        Err(_) => drop(failures.fetch_add(1, Ordering::Relaxed)),
                    }
                }
            });
        }
    });
    report(what, times.into_inner().expect("nobody panics with it"));
    let failures = failures.into_inner();
    println!("{what}: {} cases, {failures} failed, in {:.1} s", cases.len(), begun.elapsed().as_secs_f64());
    assert_eq!(failures, 0, "{what}: of {} cases", cases.len());
}

/// Prints the spread of these times.
pub fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at =
        |q: f64| times.get((times.len().saturating_sub(1) as f64 * q) as usize).copied().unwrap_or_default();
    println!("{what}: {} verdicts, p50 {:?}, p99 {:?}, worst {:?}", times.len(), at(0.5), at(0.99), at(1.0));
}
