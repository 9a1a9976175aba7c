//! Unix-domain sockets: reach the ranks of one host. Their names are random and abstract: they are in no directory and end with their sockets.
//!
//! The name is not a secret: connections are authenticated as with every transport.

use super::{Doorways, ListenContext, Reach, StreamTransport};
use crate::{auth::fresh_nonce, door::Listener, socket::AddressError};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{fmt::Write, io, time::Duration};

pub static TRANSPORT: StreamTransport = StreamTransport { name: "unix", reach: Reach::Host, listen, dial };

/// Callers that wait to be accepted.
const BACKLOG: i32 = 1024;

fn listen(_: &ListenContext<'_>) -> Result<Doorways, AddressError> {
    let mut address = String::from("@phalanx-");
    for byte in &fresh_nonce()[..16] {
        write!(address, "{byte:02x}").expect("text can always be written to");
    }
    let open = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&named(&address)?)?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    let socket = open().map_err(|error| AddressError::listen(&address, error))?;
    Ok(vec![(Listener { socket, tune }, address)])
}

fn dial(address: &str, timeout: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full backlog blocks as sending does.
    socket.set_write_timeout(Some(timeout))?;
    socket.connect(&named(address)?)?;
    tune(&socket);
    Ok(socket)
}

/// `@name`, as people write it, is a zero byte and the name to the kernel.
fn named(address: &str) -> io::Result<SockAddr> {
    match address.strip_prefix('@') {
        Some(name) if !name.is_empty() => SockAddr::unix(format!("\0{name}")),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "an abstract name begins with @")),
    }
}

/// Nothing is buffered or silently cut inside a host.
fn tune(_: &Socket) {}
