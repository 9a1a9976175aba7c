//! A link: an authenticated, non-blocking byte stream between two ranks, over any transport.

use crate::channel::Channel;
use phalanx_core::Rank;
use std::{
    io::{self, IoSlice},
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
};

/// One end of a link.
#[derive(Debug)]
pub struct Link {
    peer: Rank,
    channel: Channel,
}

impl Link {
    /// On a socket that its transport has tuned and that has proved itself.
    pub(crate) fn new(peer: Rank, channel: Channel) -> io::Result<Link> {
        channel.socket().set_nonblocking(true)?;
        Ok(Link { peer, channel })
    }

    pub fn peer(&self) -> Rank {
        self.peer
    }

    pub fn is_encrypted(&self) -> bool {
        self.channel.is_encrypted()
    }

    /// The addresses of this end and of the other; `None` for a socket that is not of the internet.
    pub fn ends(&self) -> Option<[IpAddr; 2]> {
        let ip = |address: socket2::SockAddr| address.as_socket().map(|a| a.ip().to_canonical());
        let socket = self.channel.socket();
        Some([ip(socket.local_addr().ok()?)?, ip(socket.peer_addr().ok()?)?])
    }

    /// Sends what the network takes now; 0 when it takes nothing. An encrypted link may hold what it has taken: nothing more is sent on it
    /// before [`flush`](Self::flush) has said that it has left.
    pub fn send_some(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.channel.send(parts) {
            Err(e) if would_wait(&e) => Ok(0),
            other => other,
        }
    }

    /// Receives what has arrived; 0 when nothing has. The end of the stream is an error.
    pub fn recv_some(&self, into: &mut [u8]) -> io::Result<usize> {
        match self.channel.recv(into) {
            Ok(0) if !into.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if would_wait(&e) => Ok(0),
            other => other,
        }
    }

    /// Sends more of what was taken; true once all of it has left (CHAN-1).
    pub fn flush(&self) -> io::Result<bool> {
        self.channel.flush()
    }

    /// Whether something that was taken has not left.
    pub fn holds(&self) -> bool {
        self.channel.holds()
    }

    /// Ends it for both sides.
    pub(crate) fn shut(&self) {
        // A link that is broken already cannot be shut, and need not.
        let _ = self.channel.socket().shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
