//! TCP: reaches every host. Listens on the wanted interface, or where this host reaches the hub.

use super::{Doorways, ListenContext, Reach, StreamTransport};
use crate::{
    door::Listener,
    socket::{self, AddressError},
};
use socket2::Socket;
use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

pub static TRANSPORT: StreamTransport = StreamTransport { name: "tcp", reach: Reach::Network, listen, dial };

/// An interface with more addresses than this is listened on at the first few.
const MAX_DOORS: usize = 4;

fn listen(site: &ListenContext<'_>) -> Result<Doorways, AddressError> {
    let ips = match site.interface {
        Some(name) => socket::addresses_of(name)?,
        None => site.ips.to_vec(),
    };
    let open = |&ip| {
        let listener = socket::listen(ip, 0)?;
        let address = listener.local_addr().map_err(|error| AddressError::listen(ip, error))?;
        Ok((Listener { socket: listener.into(), tune }, address.to_string()))
    };
    ips.iter().take(MAX_DOORS).map(open).collect()
}

fn dial(address: &str, timeout: Duration) -> io::Result<Socket> {
    let address: SocketAddr = address.parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let socket = Socket::from(TcpStream::connect_timeout(&address, timeout)?);
    tune(&socket);
    Ok(socket)
}

/// No user timeout, because a peer that computes for long does not read, and that is no fault.
fn tune(socket: &Socket) {
    // Each option only helps; a system that refuses one still works.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&socket::keepalive());
}
