//! Which shape fits hosts: from their numbers of ranks, and from how fast pairs of them are. Pure.
//!
//! - SHAPE-1: hosts that reach each other fast are a rack where every two of them do, and racks are equally large; otherwise the network counts as flat.

use super::pair::{Figures, PairFigures};
use crate::hosts::HostSlots;
use phalanx_core::{Tiers, topology::TopologyError};

/// A pair below this part of the fastest one is far.
const FAR: f64 = 0.75;
/// So is one whose round trip takes this many times the shortest, and is longer by this much.
const FAR_TIMES: f64 = 3.0;
const FAR_US: f64 = 100.0;

/// What is known of the hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeAdvice {
    /// None: no shape fits.
    pub tiers: Option<Tiers>,
    /// Hosts, rack by rack; one rack where the network is flat.
    pub racks: Vec<Vec<String>>,
    pub why: String,
}

/// The shape of these hosts.
pub fn suggest(hosts: &[HostSlots], pairs: &[Figures]) -> ShapeAdvice {
    let racks = racks(hosts, pairs);
    let each = hosts.first().map_or(1, |host| host.slots);
    if let Some(other) = hosts.iter().find(|host| host.slots != each) {
        let why = format!(
            "{} has {each} ranks and {} has {}: no shape fits hosts of different sizes; leave --tiers out, and the hosts are used as they are",
            hosts[0].name, other.name, other.slots
        );
        return ShapeAdvice { tiers: None, racks, why };
    }
    let (n_hosts, n_racks) = (hosts.len() as u32, racks.len() as u32);
    let dims = match (n_hosts, n_racks) {
        (1, _) => vec![each],
        (_, 1) => vec![each, n_hosts],
        _ => vec![each, n_hosts / n_racks, n_racks],
    };
    let why = match (n_hosts, n_racks) {
        (1, _) => format!("{each} ranks share one host"),
        (_, 1) => format!("{n_hosts} hosts of {each} ranks reach each other about equally fast"),
        _ => format!(
            "{n_racks} groups of {} hosts are faster inside than between each other",
            n_hosts / n_racks
        ),
    };
    ShapeAdvice { tiers: Tiers::new(&dims).ok(), racks, why }
}

/// Groups of hosts that are near each other, in the order of the hosts (SHAPE-1).
fn racks(hosts: &[HostSlots], pairs: &[Figures]) -> Vec<Vec<String>> {
    let flat = || vec![hosts.iter().map(|host| host.name.clone()).collect()];
    let measured: Vec<&PairFigures> = pairs.iter().filter_map(|pair| pair.measured.as_ref()).collect();
    let rate = |m: &PairFigures| m.gb_per_s[0].min(m.gb_per_s[1]);
    let fastest = measured.iter().map(|m| rate(m)).fold(0.0, f64::max);
    let shortest = measured.iter().map(|m| m.round_trip_us).fold(f64::INFINITY, f64::min);
    let is_near = |a: &str, b: &str| {
        let pair = pairs.iter().find(|p| p.hosts.iter().any(|h| h == a) && p.hosts.iter().any(|h| h == b));
        pair.and_then(|pair| pair.measured.as_ref()).is_some_and(|m| {
            let is_slow = rate(m) < FAR * fastest;
            let is_long = m.round_trip_us > FAR_TIMES * shortest && m.round_trip_us > shortest + FAR_US;
            !is_slow && !is_long
        })
    };
    let mut racks: Vec<Vec<String>> = Vec::new();
    for host in hosts {
        match racks.iter_mut().find(|rack| rack.iter().all(|other| is_near(other, &host.name))) {
            Some(rack) => rack.push(host.name.clone()),
            None => racks.push(vec![host.name.clone()]),
        }
    }
    let rack_of = |name: &str| racks.iter().position(|rack| rack.iter().any(|host| host == name));
    let is_clean = hosts.iter().enumerate().all(|(i, a)| {
        hosts[i + 1..].iter().all(|b| is_near(&a.name, &b.name) == (rack_of(&a.name) == rack_of(&b.name)))
    });
    let size = racks[0].len();
    if is_clean && size > 1 && racks.iter().all(|rack| rack.len() == size) { racks } else { flat() }
}

/// How ranks of a host and hosts of a rack lie along a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    Fits,
    /// The first tiers are no whole host: groups of this number of ranks span hosts.
    Spans {
        group: u32,
        each: u32,
    },
}

