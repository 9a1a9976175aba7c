//! Carries what the launcher reads into one rank's stdin, at the rank's pace.
//!
//! - STDIN-1: at most one piece is on its way to a rank: the launcher reads on when each rank that reads has taken the last one. So nothing
//!   is lost, nothing piles up, and whoever waits for a rank that does not read is this thread alone.

use super::Event;
use phalanx_core::Rank;
use std::{
    io::Write,
    process::ChildStdin,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
};

#[derive(Debug)]
pub struct Feed(SyncSender<Vec<u8>>);

impl Feed {
    pub fn start(rank: Rank, stdin: ChildStdin, events: SyncSender<Event>) -> Feed {
        let (give, pieces) = sync_channel::<Vec<u8>>(1);
        thread::spawn(move || {
            let mut stdin = Some(stdin);
            for bytes in pieces {
                // A rank that closed its stdin, or ended, wants no more; that is its own affair.
                stdin = stdin.and_then(|mut pipe| pipe.write_all(&bytes).ok().map(|()| pipe));
                if events.send(Event::Taken(rank)).is_err() {
                    return;
                }
            }
        });
        Feed(give)
    }

    /// Never waits. A launcher that does not keep to STDIN-1 loses what it says too early.
    pub fn give(&self, bytes: &[u8]) {
        let _ = self.0.try_send(bytes.to_vec());
    }
}
