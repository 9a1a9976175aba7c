//! A world: the membership of one epoch. Built once, never repaired.
//!
//! - WORLD-1: every rank of a world has the same roster, hence the same topology.

use crate::{
    arena::{Arena, Offer, Patience, Source},
    auth::{AuthError, Caller, Connector, Purpose, fresh_nonce},
    cores,
    discover::{self, Identity, Meeting},
    error::NetError,
    frame::{self, Decoder},
    hub::{
        Hub,
        message::{Down, MAX_FRAME, Member, Up},
    },
    link::Link,
    lost::{Casualties, Cause, Doom},
    secret::Secret,
    socket,
    watch::{Charge, HubHost, Watch},
};
use phalanx_core::{Config, Epoch, Rank, Topology, Transport};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// How long one attempt to connect may take before the next address is tried.
const ATTEMPT: Duration = Duration::from_secs(2);
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// How long a rank that nothing is known against may refuse a link; longer than it takes to find out that it is frozen.
const LINK_PATIENCE: Duration = Duration::from_secs(10);
/// How long one handshake of a link may take before it is tried again.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// How long the hub has to say what everybody shall name as the reason of a failure.
const AGREEMENT: Duration = Duration::from_millis(250);
/// Ports that rank 0 tries when nobody chose one.
const N_PORTS: u16 = 16;

/// One rank's place in a world, with all it needs to talk to the others.
#[derive(Debug)]
pub struct World {
    rank: Rank,
    source: &'static str,
    topology: Arc<Topology>,
    members: Vec<Member>,
    config: Config,
    secret: Secret,
    arena: Option<Arc<Arena>>,
    casualties: Arc<Casualties>,
    /// Communicator numbers below this are taken, as far as this rank knows.
    next_communicator: AtomicU32,
    /// A lock because several communicators of this rank open links; never held while one is used.
    links: Mutex<BTreeMap<(Rank, u32), Arc<Link>>>,
    watch: Option<Watch>,
    /// Where this rank serves it.
    hub: Option<Hub>,
}

