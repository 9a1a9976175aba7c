//! The meeting point of a world, and how a rank connects to it.

use crate::{
    auth::{AuthError, Caller, Connector, Purpose, fresh_nonce},
    board::{self, Meet, Party, Post, kube},
    channel::{Channel, Securing, Terms},
    discover::{Identity, Meeting},
    error::NetError,
    forks::Own,
    hub::Hub,
    secret::Secret,
    socket,
};
use phalanx_core::{Config, Epoch, Rank};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;
use std::{
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// How long one attempt to connect may take before the next address is tried.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(2);
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(50);
/// Ports that rank 0 tries when nobody chose one.
const N_PORTS: u16 = 16;

/// What to do where ranks cannot agree on a secret by themselves.
pub(crate) const NO_SECRET: &str = "set PHALANX_SECRET to the same random text on every rank, or PHALANX_SECRET_FILE to a file with it, or put the same ~/.phalanx/secret (mode 600) on every host";

/// Where this rank goes to meet the others, and what it brings.
pub(super) struct Place {
    pub addresses: Vec<String>,
    pub terms: Terms,
    /// Set where this rank serves the hub itself.
    pub hub: Option<Hub>,
    pub served_by_rank_0: bool,
    /// Rank 0 chose its addresses itself, and there may be several.
    pub is_on_board: bool,
    /// The shared board where rank 0's addresses are, until the world has formed.
    pub post: Option<Post>,
}

impl Place {
    /// The other rank that serves the hub, if one does.
    pub fn hub_rank(&self, identity: &Identity) -> Option<Rank> {
        (self.served_by_rank_0 && identity.rank != Rank::ZERO).then_some(Rank::ZERO)
    }

    /// `secret` is the one that was given; only ranks that meet on a private board may be without one.
    pub fn find(
        identity: &Identity,
        secret: Option<Secret>,
        config: &Config,
    ) -> Result<Option<Place>, NetError> {
        let needed =
            |secret: Option<Secret>| secret.ok_or_else(|| NetError::Secret { why: NO_SECRET.into() });
        match &identity.meeting {
            Meeting::Alone => Ok(None),
            Meeting::Hub(addresses) => Ok(Some(Place {
                addresses: addresses.clone(),
                terms: Terms { secret: needed(secret)?, encrypt: config.encrypt },
                hub: None,
                served_by_rank_0: false,
                is_on_board: false,
                post: None,
            })),
            Meeting::RankZero { hosts, job } => {
                Place::at_rank_zero(identity, hosts, job, needed(secret)?, config).map(Some)
            }
            Meeting::Pod { pod, index } => {
                let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
                let host = kube::pod_zero(pod, *index, &hosts).unwrap_or_else(|| pod.clone());
                let job = format!("Kubernetes {host}");
                Place::at_rank_zero(identity, &[host], &job, needed(secret)?, config).map(Some)
            }
            Meeting::Board(board) => {
                let party = Party { rank: identity.rank, n_ranks: identity.n_ranks };
                let serve = |secret: &Secret| serve_everywhere(secret, identity.n_ranks, config);
                let Meet { addresses, secret, hub, post } =
                    board::meet(board, party, secret, config.start_timeout, &serve)?;
                tracing::info!(rank = %identity.rank, %board, ?addresses, "ranks met on a board");
                let terms = Terms { secret, encrypt: config.encrypt };
                Ok(Some(Place { addresses, terms, hub, served_by_rank_0: true, is_on_board: true, post }))
            }
        }
    }

    fn at_rank_zero(
        identity: &Identity,
        hosts: &[String],
        job: &str,
        secret: Secret,
        config: &Config,
    ) -> Result<Place, NetError> {
        // Jobs of one user share a long-lived secret; mixing in the job keeps their worlds apart.
        let secret = secret.derive(job.as_bytes());
        let doors = doors(hosts, &secret);
        let hub = match identity.rank {
            Rank::ZERO => Some(serve(&doors, &secret, identity.n_ranks, config)?),
            _ => None,
        };
        let addresses = match &hub {
            Some(hub) => hub.addresses().iter().map(ToString::to_string).collect(),
            None => doors.iter().flat_map(Doorstep::addresses).collect(),
        };
        let terms = Terms { secret, encrypt: config.encrypt };
        Ok(Place { addresses, terms, hub, served_by_rank_0: true, is_on_board: false, post: None })
    }

    /// Where this rank listens for links, if its connection to the hub leads from one address to the other. A rank that shares rank 0's host
    /// learns nothing from this connection about which of its networks lead to other hosts.
    pub fn link_ips(&self, here: IpAddr, hub: IpAddr) -> Result<Vec<IpAddr>, NetError> {
        let mut ips = vec![here];
        if self.is_on_board && here == hub && !here.is_loopback() {
            ips.extend(socket::outward_addresses()?.into_iter().filter(|ip| *ip != here));
        }
        Ok(ips)
    }
}

/// A host where rank 0 serves, and the ports it tries, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Doorstep {
    /// Loopback, if there is none.
    host: Option<String>,
    ports: Vec<u16>,
}

