//! Which connections of a job are encrypted and which are in clear.

use super::{finding::Finding, pair::Figures};
use crate::rsh::Rsh;
use phalanx_core::{Config, Encrypt};

const CHECK: &str = "encryption";
const READERS: &str = "everybody who sees this network can read and change tensors and messages of a job";
const LEAVE_OUT: &str = "unset PHALANX_ENCRYPT, unless only machines that you trust reach this network";

/// What would be encrypted by the settings that are here.
pub fn check(setting: Option<String>) -> Option<Finding> {
    let mut config = Config::default();
    if let Some(value) = &setting {
        // A word that is none is found among the settings.
        config.set("PHALANX_ENCRYPT", value).ok()?;
    }
    let said = setting.map_or("PHALANX_ENCRYPT is not set".to_string(), |v| format!("PHALANX_ENCRYPT={v}"));
    Some(match config.encrypt {
        Encrypt::Auto => Finding::ok(
            CHECK,
            format!(
                "{said}: what leaves a host goes through TLS 1.3; in clear: connections inside a host, and shared memory, which \
                 only its own ranks have"
            ),
        ),
        Encrypt::Always => Finding::ok(
            CHECK,
            format!(
                "{said}: every connection goes through TLS 1.3, also inside a host; in clear: shared memory, which only its own ranks have"
            ),
        ),
        Encrypt::Never => {
            Finding::warn(CHECK, format!("{said}: everything between hosts is in clear"), READERS, LEAVE_OUT)
        }
    })
}

/// What was encrypted between these hosts.
pub fn between(pairs: &[Figures], rsh: &Rsh) -> Vec<Finding> {
    let measured: Vec<_> = pairs.iter().filter_map(|p| Some((p, p.measured.as_ref()?))).collect();
    let clear: Vec<String> = measured
        .iter()
        .filter(|(_, m)| !m.encrypted)
        .map(|(p, m)| match m.addresses[0] == m.addresses[1] {
            true => format!("{} - {} (one machine, {})", p.hosts[0], p.hosts[1], m.addresses[0]),
            false => format!("{} - {}", p.hosts[0], p.hosts[1]),
        })
        .collect();
    let leaves = measured.iter().any(|(_, m)| !m.encrypted && m.addresses[0] != m.addresses[1]);
    let mut findings = Vec::new();
    if !measured.is_empty() {
        let n = measured.len() - clear.len();
        let fact = format!("{n} of {} connections between these hosts are encrypted", measured.len());
        let fact = if clear.is_empty() { fact } else { format!("{fact}; in clear: {}", clear.join(", ")) };
        findings.push(match leaves {
            true => Finding::warn(CHECK, fact, READERS, LEAVE_OUT),
            false => Finding::ok(CHECK, fact),
        });
    }
    let shell = rsh.name();
    findings.push(if rsh.encrypts() {
        Finding::ok(CHECK, format!("the secret, orders and what ranks print travel through {shell}, which encrypts"))
    } else {
        Finding::note(
            CHECK,
            format!("the secret, orders and what ranks print travel through `{shell}` (--rsh) and are as safe as it is"),
        )
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{finding::Mark, pair::PairFigures};

    fn pair(addresses: [&str; 2], encrypted: bool) -> Figures {
        let measured = PairFigures {
            addresses: addresses.map(str::to_string),
            interfaces: [None, None],
            round_trip_us: 1.0,
            gb_per_s: [1.0, 1.0],
            encrypted,
        };
        Figures { hosts: ["a".to_string(), "b".to_string()], reached: true, measured: Some(measured) }
    }

    #[test]
    fn what_the_setting_means_is_said() {
        let of = |value: &str| check(Some(value.to_string())).unwrap();
        assert_eq!(check(None).unwrap().mark, Mark::Ok);
        assert_eq!((of("auto").mark, of("always").mark, of("never").mark), (Mark::Ok, Mark::Ok, Mark::Warn));
        assert!(of("never").fact.ends_with("everything between hosts is in clear"));
        assert!(check(Some("perhaps".to_string())).is_none(), "the settings say so");
    }

    #[test]
    fn what_leaves_a_host_in_clear_is_a_warning() {
        let rsh = Rsh::new(None).unwrap();
        let found = |pairs: &[Figures]| {
            let finding = between(pairs, &rsh).remove(0);
            (finding.mark, finding.fact)
        };
        assert_eq!(
            found(&[pair(["10.0.0.1", "10.0.0.2"], true)]),
            (Mark::Ok, "1 of 1 connections between these hosts are encrypted".to_string())
        );
        assert_eq!(found(&[pair(["10.0.0.1", "10.0.0.1"], false)]).0, Mark::Ok, "one machine");
        let (mark, fact) = found(&[pair(["10.0.0.1", "10.0.0.2"], false)]);
        assert_eq!((mark, fact.ends_with("in clear: a - b")), (Mark::Warn, true), "{fact}");
        assert_eq!(between(&[], &rsh)[0].mark, Mark::Ok);
        assert_eq!(between(&[], &Rsh::new(Some("nsenter {host}")).unwrap())[0].mark, Mark::Note);
    }
}
