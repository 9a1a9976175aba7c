//! Two hosts: what the ranks of a trial world are asked and answer about each other, and what follows from it. Pure.

use super::finding::Finding;
use crate::table::{TextTable, left, widest};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What the ranks of one pair shall do; the others do nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialOrder {
    pub pair: [u32; 2],
    /// How long each of the two sends.
    pub send_ms: u64,
    /// From when they are connected until all is over.
    pub within_ms: u64,
}

impl TrialOrder {
    /// The other one of the pair, if this rank is one.
    pub fn other(&self, rank: u32) -> Option<u32> {
        match self.pair {
            [a, b] if a == rank && b != rank => Some(b),
            [a, b] if b == rank && a != rank => Some(a),
            _ => None,
        }
    }
}

/// A line that a rank prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialAnswer {
    pub by: u32,
    pub said: TrialWord,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TrialWord {
    /// It is in the world.
    Joined,
    /// The world did not form; these ranks did not come.
    StayedOut {
        missing: Vec<u32>,
        why: String,
    },
    Reached {
        with: u32,
        reached: Reached,
    },
    NotReached {
        with: u32,
        is_connector: bool,
        why: String,
    },
}

/// What one end of a link has seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    /// Of this end.
    pub address: String,
    pub interface: Option<String>,
    /// Only one end measures it.
    pub round_trip_us: Option<f64>,
    /// From this end to the other.
    pub bytes_per_s: f64,
    pub is_encrypted: bool,
}

/// What is known of two hosts, for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub hosts: [String; 2],
    pub reached: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<PairFigures>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairFigures {
    pub addresses: [String; 2],
    pub interfaces: [Option<String>; 2],
    pub round_trip_us: f64,
    /// From the first host to the second, and back; 10^9 bytes a second.
    pub gb_per_s: [f64; 2],
    pub encrypted: bool,
}

/// What both ranks of a pair have answered; one that said nothing in time has `None`.
pub fn judge(hosts: [&str; 2], said: [Option<&TrialWord>; 2]) -> Finding {
    let names = hosts.map(str::to_string);
    let check = format!("{} - {}", hosts[0], hosts[1]);
    let finding = match said {
        [Some(TrialWord::Reached { reached: a, .. }), Some(TrialWord::Reached { reached: b, .. })] => {
            let measured = measured([a, b]);
            let fact = describe(hosts, &measured);
            let figures = Figures { hosts: names, reached: true, measured: Some(measured) };
            return Finding { figures: Some(figures), ..Finding::ok(&check, fact) };
        }
        said => {
            let why = |said: Option<&TrialWord>| match said {
                Some(TrialWord::NotReached { why, is_connector, .. }) => Some((*is_connector, why.clone())),
                _ => None,
            };
            // Who connects knows best why it failed; the other one only knows that nobody came.
            let mut whys: Vec<(bool, String)> = said.into_iter().filter_map(why).collect();
            whys.sort_by_key(|(is_connector, _)| !is_connector);
            let why = whys.into_iter().next().map_or("no answer in time".to_string(), |(_, why)| why);
            let fact = format!("{} does not reach {}: {why}", hosts[1], hosts[0]);
            Finding::fail(&check, fact, "no job can use both hosts", &remedy(&why, hosts))
        }
    };
    Finding { figures: Some(Figures { hosts: names, reached: false, measured: None }), ..finding }
}

fn measured([a, b]: [&Reached; 2]) -> PairFigures {
    let gb = |reached: &Reached| (reached.bytes_per_s / 1e3).round() / 1e6;
    let us = a.round_trip_us.or(b.round_trip_us).unwrap_or_default();
    PairFigures {
        addresses: [a.address.clone(), b.address.clone()],
        interfaces: [a.interface.clone(), b.interface.clone()],
        round_trip_us: (us * 10.0).round() / 10.0,
        gb_per_s: [gb(a), gb(b)],
        encrypted: a.is_encrypted && b.is_encrypted,
    }
}

fn describe(hosts: [&str; 2], m: &PairFigures) -> String {
    let end = |i: usize| match &m.interfaces[i] {
        Some(interface) => format!("{} ({interface})", m.addresses[i]),
        None => m.addresses[i].clone(),
    };
    let kind = if m.encrypted { "encrypted" } else { "in clear" };
    format!(
        "{} to {}, {:.0} us there and back, {:.3} GB/s from {}, {:.3} GB/s from {}, {kind}",
        end(0),
        end(1),
        m.round_trip_us,
        m.gb_per_s[0],
        hosts[0],
        m.gb_per_s[1],
        hosts[1],
    )
}

