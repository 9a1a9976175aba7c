//! Links and their transports: which kinds of stream sockets there are, and which one is used to reach a rank.
//!
//! A new transport is one file beside this one and its two lines here, `mod` and its place in [`TRANSPORTS`]. Nothing else knows what kind
//! of socket it holds: doors accept and authenticate on any, links send and receive on any, and addresses travel as text.
//!
//! - LINK-1: only ranks that a transport reaches connect to its addresses: an address that is valid on one host is never used on another.

mod address;
mod stream;
mod tcp;
mod unix;

pub use address::{LinkAddress, few};
pub use stream::Link;

use crate::{door::Listener, socket::AddressError};
use phalanx_core::{Config, ConfigError};
use socket2::Socket;
use std::{io, net::IpAddr, time::Duration};

/// A kind of stream socket that carries links.
#[derive(Debug)]
pub struct StreamTransport {
    /// What `PHALANX_TRANSPORT` and addresses call it.
    pub name: &'static str,
    pub reach: Reach,
    pub listen: fn(&ListenContext<'_>) -> Result<Doorways, AddressError>,
    /// Connects to such an address before the time is up. The socket blocks and is tuned for links.
    pub dial: fn(&str, Duration) -> io::Result<Socket>,
}

/// Where a rank listens, each with the address under which others find it: a word of at most 128 bytes.
pub type Doorways = Vec<(Listener, String)>;

/// Who can dial a transport's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Ranks of the same host.
    Host,
    /// Every rank.
    Network,
}

/// What a transport may want to know of this rank's place before it listens.
#[derive(Debug)]
pub struct ListenContext<'a> {
    /// The interface that the user wants.
    pub interface: Option<&'a str>,
    /// The addresses under which other hosts may reach this one: where it reaches the hub, first.
    pub ips: &'a [IpAddr],
}

/// Every transport there is.
static TRANSPORTS: &[&StreamTransport] = &[&tcp::TRANSPORT, &unix::TRANSPORT];

/// The one that is always open: it leads wherever the chosen one does not.
static COMMON: &StreamTransport = &tcp::TRANSPORT;

/// The transport that the settings name.
pub fn chosen(config: &Config) -> Result<&'static StreamTransport, ConfigError> {
    let Some(name) = &config.links else { return Ok(COMMON) };
    TRANSPORTS.iter().copied().find(|t| t.name == name).ok_or_else(|| {
        let known: Vec<&str> = TRANSPORTS.iter().map(|t| t.name).collect();
        let why = format!("write auto or one of {}", known.join(", ")).into();
        ConfigError::Bad { name: "PHALANX_TRANSPORT", value: name.clone(), why }
    })
}

/// Opens what this rank needs to be reached: the chosen transport and the common one.
pub fn open(
    chosen: &StreamTransport,
    site: &ListenContext<'_>,
) -> Result<(Vec<Listener>, Vec<LinkAddress>), AddressError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for transport in TRANSPORTS.iter().filter(|t| [chosen.name, COMMON.name].contains(&t.name)) {
        for (listener, address) in (transport.listen)(site)? {
            let address = LinkAddress::new(transport.name, &address);
            addresses.push(address.expect("transports publish addresses that are short words"));
            listeners.push(listener);
        }
    }
    Ok((listeners, addresses))
}

/// The transport of the links between this rank and another one (LINK-1).
pub fn towards(chosen: &'static StreamTransport, same_host: bool) -> &'static StreamTransport {
    if same_host || chosen.reach == Reach::Network { chosen } else { COMMON }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{channel::Channel, forks::Own};
    use std::{io::IoSlice, net::Ipv4Addr, os::fd::OwnedFd};

    const SITE: ListenContext<'_> =
        ListenContext { interface: None, ips: &[IpAddr::V4(Ipv4Addr::LOCALHOST)] };
    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn every_transport_listens_where_it_says_and_carries_bytes_both_ways() {
        for transport in TRANSPORTS {
            let (door, address) = (transport.listen)(&SITE).unwrap().remove(0);
            let dialled = Channel::plain(Own::new((transport.dial)(&address, SOON).unwrap()));
            let there = Link::new(phalanx_core::Rank(1), dialled).unwrap();
            let came: OwnedFd = rustix::net::accept(&door.socket).unwrap();
            (door.tune)(&came.try_clone().unwrap().into());
            let here = Link::new(phalanx_core::Rank(0), Channel::plain(Own::new(came.into()))).unwrap();
            for (from, to) in [(&here, &there), (&there, &here)] {
                let mut got = [0; 8];
                assert_eq!(to.recv_some(&mut got).unwrap(), 0, "{} never blocks", transport.name);
                let parts = [&b"two "[..], b"parts"].map(IoSlice::new);
                assert_eq!(from.send_some(&parts).unwrap(), 9, "{}", transport.name);
                rustix::event::poll(
                    &mut [rustix::event::PollFd::new(&to, rustix::event::PollFlags::IN)],
                    Some(&rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 }),
                )
                .unwrap();
                assert_eq!((to.recv_some(&mut got).unwrap(), &got), (8, b"two part"));
                assert_eq!((to.recv_some(&mut got[..1]).unwrap(), got[0]), (1, b's'));
            }
            here.shut();
            assert!(there.recv_some(&mut [0]).is_err(), "{}: an end is an error", transport.name);
            while there.send_some(&[IoSlice::new(&[0; 4096])]).is_ok() {}
        }
    }

    #[test]
    fn an_address_nobody_listens_at_is_an_error_that_comes_soon() {
        for transport in TRANSPORTS {
            let (door, address) = (transport.listen)(&SITE).unwrap().remove(0);
            drop(door);
            assert!((transport.dial)(&address, SOON).is_err(), "{}", transport.name);
            for nonsense in ["", "@", "nowhere", "127.0.0.1", &"@x".repeat(64)] {
                assert!((transport.dial)(nonsense, SOON).is_err(), "{} {nonsense:?}", transport.name);
            }
        }
    }

    #[test]
    fn hosts_are_left_only_by_what_leads_out() {
        for transport in TRANSPORTS {
            assert_eq!(towards(transport, true).name, transport.name);
            assert_eq!(towards(transport, false).reach, Reach::Network, "LINK-1");
        }
    }

    #[test]
    fn an_unknown_transport_is_answered_with_the_known_ones() {
        let mut config = Config::default();
        assert_eq!(chosen(&config).unwrap().name, "tcp");
        config.set("PHALANX_TRANSPORT", "unix").unwrap();
        assert_eq!(chosen(&config).unwrap().name, "unix");
        config.set("PHALANX_TRANSPORT", "ib").unwrap();
        assert_eq!(
            chosen(&config).unwrap_err().to_string(),
            "PHALANX_TRANSPORT=\"ib\" cannot be used: write auto or one of tcp, unix",
            "CONF-2"
        );
    }
}