impl World {
    /// Joins the world that the environment describes.
    pub fn from_env() -> Result<World, NetError> {
        let config = Config::from_vars(
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))),
        )?;
        let parent = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get() as u32);
        let identity =
            discover::discover(&|name| std::env::var(name).ok().filter(|v| !v.is_empty()), parent)?;
        let secret = match identity.meeting {
            Meeting::Alone => Secret::random(),
            _ => crate::secret_source::find()?,
        };
        World::join(identity, secret, config)
    }

    /// Joins the world as this rank.
    pub fn join(identity: Identity, secret: Secret, config: Config) -> Result<World, NetError> {
        let deadline = Instant::now() + config.start_timeout;
        let place = Place::find(&identity, secret, &config)?;
        let Some(place) = place else { return World::alone(identity, config) };
        let (mut hub_stream, hub_ip) = connect_hub(&place, identity.rank, deadline, &config)?;
        let offer = Offer::make(identity.n_ranks.min(crate::arena::MAX_LOCAL as u32) as usize)
            .map_err(|error| NetError::Arena { error })?;
        let ips = match &config.interface {
            Some(name) => socket::addresses_of(name)?,
            None => vec![hub_ip],
        };
        let listeners = ips.iter().take(4).map(|&ip| socket::listen(ip, 0)).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<SocketAddr> = listeners.iter().filter_map(|l| l.local_addr().ok()).collect();
        let member = introduce(&identity, &config, &offer, addresses);
        let hello = frame::encode(&Up::Join(member)).expect("a member's introduction is small");
        hub_stream
            .write_all(&hello)
            .map_err(|error| NetError::System { what: "cannot speak to the hub", error })?;
        let mut decoder = Decoder::new(MAX_FRAME);
        let members = match await_roster(&mut hub_stream, &mut decoder, deadline, &identity, &config) {
            // Otherwise the others would take this rank's end for the reason.
            Err(error @ NetError::NotFormed { .. }) => {
                return Err(give_up(hub_stream, decoder, &identity, &place, error));
            }
            Err(NetError::System { .. }) if place.hub_rank(&identity).is_some() => {
                return Err(hub_rank_lost());
            }
            other => other?,
        };

        let topology = Arc::new(topology_of(&members));
        let casualties = Arc::new(Casualties::new(identity.n_ranks));
        let neighbours = topology.neighbours(identity.rank).to_vec();
        let arena = match neighbours.len() {
            0 | 1 => None,
            _ => match share_memory(offer, &members, &neighbours, &identity, &casualties) {
                Ok(arena) => Some(arena),
                // Only `alloc` would have used it.
                Err(_) if config.transport == Transport::Tcp => None,
                Err(error) => return Err(give_up(hub_stream, decoder, &identity, &place, error)),
            },
        };
        let pidfds = neighbours
            .iter()
            .filter(|&&r| r != identity.rank)
            .filter_map(|&r| {
                let pid = rustix::process::Pid::from_raw(members[r.index()].pid as i32)?;
                Some((r, rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?))
            })
            .collect();
        let charge = Charge {
            me: identity.rank,
            hub: hub_stream,
            hub_host: if place.hub.is_some() || place.served_by_rank_0 {
                HubHost::Rank(Rank::ZERO)
            } else {
                HubHost::Launcher
            },
            decoder,
            listeners,
            secret: place.secret.clone(),
            pidfds,
            arena: arena.clone(),
            casualties: casualties.clone(),
        };
        let watch = Watch::start(charge)
            .map_err(|error| NetError::System { what: "cannot start the watch", error })?;
        tracing::info!(rank = %identity.rank, n_ranks = identity.n_ranks, hosts = topology.n_hosts(), source = identity.source, "world formed");
        Ok(World {
            rank: identity.rank,
            source: identity.source,
            topology,
            members,
            config,
            secret: place.secret,
            arena,
            casualties,
            next_communicator: AtomicU32::new(1),
            links: Mutex::new(BTreeMap::new()),
            watch: Some(watch),
            hub: place.hub,
        })
    }

    fn alone(identity: Identity, config: Config) -> Result<World, NetError> {
        let offer = Offer::make(1).map_err(|error| NetError::Arena { error })?;
        let me = introduce(&identity, &config, &offer, Vec::new());
        let casualties = Arc::new(Casualties::new(1));
        let members = vec![me];
        let arena = share_memory(offer, &members, &[Rank::ZERO], &identity, &casualties)?;
        Ok(World {
            rank: Rank::ZERO,
            source: identity.source,
            topology: Arc::new(Topology::one_host(1)),
            members,
            config,
            secret: Secret::random(),
            arena: Some(arena),
            casualties,
            next_communicator: AtomicU32::new(1),
            links: Mutex::new(BTreeMap::new()),
            watch: None,
            hub: None,
        })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn n_ranks(&self) -> u32 {
        self.topology.n_ranks()
    }

    /// Which launcher's words made this world.
    pub fn source(&self) -> &'static str {
        self.source
    }

    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }

    pub fn casualties(&self) -> &Casualties {
        &self.casualties
    }

    pub fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    /// The lowest communicator number this rank has not seen in use; 0 is the whole world's.
    pub fn next_communicator(&self) -> u32 {
        self.next_communicator.load(Ordering::Relaxed)
    }

    /// Numbers below this are taken from now on. Relaxed: ranks agree on numbers by collectives, which order everything.
    pub fn take_communicators_below(&self, number: u32) {
        self.next_communicator.fetch_max(number, Ordering::Relaxed);
    }

    /// Ends this world for everybody: called by the rank whose operation failed. Returns what everybody names as the reason, which another
    /// rank may have known better; by then everybody has been told, so that this rank may end.
    pub fn doom(&self, doom: Doom) -> Doom {
        let agreed = self.watch.as_ref().and_then(|watch| {
            watch.doom(doom.clone());
            self.casualties.await_agreement(AGREEMENT)
        });
        let agreed = agreed.unwrap_or(doom);
        self.casualties.doom(agreed.clone());
        // Whoever waits for this rank is told even if there is no hub to tell it.
        if let Some(arena) = &self.arena {
            arena.poison(&agreed);
        }
        self.links.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(|link| link.shut());
        agreed
    }

    /// The link number `stream` to a rank; opened when it is first wanted. The higher rank connects, the lower one accepts.
    pub fn link(&self, peer: Rank, stream: u32) -> Result<Arc<Link>, NetError> {
        if let Some(link) = self.links.lock().unwrap_or_else(PoisonError::into_inner).get(&(peer, stream)) {
            return Ok(link.clone());
        }
        let watch = self.watch.as_ref().expect("a rank with peers has a watch");
        let deadline = Instant::now() + self.config.timeout;
        let tcp = if self.rank > peer {
            self.connect(peer, stream, deadline)?
        } else {
            self.accept(watch, peer, stream, deadline)?
        };
        let link =
            Link::new(peer, tcp).map_err(|error| NetError::System { what: "cannot set up a link", error })?;
        let link = Arc::new(link);
        self.links.lock().unwrap_or_else(PoisonError::into_inner).insert((peer, stream), link.clone());
        Ok(link)
    }

    fn accept(
        &self,
        watch: &Watch,
        peer: Rank,
        stream: u32,
        deadline: Instant,
    ) -> Result<TcpStream, NetError> {
        let start = Instant::now();
        loop {
            // In slices, to see a verdict about the peer meanwhile.
            let slice = (Instant::now() + RETRY_EVERY).min(deadline);
            if let Some(tcp) = watch.inbox().take(peer, stream, slice) {
                return Ok(tcp);
            }
            if let Some(doom) = self.casualties.verdict(peer) {
                return Err(doom.into());
            }
            if Instant::now() >= deadline {
                return Err(NetError::Late { rank: peer, waited_s: start.elapsed().as_secs_f64() });
            }
        }
    }

    /// Tries again until the peer answers or something is known against it: it may be dying, frozen, or besieged by strangers.
    fn connect(&self, peer: Rank, stream: u32, deadline: Instant) -> Result<TcpStream, NetError> {
        let deadline = deadline.min(Instant::now() + LINK_PATIENCE);
        let addresses = &self.members[peer.index()].addresses;
        let mut last = String::from("it told no address");
        loop {
            for address in addresses {
                if let Some(doom) = self.casualties.verdict(peer) {
                    return Err(doom.into());
                }
                let caller = Caller { rank: self.rank, epoch: Epoch(0), stream };
                let tried =
                    TcpStream::connect_timeout(address, ATTEMPT).map_err(Knock::Io).and_then(|mut tcp| {
                        shake(&mut tcp, &self.secret, Purpose::Link, caller, HANDSHAKE).map(|()| tcp)
                    });
                match tried {
                    Ok(tcp) => return Ok(tcp),
                    Err(Knock::Io(e)) => last = e.to_string(),
                    Err(Knock::Auth(error)) => {
                        return Err(NetError::Auth { with: format!("rank {peer}"), error });
                    }
                }
            }
            if Instant::now() >= deadline {
                let tried = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                return Err(NetError::NoLink { rank: peer, tried, last });
            }
            // Not a wait for a condition that could be observed: the peer's door may be shut for a moment.
            std::thread::park_timeout(RETRY_EVERY);
        }
    }
}

