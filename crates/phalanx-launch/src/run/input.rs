//! Reads the launcher's stdin for the ranks that receive it.
//!
//! - INPUT-1: the launcher reads a piece only when every reading rank has taken the one before, so input that no rank reads stays in stdin.
//!
//! A launcher in the background of its terminal does not read from it: the system would stop the whole job.

use super::News;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::tcgetpgrp,
};
use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

/// Less than a pipe takes at once.
const PIECE: usize = 4 << 10;
/// How often a launcher in the background looks whether it is in front again.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// Where it is heard that a rank has taken what was read. When it is dropped, nothing more is read.
#[derive(Debug)]
pub struct InputAck(SyncSender<()>);

impl InputAck {
    pub fn one(&self) {
        // One for each rank that reads, after each piece: there is room, unless an agent makes them up.
        let _ = self.0.try_send(());
    }
}

/// Starts reading for this many ranks.
pub fn start(n_readers: usize, news: SyncSender<News>) -> InputAck {
    let (taken, tokens) = sync_channel(n_readers.max(1));
    thread::spawn(move || read_all(n_readers, &news, &tokens));
    InputAck(taken)
}

fn read_all(n_readers: usize, news: &SyncSender<News>, tokens: &Receiver<()>) {
    let stdin = io::stdin();
    loop {
        wait_for_input(&stdin);
        let mut bytes = vec![0; PIECE];
        let n = match rustix::io::read(&stdin, &mut bytes) {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Ok(n) if n > 0 => n,
            // The end, or a stdin that was never there.
            Ok(_) | Err(_) => {
                let _ = news.send(News::Input(Vec::new()));
                return;
            }
        };
        bytes.truncate(n);
        if news.send(News::Input(bytes)).is_err() {
            return;
        }
        // The job ends these waits: it drops `InputAck`.
        if (0..n_readers).any(|_| tokens.recv().is_err()) {
            return;
        }
    }
}

/// Returns when a read does not wait, and does not stop us.
fn wait_for_input(stdin: &io::Stdin) {
    let is_in_front = || tcgetpgrp(stdin.as_fd()).is_ok_and(|front| front == rustix::process::getpgrp());
    loop {
        let looked = poll(&mut [PollFd::new(stdin, PollFlags::IN)], Some(&LOOK_AGAIN));
        // A stdin that cannot be waited for says so when it is read.
        let is_ready = !matches!(looked, Ok(0) | Err(Errno::INTR));
        if is_ready && (!stdin.is_terminal() || is_in_front()) {
            return;
        }
        if is_ready {
            let _ = poll(&mut [], Some(&LOOK_AGAIN));
        }
    }
}
