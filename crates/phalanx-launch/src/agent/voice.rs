//! Sends the agent's messages: one thread writes them to stdout, so that no other thread waits for the launcher.
//!
//! - VOICE-1: sending a message never blocks, and memory is bounded: each stream of a rank owns two buffers and waits
//!   until the writer returns one; all other messages are a few per rank.

use super::AgentEvent;
use crate::wire::{OutputStream, START, ToLauncher};
use phalanx_core::Rank;
use phalanx_net::frame;
use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, Sender, SyncSender, channel},
    thread,
};

enum Say {
    Message(ToLauncher),
    Output { rank: Rank, stream: OutputStream, bytes: Vec<u8>, home: SyncSender<Vec<u8>> },
}

/// A way to the writer.
#[derive(Clone)]
pub struct Voice(Sender<Say>);

impl Voice {
    /// Starts the writer. When all voices are gone, or the launcher is, it tells the agent that it ended.
    pub fn start(events: SyncSender<AgentEvent>) -> Voice {
        let (voice, words) = channel();
        thread::spawn(move || {
            write_all(&words);
            let _ = events.send(AgentEvent::VoiceEnded);
        });
        Voice(voice)
    }

    pub fn say(&self, message: ToLauncher) {
        // A writer that ended has lost its launcher; the agent hears of that from its stdin.
        let _ = self.0.send(Say::Message(message));
    }

    /// Hands a buffer to the writer, which sends it home emptied. False when nobody listens any more.
    pub fn say_output(
        &self,
        rank: Rank,
        stream: OutputStream,
        bytes: Vec<u8>,
        home: SyncSender<Vec<u8>>,
    ) -> bool {
        self.0.send(Say::Output { rank, stream, bytes, home }).is_ok()
    }
}

fn write_all(words: &Receiver<Say>) {
    let mut stdout = io::stdout().lock();
    if stdout.write_all(START).is_err() {
        return;
    }
    for say in words {
        let result = match say {
            Say::Message(message) => frame::write(&mut stdout, &message),
            Say::Output { rank, stream, bytes, home } => {
                let message = ToLauncher::Output { rank, stream, bytes };
                let result = frame::write(&mut stdout, &message);
                if let ToLauncher::Output { bytes, .. } = message {
                    let _ = home.try_send(bytes);
                }
                result
            }
        };
        if result.is_err() {
            return;
        }
    }
}
