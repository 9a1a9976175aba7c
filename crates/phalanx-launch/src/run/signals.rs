//! Turns signals to the launcher into messages for the main thread.

use super::{LaunchError, News};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};
use std::{fs, sync::mpsc::SyncSender, thread};

/// Starts passing signals on.
pub fn watch(news: SyncSender<News>) -> Result<(), LaunchError> {
    let mut wanted = vec![SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Under `nohup` the job must outlive its terminal.
    if !is_ignored(&status, SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals =
        Signals::new(wanted).map_err(|why| LaunchError::System { what: "to watch for signals", why })?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if news.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
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
    fn nohup_is_noticed() {
        assert!(is_ignored("Name:\tx\nSigIgn:\t0000000000001001\n", SIGHUP));
        assert!(!is_ignored("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!is_ignored("", SIGHUP));
    }
}