impl Doorstep {
    fn at(host: Option<&str>, secret: &Secret) -> Doorstep {
        let (host, ports) = doorsteps(host, secret);
        Doorstep { host, ports }
    }

    pub fn addresses(&self) -> Vec<String> {
        let host = self.host.as_deref().unwrap_or("127.0.0.1");
        let host =
            if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.into() };
        self.ports.iter().map(|p| format!("{host}:{p}")).collect()
    }

    /// Listens at the first port that is free on all addresses.
    pub fn listen(&self, config: &Config) -> Result<Vec<TcpListener>, NetError> {
        let ips: Vec<IpAddr> = match (&self.host, &config.interface) {
            // The others come by loopback, whatever networks there are.
            (None, _) => vec![Ipv4Addr::LOCALHOST.into()],
            (_, Some(name)) => socket::addresses_of(name)?,
            (Some(host), None) => (host.as_str(), 0)
                .to_socket_addrs()
                .map_err(|error| NetError::System { what: "cannot resolve rank 0's host name", error })?
                .map(|a| a.ip())
                .take(1)
                .collect(),
        };
        let mut last = None;
        for &port in &self.ports {
            match ips.iter().map(|&ip| socket::listen(ip, port)).collect::<Result<Vec<_>, _>>() {
                Ok(listeners) => return Ok(listeners),
                Err(e) => last = Some(e),
            }
        }
        Err(last.expect("at least one port was tried").into())
    }
}

