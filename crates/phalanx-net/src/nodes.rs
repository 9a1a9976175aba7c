//! How the launchers of one job on several hosts find and trust each other, where nothing can start one from another: node 0's
//! listens, the others connect.
//!
//! - NODE-1: a launcher takes part only if it proves the secret that all of them were given; what follows is encrypted where it leaves the host.
//! - NODE-2: a launcher that waits for node 0's gives up at its deadline, and says where it looked.

use crate::{
    auth::{AuthError, Caller, Purpose},
    board::{self, Post, Wait},
    channel::{Channel, Terms},
    discover::{BoardAddress, DiscoverError, Meeting, meeting},
    door::{Door, Listener},
    error::{BoardError, NetError},
    forks::Own,
    frame::{self, FrameError},
    secret::Secret,
    secret_source, socket,
    world::place::{ATTEMPT, Doorstep, Knock, NO_SECRET, RETRY_EVERY, doors, shake},
};
use mio::{Events, Poll, Token, Waker, unix::SourceFd};
use phalanx_core::{Config, Encrypt, Epoch, Rank};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt,
    io::{self, IoSlice, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    os::fd::AsRawFd,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

const WAKER: Token = Token(0);
const FIRST_DOOR: usize = 1;
/// How long a launcher may take to read what it is told.
const SAYS: Duration = Duration::from_secs(5);

/// Where launchers meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePlace {
    /// Node 0 listens at those of these addresses that it has.
    At(Vec<String>),
    /// Node 0 listens wherever it can, and tells the others on a board.
    Board(BoardAddress),
}

impl NodePlace {
    /// Reads `host:port[,host:port]`, `etcd://host:port/job` or `file:/directory`; an error says why it is none of these.
    pub fn parse(text: &str) -> Result<NodePlace, String> {
        let only = |name: &str| (name == "PHALANX_RENDEZVOUS").then(|| text.to_string());
        match meeting::told(&only) {
            Ok(Some(Meeting::RankZero { hosts, .. })) => {
                match hosts.iter().find(|host| !meeting::has_port(host)) {
                    Some(host) => Err(format!("{host:?} has no port")),
                    None => Ok(NodePlace::At(hosts)),
                }
            }
            Ok(Some(Meeting::Board(board))) => Ok(NodePlace::Board(board)),
            Err(DiscoverError::NotAMeeting { why, .. }) => Err(why),
            _ => Err("it is empty".into()),
        }
    }
}

impl fmt::Display for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodePlace::At(addresses) => f.write_str(&addresses.join(",")),
            NodePlace::Board(board) => board.fmt(f),
        }
    }
}

/// Why launchers cannot meet.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("the launchers of a job on several hosts need a common secret: {NO_SECRET}")]
    NoSecret,
    #[error(
        "node 0 cannot listen at {place}: {why}; --rdzv names an address of node 0's host and a port that is free there"
    )]
    Listen { place: String, why: String },
    #[error(
        "no launcher of node 0 was found at {place} within {waited_s} s ({last}); start it, or give a longer --start-timeout"
    )]
    NoNodeZero { place: String, waited_s: f64, last: String },
    #[error("the launcher of node 0 at {address}: {error}")]
    Auth { address: String, error: AuthError },
    #[error("through {place}: {error}")]
    Board { place: String, error: BoardError },
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("the system refused {what}: {error}")]
    System { what: &'static str, error: io::Error },
}

/// The secret that the launchers were given: in the environment, in a file, or as the user's key.
pub fn given_secret() -> Result<Secret, NodeError> {
    secret_source::existing()?.ok_or(NodeError::NoSecret)
}

/// A meeting point as it may be shown in an error: without a password that somebody wrote into it.
pub fn shown(text: &str) -> String {
    meeting::without_password(text)
}

/// A fresh and public name of a job.
pub fn fresh_job() -> [u8; 16] {
    board::fresh_id()
}

/// The secret of the ranks of this job, which every launcher computes for itself.
pub fn job_secret(given: &Secret, job: &[u8; 16]) -> Secret {
    given.derive(&[b"job ".as_slice(), job].concat())
}

