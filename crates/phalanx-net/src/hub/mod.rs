//! The meeting point of a world: ranks join here, get the roster, and are told which ranks are lost. The launcher runs it, or rank 0.

pub mod message;
pub mod state;

use crate::{
    auth::Purpose,
    channel::{Channel, Terms},
    door::{Door, Listener},
    ending::End,
    frame::{self, Decoder},
    lost::Cause,
    socket,
};
use message::{Down, MAX_FRAME, Up, Verdict, Words};
use mio::{Events, Interest, Poll, Token, Waker, unix::SourceFd};
use phalanx_core::Rank;
use state::{BEAT_MS, HubInput, HubOutput, Membership};
use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    net::{SocketAddr, TcpListener},
    os::fd::AsRawFd,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

const WAKER: Token = Token(0);
const FIRST_DOOR: usize = 1;
/// A member that does not read its messages is not kept for ever.
const MAX_BACKLOG: usize = 16 << 20;

/// A running meeting point; dropping it closes it.
#[derive(Debug)]
pub struct Hub {
    addresses: Vec<SocketAddr>,
    orders: mpsc::Sender<Order>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    Ended(Rank, End),
    /// Read what was said so far, then answer.
    Judge(mpsc::SyncSender<Verdict>),
    /// Close as soon as no rank needs the hub any more.
    CloseLast {
        by: Instant,
    },
    Close,
}

impl Hub {
    /// Serves a world of `n_ranks` on these listeners, with nobody who would hear the ranks' words.
    pub fn start(listeners: Vec<TcpListener>, terms: impl Into<Terms>, n_ranks: u32) -> io::Result<Hub> {
        Hub::start_hearing(listeners, terms, n_ranks, |_, _| {})
    }

    /// The same, for a launcher. `hear` gets what ranks say to people, made plain; it is called by the hub's thread, and must not wait.
    pub fn start_hearing(
        listeners: Vec<TcpListener>,
        terms: impl Into<Terms>,
        n_ranks: u32,
        hear: impl FnMut(Rank, Words) + Send + 'static,
    ) -> io::Result<Hub> {
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let listeners = listeners
            .into_iter()
            .map(|l| Listener { socket: l.into(), tune: |socket| socket::tune_control(socket) })
            .collect();
        let door = Door::open(listeners, terms.into(), Purpose::Hub, FIRST_DOOR, poll.registry())?;
        let (orders, inbox) = mpsc::channel();
        let start = Instant::now();
        let serving = Serving {
            poll,
            door,
            conns: BTreeMap::new(),
            seats: BTreeMap::new(),
            membership: Membership::new(n_ranks, 0),
            hear: Box::new(hear),
            start,
            inbox,
            closes_by: None,
        };
        let thread = std::thread::Builder::new().name("phalanx-hub".into()).spawn(move || serving.run())?;
        Ok(Hub { addresses, orders, waker, thread: Some(thread) })
    }

    /// Where ranks can reach it.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What the ranks hold to be the reason, with all that they have said by now. A hub that does not answer in time knows nothing.
    pub fn verdict(&self, at_most: Duration) -> Verdict {
        let (answer, verdict) = mpsc::sync_channel(1);
        self.order(Order::Judge(answer));
        verdict.recv_timeout(at_most).unwrap_or_default()
    }

    /// Tells every rank how a rank's process ended.
    pub fn rank_ended(&self, rank: Rank, end: End) {
        self.order(Order::Ended(rank, end));
    }

    /// Serves until every rank has left or is lost, or until all know why the world is over, but no longer than this.
    pub fn outlast_others(mut self, at_most: Duration) {
        self.order(Order::CloseLast { by: Instant::now() + at_most });
        let _ = self.thread.take().map(JoinHandle::join);
    }

