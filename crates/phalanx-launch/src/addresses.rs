//! This machine's network addresses and the interfaces they belong to.

use std::{io, net::IpAddr};

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub interface: String,
    pub ip: IpAddr,
}

impl Address {
    /// Whether another machine could reach it without naming an interface of its own.
    pub fn is_reachable_from_outside(&self) -> bool {
        match self.ip {
            IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        }
    }
}

/// All addresses, in the kernel's order of interfaces, IPv4 before IPv6.
pub fn list() -> io::Result<Vec<Address>> {
    let all = if_addrs::get_if_addrs()?.into_iter();
    let mut all: Vec<Address> = all.map(|i| Address { ip: i.ip(), interface: i.name }).collect();
    all.sort_by_key(|a| a.ip.is_ipv6());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_its_loopback_address() {
        let addresses = list().unwrap();
        let loopback = addresses.iter().find(|a| a.ip == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!(loopback.interface, "lo");
        assert!(!loopback.is_reachable_from_outside());
    }
}
