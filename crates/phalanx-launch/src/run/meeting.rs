//! The meeting point of the ranks: which addresses of this machine it listens on.
//!
//! - MEET-1: the meeting point never listens on the wildcard address; a job on this machine alone listens on loopback only.

use super::LaunchError;
use phalanx_core::Rank;
use phalanx_net::{
    Terms,
    ending::End,
    hub::{
        Hub,
        message::{Verdict, Words},
    },
    socket::{self, AddressError},
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

/// How long the hub may take to read what ranks said last: it does nothing else for long.
const JUDGES: Duration = Duration::from_secs(1);

/// An open meeting; it closes when dropped.
#[derive(Debug)]
pub struct MeetingPoint {
    hub: Hub,
}

/// Who will come.
#[derive(Clone, Copy, Debug)]
pub struct Guests<'a> {
    pub n_ranks: u32,
    /// All ranks run in this machine's own network.
    pub all_here: bool,
    /// Where they may come in; everywhere, if there is none.
    pub interfaces: &'a [String],
}

/// Opens the meeting for the ranks of one job. `hear` gets what they say to people, and must not wait.
pub fn open(
    guests: &Guests<'_>,
    terms: Terms,
    hear: impl FnMut(Rank, Words) + Send + 'static,
) -> Result<MeetingPoint, LaunchError> {
    let ips = choose(guests).map_err(LaunchError::Interface)?;
    let listeners = ips
        .into_iter()
        .map(|ip| socket::listen(ip, 0))
        .collect::<Result<_, _>>()
        .map_err(LaunchError::Port)?;
    let hub = Hub::start_hearing(listeners, terms, guests.n_ranks, hear)
        .map_err(|why| LaunchError::System { what: "the meeting point", why })?;
    tracing::info!(n_ranks = guests.n_ranks, addresses = ?hub.addresses(), "meeting opened");
    Ok(MeetingPoint { hub })
}

impl MeetingPoint {
    pub fn addresses(&self) -> &[SocketAddr] {
        self.hub.addresses()
    }

    /// What the ranks hold to be the reason of a failure.
    pub fn verdict(&self) -> Verdict {
        self.hub.verdict(JUDGES)
    }

    /// Lets the ranks that still wait for this one know.
    pub fn rank_ended(&self, rank: Rank, end: End) {
        self.hub.rank_ended(rank, end);
    }
}

/// The addresses to listen on, the likeliest first.
fn choose(guests: &Guests<'_>) -> Result<Vec<IpAddr>, AddressError> {
    if !guests.interfaces.is_empty() {
        let mut ips = Vec::new();
        for name in guests.interfaces {
            // One interface may be named twice, by its name and by its address.
            ips.extend(
                socket::addresses_of(name)?.into_iter().filter(|ip| !ips.contains(ip)).collect::<Vec<_>>(),
            );
        }
        return Ok(ips);
    }
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if guests.all_here {
        return Ok(vec![loopback]);
    }
    let mut ips = socket::outward_addresses()?;
    // Last, for hosts that turn out to be this machine (`--rsh 'env PHALANX_HOST_ID={host}'`) without any network.
    ips.push(loopback);
    Ok(ips)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all_here: bool, interfaces: &[&str]) -> Result<Vec<IpAddr>, String> {
        let interfaces: Vec<String> = interfaces.iter().map(ToString::to_string).collect();
        choose(&Guests { n_ranks: 2, all_here, interfaces: &interfaces }).map_err(|e| e.to_string())
    }

    #[test]
    fn a_job_of_this_machine_stays_on_loopback() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(chosen(true, &[]).unwrap(), [loopback], "MEET-1");
        let outside = chosen(false, &[]).unwrap();
        let (last, others) = outside.split_last().unwrap();
        assert_eq!(*last, loopback);
        assert!(others.iter().all(|ip| !ip.is_loopback() && !ip.is_unspecified()), "MEET-1: {others:?}");
    }

    #[test]
    fn named_interfaces_are_the_only_ones() {
        let loopback = chosen(false, &["lo"]).unwrap();
        assert!(loopback.iter().all(IpAddr::is_loopback));
        assert_eq!(chosen(false, &["lo", "127.0.0.1"]).unwrap(), loopback, "nothing is listened on twice");
        let error = chosen(false, &["lo", "wlan9"]).unwrap_err();
        assert!(error.starts_with("there is no interface \"wlan9\" with an address"), "{error}");
    }
}
