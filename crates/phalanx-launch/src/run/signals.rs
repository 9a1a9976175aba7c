//! Turns signals to the launcher into messages for the main thread.

use super::{LaunchError, News};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};
use std::{
    fmt, fs, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc::SyncSender},
    thread,
};

/// What becomes of signals.
enum Target {
    Passed(Box<dyn FnMut(i32) + Send>),
    /// Until somebody wants them.
    Kept(Vec<i32>),
}

impl Target {
    fn take(&mut self, signal: i32) {
        match self {
            Target::Passed(to) => to(signal),
            Target::Kept(kept) => kept.push(signal),
        }
    }
}

/// Where signals go. It can change, so that none is lost between two parts of a launcher's life.
#[derive(Clone)]
pub struct SignalWatch {
    /// Held while a signal is passed on, and to change where to.
    to: Arc<Mutex<Target>>,
}

impl fmt::Debug for SignalWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignalWatch")
    }
}

impl SignalWatch {
    /// From now on signals go there, and those first that were kept.
    pub fn redirect(&self, to: impl FnMut(i32) + Send + 'static) {
        let mut target = self.target();
        let before = mem::replace(&mut *target, Target::Passed(Box::new(to)));
        if let Target::Kept(kept) = before {
            kept.into_iter().for_each(|signal| target.take(signal));
        }
    }

    /// From now on signals are kept for the next one to whom they go.
    pub fn keep(&self) {
        let mut target = self.target();
        if matches!(*target, Target::Passed(_)) {
            *target = Target::Kept(Vec::new());
        }
    }

    /// Takes a signal as if it came now.
    pub fn take(&self, signal: i32) {
        self.target().take(signal);
    }

    fn target(&self) -> MutexGuard<'_, Target> {
        self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on they are news.
    pub fn tell(&self, news: SyncSender<News>) {
        self.redirect(move |signal| drop(news.send(News::Signal(signal))));
    }
}

/// Whether it asks a launcher whose ranks have not started to end.
pub fn asks_to_end(signal: i32) -> bool {
    [SIGINT, SIGTERM, SIGHUP].contains(&signal)
}

/// Starts passing signals on as news.
pub fn watch(news: SyncSender<News>) -> Result<SignalWatch, LaunchError> {
    start(Target::Passed(Box::new(move |signal| drop(news.send(News::Signal(signal))))))
}

/// Ends this process at a signal, with a line that says what it waited for. Nothing of it is anywhere else yet.
pub fn end_while_it_waits(whom: String) -> Result<SignalWatch, LaunchError> {
    start(Target::Passed(Box::new(move |signal| {
        if asks_to_end(signal) {
            let name = phalanx_net::ending::signal_name(signal);
            super::tell(&format!("phalanx: ended by {name} while it waited for {whom}\n"));
            std::process::exit(128 + signal);
        }
    })))
}

fn start(to: Target) -> Result<SignalWatch, LaunchError> {
    let mut wanted = vec![SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Under `nohup` the job must outlive its terminal.
    if !is_ignored(&status, SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals =
        Signals::new(wanted).map_err(|why| LaunchError::System { what: "to watch for signals", why })?;
    let watch = SignalWatch { to: Arc::new(Mutex::new(to)) };
    let heard = watch.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            heard.take(signal);
        }
    });
    Ok(watch)
}

/// Whether `/proc/self/status` says that this process ignores the signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_while_nobody_listens_is_kept_for_the_next() {
        let watch = SignalWatch { to: Arc::new(Mutex::new(Target::Passed(Box::new(|_| {})))) };
        watch.take(SIGHUP);
        watch.keep();
        watch.take(SIGTERM);
        watch.keep();
        watch.take(SIGUSR1);
        let (tell, told) = std::sync::mpsc::channel();
        watch.redirect(move |signal| tell.send(signal).unwrap());
        watch.take(SIGINT);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [SIGTERM, SIGUSR1, SIGINT]);
    }

    #[test]
    fn nohup_is_noticed() {
        assert!(is_ignored("Name:\tx\nSigIgn:\t0000000000001001\n", SIGHUP));
        assert!(!is_ignored("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!is_ignored("", SIGHUP));
    }
}