/// Whether a shape fits these hosts, which must have the same number of ranks for that.
pub fn fit(tiers: &Tiers, hosts: &[HostSlots]) -> Result<Fit, TopologyError> {
    tiers.check(hosts.iter().fold(0u32, |all, host| all.saturating_add(host.slots)))?;
    let each = hosts.first().map_or(1, |host| host.slots);
    let is_even = hosts.iter().all(|host| host.slots == each);
    let dims = tiers.dims();
    let fits = is_even && (1..=dims.len()).any(|k| dims[..k].iter().product::<u32>() == each);
    Ok(if fits { Fit::Fits } else { Fit::Spans { group: dims[0], each } })
}

/// Whether hosts of a rack stand next to each other in the list.
pub fn is_in_order(hosts: &[HostSlots], racks: &[Vec<String>]) -> bool {
    hosts.iter().map(|host| &host.name).eq(racks.iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;

    fn pair(a: &str, b: &str, gb: f64, us: f64) -> Figures {
        let measured = PairFigures {
            addresses: [a.to_string(), b.to_string()],
            interfaces: [None, None],
            round_trip_us: us,
            gb_per_s: [gb, gb * 1.05],
            encrypted: true,
        };
        Figures { hosts: [a.to_string(), b.to_string()], reached: true, measured: Some(measured) }
    }

    /// Pairs of these hosts; `far` says which are far.
    fn all(names: &[&str], far: impl Fn(&str, &str) -> bool) -> Vec<Figures> {
        let mut pairs = Vec::new();
        for (i, a) in names.iter().enumerate() {
            for b in &names[i + 1..] {
                pairs.push(if far(a, b) { pair(a, b, 0.012, 90.0) } else { pair(a, b, 0.024, 80.0) });
            }
        }
        pairs
    }

    fn shape(list: &str, pairs: &[Figures]) -> (Option<String>, usize) {
        let advice = suggest(&parse_list(list).unwrap(), pairs);
        (advice.tiers.map(|t| t.to_string()), advice.racks.len())
    }

    #[test]
    fn equal_hosts_on_a_flat_network_have_two_tiers() {
        let names = ["a", "b", "c"];
        assert_eq!(shape("a:4,b:4,c:4", &all(&names, |_, _| false)), (Some("4x3".into()), 1));
        assert_eq!(shape("a:4", &[]), (Some("4".into()), 1));
        assert_eq!(shape("a:1,b:1,c:1", &all(&names, |_, _| false)), (Some("1x3".into()), 1));
    }

    #[test]
    fn hosts_that_are_faster_among_themselves_are_racks() {
        let rack = |name: &str| name < "n3";
        let names = ["n0", "n1", "n2", "n3", "n4", "n5"];
        let pairs = all(&names, |a, b| rack(a) != rack(b));
        assert_eq!(shape("n0:2,n1:2,n2:2,n3:2,n4:2,n5:2", &pairs), (Some("2x3x2".into()), 2), "SHAPE-1");
        let mixed = parse_list("n0:2,n3:2,n1:2,n4:2,n2:2,n5:2").unwrap();
        let advice = suggest(&mixed, &pairs);
        assert_eq!(advice.racks, [["n0", "n1", "n2"], ["n3", "n4", "n5"]]);
        assert!(!is_in_order(&mixed, &advice.racks));
        // A star is no two racks.
        let star = all(&["a", "b", "c", "d"], |a, _| a != "a");
        assert_eq!(shape("a,b,c,d", &star), (Some("1x4".into()), 1), "SHAPE-1");
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let advice = suggest(&parse_list("a:4,b:3").unwrap(), &[]);
        assert_eq!(advice.tiers, None);
        assert!(advice.why.starts_with("a has 4 ranks and b has 3: no shape fits"), "{}", advice.why);
        let hosts = parse_list("a:4,b:4,c:4").unwrap();
        let of = |shape: &str| fit(&shape.parse().unwrap(), &hosts).map_err(|e| e.to_string());
        assert_eq!([of("4x3"), of("2x2x3")], [Ok(Fit::Fits), Ok(Fit::Fits)]);
        assert_eq!(of("6x2"), Ok(Fit::Spans { group: 6, each: 4 }));
        assert_eq!(of("12"), Ok(Fit::Spans { group: 12, each: 4 }));
        assert_eq!(of("4x4"), Err("shape 4x4 holds 16 ranks, but the world has 12".into()));
    }
}
