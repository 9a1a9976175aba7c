//! A connection between two processes of a job, after both have proved themselves: plain inside a host, encrypted where it leaves one.
//!
//! ```text
//! handshake of [`crate::auth`]        fixed lengths: who does not relay it to a holder of the secret gets no further
//! TLS 1.3 handshake                   with keys that are forgotten afterwards
//! connector -> acceptor   proof       (32 bytes, encrypted)
//! connector <- acceptor   proof       (32 bytes, encrypted)
//! ```
//! - AUTH-3: these proofs are made with the job's secret over a value of this TLS session and of the handshake before it. Somebody between
//!   the two would have two sessions with two values, and could pass on neither proof; nor can two connections be spliced.
//! - CHAN-1: a channel that has taken bytes says whether they have left; nobody may wait for an answer before they have.

use crate::{
    auth::{AuthError, EncryptionWish, Purpose},
    forks::Own,
    secret::{LEN, Secret},
    socket,
    tls::Tls,
};
use phalanx_core::Encrypt;
use socket2::Socket;
use std::{
    io::{self, IoSlice, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// On what terms connections of a job are made: the secret that both sides must know, and what is encrypted.
#[derive(Clone, Debug)]
pub struct Terms {
    pub secret: Secret,
    pub encrypt: Encrypt,
}

impl Terms {
    /// What this process wants of a connection on this socket.
    pub(crate) fn wish(&self, socket: &Socket) -> EncryptionWish {
        match self.encrypt {
            Encrypt::Never => EncryptionWish::Never,
            Encrypt::Always => EncryptionWish::Tls,
            Encrypt::Auto if socket::leaves_host(socket) => EncryptionWish::Tls,
            Encrypt::Auto => EncryptionWish::Plain,
        }
    }
}

impl From<Secret> for Terms {
    fn from(secret: Secret) -> Terms {
        Terms { secret, encrypt: Encrypt::Auto }
    }
}

/// An authenticated connection.
#[derive(Debug)]
pub struct Channel {
    socket: Own<Socket>,
    /// A lock because sending and receiving both change it, and both take a shared channel.
    tls: Option<Box<Mutex<Tls>>>,
}

impl Channel {
    pub(crate) fn plain(socket: Own<Socket>) -> Channel {
        Channel { socket, tls: None }
    }

    pub(crate) fn encrypted(socket: Own<Socket>, tls: Tls) -> Channel {
        Channel { socket, tls: Some(Box::new(Mutex::new(tls))) }
    }

    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    fn tls(&self) -> Option<MutexGuard<'_, Tls>> {
        self.tls.as_ref().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends what goes now. What an encrypted channel has taken may not have left yet: see [`flush`](Self::flush).
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self.tls(), parts) {
            (Some(mut tls), parts) => tls.send(&self.socket, parts),
            // Programs in other languages may have kept the signal that a closed stream sends by default.
            (None, [one]) => self.socket.send_with_flags(one, libc::MSG_NOSIGNAL),
            (None, many) => self.socket.send_vectored_with_flags(many, libc::MSG_NOSIGNAL),
        }
    }

    /// Sends more of what was taken; true once all of it has left (CHAN-1).
    pub fn flush(&self) -> io::Result<bool> {
        self.tls().map_or(Ok(true), |mut tls| tls.flush(&self.socket))
    }

    /// Whether something that was taken has not left.
    pub fn holds(&self) -> bool {
        self.tls().is_some_and(|tls| tls.holds())
    }

    /// Receives what has arrived; 0 at the end of the connection.
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        match self.tls() {
            Some(mut tls) => tls.recv(&self.socket, into),
            None => (&*self.socket).read(into),
        }
    }

    /// Sends all of it, on a socket that blocks.
    pub fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send(&[IoSlice::new(bytes)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if self.flush()? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// TLS on its way: the handshake, then the two proofs.
#[derive(Debug)]
pub struct Securing {
    tls: Tls,
    side: Side,
    secret: Secret,
    purpose: Purpose,
    /// Of the handshake before.
    seal: [u8; LEN],
    has_spoken: bool,
    heard: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Connector,
    Acceptor,
}

impl Side {
    fn word(self) -> &'static [u8] {
        match self {
            Side::Connector => b"connector over TLS",
            Side::Acceptor => b"acceptor over TLS",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Connector => Side::Acceptor,
            Side::Acceptor => Side::Connector,
        }
    }
}

impl Securing {
    /// After a handshake with this seal.
    pub fn connect(secret: Secret, purpose: Purpose, seal: [u8; LEN]) -> io::Result<Securing> {
        let (tls, side) = (Tls::connect()?, Side::Connector);
        Ok(Securing { tls, side, secret, purpose, seal, has_spoken: false, heard: Vec::new() })
    }

    /// After a handshake with this seal.
    pub fn accept(secret: Secret, purpose: Purpose, seal: [u8; LEN]) -> io::Result<Securing> {
        let (tls, side) = (Tls::accept()?, Side::Acceptor);
        Ok(Securing { tls, side, secret, purpose, seal, has_spoken: false, heard: Vec::new() })
    }

    pub fn into_tls(self) -> Tls {
        self.tls
    }

    /// Goes on as far as it goes now; true once both sides are proved (AUTH-3). An error of kind `PermissionDenied` holds an [`AuthError`].
    pub fn advance(&mut self, socket: &Socket) -> io::Result<bool> {
        if !self.tls.advance(socket)? {
            return Ok(false);
        }
        if self.side == Side::Connector {
            self.speak(socket)?;
        }
        while self.heard.len() < LEN {
            let mut bytes = [0; LEN];
            match self.tls.recv(socket, &mut bytes[self.heard.len()..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    let from = self.heard.len();
                    self.heard.extend_from_slice(&bytes[from..from + n]);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        let proof: [u8; LEN] = self.heard[..].try_into().expect("it was read to its length");
        let bond = self.tls.bond(&self.seal)?;
        if !self.secret.verify(&[self.side.other().word(), &self.purpose.bytes(), &bond], &proof) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, AuthError::InBetween));
        }
        self.speak(socket)?;
        Ok(true)
    }

    fn speak(&mut self, socket: &Socket) -> io::Result<()> {
        if self.has_spoken {
            return Ok(());
        }
        self.has_spoken = true;
        let bond = self.tls.bond(&self.seal)?;
        let proof = self.secret.prove(&[self.side.word(), &self.purpose.bytes(), &bond]);
        // A fresh connection takes these few bytes at once; one that does not is not worth waiting for.
        let n = self.tls.send(socket, &[IoSlice::new(&proof)])?;
        if n == LEN && self.tls.flush(socket)? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};
    use std::{net::Shutdown, thread};

    const LINK: Purpose = Purpose::Link(phalanx_core::Rank(0));
    const SEAL: [u8; LEN] = [9; LEN];

    fn pair() -> (Own<Socket>, Own<Socket>) {
        let (a, b) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        for socket in [&a, &b] {
            let deadline = Some(std::time::Duration::from_secs(20));
            socket.set_read_timeout(deadline).unwrap();
            socket.set_write_timeout(deadline).unwrap();
        }
        (Own::new(a), Own::new(b))
    }

    /// The two ends of an encrypted connection between holders of these secrets, on sockets that block.
    fn secured(c: &Secret, a: &Secret, sockets: (Own<Socket>, Own<Socket>)) -> [io::Result<Channel>; 2] {
        let (near, far) = sockets;
        let far_side = Securing::accept(a.clone(), LINK, SEAL).unwrap();
        let far_end = thread::spawn(move || finish(far_side, far));
        let near_end = finish(Securing::connect(c.clone(), LINK, SEAL).unwrap(), near);
        [near_end, far_end.join().unwrap()]
    }

    fn finish(mut securing: Securing, socket: Own<Socket>) -> io::Result<Channel> {
        match securing.advance(&socket) {
            Ok(true) => Ok(Channel::encrypted(socket, securing.into_tls())),
            Ok(false) => Err(io::ErrorKind::TimedOut.into()),
            Err(e) => {
                let _ = socket.shutdown(Shutdown::Both);
                Err(e)
            }
        }
    }

    #[test]
    fn bytes_cross_an_encrypted_channel_both_ways_however_they_are_cut() {
        let secret = Secret::random();
        let [near, far] = secured(&secret, &secret, pair()).map(Result::unwrap);
        let sent: Vec<u8> = (0..3_000_001u32).map(|i| (i * 7 % 251) as u8).collect();
        for (from, to, piece) in [(&near, &far, 1 << 20), (&far, &near, 777)] {
            thread::scope(|scope| {
                let sent = &sent;
                scope.spawn(move || from.send_all(sent).unwrap());
                let mut got = Vec::new();
                let mut bytes = vec![0; piece];
                while got.len() < sent.len() {
                    let n = to.recv(&mut bytes).unwrap();
                    assert!(n > 0);
                    got.extend_from_slice(&bytes[..n]);
                }
                assert!(got == *sent);
            });
        }
        near.socket().shutdown(Shutdown::Both).unwrap();
        assert_eq!(far.recv(&mut [0; 8]).unwrap(), 0, "an end is an end");
    }

    #[test]
    fn a_channel_that_cannot_send_says_that_it_holds_something() {
        let secret = Secret::random();
        let [near, far] = secured(&secret, &secret, pair()).map(Result::unwrap);
        near.socket().set_nonblocking(true).unwrap();
        let (bytes, mut taken) = (vec![7; 1 << 20], 0);
        while let Ok(n) = near.send(&[IoSlice::new(&bytes)]) {
            taken += n;
        }
        assert!(near.holds() && !near.flush().unwrap(), "CHAN-1");
        let mut got = 0;
        while got < taken {
            got += far.recv(&mut vec![0; 1 << 16]).unwrap();
            near.flush().unwrap();
        }
        assert!(near.flush().unwrap() && !near.holds(), "CHAN-1");
    }

    #[test]
    fn somebody_between_the_two_is_noticed_by_both() {
        // Both talk to the same third process, which has everything but the secret, and passes on what it hears.
        let (secret, other) = (Secret::random(), Secret::random());
        let ((near, near_middle), (far_middle, far)) = (pair(), pair());
        let middle = thread::spawn(move || {
            let mut as_acceptor = Securing::accept(other.clone(), LINK, SEAL).unwrap();
            let mut as_connector = Securing::connect(other, LINK, SEAL).unwrap();
            as_acceptor.tls.advance(&near_middle).unwrap();
            as_connector.tls.advance(&far_middle).unwrap();
            let mut proof = [0; LEN];
            as_acceptor.tls.recv(&near_middle, &mut proof).unwrap();
            as_connector.tls.send(&far_middle, &[IoSlice::new(&proof)]).unwrap();
            // What the far end answers, if it answers.
            let mut answer = [0; LEN];
            if as_connector.tls.recv(&far_middle, &mut answer).is_ok_and(|n| n == LEN) {
                as_acceptor.tls.send(&near_middle, &[IoSlice::new(&answer)]).unwrap();
            }
        });
        let side = Securing::accept(secret.clone(), LINK, SEAL).unwrap();
        let far = thread::spawn(move || finish(side, far));
        let near = finish(Securing::connect(secret, LINK, SEAL).unwrap(), near);
        let error = far.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "AUTH-3: {error}");
        assert!(near.is_err(), "AUTH-3");
        middle.join().unwrap();
    }

    #[test]
    fn a_connector_refuses_an_acceptor_that_cannot_prove_the_secret_or_sends_its_proof_back() {
        for is_reflected in [false, true] {
            let (near, far) = pair();
            let acceptor = thread::spawn(move || {
                let mut side = Securing::accept(Secret::random(), LINK, SEAL).unwrap();
                assert!(side.tls.advance(&far).unwrap());
                let mut proof = [0; LEN];
                side.tls.recv(&far, &mut proof).unwrap();
                let answer = if is_reflected { proof } else { [3; LEN] };
                side.tls.send(&far, &[IoSlice::new(&answer)]).unwrap();
                // Not before the other end has read it.
                let _ = side.tls.recv(&far, &mut proof);
            });
            let error = finish(Securing::connect(Secret::random(), LINK, SEAL).unwrap(), near).unwrap_err();
            let why = error.get_ref().and_then(|inner| inner.downcast_ref::<AuthError>());
            assert_eq!(why, Some(&AuthError::InBetween), "AUTH-3, reflected {is_reflected}");
            acceptor.join().unwrap();
        }
    }

    #[test]
    fn sessions_that_were_spliced_behind_two_handshakes_are_noticed() {
        let secret = Secret::random();
        let (near, far) = pair();
        let side = Securing::accept(secret.clone(), LINK, [8; LEN]).unwrap();
        let far = thread::spawn(move || finish(side, far));
        let near = finish(Securing::connect(secret, LINK, SEAL).unwrap(), near);
        let error = far.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "AUTH-3");
        assert!(near.is_err(), "AUTH-3");
    }

    #[test]
    fn another_secret_and_garbage_are_errors_on_both_sides() {
        let [near, far] = secured(&Secret::random(), &Secret::random(), pair());
        assert!(near.is_err() && far.unwrap_err().kind() == io::ErrorKind::PermissionDenied, "AUTH-3");
        for seed in 0..200u8 {
            let (near, far) = pair();
            let mut bytes = vec![seed; 600];
            getrandom::fill(&mut bytes[usize::from(seed) % 8..]).unwrap();
            socket::send_all(&near, &bytes).unwrap();
            near.shutdown(Shutdown::Write).unwrap();
            assert!(
                finish(Securing::accept(Secret::random(), Purpose::Hub, SEAL).unwrap(), far).is_err(),
                "{seed}"
            );
        }
    }
}
