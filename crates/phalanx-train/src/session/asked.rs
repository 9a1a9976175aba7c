//! SIGTERM, as a wish to end: the next step boundary sees it, saves and stops. A second SIGTERM ends the process at once, unless it comes within a
//! second of the boundary that saw the first: Slurm sends several when a job's time is over.
//!
//! How a process reacts to a signal belongs to the process, not to a session: so there is one state for all of its sessions.
//! Without a session, and after the first SIGTERM was seen, SIGTERM does what it always does. A process that was asked once stays asked: if
//! the last boundary of a session was over, the next session stops at its first one.

use signal_hook::{consts::SIGTERM, flag};
use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// SIGTERM again within this time is the same wish.
const SAME_WISH: Duration = Duration::from_secs(1);

struct Signal {
    /// SIGTERM came.
    came: Arc<AtomicBool>,
    /// SIGTERM ends the process.
    ends: Arc<AtomicBool>,
    n_listeners: AtomicUsize,
    /// A boundary has seen it.
    is_seen: AtomicBool,
}

static SIGNAL: OnceLock<Signal> = OnceLock::new();

/// As long as one lives, SIGTERM is a wish.
#[derive(Debug)]
pub struct TermListener(());

impl TermListener {
    pub fn new() -> io::Result<TermListener> {
        let signal = match SIGNAL.get() {
            Some(signal) => signal,
            None => {
                let (came, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
                let made =
                    Signal { came, ends, n_listeners: AtomicUsize::new(0), is_seen: AtomicBool::new(false) };
                // In this order: the first SIGTERM finds `ends` unset, and only then `came` is set.
                flag::register_conditional_default(SIGTERM, made.ends.clone())?;
                flag::register(SIGTERM, made.came.clone())?;
                SIGNAL.get_or_init(|| made)
            }
        };
        // SeqCst: sessions begin and end rarely, and this must not be subtle.
        if signal.n_listeners.fetch_add(1, Ordering::SeqCst) == 0 {
            signal.ends.store(signal.came.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        Ok(TermListener(()))
    }

    /// Whether SIGTERM came. A moment after this was seen, another one ends the process.
    pub fn is_asked(&self) -> bool {
        let Some(signal) = SIGNAL.get() else {
            return false;
        };
        // Relaxed: nothing else is read because of it.
        let came = signal.came.load(Ordering::Relaxed);
        if came && !signal.is_seen.swap(true, Ordering::SeqCst) {
            let ends = signal.ends.clone();
            // Where no thread can be made, the next one ends the process right away, as any SIGTERM does.
            let waited = thread::Builder::new().name("phalanx-asked".to_string()).spawn(move || {
                // Woken early, it is only sooner that the next one ends the process.
                thread::park_timeout(SAME_WISH);
                ends.store(true, Ordering::SeqCst);
            });
            if waited.is_err() {
                signal.ends.store(true, Ordering::SeqCst);
            }
        }
        came
    }
}

impl Drop for TermListener {
    fn drop(&mut self) {
        if let Some(signal) = SIGNAL.get()
            && signal.n_listeners.fetch_sub(1, Ordering::SeqCst) == 1
        {
            signal.ends.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_that_came_after_the_last_boundary_is_seen_by_the_next_session() {
        let first = TermListener::new().expect("signals can be caught");
        assert!(!first.is_asked());
        // Its last boundary is behind it: it saves.
        signal_hook::low_level::raise(SIGTERM).expect("a process may ask itself");
        drop(first);
        let next = TermListener::new().expect("signals can be caught");
        assert!(next.is_asked(), "a process that was asked to end stays asked");
    }

    #[test]
    fn the_same_wish_again_within_a_second_ends_nothing() {
        let session = TermListener::new().expect("signals can be caught");
        if session.is_asked() {
            // Another test of this process has raised it; under nextest each has a process of its own.
            return;
        }
        for _ in 0..3 {
            // The process of this test lives on.
            signal_hook::low_level::raise(SIGTERM).expect("a process may ask itself");
            assert!(session.is_asked());
        }
    }
}
