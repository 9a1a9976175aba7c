//! A link: an authenticated byte stream between two ranks, never blocking by itself.

use phalanx_core::Rank;
use std::{
    io::{self, IoSlice, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
};

/// One end of a link.
#[derive(Debug)]
pub struct Link {
    peer: Rank,
    stream: TcpStream,
}

impl Link {
    pub(crate) fn new(peer: Rank, stream: TcpStream) -> io::Result<Link> {
        crate::socket::tune_link(&stream);
        stream.set_nonblocking(true)?;
        Ok(Link { peer, stream })
    }

    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// Sends what the network takes now; 0 when it takes nothing.
    pub fn send_some(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (&self.stream).write_vectored(parts) {
            Err(e) if would_wait(&e) => Ok(0),
            other => other,
        }
    }

    /// Receives what has arrived; 0 when nothing has. The end of the stream is an error.
    pub fn recv_some(&self, into: &mut [u8]) -> io::Result<usize> {
        match (&self.stream).read(into) {
            Ok(0) if !into.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if would_wait(&e) => Ok(0),
            other => other,
        }
    }
}

impl Link {
    /// Ends it for both sides.
    pub(crate) fn shut(&self) {
        // A link that is broken already cannot be shut, and need not.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