/// Leaves, and then, where this rank serves the hub, serves it until the others have left, too: without it they could not tell each other of
/// failures. A rank that ends by a panic does not leave; its end is a failure, and the others are not waited for.
impl Drop for World {
    fn drop(&mut self) {
        let Some(hub) = self.hub.take().filter(|_| !std::thread::panicking()) else { return };
        drop(self.watch.take());
        if self.casualties.doomed().is_none() {
            hub.outlast_others(self.config.timeout);
        }
    }
}

/// Where this rank goes to meet the others, and what it brings.
struct Place {
    addresses: Vec<String>,
    secret: Secret,
    /// Set where this rank serves the hub itself.
    hub: Option<Hub>,
    served_by_rank_0: bool,
}

impl Place {
    /// The other rank that serves the hub, if one does.
    fn hub_rank(&self, identity: &Identity) -> Option<Rank> {
        (self.served_by_rank_0 && identity.rank != Rank::ZERO).then_some(Rank::ZERO)
    }

    fn find(identity: &Identity, secret: Secret, config: &Config) -> Result<Option<Place>, NetError> {
        match &identity.meeting {
            Meeting::Alone => Ok(None),
            Meeting::Hub(addresses) => {
                Ok(Some(Place { addresses: addresses.clone(), secret, hub: None, served_by_rank_0: false }))
            }
            Meeting::RankZero { host, job } => {
                // Jobs of one user share a long-lived secret; mixing in the job keeps their worlds apart.
                let secret = secret.derive(job.as_bytes());
                let (host, ports) = doorsteps(host.as_deref(), &secret);
                let hub = match identity.rank {
                    Rank::ZERO => Some(serve(host.as_deref(), &ports, &secret, identity.n_ranks, config)?),
                    _ => None,
                };
                let host = host.unwrap_or_else(|| "127.0.0.1".into());
                let host =
                    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
                let addresses = match &hub {
                    Some(hub) => hub.addresses().iter().map(ToString::to_string).collect(),
                    None => ports.iter().map(|p| format!("{host}:{p}")).collect(),
                };
                Ok(Some(Place { addresses, secret, hub, served_by_rank_0: true }))
            }
        }
    }
}

