//! The place where ranks find each other: which addresses of this machine it listens on.
//!
//! - MEET-1: no listener on every address at once; a job of this machine alone listens on loopback only.

use super::RunError;
use crate::addresses::{self, Address};
use phalanx_core::Rank;
use phalanx_net::{hub::Hub, secret::Secret};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// An open meeting; it closes when dropped.
#[derive(Debug)]
pub struct Meeting {
    hub: Hub,
}

/// Who will come.
#[derive(Clone, Copy, Debug)]
pub struct Guests<'a> {
    pub n_ranks: u32,
    /// All ranks run in this machine's own network.
    pub all_here: bool,
    pub interface: Option<&'a str>,
}

/// Opens the meeting for the ranks of one job.
pub fn open(guests: &Guests<'_>, secret: &Secret) -> Result<Meeting, RunError> {
    let known =
        addresses::list().map_err(|why| RunError::System { what: "the list of network addresses", why })?;
    let mut listeners = Vec::new();
    for ip in choose(&known, guests)? {
        let listener =
            TcpListener::bind((ip, 0)).map_err(|why| RunError::Port { address: ip.to_string(), why })?;
        listeners.push(listener);
    }
    let hub = Hub::start(listeners, secret.clone(), guests.n_ranks)
        .map_err(|why| RunError::System { what: "the meeting point", why })?;
    tracing::debug!(n_ranks = guests.n_ranks, addresses = ?hub.addresses(), "meeting opened");
    Ok(Meeting { hub })
}

impl Meeting {
    pub fn addresses(&self) -> &[SocketAddr] {
        self.hub.addresses()
    }

    /// The rank whom all others were told to blame, if there is one.
    pub fn culprit(&self) -> Option<Rank> {
        self.hub.culprit()
    }

    /// Lets the ranks that still wait for this one know.
    pub fn rank_ended(&self, rank: Rank, how: &str) {
        self.hub.rank_ended(rank, how);
    }
}

/// The addresses to listen on, the likeliest first.
fn choose(known: &[Address], guests: &Guests<'_>) -> Result<Vec<IpAddr>, RunError> {
    if let Some(name) = guests.interface {
        let of_interface = known.iter().filter(|a| a.interface == name);
        let ips: Vec<IpAddr> = of_interface.filter(|a| usable(a)).map(|a| a.ip).collect();
        if ips.is_empty() {
            let mut names: Vec<&str> = known.iter().map(|a| a.interface.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            return Err(RunError::Interface { name: name.to_string(), known: names.join(", ") });
        }
        return Ok(ips);
    }
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if guests.all_here {
        return Ok(vec![loopback]);
    }
    let outside = known.iter().filter(|a| a.is_reachable_from_outside()).map(|a| a.ip);
    // Last, for hosts that turn out to be this machine (`--rsh 'env PHALANX_HOST_ID={host}'`) without any network.
    Ok(outside.chain([loopback]).collect())
}

fn usable(address: &Address) -> bool {
    address.ip.is_loopback() || address.is_reachable_from_outside()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all_here: bool, interface: Option<&str>) -> Result<Vec<String>, String> {
        let known = [("lo", "127.0.0.1"), ("eth0", "10.0.0.5"), ("eth0", "fe80::1"), ("ib0", "fd00::5")]
            .map(|(name, ip)| Address { interface: name.to_string(), ip: ip.parse().unwrap() });
        let guests = Guests { n_ranks: 2, all_here, interface };
        let ips = choose(&known, &guests).map_err(|e| e.to_string())?;
        Ok(ips.iter().map(IpAddr::to_string).collect())
    }

    #[test]
    fn a_job_of_this_machine_stays_on_loopback() {
        assert_eq!(chosen(true, None).unwrap(), ["127.0.0.1"], "MEET-1");
        assert_eq!(chosen(false, None).unwrap(), ["10.0.0.5", "fd00::5", "127.0.0.1"]);
    }

    #[test]
    fn a_named_interface_is_the_only_one() {
        assert_eq!(chosen(false, Some("eth0")).unwrap(), ["10.0.0.5"]);
        assert_eq!(
            chosen(false, Some("wlan9")).unwrap_err(),
            "no interface \"wlan9\" with an address on this machine; there are: eth0, ib0, lo"
        );
    }
}
