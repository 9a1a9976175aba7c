//! What comes before an agent's first message: login scripts print to where the agent will write.
//!
//! - NOISE-1: whatever a login script prints before the agent starts, the launcher finds the agent's first message.

use crate::wire::START;
use std::io::BufRead;

/// More than any greeting; what says more is no way to an agent.
const MOST: usize = 1 << 20;

/// What was read up to the agent's start.
#[derive(Debug, PartialEq, Eq)]
pub struct Noise {
    pub text: String,
    /// The agent has started: its first message comes next.
    pub is_over: bool,
}

/// Reads up to the start of an agent, or to the end.
pub fn skip(stream: &mut impl BufRead) -> Noise {
    let mut bytes = Vec::new();
    let mut is_over = false;
    while !is_over && bytes.len() < MOST {
        let Ok(new) = stream.fill_buf() else { break };
        if new.is_empty() {
            break;
        }
        let before = bytes.len();
        bytes.extend_from_slice(new);
        // The start may have begun with what came earlier.
        let from = before.saturating_sub(START.len() - 1);
        let found = bytes[from..].windows(START.len()).position(|w| w == START);
        let used = found.map_or(new.len(), |at| from + at + START.len() - before);
        if let Some(at) = found {
            bytes.truncate(from + at);
            is_over = true;
        }
        stream.consume(used);
    }
    Noise { text: String::from_utf8_lossy(&bytes).into_owned(), is_over }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, Read};

    fn skipped(noise: &[u8], capacity: usize) -> (Noise, Vec<u8>) {
        let bytes = [noise, START, b"PX rest"].concat();
        let mut stream = BufReader::with_capacity(capacity, bytes.as_slice());
        let noise = skip(&mut stream);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        (noise, rest)
    }

    #[test]
    fn the_first_message_is_found_whatever_comes_before_it_and_however_it_is_cut() {
        let long = vec![b'x'; 100_000];
        for noise in [&b""[..], b"Welcome\n", b"\0phalanx-ag\0\0phalanx-agen", b"\xff\0PX\x02\0", &long] {
            for capacity in [1, 2, 7, 15, 16, 4096] {
                let (found, rest) = skipped(noise, capacity);
                assert_eq!(rest, b"PX rest", "NOISE-1");
                assert_eq!(found, Noise { text: String::from_utf8_lossy(noise).into(), is_over: true });
            }
        }
    }

    #[test]
    fn what_never_ends_or_ends_without_an_agent_is_no_start() {
        assert_eq!(skip(&mut &b"Welcome\n"[..]), Noise { text: "Welcome\n".into(), is_over: false });
        assert!(!skip(&mut BufReader::new(std::io::repeat(b'y'))).is_over);
    }
}
