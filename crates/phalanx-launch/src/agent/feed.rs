//! Writes the launcher's input to one rank's stdin, as fast as the rank reads it.
//!
//! - STDIN-1: at most one piece is on its way to a rank: the launcher reads the next one when every reading rank has taken the last one. So
//!   no input is lost or queued, and only this thread waits for a rank that does not read.

use super::AgentEvent;
use phalanx_core::Rank;
use std::{
    io::Write,
    process::ChildStdin,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
};

#[derive(Debug)]
pub struct InputWriter(SyncSender<Vec<u8>>);

impl InputWriter {
    pub fn start(rank: Rank, stdin: ChildStdin, events: SyncSender<AgentEvent>) -> InputWriter {
        let (give, pieces) = sync_channel::<Vec<u8>>(1);
        thread::spawn(move || {
            let mut stdin = Some(stdin);
            for bytes in pieces {
                // A rank that closed its stdin, or ended, wants no more; that is its own affair.
                stdin = stdin.and_then(|mut pipe| pipe.write_all(&bytes).ok().map(|()| pipe));
                if events.send(AgentEvent::Taken(rank)).is_err() {
                    return;
                }
            }
        });
        InputWriter(give)
    }

    /// Never waits. A launcher that does not keep to STDIN-1 loses what it says too early.
    pub fn give(&self, bytes: &[u8]) {
        let _ = self.0.try_send(bytes.to_vec());
    }
}