/// A connection between two launchers. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct NodeLine {
    channel: Arc<Channel>,
    /// Held by who writes a message, so that two are never mixed.
    writing: Arc<Mutex<()>>,
}

impl NodeLine {
    fn new(channel: Channel) -> io::Result<NodeLine> {
        channel.socket().set_nonblocking(true)?;
        Ok(NodeLine { channel: Arc::new(channel), writing: Arc::default() })
    }

    /// Sends a message, whole or not at all.
    pub fn say<T: Serialize>(&self, message: &T) -> Result<(), FrameError> {
        let bytes = frame::encode(message)?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut to = Waiting { channel: &self.channel, until: Some(Instant::now() + SAYS) };
        to.write_all(&bytes)?;
        Ok(to.flush()?)
    }

    /// Waits for a message; `None` when the other side is gone. One thread only.
    pub fn hear<T: DeserializeOwned>(&self, cap: usize) -> Result<Option<T>, FrameError> {
        frame::read(&mut Waiting { channel: &self.channel, until: None }, cap)
    }

    /// The same with a deadline.
    pub fn hear_within<T: DeserializeOwned>(
        &self,
        cap: usize,
        within: Duration,
    ) -> Result<Option<T>, FrameError> {
        let until = Some(Instant::now() + within);
        frame::read(&mut Waiting { channel: &self.channel, until }, cap)
    }

    /// Whether nothing has come that was not heard, not even the end.
    pub fn is_quiet(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&*self.channel, PollFlags::IN)], Some(&now)), Ok(0))
    }

    /// Ends the connection, also for the threads that wait on it here.
    pub fn close(&self) {
        let _ = self.channel.socket().shutdown(Shutdown::Both);
    }

    /// Where the other side is.
    pub fn peer(&self) -> String {
        let address = self.channel.socket().peer_addr().ok().and_then(|a| a.as_socket());
        address.map_or_else(|| "this host".into(), |a| a.ip().to_string())
    }
}

/// A channel that does not block, as one that waits.
struct Waiting<'a> {
    channel: &'a Channel,
    until: Option<Instant>,
}

impl Waiting<'_> {
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = left.map(|d| Timespec { tv_sec: d.as_secs() as _, tv_nsec: d.subsec_nanos() as _ });
        match poll(&mut [PollFd::new(self.channel, flags)], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Waiting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.channel.recv(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                other => return other,
            }
        }
    }
}

impl Write for Waiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.channel.send(&[IoSlice::new(bytes)]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.channel.flush()? {
            self.wait(PollFlags::OUT)?;
        }
        Ok(())
    }
}

/// Node 0's open door; dropping it closes it, and takes its announcement off the board.
#[derive(Debug)]
pub struct NodeDoor {
    addresses: Vec<SocketAddr>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    _post: Option<Post>,
}