    fn order(&self, order: Order) {
        // A hub that has ended needs no orders.
        if self.orders.send(order).is_ok() {
            let _ = self.waker.wake();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.order(Order::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Conn {
    rank: Rank,
    channel: Channel,
    decoder: Decoder,
    backlog: Vec<u8>,
}

/// The hub's thread: owns the sockets and the state machine.
struct Serving {
    poll: Poll,
    door: Door,
    conns: BTreeMap<usize, Conn>,
    /// The connection of each rank that has one.
    seats: BTreeMap<Rank, usize>,
    membership: Membership,
    hear: Box<dyn FnMut(Rank, Words) + Send>,
    start: Instant,
    inbox: mpsc::Receiver<Order>,
    /// Set when it ends as soon as nobody needs it any more.
    closes_by: Option<Instant>,
}

impl Serving {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut next_beat = Instant::now() + Duration::from_millis(BEAT_MS);
        loop {
            let now = Instant::now();
            let until = self.door.next_deadline().map_or(next_beat, |d| d.min(next_beat));
            match self.poll.poll(&mut events, Some(until.saturating_duration_since(now))) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!(error = %e, "the hub cannot wait for its sockets and ends");
                    return;
                }
                _ => {}
            }
            // What members say comes before what their closed connections say: a rank that failed because of another one says so first.
            let mut closed = Vec::new();
            for event in events.iter() {
                self.event(event.token(), &mut closed);
            }
            for (token, cause) in closed {
                self.close(token, cause);
            }
            let ordered = !self.obey();
            let unneeded = |by| self.membership.over() || Instant::now() >= by;
            if ordered || self.closes_by.is_some_and(unneeded) {
                self.say_goodbye();
                return;
            }
            let now = Instant::now();
            self.door.expire(now);
            if now >= next_beat {
                next_beat = now + Duration::from_millis(BEAT_MS);
                self.decide(HubInput::Tick);
            }
        }
    }

    fn event(&mut self, token: Token, closed: &mut Vec<(usize, Cause)>) {
        if token == WAKER {
            return;
        }
        if !self.conns.contains_key(&token.0) {
            let Some((channel, caller)) = self.door.ready(self.poll.registry(), token) else { return };
            if let Err(error) = self.welcome(token, channel, caller.rank) {
                tracing::warn!(rank = %caller.rank, %error, "cannot read from a rank: it must connect again");
                return;
            }
        }
        if let Err(cause) = self.read(token.0) {
            closed.push((token.0, cause));
        }
    }

    fn welcome(&mut self, token: Token, channel: Channel, rank: Rank) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let fd = channel.as_raw_fd();
        self.poll.registry().reregister(&mut SourceFd(&fd), token, interest)?;
        let conn = Conn { rank, channel, decoder: Decoder::new(MAX_FRAME), backlog: Vec::new() };
        self.conns.insert(token.0, conn);
        Ok(())
    }

    /// Reads what there is; an error is the reason why the connection is over.
    fn read(&mut self, token: usize) -> Result<(), Cause> {
        let mut bytes = [0; 16 << 10];
        loop {
            let Some(conn) = self.conns.get_mut(&token) else { return Ok(()) };
            flush(conn).map_err(|e| cause_of(&e))?;
            let n = match conn.channel.recv(&mut bytes) {
                Ok(0) => return Err(Cause::Disconnected),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(cause_of(&e)),
            };
            conn.decoder.feed(&bytes[..n]);
            let rank = conn.rank;
            while let Some(up) = self.conns.get_mut(&token).and_then(|c| c.decoder.take::<Up>().transpose()) {
                let up = up.map_err(|e| {
                    tracing::warn!(%rank, error = %e, "a member sent an invalid message");
                    Cause::Disconnected
                })?;
                self.hear(token, rank, up);
            }
        }
    }

    fn hear(&mut self, token: usize, rank: Rank, up: Up) {
        let joins = matches!(up, Up::Join(_));
        let seated = *self.seats.entry(rank).or_insert(token);
        if seated != token && !joins {
            return;
        }
        if let Up::Words(words) = up {
            if self.membership.has_joined(rank) {
                (self.hear)(rank, words.plain());
            }
            return;
        }
        let mut out = Vec::new();
        self.membership.step(self.now(), HubInput::Said(rank, up), &mut out);
        if joins && self.membership.formed() {
            tracing::info!("all ranks have joined: the world forms");
        }
        for output in out {
            match output {
                // Only the newcomer is refused, not the rank that already sits there.
                HubOutput::Refuse(_, why) => self.refuse(token, rank, why),
                HubOutput::Tell(rank, down) => self.tell(rank, &down),
            }
        }
    }

