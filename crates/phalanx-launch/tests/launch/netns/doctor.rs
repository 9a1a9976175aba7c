//! The doctor on three hosts that do not all reach each other.

use super::{Hosts, binary, inside, ip};
use crate::launch::support::{Done, finish, phalanx};
use serde_json::Value;

/// The doctor inside the first host, about the first three.
fn doctor(hosts: &Hosts, encrypt: &str) -> (Done, Vec<Value>) {
    let mut command = inside(&hosts.names[0]);
    let list = hosts.names[..3].join(",");
    command.args([&binary(), "doctor", "-H", &list, "--rsh", "nsenter --net=/run/netns/{host}"]);
    command.args(["--timeout", "4", "--json"]);
    phalanx(&[]).get_envs().filter(|(_, value)| value.is_none()).for_each(|(name, _)| {
        command.env_remove(name);
    });
    let done = finish(command.env("PHALANX_ENCRYPT", encrypt));
    let findings =
        done.stdout.lines().map(|l| serde_json::from_str(l).expect("a JSON object a line")).collect();
    (done, findings)
}

/// What was found about two of the hosts.
fn pair(findings: &[Value], hosts: &Hosts, of: [usize; 2]) -> Value {
    let names = serde_json::json!(of.map(|i| &hosts.names[i]));
    findings.iter().find(|f| f["hosts"] == names).cloned().unwrap_or_else(|| panic!("{of:?}: {findings:?}"))
}

#[test]
fn every_pair_of_hosts_is_measured_and_one_that_cannot_connect_is_named() {
    let Some(hosts) = Hosts::bridged("d", 3) else { return };
    let (done, found) = doctor(&hosts, "auto");
    assert_eq!(done.code, Some(0), "{done:?}");
    for of in [[0, 1], [0, 2], [1, 2]] {
        let pair = pair(&found, &hosts, of);
        let measured = &pair["measured"];
        let addresses = of.map(|i| format!("10.78.0.{}", i + 1));
        assert_eq!(measured["addresses"], serde_json::json!(addresses), "{pair}");
        assert_eq!(measured["interfaces"], serde_json::json!(["eth0", "eth0"]), "{pair}");
        assert_eq!(measured["encrypted"], true, "{pair}");
    }
    let is_said =
        |text: &str| found.iter().any(|f| f["fact"].as_str().is_some_and(|fact| fact.contains(text)));
    assert!(is_said("3 of 3 connections between these hosts are encrypted"), "{done:?}");

    // What the second host answers the third one is lost; then a route leads nowhere, which is refused at once.
    let (second, third) = (hosts.names[1].as_str(), hosts.names[2].as_str());
    assert!(ip(&["-n", second, "route", "add", "blackhole", "10.78.0.3/32"]));
    not_reached(&hosts, "drops packets");
    assert!(ip(&["-n", second, "route", "del", "blackhole", "10.78.0.3/32"]));
    assert!(ip(&["-n", third, "route", "add", "unreachable", "10.78.0.2/32"]));
    not_reached(&hosts, "add a route");
}

fn not_reached(hosts: &Hosts, remedy: &str) {
    let (done, found) = doctor(hosts, "never");
    assert_eq!(done.code, Some(1), "{done:?}");
    let cut = pair(&found, hosts, [1, 2]);
    assert_eq!((&cut["mark"], &cut["reached"]), (&"fail".into(), &false.into()), "{cut}");
    let says = format!("{} does not reach {}", hosts.names[2], hosts.names[1]);
    assert!(cut["fact"].as_str().unwrap().starts_with(&says), "{cut}");
    assert!(cut["action"].as_str().unwrap().contains(remedy), "{cut}");
    for of in [[0, 1], [0, 2]] {
        let pair = pair(&found, hosts, of);
        assert_eq!((&pair["mark"], &pair["measured"]["encrypted"]), (&"ok".into(), &false.into()), "{pair}");
    }
}

#[test]
fn a_host_that_does_not_reach_the_meeting_point_is_named_and_the_others_are_measured() {
    let Some(hosts) = Hosts::bridged("e", 3) else { return };
    assert!(ip(&["-n", &hosts.names[2], "route", "add", "unreachable", "10.78.0.1/32"]));
    let (done, found) = doctor(&hosts, "auto");
    assert_eq!(done.code, Some(1), "{done:?}");
    let of_third = |f: &&Value| f["check"] == hosts.names[2].as_str() && f["mark"] == "fail";
    let third = found.iter().find(of_third).unwrap_or_else(|| panic!("{done:?}"));
    assert!(third["fact"].as_str().unwrap().contains("do not reach the meeting point"), "{third}");
    assert_eq!(pair(&found, &hosts, [0, 1])["reached"], true);
}