impl NodeDoor {
    /// Lets other launchers in. `welcome` gets each, and must not wait.
    pub fn open(
        place: &NodePlace,
        given: &Secret,
        encrypt: Encrypt,
        interfaces: &[String],
        within: Duration,
        welcome: impl FnMut(NodeLine) + Send + 'static,
    ) -> Result<NodeDoor, NodeError> {
        let (listeners, secret, post) = match place {
            NodePlace::At(hosts) => {
                let secret = of_launchers(given);
                (listen(place, &doors(hosts, &secret))?, secret, None)
            }
            NodePlace::Board(address) => {
                let listeners = listen_everywhere(interfaces)?;
                let failed = |error| NodeError::Board { place: place.to_string(), error };
                let mut post = board::post(address, given).map_err(failed)?;
                let addresses = addresses_of(&listeners)?;
                let secret = post.announce(addresses, Wait::within(within)).map_err(failed)?;
                (listeners, secret, Some(post))
            }
        };
        let addresses = addresses_of(&listeners)?;
        let refused = |error| NodeError::System { what: "a door for launchers", error };
        let poll = Poll::new().map_err(refused)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(refused)?);
        let listeners = listeners
            .into_iter()
            .map(|l| Listener { socket: l.into(), tune: |socket| socket::tune_control(socket) })
            .collect();
        let terms = Terms { secret, encrypt };
        let door = Door::open(listeners, terms, Purpose::Launcher, FIRST_DOOR, poll.registry());
        let door = door.map_err(refused)?;
        let thread = std::thread::Builder::new().name("phalanx-door".into());
        let thread = thread.spawn(move || attend(poll, door, welcome)).map_err(refused)?;
        Ok(NodeDoor { addresses, waker, thread: Some(thread), _post: post })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for NodeDoor {
    fn drop(&mut self) {
        let _ = self.waker.wake();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn attend(mut poll: Poll, mut door: Door, mut welcome: impl FnMut(NodeLine)) {
    let mut events = Events::with_capacity(64);
    loop {
        let wait = door.next_deadline().map(|by| by.saturating_duration_since(Instant::now()));
        match poll.poll(&mut events, wait) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => return,
            _ => {}
        }
        for event in &events {
            // It is woken once: to end.
            if event.token() == WAKER {
                return;
            }
            let Some((channel, _)) = door.ready(poll.registry(), event.token()) else { continue };
            let _ = poll.registry().deregister(&mut SourceFd(&channel.as_raw_fd()));
            match NodeLine::new(channel) {
                Ok(line) => welcome(line),
                Err(error) => tracing::warn!(%error, "cannot listen to a launcher"),
            }
        }
        door.expire(Instant::now());
    }
}

fn of_launchers(given: &Secret) -> Secret {
    given.derive(b"launchers")
}

fn addresses_of(listeners: &[TcpListener]) -> Result<Vec<SocketAddr>, NodeError> {
    let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>();
    addresses.map_err(|error| NodeError::System { what: "an address of its own", error })
}

/// Listens at every one of these that is this host's; at least one must be.
fn listen(place: &NodePlace, doors: &[Doorstep]) -> Result<Vec<TcpListener>, NodeError> {
    let mut listeners = Vec::new();
    let mut last = String::new();
    for door in doors {
        match door.listen(&Config::default()) {
            Ok(found) => listeners.extend(found),
            Err(error) => last = error.to_string(),
        }
    }
    if listeners.is_empty() {
        return Err(NodeError::Listen { place: place.to_string(), why: last });
    }
    Ok(listeners)
}

fn listen_everywhere(interfaces: &[String]) -> Result<Vec<TcpListener>, NodeError> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for name in interfaces {
        ips.extend(socket::addresses_of(name).map_err(NetError::from)?);
    }
    if interfaces.is_empty() {
        ips = socket::outward_addresses().map_err(NetError::from)?;
    }
    if ips.is_empty() {
        ips.push(Ipv4Addr::LOCALHOST.into());
    }
    ips.sort_unstable();
    ips.dedup();
    let listeners = ips.iter().map(|&ip| socket::listen(ip, 0)).collect::<Result<_, _>>();
    Ok(listeners.map_err(NetError::from)?)
}

/// Connects to the launcher of node 0, as this node, as soon as it is there.
pub fn connect(
    place: &NodePlace,
    given: &Secret,
    encrypt: Encrypt,
    node: u32,
    within: Duration,
) -> Result<NodeLine, NodeError> {
    let deadline = Instant::now() + within;
    let nobody = |last: String| NodeError::NoNodeZero {
        place: place.to_string(),
        waited_s: within.as_secs_f64(),
        last,
    };
    let (mut addresses, mut secret, mut post) = match place {
        NodePlace::At(hosts) => {
            let secret = of_launchers(given);
            (doors(hosts, &secret).iter().flat_map(Doorstep::addresses).collect(), secret, None)
        }
        NodePlace::Board(address) => {
            let failed = |error| match error {
                BoardError::Late { .. } => nobody("nothing was announced there".into()),
                error => NodeError::Board { place: place.to_string(), error },
            };
            let mut post = board::post(address, given).map_err(failed)?;
            let (addresses, secret) = post.look(Wait::within(within)).map_err(failed)?;
            (addresses, secret, Some(post))
        }
    };
    loop {
        let mut last = String::from("it has no address");
        let terms = Terms { secret: secret.clone(), encrypt };
        for address in &addresses {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match knock(address, &terms, node, left.min(ATTEMPT)) {
                Ok(line) => return Ok(line),
                // What was announced may be of an earlier job.
                Err(Knock::Auth(error)) if post.is_none() => {
                    return Err(NodeError::Auth { address: address.clone(), error });
                }
                Err(Knock::Auth(error)) => last = error.to_string(),
                Err(Knock::Io(error)) => last = error.to_string(),
            }
        }
        if let Some(found) = post.as_mut().and_then(Post::look_again) {
            (addresses, secret) = found;
        }
        if Instant::now() >= deadline {
            return Err(nobody(last));
        }
        // Not a wait for a condition that could be observed: node 0 may not have started yet.
        std::thread::park_timeout(RETRY_EVERY);
    }
}

fn knock(address: &str, terms: &Terms, node: u32, timeout: Duration) -> Result<NodeLine, Knock> {
    let found = address.to_socket_addrs().map_err(Knock::Io)?.next();
    let found = found.ok_or_else(|| Knock::Io(io::Error::other("the name has no address")))?;
    let stream = TcpStream::connect_timeout(&found, timeout).map_err(Knock::Io)?;
    socket::tune_control(&stream);
    let caller = Caller { rank: Rank(node), epoch: Epoch(0), stream: 0 };
    let channel = shake(Own::new(stream.into()), terms, Purpose::Launcher, caller, timeout)?;
    NodeLine::new(channel).map_err(Knock::Io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn places_are_read_as_ranks_read_theirs() {
        for (text, shown) in [
            ("n0:29500", Some("n0:29500")),
            ("n0:1,n0.lan:2", Some("n0:1,n0.lan:2")),
            ("file:/mnt/meet", Some("file:/mnt/meet")),
            ("etcd://e/lenet", Some("etcd://e:2379/lenet")),
            ("file:///mnt//meet/", Some("file:/mnt/meet")),
            ("[::1]:29500", Some("[::1]:29500")),
            ("http://x", None),
            ("file:relative", None),
            ("n0", None),
            ("::1", None),
            ("", None),
        ] {
            assert_eq!(NodePlace::parse(text).map(|p| p.to_string()).ok().as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn launchers_with_one_secret_meet_and_talk_both_ways_at_once() {
        let given = Secret::random();
        for encrypt in [Encrypt::Auto, Encrypt::Always] {
            let (come, came) = mpsc::channel();
            let any = NodePlace::At(vec!["127.0.0.1:0".into()]);
            let door = NodeDoor::open(&any, &given, encrypt, &[], LONG, move |line| come.send(line).unwrap());
            let door = door.unwrap();
            let place = NodePlace::At(vec![door.addresses()[0].to_string()]);
            let error = connect(&place, &Secret::random(), encrypt, 1, LONG).unwrap_err();
            assert!(
                matches!(error, NodeError::Auth { error: AuthError::WrongSecret, .. }),
                "NODE-1: {error}"
            );
            let near = connect(&place, &given, encrypt, 1, LONG).unwrap();
            let far = came.recv_timeout(LONG).unwrap();
            assert!(near.is_quiet());
            let echo = far.clone();
            let other = std::thread::spawn(move || {
                while let Some(text) = echo.hear::<Vec<u8>>(1 << 20).unwrap() {
                    echo.say(&text).unwrap();
                }
            });
            for n in [0, 1, 100_000] {
                near.say(&vec![7u8; n]).unwrap();
                assert_eq!(near.hear::<Vec<u8>>(1 << 20).unwrap(), Some(vec![7; n]));
            }
            near.close();
            other.join().unwrap();
            assert!(!far.is_quiet(), "an end is noticed");
        }
    }

    #[test]
    fn a_node_0_that_never_comes_is_waited_for_no_longer_than_the_deadline() {
        let place = NodePlace::At(vec!["127.0.0.1:1".into()]);
        let error =
            connect(&place, &Secret::random(), Encrypt::Auto, 1, Duration::from_millis(50)).unwrap_err();
        assert!(
            error.to_string().starts_with("no launcher of node 0 was found at 127.0.0.1:1"),
            "NODE-2: {error}"
        );
    }
}
