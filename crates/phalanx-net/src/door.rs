//! Accepts connections and authenticates them; all others are closed.
//!
//! - DOOR-1: at most `MAX_GUESTS` unauthenticated connections exist; when one more comes, the oldest is closed, those that know the secret last.
//! - DOOR-2: a connection that has not authenticated within `PATIENCE` is closed, however slowly it sends; encryption is part of it.

use crate::auth::{Acceptor, AuthError, Caller, Purpose, fresh_nonce};
use crate::channel::{Channel, Securing, Terms};
use crate::forks::Own;
use crate::socket;
use crate::tls::Tls;
use crate::voice;
use mio::{Interest, Registry, Token, unix::SourceFd};
use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with};
use socket2::Socket;
use std::{
    collections::BTreeMap,
    io::{self, Read},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

pub const MAX_GUESTS: usize = 256;
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Where guests come from: a stream socket of any kind that listens.
#[derive(Debug)]
pub struct Listener {
    pub socket: Socket,
    /// Prepares a guest that has proved itself for what it came for.
    pub tune: fn(&Socket),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Listeners and the guests that have not proved themselves yet. Its tokens begin at `first_token`.
#[derive(Debug)]
pub struct Door {
    listeners: Vec<Own<Listener>>,
    guests: BTreeMap<usize, Guest>,
    terms: Terms,
    purpose: Purpose,
    first_token: usize,
    next_token: usize,
    /// A person was told of somebody who was not let in.
    has_told: bool,
}

#[derive(Debug)]
struct Guest {
    socket: Own<Socket>,
    tune: fn(&Socket),
    address: Option<SocketAddrAny>,
    progress: Progress,
    came: Instant,
}

/// How far a guest has come.
#[derive(Debug)]
enum Progress {
    Proving(Acceptor),
    /// It has the secret, and goes on encrypted.
    Securing(Box<Securing>, Caller),
    Done,
}

impl Door {
    pub fn open(
        listeners: Vec<Listener>,
        terms: Terms,
        purpose: Purpose,
        first_token: usize,
        registry: &Registry,
    ) -> io::Result<Door> {
        let mut door = Door {
            listeners: Vec::new(),
            guests: BTreeMap::new(),
            terms,
            purpose,
            first_token,
            next_token: first_token + listeners.len(),
            has_told: false,
        };
        for (i, listener) in listeners.into_iter().enumerate() {
            listener.socket.set_nonblocking(true)?;
            let fd = listener.socket.as_raw_fd();
            registry.register(&mut SourceFd(&fd), Token(first_token + i), Interest::READABLE)?;
            door.listeners.push(Own::new(listener));
        }
        Ok(door)
    }

    /// When a guest must be shown out at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.guests.values().map(|g| g.came + PATIENCE).min()
    }

    /// Deals with an event; returns a connection that has just proved itself: it does not block, and is still registered under the event's
    /// token.
    pub fn ready(&mut self, registry: &Registry, token: Token) -> Option<(Channel, Caller)> {
        let listener = token.0 - self.first_token;
        if listener < self.listeners.len() {
            self.accept(registry, listener);
            return None;
        }
        let guest = self.guests.get_mut(&token.0)?;
        match talk(guest, &self.terms, self.purpose) {
            Ok(None) => None,
            Ok(Some((caller, tls))) => {
                (guest.tune)(&guest.socket);
                let guest = self.guests.remove(&token.0)?;
                let channel = match tls {
                    None => Channel::plain(guest.socket),
                    Some(tls) => Channel::encrypted(guest.socket, tls),
                };
                Some((channel, caller))
            }
            Err(why) => {
                tracing::warn!(from = guest.origin(), %why, "refused a connection");
                if is_a_mistake(&why) && !matches!(self.purpose, Purpose::Link(_)) && !self.has_told {
                    // Once: strangers may knock as often as they like.
                    self.has_told = true;
                    voice::warn(&format!("a process at {} was not let in: {why}", guest.origin()));
                }
                self.guests.remove(&token.0);
                None
            }
        }
    }

    /// Closes connections that took too long.
    pub fn expire(&mut self, now: Instant) {
        self.guests.retain(|_, guest| {
            let stays = now < guest.came + PATIENCE;
            if !stays {
                tracing::warn!(
                    from = guest.origin(),
                    "closed a connection that did not authenticate in time"
                );
            }
            stays
        });
    }

    /// Closes the oldest connection that has proved nothing yet, or the oldest of all; false if there is none.
    fn make_room(&mut self) -> bool {
        let unproved = self.guests.iter().find(|(_, guest)| matches!(guest.progress, Progress::Proving(_)));
        let leaves = unproved.or_else(|| self.guests.iter().next()).map(|(token, _)| *token);
        leaves.is_some_and(|token| self.guests.remove(&token).is_some())
    }

    fn accept(&mut self, registry: &Registry, listener: usize) {
        // Bounded, so that a flood cannot keep the thread here.
        for _ in 0..MAX_GUESTS {
            let Listener { socket, tune } = &*self.listeners[listener];
            let tune = *tune;
            let (guest, address) = match came(socket) {
                Ok(came) => came,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                // No descriptor is left, for instance: a guest's place is.
                Err(_) if self.make_room() => continue,
                Err(_) => return,
            };
            if self.guests.len() >= MAX_GUESTS {
                self.make_room();
            }
            let token = self.next_token;
            self.next_token += 1;
            if registry.register(&mut SourceFd(&guest.as_raw_fd()), Token(token), Interest::READABLE).is_err()
            {
                continue;
            }
            let acceptor = Acceptor::new(self.terms.secret.clone(), self.purpose, fresh_nonce());
            let progress = Progress::Proving(acceptor.wishing(self.terms.wish(&guest)));
            let guest = Guest { socket: guest, tune, address, progress, came: Instant::now() };
            self.guests.insert(token, guest);
        }
        // Some may still stand outside, and events come only for new ones unless they are asked for again.
        let token = Token(self.first_token + listener);
        let fd = self.listeners[listener].socket.as_raw_fd();
        let _ = registry.reregister(&mut SourceFd(&fd), token, Interest::READABLE);
    }
}

impl Guest {
    /// Where it comes from, for people.
    fn origin(&self) -> String {
        let address = self.address.clone().and_then(|a| SocketAddr::try_from(a).ok());
        address.map_or_else(|| "this host".into(), |a| a.to_string())
    }
}

fn came(listener: &Socket) -> io::Result<(Own<Socket>, Option<SocketAddrAny>)> {
    let (fd, address) = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok((Own::new(fd.into()), address))
}

/// Goes on with a guest; who it is, and its TLS if it has one, once that is proved.
/// Whether this looks like a rank that was started with other settings, not like a stranger.
fn is_a_mistake(why: &io::Error) -> bool {
    let why = why.get_ref().and_then(|why| why.downcast_ref::<AuthError>());
    matches!(
        why,
        Some(
            AuthError::WrongSecret
                | AuthError::OtherBuild { .. }
                | AuthError::RefusesEncryption
                | AuthError::Version { .. }
        )
    )
}

fn talk(guest: &mut Guest, terms: &Terms, purpose: Purpose) -> io::Result<Option<(Caller, Option<Tls>)>> {
    if let Progress::Proving(acceptor) = &mut guest.progress {
        let Some(caller) = prove(acceptor, &guest.socket)? else { return Ok(None) };
        if !acceptor.is_encrypted() {
            return Ok(Some((caller, None)));
        }
        let securing = Box::new(Securing::accept(terms.secret.clone(), purpose, acceptor.seal())?);
        guest.progress = Progress::Securing(securing, caller);
    }
    let Progress::Securing(securing, caller) = &mut guest.progress else {
        unreachable!("a guest that is done has left");
    };
    if !securing.advance(&guest.socket)? {
        return Ok(None);
    }
    let caller = *caller;
    match std::mem::replace(&mut guest.progress, Progress::Done) {
        Progress::Securing(securing, _) => Ok(Some((caller, Some(securing.into_tls())))),
        _ => unreachable!("it was just that"),
    }
}

fn prove(acceptor: &mut Acceptor, mut socket: &Socket) -> io::Result<Option<Caller>> {
    loop {
        let mut bytes = [0; 64];
        let want = acceptor.wants().min(bytes.len());
        let n = match socket.read(&mut bytes[..want]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let mut out = Vec::new();
        let verdict = acceptor.feed(&bytes[..n], &mut out);
        // A fresh connection takes 72 bytes at once; one that does not is not worth waiting for.
        socket::send_all(socket, &out)?;
        if let Some(caller) = verdict.map_err(|e| io::Error::new(io::ErrorKind::PermissionDenied, e))? {
            return Ok(Some(caller));
        }
    }
}
