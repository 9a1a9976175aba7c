//! Questions and answers over an inherited socket (`PMI_FD`), with a deadline and a cap on every answer.
//!
//! The socket may be used by an MPI library of this process, too, before and after: it stays blocking, and nothing is read beyond the answer to
//! what was asked.

use super::Wait;
use crate::{error::BoardError, socket};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, recv},
};
use socket2::Socket;
use std::{io, time::Duration};

/// The longest answer that is read.
pub const MAX_ANSWER: usize = 16 << 10;

#[derive(Debug)]
pub struct Wire {
    socket: Socket,
}

impl Wire {
    pub fn new(socket: Socket) -> Wire {
        Wire { socket }
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    pub fn send(&self, bytes: &[u8]) -> Result<(), BoardError> {
        socket::send_all(&self.socket, bytes)
            .map_err(|error| BoardError::System { what: "cannot write", error })
    }

    /// Everything up to the next line feed, which is taken and left out.
    pub fn line(&self, wait: Wait, whom: &str) -> Result<String, BoardError> {
        let mut line = Vec::new();
        loop {
            let mut bytes = [0; 256];
            // Not beyond the line: it is looked at first, then taken.
            let n = self.receive(&mut bytes, RecvFlags::PEEK, wait, whom)?;
            let end = bytes[..n].iter().position(|&b| b == b'\n');
            let taken = end.map_or(n, |end| end + 1);
            self.exactly(&mut bytes[..taken], wait, whom)?;
            line.extend_from_slice(&bytes[..end.unwrap_or(taken)]);
            if end.is_some() {
                return text(line);
            }
            if line.len() > MAX_ANSWER {
                return Err(nonsense(&String::from_utf8_lossy(&line)));
            }
        }
    }

    /// This many bytes, as text.
    pub fn text(&self, n: usize, wait: Wait, whom: &str) -> Result<String, BoardError> {
        let mut bytes = vec![0; n];
        self.exactly(&mut bytes, wait, whom)?;
        text(bytes)
    }

    fn exactly(&self, mut bytes: &mut [u8], wait: Wait, whom: &str) -> Result<(), BoardError> {
        while !bytes.is_empty() {
            let n = self.receive(bytes, RecvFlags::empty(), wait, whom)?;
            bytes = &mut bytes[n..];
        }
        Ok(())
    }

    fn receive(
        &self,
        bytes: &mut [u8],
        flags: RecvFlags,
        wait: Wait,
        whom: &str,
    ) -> Result<usize, BoardError> {
        let failed = |error: io::Error| BoardError::System { what: "cannot read", error };
        loop {
            match recv(&self.socket, &mut *bytes, flags | RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(BoardError::Closed),
                Ok((n, _)) => return Ok(n),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            let Some(left) = wait.left() else { return Err(wait.late(whom)) };
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ }
}

fn text(bytes: Vec<u8>) -> Result<String, BoardError> {
    String::from_utf8(bytes).map_err(|e| nonsense(&String::from_utf8_lossy(e.as_bytes())))
}

/// The error for an answer that nothing here sends.
pub fn nonsense(answer: &str) -> BoardError {
    BoardError::Nonsense { answer: answer.chars().take(80).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::unix::net::UnixStream};

    fn pair() -> (Wire, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (Wire::new(std::os::fd::OwnedFd::from(here).into()), there)
    }

    fn soon() -> Wait {
        Wait::within(Duration::from_millis(50))
    }

    #[test]
    fn a_line_ends_where_it_ends_and_the_next_one_stays() {
        let (wire, mut there) = pair();
        there.write_all(b"one\ntwo\n").unwrap();
        assert_eq!(wire.line(soon(), "x").unwrap(), "one");
        assert_eq!(wire.line(soon(), "x").unwrap(), "two");
    }

    #[test]
    fn silence_an_end_and_endless_lines_are_errors() {
        let (wire, mut there) = pair();
        there.write_all(b"half").unwrap();
        let late = wire.line(soon(), "the other ranks").unwrap_err().to_string();
        assert!(late.contains("for the other ranks"), "RDZV-3: {late}");
        drop(there);
        assert!(matches!(wire.line(soon(), "x"), Err(BoardError::Closed)));
        let (wire, mut there) = pair();
        let flood = std::thread::spawn(move || while there.write_all(&[b'x'; 1024]).is_ok() {});
        let error = wire.line(Wait::within(Duration::from_secs(10)), "x").unwrap_err();
        assert!(matches!(error, BoardError::Nonsense { .. }), "RDZV-2: {error}");
        drop(wire);
        flood.join().unwrap();
        let (wire, mut there) = pair();
        there.write_all(b"\xff\xfe\n").unwrap();
        assert!(matches!(wire.line(soon(), "x"), Err(BoardError::Nonsense { .. })), "RDZV-2");
    }
}
