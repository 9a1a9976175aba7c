//! Names, addresses and ports of this machine.

use super::{finding::Finding, timed};
use crate::addresses::{self, Address};
use phalanx_net::socket::address_towards;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    time::Duration,
};

/// A name server that is not there may keep a question for half a minute.
const RESOLVE: Duration = Duration::from_secs(5);
/// An address that stands for the rest of the world (RFC 5737). Nothing is sent there.
const SOMEBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

pub fn check() -> Vec<Finding> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let asked = name.clone();
    let resolved = timed::call(RESOLVE, move || {
        (asked.as_str(), 0).to_socket_addrs().map(|found| found.map(|a| a.ip()).collect::<Vec<_>>())
    });
    let known = addresses::list().unwrap_or_default();
    vec![host_name(&name, resolved), interfaces(&known), outward(address_towards(SOMEBODY)), port(try_port())]
}

fn host_name(name: &str, resolved: Option<io::Result<Vec<IpAddr>>>) -> Finding {
    let check = "host name";
    let (alone, fix) = (
        "only jobs on several hosts are affected: hosts that look up this name get a wrong address; phalanx itself sends addresses",
        "put the machine's real address and name into /etc/hosts or DNS",
    );
    match resolved {
        None => Finding::warn(check, format!("{name}: no answer within {} s", RESOLVE.as_secs()), alone, fix),
        Some(Err(error)) => Finding::warn(check, format!("{name} does not resolve: {error}"), alone, fix),
        Some(Ok(mut ips)) => {
            ips.dedup();
            let all = ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            if ips.iter().all(IpAddr::is_loopback) {
                return Finding::warn(check, format!("{name} resolves to loopback only: {all}"), alone, fix);
            }
            Finding::ok(check, format!("{name} is {all}"))
        }
    }
}

fn interfaces(known: &[Address]) -> Finding {
    let outside: Vec<String> = known
        .iter()
        .filter(|a| a.is_reachable_from_outside())
        .map(|a| format!("{} {}", a.interface, a.ip))
        .collect();
    if outside.is_empty() {
        return Finding::note("interfaces", "loopback only: only jobs on this machine alone can run");
    }
    Finding::ok("interfaces", outside.join(", "))
}

fn outward(route: io::Result<IpAddr>) -> Finding {
    match route {
        Ok(ip) => Finding::ok("default route", format!("other hosts see this machine as {ip}")),
        Err(_) => Finding::note(
            "default route",
            "none: for jobs on several hosts, name the interface with --interface",
        ),
    }
}

fn try_port() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    Ok(address.port())
}

fn port(tried: io::Result<u16>) -> Finding {
    match tried {
        Ok(port) => Finding::ok("ports", format!("loopback connects (tried port {port})")),
        Err(error) => Finding::fail(
            "ports",
            format!("loopback does not connect: {error}"),
            "ranks cannot connect to each other, not even on this machine",
            "bring the interface up (ip link set lo up); check the firewall and ip_local_port_range",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;

    #[test]
    fn names_that_lead_nowhere_are_warned_about() {
        let ips = |list: &[&str]| Some(Ok(list.iter().map(|ip| ip.parse().unwrap()).collect()));
        assert_eq!(host_name("a", ips(&["10.0.0.1"])).mark, Mark::Ok);
        let finding = host_name("a", ips(&["127.0.1.1"]));
        assert_eq!(
            (finding.mark, finding.fact.as_str()),
            (Mark::Warn, "a resolves to loopback only: 127.0.1.1")
        );
        assert_eq!(host_name("a", None).mark, Mark::Warn);
        assert_eq!(host_name("a", Some(Err(io::ErrorKind::NotFound.into()))).mark, Mark::Warn);
    }

    #[test]
    fn ports_that_do_not_work_fail() {
        assert_eq!(port(Ok(7)).mark, Mark::Ok);
        assert_eq!(port(Err(io::ErrorKind::AddrNotAvailable.into())).mark, Mark::Fail);
    }
}