/// The host rank 0 serves on and the ports it tries, in order.
fn doorsteps(host: Option<&str>, secret: &Secret) -> (Option<String>, Vec<u16>) {
    // An IPv6 address without a port has colons, too.
    if let Some((name, port)) =
        host.filter(|h| h.parse::<Ipv6Addr>().is_err()).and_then(|h| h.rsplit_once(':'))
        && let Ok(port) = port.parse()
    {
        return (Some(name.trim_matches(['[', ']']).to_string()), vec![port]);
    }
    let proof = secret.derive(b"ports");
    let first = 20_000 + u16::from_le_bytes([proof.expose()[0], proof.expose()[1]]) % 20_000;
    (host.map(ToString::to_string), (0..N_PORTS).map(|i| first + i * 7).collect())
}

fn serve(
    host: Option<&str>,
    ports: &[u16],
    secret: &Secret,
    n_ranks: u32,
    config: &Config,
) -> Result<Hub, NetError> {
    let ips: Vec<IpAddr> = match (host, &config.interface) {
        (_, Some(name)) => socket::addresses_of(name)?,
        (None, None) => vec![Ipv4Addr::LOCALHOST.into()],
        (Some(host), None) => (host, 0)
            .to_socket_addrs()
            .map_err(|error| NetError::System { what: "cannot resolve rank 0's host name", error })?
            .map(|a| a.ip())
            .take(1)
            .collect(),
    };
    let mut last = None;
    for &port in ports {
        match ips.iter().map(|&ip| socket::listen(ip, port)).collect::<Result<Vec<_>, _>>() {
            Ok(listeners) => {
                return Hub::start(listeners, secret.clone(), n_ranks)
                    .map_err(|error| NetError::System { what: "cannot start the hub", error });
            }
            Err(e) => last = Some(e),
        }
    }
    Err(last.expect("at least one port was tried").into())
}

fn connect_hub(
    place: &Place,
    rank: Rank,
    deadline: Instant,
    config: &Config,
) -> Result<(TcpStream, IpAddr), NetError> {
    let mut last = String::from("nothing answered");
    loop {
        for address in &place.addresses {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match knock(address, place, rank, left.min(ATTEMPT)) {
                Ok(found) => return Ok(found),
                // A wrong secret or version will not get better, but on derived ports it may be another job's hub.
                Err(Knock::Auth(e)) if !place.served_by_rank_0 => {
                    return Err(NetError::Auth { with: format!("the meeting point {address}"), error: e });
                }
                Err(Knock::Auth(e)) => last = e.to_string(),
                Err(Knock::Io(e)) => last = e.to_string(),
            }
        }
        if Instant::now() >= deadline {
            let waited_s = config.start_timeout.as_secs_f64();
            return Err(NetError::NoMeeting { tried: place.addresses.join(", "), waited_s, last });
        }
        // Not a wait for a condition that could be observed: the server may not exist yet.
        std::thread::park_timeout(RETRY_EVERY);
    }
}

enum Knock {
    Io(io::Error),
    Auth(AuthError),
}

fn knock(address: &str, place: &Place, rank: Rank, timeout: Duration) -> Result<(TcpStream, IpAddr), Knock> {
    let found = address.to_socket_addrs().map_err(Knock::Io)?.next();
    let found =
        found.ok_or_else(|| Knock::Io(io::Error::new(io::ErrorKind::NotFound, "the name has no address")))?;
    let mut stream = TcpStream::connect_timeout(&found, timeout).map_err(Knock::Io)?;
    socket::tune_control(&stream);
    let caller = Caller { rank, epoch: Epoch(0), stream: 0 };
    shake(&mut stream, &place.secret, Purpose::Hub, caller, timeout)?;
    let ip = stream.local_addr().map_err(Knock::Io)?.ip();
    Ok((stream, ip))
}