/// What to do about it, by what the system said.
fn remedy(why: &str, [a, b]: [&str; 2]) -> String {
    let why = why.to_ascii_lowercase();
    let interface = "name the network that both have: PHALANX_INTERFACE=NAME";
    if why.contains("refused") {
        format!(
            "a firewall rejects {b}, or {a} has that address on another network; allow TCP ports from {b} to {a}, or {interface}"
        )
    } else if why.contains("unreachable") || why.contains("no route") {
        format!("{b} has no way to {a}'s address (ip route get there); add a route, or {interface}")
    } else if why.contains("denied") || why.contains("not permitted") {
        format!(
            "a rule on {b} forbids the connection (nft list ruleset); allow TCP from {b} to {a}, or {interface}"
        )
    } else {
        format!(
            "a firewall on {a}, {b} or between them drops packets; allow TCP ports above 1023 between them, or {interface}"
        )
    }
}

/// Hosts by hosts: round trips, and GB/s from the host of the row to that of the column.
pub fn table(hosts: &[String], pairs: &[Figures]) -> String {
    let cell = |from: &String, to: &String| -> String {
        if from == to {
            return "-".to_string();
        }
        let pair = pairs.iter().find(|p| p.hosts.contains(from) && p.hosts.contains(to));
        match pair.map(|p| (p, &p.measured)) {
            Some((p, Some(m))) => {
                let gb = m.gb_per_s[usize::from(p.hosts[0] != *from)];
                format!("{:.0} us {gb:.2}{}", m.round_trip_us, if m.encrypted { "" } else { " clear" })
            }
            Some((_, None)) => "none".to_string(),
            None => "?".to_string(),
        }
    };
    let rows: Vec<Vec<String>> = hosts
        .iter()
        .map(|from| [from.clone()].into_iter().chain(hosts.iter().map(|to| cell(from, to))).collect())
        .collect();
    let head: Vec<String> = ["".to_string()].into_iter().chain(hosts.iter().cloned()).collect();
    let all = || [&head].into_iter().chain(&rows);
    let widths: Vec<usize> =
        (0..head.len()).map(|i| widest(all().map(|row: &Vec<String>| row[i].as_str()))).collect();
    let table = TextTable::wide(&widths.iter().map(|width| left("", *width)).collect::<Vec<_>>());
    let mut text = "  round trips of small messages, and GB/s from the row to the column:\n".to_string();
    for row in all() {
        let _ = writeln!(text, "{}", table.row(row));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;

    fn reached(address: &str, us: Option<f64>, gb: f64) -> TrialWord {
        let reached = Reached {
            address: address.to_string(),
            interface: Some("eth0".to_string()),
            round_trip_us: us,
            bytes_per_s: gb * 1e9,
            is_encrypted: true,
        };
        TrialWord::Reached { with: 0, reached }
    }

    fn refused(is_connector: bool, why: &str) -> TrialWord {
        TrialWord::NotReached { with: 0, is_connector, why: why.to_string() }
    }

    #[test]
    fn figures_come_from_both_ends() {
        let (a, b) = (reached("10.0.0.1", None, 1.5), reached("10.0.0.2", Some(41.26), 0.5));
        let finding = judge(["n0", "n1"], [Some(&a), Some(&b)]);
        assert_eq!(
            finding.fact,
            "10.0.0.1 (eth0) to 10.0.0.2 (eth0), 41 us there and back, 1.500 GB/s from n0, 0.500 GB/s from n1, encrypted"
        );
        let json = serde_json::to_value(&finding).unwrap();
        assert_eq!(json["measured"]["round_trip_us"], 41.3);
        assert_eq!(json["hosts"], serde_json::json!(["n0", "n1"]));
        let hosts = ["n0".to_string(), "n1".to_string()];
        let text = table(&hosts, &[finding.figures.unwrap()]);
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            ["      n0          n1", "  n0  -           41 us 1.50", "  n1  41 us 0.50  -"]
        );
    }

    #[test]
    fn who_connects_is_believed_and_answered_with_what_to_do() {
        for (why, action) in [
            ("connection timed out", "drops packets"),
            ("Connection refused (os error 111)", "a firewall rejects n1"),
            ("No route to host (os error 113)", "add a route, or name the network"),
            ("Permission denied (os error 13)", "a rule on n1 forbids"),
        ] {
            let (late, error) = (refused(false, "waited 5.0 s"), refused(true, why));
            let finding = judge(["n0", "n1"], [Some(&late), Some(&error)]);
            assert_eq!(finding.mark, Mark::Fail);
            assert_eq!(finding.fact, format!("n1 does not reach n0: {why}"));
            assert!(finding.action.unwrap().contains(action), "{why}");
        }
        let silent = judge(["n0", "n1"], [None, None]);
        assert_eq!(silent.fact, "n1 does not reach n0: no answer in time");
        let hosts = ["n0".to_string(), "n1".to_string(), "n2".to_string()];
        assert!(table(&hosts, &[silent.figures.unwrap()]).contains("n1  none  -     ?"));
    }

    #[test]
    fn orders_are_for_two() {
        let order = TrialOrder { pair: [1, 3], send_ms: 1, within_ms: 1 };
        assert_eq!([0, 1, 3].map(|rank| order.other(rank)), [None, Some(3), Some(1)]);
    }
}
