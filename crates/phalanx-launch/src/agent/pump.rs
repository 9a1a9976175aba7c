//! Forwards one output stream of one rank to the launcher without loss, as fast as the launcher reads.

use super::{AgentEvent, voice::Voice};
use crate::wire::{OutputStream, ToLauncher};
use phalanx_core::Rank;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};

const BUFFER_BYTES: usize = 16 << 10;
/// How long a stream that nobody of the family can write to any more may stay silent before we stop listening.
const SILENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Starts carrying. `over` hangs up when no process of the job is left; a stranger may still hold the pipe then.
pub fn start(
    rank: Rank,
    stream: OutputStream,
    pipe: OwnedFd,
    over: Arc<OwnedFd>,
    (voice, events): (Voice, SyncSender<AgentEvent>),
) {
    thread::spawn(move || {
        carry(rank, stream, &pipe, &over, &voice);
        voice.say(ToLauncher::Closed { rank, stream });
        let _ = events.send(AgentEvent::StreamEnded);
    });
}

fn carry(rank: Rank, stream: OutputStream, pipe: &OwnedFd, over: &OwnedFd, voice: &Voice) {
    let (home, buffers) = sync_channel(2);
    for _ in 0..2 {
        let _ = home.try_send(Vec::with_capacity(BUFFER_BYTES));
    }
    while let Ok(mut buffer) = buffers.recv() {
        buffer.clear();
        if !wait_for_output(pipe, over) {
            return;
        }
        match rustix::io::read(pipe, rustix::buffer::spare_capacity(&mut buffer)) {
            Ok(n) if n > 0 => {
                if !voice.say_output(rank, stream, buffer, home.clone()) {
                    return;
                }
            }
            Err(Errno::INTR) => {
                let _ = home.try_send(buffer);
            }
            Ok(_) | Err(_) => return,
        }
    }
}

/// True when a read will not block; false when no output will come any more.
fn wait_for_output(pipe: &OwnedFd, over: &OwnedFd) -> bool {
    let mut both = [PollFd::new(pipe, PollFlags::IN), PollFd::new(over, PollFlags::empty())];
    while poll(&mut both, None) == Err(Errno::INTR) {}
    if !both[0].revents().is_empty() {
        return true;
    }
    let mut only = [PollFd::new(pipe, PollFlags::IN)];
    matches!(poll(&mut only, Some(&SILENCE)), Ok(n) if n > 0)
}