fn shake(
    stream: &mut TcpStream,
    secret: &Secret,
    purpose: Purpose,
    caller: Caller,
    timeout: Duration,
) -> Result<(), Knock> {
    stream.set_read_timeout(Some(timeout)).map_err(Knock::Io)?;
    stream.set_write_timeout(Some(timeout)).map_err(Knock::Io)?;
    let mut out = Vec::new();
    let mut connector = Connector::new(secret.clone(), purpose, caller, fresh_nonce(), &mut out);
    loop {
        stream.write_all(&out).map_err(Knock::Io)?;
        out.clear();
        let mut bytes = [0; 128];
        let want = connector.wants().min(bytes.len());
        let n = stream.read(&mut bytes[..want]).map_err(Knock::Io)?;
        if n == 0 {
            return Err(Knock::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        if connector.feed(&bytes[..n], &mut out).map_err(Knock::Auth)? {
            return stream.write_all(&out).map_err(Knock::Io);
        }
    }
}

fn introduce(identity: &Identity, config: &Config, offer: &Offer, addresses: Vec<SocketAddr>) -> Member {
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Member {
        rank: identity.rank,
        n_ranks: identity.n_ranks,
        host_key: host_key(config),
        host_name: config.host_id.clone().unwrap_or(host_name),
        pid: std::process::id(),
        cores: cores::allowed(),
        core_quota: cores::quota(),
        addresses,
        arena_fd: offer.fd(),
        arena_heap_bytes: offer.heap_bytes(),
        trial_address: offer.trial_address(),
        build: env!("CARGO_PKG_VERSION").to_string(),
        settings: format!(
            "transport={:?} tiers={} algorithm={} segment={}",
            config.transport,
            config.tiers.as_ref().map(ToString::to_string).unwrap_or_default(),
            config.algorithm.as_deref().unwrap_or_default(),
            config.segment_bytes
        ),
    }
}

/// Equal for processes that can share memory: one kernel, one network, one set of processes.
fn host_key(config: &Config) -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let space =
        |path: &str| std::fs::read_link(path).map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    read("/proc/sys/kernel/random/boot_id").hash(&mut hasher);
    space("/proc/self/ns/net").hash(&mut hasher);
    space("/proc/self/ns/pid").hash(&mut hasher);
    rustix::process::getuid().as_raw().hash(&mut hasher);
    config.host_id.hash(&mut hasher);
    hasher.finish()
}

fn await_roster(
    stream: &mut TcpStream,
    decoder: &mut Decoder,
    deadline: Instant,
    identity: &Identity,
    config: &Config,
) -> Result<Vec<Member>, NetError> {
    let lost =
        |error| NetError::System { what: "the hub closed the connection before the world formed", error };
    let mut bytes = [0; 16 << 10];
    let mut next_beat = Instant::now();
    loop {
        while let Some(down) =
            decoder.take::<Down>().map_err(|e| lost(io::Error::new(io::ErrorKind::InvalidData, e)))?
        {
            match down {
                Down::Roster(members) => return Ok(members),
                Down::Refused(why) => return Err(NetError::Refused { why }),
                Down::Doomed(doom) => return Err(doom.into()),
                Down::Lost(lost) => return Err(Doom::Lost(lost).into()),
                Down::Alive => {}
            }
        }
        let now = Instant::now();
        if now >= deadline {
            let waited_s = config.start_timeout.as_secs_f64();
            return Err(NetError::NotFormed { waited_s, n_ranks: identity.n_ranks });
        }
        if now >= next_beat {
            next_beat = now + Duration::from_millis(crate::hub::state::BEAT_MS);
            let alive = frame::encode(&Up::Alive).expect("a word is small");
            stream.write_all(&alive).map_err(lost)?;
        }
        stream.set_read_timeout(Some(Duration::from_millis(200))).map_err(lost)?;
        match stream.read(&mut bytes) {
            Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => decoder.feed(&bytes[..n]),
            Err(e) if would_wait(&e) => {}
            Err(e) => return Err(lost(e)),
        }
    }
}

/// Tells everybody that this rank cannot join, and why: a rank that died just now may be the reason. Returns what everybody names.
fn give_up(
    mut stream: TcpStream,
    mut decoder: Decoder,
    identity: &Identity,
    place: &Place,
    error: NetError,
) -> NetError {
    let start = Instant::now();
    let mine = error.doom(identity.rank);
    let agreed = (|| {
        let patience = if matches!(error, NetError::Arena { .. }) { AGREEMENT / 2 } else { Duration::ZERO };
        let doom = match reason(&mut stream, &mut decoder, start + patience)? {
            Some(Down::Doomed(doom)) => return Some(doom),
            Some(Down::Lost(lost)) => Doom::Lost(lost),
            _ => mine.clone(),
        };
        let word = frame::encode(&Up::Doomed(doom.clone())).ok()?;
        if stream.write_all(&word).is_err() && doom != mine {
            return Some(doom);
        }
        loop {
            match reason(&mut stream, &mut decoder, start + AGREEMENT) {
                Some(Some(Down::Doomed(agreed))) => return Some(agreed),
                Some(Some(_)) => {}
                Some(None) => return Some(doom),
                None => return Some(doom).filter(|d| *d != mine),
            }
        }
    })();
    match agreed {
        Some(doom) if doom != mine => doom.into(),
        None if place.hub_rank(identity).is_some() => hub_rank_lost(),
        _ => error,
    }
}

fn hub_rank_lost() -> NetError {
    NetError::PeerLost { rank: Rank::ZERO, cause: Cause::Disconnected }
}

/// The next loss or doom that the hub tells of before the deadline, if any; `None` when the hub is gone.
fn reason(stream: &mut TcpStream, decoder: &mut Decoder, deadline: Instant) -> Option<Option<Down>> {
    let mut bytes = [0; 16 << 10];
    loop {
        while let Some(down) = decoder.take::<Down>().ok()? {
            if matches!(down, Down::Doomed(_) | Down::Lost(_)) {
                return Some(Some(down));
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(None);
        }
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut bytes) {
            Ok(0) => return None,
            Ok(n) => decoder.feed(&bytes[..n]),
            Err(e) if would_wait(&e) => {}
            Err(_) => return None,
        }
    }
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn topology_of(members: &[Member]) -> Topology {
    let mut hosts: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
    for member in members {
        hosts.entry(member.host_key).or_default().push(member.rank);
    }
    Topology::new(hosts.into_values().collect()).expect("a roster names every rank once")
}

fn share_memory(
    offer: Offer,
    members: &[Member],
    neighbours: &[Rank],
    identity: &Identity,
    casualties: &Arc<Casualties>,
) -> Result<Arc<Arena>, NetError> {
    let first = &members[neighbours[0].index()];
    let masks: Vec<&[u32]> = neighbours.iter().map(|r| members[r.index()].cores.as_slice()).collect();
    let quota = neighbours.iter().map(|r| members[r.index()].core_quota).min().unwrap_or(u32::MAX);
    let patience = if cores::enough(&masks, quota) { Patience::DEDICATED } else { Patience::SHARED };
    let processes: Vec<(u32, u64)> =
        neighbours.iter().map(|r| (members[r.index()].pid, members[r.index()].trial_address)).collect();
    let source = Source {
        processes: &processes,
        pid: first.pid,
        fd: first.arena_fd,
        heap_bytes: first.arena_heap_bytes,
        n_local_max: identity.n_ranks.min(crate::arena::MAX_LOCAL as u32) as usize,
    };
    let me_local = neighbours.iter().position(|&r| r == identity.rank).expect("a rank is on its own host");
    Arena::join(offer, source, neighbours.to_vec(), me_local, patience, casualties.clone())
        .map(Arc::new)
        .map_err(|error| NetError::Arena { error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_rank_0_is_told_from_an_address_with_a_port() {
        let at = |host| doorsteps(Some(host), &Secret::from_bytes([0; 32]));
        assert_eq!(at("node:29500"), (Some("node".into()), vec![29500]));
        assert_eq!(at("[fe80::1]:29500"), (Some("fe80::1".into()), vec![29500]));
        for host in ["node", "10.0.0.1", "::1", "2001:db8::7"] {
            let (found, ports) = at(host);
            assert_eq!((found.as_deref(), ports.len()), (Some(host), usize::from(N_PORTS)));
        }
    }
}