    fn refuse(&mut self, token: usize, rank: Rank, why: String) {
        tracing::warn!(%rank, why, "refused a rank");
        if let Some(mut conn) = self.conns.remove(&token) {
            conn.backlog.extend(frame::encode(&Down::Refused(why)).unwrap_or_default());
            let _ = flush(&mut conn);
        }
        if self.seats.get(&rank) == Some(&token) {
            self.seats.remove(&rank);
        }
    }

    fn decide(&mut self, input: HubInput) {
        let mut out = Vec::new();
        self.membership.step(self.now(), input, &mut out);
        for output in out {
            if let HubOutput::Tell(rank, down) = output {
                self.tell(rank, &down);
            }
        }
    }

    fn tell(&mut self, rank: Rank, down: &Down) {
        let Some(token) = self.seats.get(&rank).copied() else { return };
        let Some(conn) = self.conns.get_mut(&token) else { return };
        conn.backlog.extend(frame::encode(down).unwrap_or_default());
        // What cannot go now goes when the socket is writable again; a failure shows when it is read.
        let _ = flush(conn);
        if conn.backlog.len() > MAX_BACKLOG {
            self.close(token, Cause::Unreachable);
        }
    }

    fn close(&mut self, token: usize, cause: Cause) {
        let Some(conn) = self.conns.remove(&token) else { return };
        if self.seats.get(&conn.rank) == Some(&token) {
            self.seats.remove(&conn.rank);
            self.decide(HubInput::Closed(conn.rank, cause));
        }
    }

    /// Carries out orders; false when the hub shall close.
    fn obey(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Order::Ended(rank, end)) => self.decide(HubInput::Ended(rank, end)),
                Ok(Order::Judge(answer)) => {
                    // A rank that failed and ended at once may have said why just before.
                    self.hear_last_words();
                    let _ = answer.try_send(self.membership.verdict());
                }
                Ok(Order::CloseLast { by }) => self.closes_by = Some(by),
                Ok(Order::Close) | Err(mpsc::TryRecvError::Disconnected) => {
                    self.hear_last_words();
                    return false;
                }
                Err(mpsc::TryRecvError::Empty) => return true,
            }
        }
    }

    /// The process that closes the hub may just have said through it why: that must still reach all ranks.
    fn hear_last_words(&mut self) {
        let tokens: Vec<usize> = self.conns.keys().copied().collect();
        for token in tokens {
            if self.conns.contains_key(&token) {
                // It is over anyway.
                let _ = self.read(token);
            }
        }
    }

    fn say_goodbye(&mut self) {
        for conn in self.conns.values_mut() {
            let _ = flush(conn);
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

fn flush(conn: &mut Conn) -> io::Result<()> {
    while !conn.backlog.is_empty() {
        match conn.channel.send(&[IoSlice::new(&conn.backlog)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => drop(conn.backlog.drain(..n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    // What is left goes when the socket is writable again.
    conn.channel.flush().map(|_| ())
}

/// What a failed connection says about the rank behind it.
pub fn cause_of(error: &io::Error) -> Cause {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Cause::Unreachable
        }
        _ => Cause::Disconnected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{forks::Own, secret::Secret};
    use socket2::{Domain, Socket, Type};

    #[test]
    fn a_rank_that_cannot_be_listened_to_does_not_end_the_hub() {
        let poll = Poll::new().unwrap();
        let (_orders, inbox) = mpsc::channel();
        let door = Door::open(Vec::new(), Secret::random().into(), Purpose::Hub, FIRST_DOOR, poll.registry())
            .unwrap();
        let mut serving = Serving {
            poll,
            door,
            conns: BTreeMap::new(),
            seats: BTreeMap::new(),
            membership: Membership::new(2, 0),
            hear: Box::new(|_, _| {}),
            start: Instant::now(),
            inbox,
            closes_by: None,
        };
        let (socket, _other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        // The system knows no registration of it that could be changed.
        assert!(serving.welcome(Token(7), Channel::plain(Own::new(socket)), Rank(0)).is_err());
        assert_eq!((serving.read(7), serving.conns.len()), (Ok(()), 0));
    }
}
