//! Socket options and addresses: which interface, which timeouts.

use socket2::{SockRef, Socket, TcpKeepalive};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::AsFd,
    time::Duration,
};

/// How long a silent network is tolerated on control connections, in milliseconds.
const SILENCE: Duration = Duration::from_millis(1_600);

/// Probes that notice a cut cable on a connection that is silent.
pub(crate) fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(1))
        .with_interval(Duration::from_secs(1))
        .with_retries(2)
}

/// For connections to the hub: small messages, always read, so unacknowledged data mean a dead network.
pub fn tune_control(stream: &impl AsFd) {
    let socket = SockRef::from(stream);
    // Each option only shortens detection; a system that refuses one still works.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive());
    let _ = socket.set_tcp_user_timeout(Some(SILENCE));
}

/// Sends all of it, as long as the socket takes it. A peer that is gone is an error, never a signal.
pub(crate) fn send_all(socket: &Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.send_with_flags(bytes, libc::MSG_NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether what is sent on this connection leaves the host: its two ends have different addresses. Where the system does not say, it does.
pub(crate) fn leaves_host(socket: &Socket) -> bool {
    let ip = |address: socket2::SockAddr| address.as_socket().map(|a| a.ip().to_canonical());
    match (socket.local_addr().map(ip), socket.peer_addr().map(ip)) {
        (Ok(Some(here)), Ok(Some(there))) => here != there && !(here.is_loopback() && there.is_loopback()),
        // Not of the internet: a Unix socket.
        (Ok(None), _) => false,
        _ => true,
    }
}

/// What is wrong with the network of this host.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("there is no interface {name:?} with an address; interfaces here: {known}")]
    NoInterface { name: String, known: String },
    #[error("cannot list the network interfaces: {0}")]
    List(io::Error),
    #[error("cannot listen on {address}: {error}{}", advice(.error))]
    Listen { address: String, error: io::Error },
}

impl AddressError {
    pub(crate) fn listen(address: impl ToString, error: io::Error) -> AddressError {
        AddressError::Listen { address: address.to_string(), error }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => ": another process listens there",
        io::ErrorKind::AddrNotAvailable => ": this host does not have this address",
        _ => "",
    }
}

/// The address this host uses to reach another one. Nothing is sent.
pub fn address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// The addresses of an interface, by its name or one of its addresses.
pub fn addresses_of(name: &str) -> Result<Vec<IpAddr>, AddressError> {
    let all = if_addrs::get_if_addrs().map_err(AddressError::List)?;
    let wanted: Vec<IpAddr> = all
        .iter()
        .filter(|i| i.name == name || i.ip().to_string() == name)
        .map(if_addrs::Interface::ip)
        .collect();
    if wanted.is_empty() {
        let known: Vec<String> = all.iter().map(|i| format!("{} ({})", i.name, i.ip())).collect();
        return Err(AddressError::NoInterface { name: name.to_string(), known: known.join(", ") });
    }
    Ok(usable(wanted))
}

/// Every address under which other hosts might reach this one, IPv4 first.
pub fn outward_addresses() -> Result<Vec<IpAddr>, AddressError> {
    let all = if_addrs::get_if_addrs().map_err(AddressError::List)?;
    Ok(usable(all.iter().filter(|i| !i.is_loopback()).map(if_addrs::Interface::ip).collect()))
}

/// Link-local IPv6 addresses need a scope that does not travel; leave them out where there is anything else.
fn usable(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.sort_by_key(|a| !a.is_ipv4());
    let routable: Vec<IpAddr> = addresses
        .iter()
        .copied()
        .filter(|a| !matches!(a, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    if routable.is_empty() { addresses } else { routable }
}

/// A listener on a port of the system's choice (or the given one) of exactly this address.
pub fn listen(ip: IpAddr, port: u16) -> Result<TcpListener, AddressError> {
    let address = SocketAddr::new(ip, port);
    TcpListener::bind(address).map_err(|error| AddressError::listen(address, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_from_loopback() {
        assert_eq!(address_towards(([127, 0, 0, 1], 9).into()).unwrap(), IpAddr::from([127, 0, 0, 1]));
        assert_eq!(addresses_of("lo").unwrap()[0], IpAddr::from([127, 0, 0, 1]));
    }

    #[test]
    fn loopback_and_unix_sockets_stay_inside_the_host() {
        let listener = listen([127, 0, 0, 1].into(), 0).unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        assert!(!leaves_host(&near.into()) && !leaves_host(&far.into()));
        let (a, _b) = Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        assert!(!leaves_host(&a));
    }

    #[test]
    fn an_unknown_interface_is_answered_with_the_known_ones() {
        let error = addresses_of("nope0").unwrap_err().to_string();
        assert!(error.contains("nope0") && error.contains("lo (127.0.0.1)"), "{error}");
    }

    #[test]
    fn a_port_in_use_is_named() {
        let first = listen([127, 0, 0, 1].into(), 0).unwrap();
        let port = first.local_addr().unwrap().port();
        let error = listen([127, 0, 0, 1].into(), port).unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
    }
}
