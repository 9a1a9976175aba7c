//! A link: an authenticated, non-blocking byte stream between two ranks, over any transport.

use crate::forks::Own;
use phalanx_core::Rank;
use socket2::Socket;
use std::{
    io::{self, IoSlice, Read},
    os::fd::{AsFd, BorrowedFd},
};

/// One end of a link.
#[derive(Debug)]
pub struct Link {
    peer: Rank,
    socket: Own<Socket>,
}

impl Link {
    /// On a socket that its transport has tuned and that has proved itself.
    pub(crate) fn new(peer: Rank, socket: Own<Socket>) -> io::Result<Link> {
        socket.set_nonblocking(true)?;
        Ok(Link { peer, socket })
    }

    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// Sends what the network takes now; 0 when it takes nothing.
    pub fn send_some(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // Programs in other languages may have kept the signal that a closed stream sends by default.
        let sent = match parts {
            [one] => self.socket.send_with_flags(one, libc::MSG_NOSIGNAL),
            many => self.socket.send_vectored_with_flags(many, libc::MSG_NOSIGNAL),
        };
        match sent {
            Err(e) if would_wait(&e) => Ok(0),
            other => other,
        }
    }

    /// Receives what has arrived; 0 when nothing has. The end of the stream is an error.
    pub fn recv_some(&self, into: &mut [u8]) -> io::Result<usize> {
        match (&*self.socket).read(into) {
            Ok(0) if !into.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if would_wait(&e) => Ok(0),
            other => other,
        }
    }

    /// Ends it for both sides.
    pub(crate) fn shut(&self) {
        // A link that is broken already cannot be shut, and need not.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