pub(crate) fn doors(hosts: &[String], secret: &Secret) -> Vec<Doorstep> {
    match hosts {
        [] => vec![Doorstep::at(None, secret)],
        hosts => hosts.iter().map(|host| Doorstep::at(Some(host), secret)).collect(),
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

/// Opens the hub at every one of these that is this host's; at least one must be.
fn serve(doors: &[Doorstep], secret: &Secret, n_ranks: u32, config: &Config) -> Result<Hub, NetError> {
    let mut listeners = Vec::new();
    let mut last = None;
    for door in doors {
        match door.listen(config) {
            Ok(found) => listeners.extend(found),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if listeners.is_empty() => Err(error),
        _ => start(listeners, secret, n_ranks, config),
    }
}

/// Opens the hub on every network of this host, or on the wanted one, at ports of the system's choice.
fn serve_everywhere(secret: &Secret, n_ranks: u32, config: &Config) -> Result<Hub, NetError> {
    let mut ips = match &config.interface {
        Some(name) => socket::addresses_of(name)?,
        None => socket::outward_addresses()?,
    };
    if ips.is_empty() {
        ips.push(Ipv4Addr::LOCALHOST.into());
    }
    let listeners = ips.iter().map(|&ip| socket::listen(ip, 0)).collect::<Result<_, _>>()?;
    start(listeners, secret, n_ranks, config)
}

fn start(
    listeners: Vec<TcpListener>,
    secret: &Secret,
    n_ranks: u32,
    config: &Config,
) -> Result<Hub, NetError> {
    let terms = Terms { secret: secret.clone(), encrypt: config.encrypt };
    Hub::start(listeners, terms, n_ranks)
        .map_err(|error| NetError::System { what: "cannot start the hub", error })
}

pub(super) fn connect_hub(
    place: &mut Place,
    rank: Rank,
    deadline: Instant,
    config: &Config,
) -> Result<(Channel, IpAddr), NetError> {
    let mut last = String::from("nothing answered");
    // Somebody answered and did not fit: that says more than a port where nobody is any more.
    let mut misfit = None;
    loop {
        for address in &place.addresses {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match knock(address, place, rank, left.min(ATTEMPT)) {
                Ok(found) => return Ok(found),
                // A wrong secret or version will not get better, but on derived ports it may be another job's hub.
                Err(Knock::Auth(e)) if !place.served_by_rank_0 => {
                    return Err(NetError::Auth { with: format!("the meeting point {address}"), error: e });
                }
                Err(Knock::Auth(e)) => misfit = Some(format!("{address}: {e}")),
                Err(Knock::Io(e)) => last = e.to_string(),
            }
        }
        if let Some((addresses, secret)) = place.post.as_mut().and_then(Post::look_again) {
            (place.addresses, place.terms.secret) = (addresses, secret);
        }
        if Instant::now() >= deadline {
            let waited_s = config.start_timeout.as_secs_f64();
            let last = misfit.unwrap_or(last);
            return Err(NetError::NoMeeting { tried: place.addresses.join(", "), waited_s, last });
        }
        // Not a wait for a condition that could be observed: the server may not exist yet.
        std::thread::park_timeout(RETRY_EVERY);
    }
}

pub(crate) enum Knock {
    Io(io::Error),
    Auth(AuthError),
}

impl Knock {
    fn of(error: io::Error) -> Knock {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<AuthError>()) {
            Some(auth) => Knock::Auth(auth.clone()),
            None => Knock::Io(error),
        }
    }
}

fn knock(address: &str, place: &Place, rank: Rank, timeout: Duration) -> Result<(Channel, IpAddr), Knock> {
    let found = address.to_socket_addrs().map_err(Knock::Io)?.next();
    let found =
        found.ok_or_else(|| Knock::Io(io::Error::new(io::ErrorKind::NotFound, "the name has no address")))?;
    let stream = TcpStream::connect_timeout(&found, timeout).map_err(Knock::Io)?;
    socket::tune_control(&stream);
    let caller = Caller { rank, epoch: Epoch(0), stream: 0 };
    let ip = stream.local_addr().map_err(Knock::Io)?.ip();
    let channel = shake(Own::new(stream.into()), &place.terms, Purpose::Hub, caller, timeout)?;
    Ok((channel, ip))
}

/// Proves both sides to each other on a socket that blocks, and encrypts what follows where one of them wants that.
pub(crate) fn shake(
    socket: Own<Socket>,
    terms: &Terms,
    purpose: Purpose,
    caller: Caller,
    timeout: Duration,
) -> Result<Channel, Knock> {
    let deadline = Instant::now() + timeout;
    socket.set_write_timeout(Some(timeout)).map_err(Knock::Io)?;
    let mut out = Vec::new();
    let (secret, wish) = (terms.secret.clone(), terms.wish(&socket));
    let mut connector = Connector::wishing(wish, secret, purpose, caller, fresh_nonce(), &mut out);
    loop {
        socket::send_all(&socket, &out).map_err(Knock::Io)?;
        out.clear();
        let mut bytes = [0; 128];
        let want = connector.wants().min(bytes.len());
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left)).map_err(Knock::Io)?;
        let n = (&*socket).read(&mut bytes[..want]).map_err(Knock::Io)?;
        if n == 0 {
            return Err(Knock::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        if connector.feed(&bytes[..n], &mut out).map_err(Knock::Auth)? {
            break socket::send_all(&socket, &out).map_err(Knock::Io)?;
        }
    }
    if !connector.is_encrypted() {
        return Ok(Channel::plain(socket));
    }
    let securing = Securing::connect(terms.secret.clone(), purpose, connector.seal());
    let securing = securing.and_then(|securing| secured(securing, &socket, deadline)).map_err(Knock::of)?;
    socket.set_read_timeout(Some(timeout)).map_err(Knock::Io)?;
    Ok(Channel::encrypted(socket, securing.into_tls()))
}

/// Waits for the whole, not for each byte: who sends one now and then does not keep this rank.
fn secured(mut securing: Securing, socket: &Socket, deadline: Instant) -> io::Result<Securing> {
    socket.set_nonblocking(true)?;
    while !securing.advance(socket)? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left))?;
    }
    socket.set_nonblocking(false)?;
    Ok(securing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_serves_at_every_address_that_is_its_own() {
        let (secret, config) = (Secret::from_bytes([3; 32]), Config::default());
        let hosts = ["127.0.0.1:0", "192.0.2.1:0", "[::1]:0"].map(String::from);
        let hub = serve(&doors(&hosts, &secret), &secret, 2, &config).unwrap();
        assert!(hub.addresses().iter().all(|a| a.ip().is_loopback()), "{:?}", hub.addresses());
        assert!(
            serve(&doors(&hosts[1..2], &secret), &secret, 2, &config).is_err(),
            "not an address of this host"
        );
        let loopback = doors(&[], &secret);
        let mut wanted = config;
        wanted.interface = Some("nope0".into());
        let hub = serve(&loopback, &secret, 2, &wanted).expect("ranks of one host meet on loopback");
        let served = hub.addresses()[0].to_string();
        assert!(loopback[0].addresses().contains(&served), "{served}");
    }

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
