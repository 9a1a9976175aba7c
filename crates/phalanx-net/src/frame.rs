//! Control messages on a byte stream: a fixed header, then a capped postcard body.
//!
//! - FRAME-1: no byte of a body is read, and nothing allocated for it, before its length was found to be within the cap.
//! - FRAME-2: garbage, truncation and unknown versions are errors, never panics.

use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Bumped whenever a control message changes its meaning.
pub const VERSION: u8 = 2;
/// Bytes before the body: magic (2), version (1), zero (1), length (4, little endian).
pub const HEADER: usize = 8;
const MAGIC: [u8; 2] = *b"PX";

/// What is wrong with a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("these bytes are not a phalanx frame")]
    NotOurs,
    #[error(
        "the peer has protocol version {theirs}, this process {VERSION}: install the same phalanx on both"
    )]
    Version { theirs: u8 },
    #[error("a frame of {len} bytes exceeds the cap of {cap}")]
    TooLong { len: u64, cap: usize },
    #[error("the frame's body does not decode: {0}")]
    Body(#[from] postcard::Error),
    #[error("the stream failed: {0}")]
    Io(#[from] io::Error),
}

/// The body's length that a header announces.
pub fn body_len(header: &[u8; HEADER], cap: usize) -> Result<usize, FrameError> {
    if header[..2] != MAGIC || header[3] != 0 {
        return Err(FrameError::NotOurs);
    }
    if header[2] != VERSION {
        return Err(FrameError::Version { theirs: header[2] });
    }
    let len = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if len as usize > cap {
        return Err(FrameError::TooLong { len: len.into(), cap });
    }
    Ok(len as usize)
}

/// Header and body of one message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = postcard::to_extend(message, vec![0; HEADER])?;
    let len = bytes.len() - HEADER;
    let len =
        u32::try_from(len).map_err(|_| FrameError::TooLong { len: len as u64, cap: u32::MAX as usize })?;
    bytes[..2].copy_from_slice(&MAGIC);
    bytes[2] = VERSION;
    bytes[4..HEADER].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

/// Writes one message to a blocking stream.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> Result<(), FrameError> {
    to.write_all(&encode(message)?)?;
    Ok(to.flush()?)
}

/// Reads one message from a blocking stream; `None` when the stream ended before a frame began.
pub fn read<T: DeserializeOwned>(from: &mut impl Read, cap: usize) -> Result<Option<T>, FrameError> {
    let mut header = [0; HEADER];
    let mut have = 0;
    while have < HEADER {
        match from.read(&mut header[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    let mut body = vec![0; body_len(&header, cap)?];
    from.read_exact(&mut body)?;
    Ok(Some(postcard::from_bytes(&body)?))
}

/// Collects bytes as they arrive and hands out whole messages: the non-blocking form of [`read`].
#[derive(Debug)]
pub struct Decoder {
    cap: usize,
    pending: Vec<u8>,
}

impl Decoder {
    pub fn new(cap: usize) -> Decoder {
        Decoder { cap, pending: Vec::new() }
    }

    /// Takes bytes that arrived. The caller reads at most a socket's worth before it asks for messages.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole message, if it has arrived. After an error the stream is unusable.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(header) = self.pending.first_chunk::<HEADER>() else { return Ok(None) };
        let len = body_len(header, self.cap)?;
        let Some(body) = self.pending.get(HEADER..HEADER + len) else { return Ok(None) };
        let message = postcard::from_bytes(body)?;
        self.pending.drain(..HEADER + len);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_survive_any_cut_of_the_stream() {
        let messages = vec![vec![1u32, 2, 3], vec![], vec![9; 300]];
        let bytes: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        for cut in 1..bytes.len() {
            let mut decoder = Decoder::new(4096);
            let mut got: Vec<Vec<u32>> = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.feed(piece);
                while let Some(message) = decoder.take().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages);
        }
    }

    #[test]
    fn an_oversized_length_is_refused_before_its_body_arrives() {
        let mut bytes = encode(&0u8).unwrap();
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut decoder = Decoder::new(64);
        decoder.feed(&bytes);
        assert!(
            matches!(decoder.take::<u8>(), Err(FrameError::TooLong { len: 0xffff_ffff, cap: 64 })),
            "FRAME-1"
        );
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = encode(&0u8).unwrap();
        bytes[2] = 77;
        let error = read::<u8>(&mut bytes.as_slice(), 64).unwrap_err();
        assert!(error.to_string().contains("version 77"), "{error}");
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_not_a_panic(bytes: Vec<u8>) {
            let mut decoder = Decoder::new(256);
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.take::<(u32, String, Vec<u16>)>() {}
            let _ = read::<(u32, String, Vec<u16>)>(&mut bytes.as_slice(), 256);
        }
    }
}
