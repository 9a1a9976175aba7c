//! The doctor on this machine and on hosts played by it.

use crate::support::{TempDir, finish, phalanx};

#[test]
fn a_healthy_machine_is_told_so() {
    let done = finish(&mut phalanx(&["doctor"]));
    assert_eq!(done.code, Some(0), "{}", done.stdout);
    for check in ["cores", "memory", "shared memory", "open files", "host name", "ports", "ssh", "torch"] {
        assert!(done.stdout.contains(check), "{check}: {}", done.stdout);
    }
    assert!(done.stdout.contains(" ok, "), "{}", done.stdout);
}

#[test]
fn hosts_are_asked_for_their_version() {
    let dir = TempDir::new();
    let rsh = dir
        .script("rsh", "case $1 in old) echo phalanx 0.0.1;; dead) exit 255;; *) shift; exec \"$@\";; esac");
    let rsh = format!("{rsh} {{host}}");
    let done = finish(&mut phalanx(&["doctor", "-H", "fine,old,dead", "--rsh", &rsh, "--json"]));
    assert_eq!(done.code, Some(1), "{}", done.stdout);
    let mark = |check: &str| {
        let findings = done.stdout.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        let finding = findings.into_iter().find(|f| f["check"] == check).unwrap();
        finding["mark"].as_str().unwrap().to_string()
    };
    assert_eq!([mark("fine"), mark("old"), mark("dead")], ["ok", "fail", "fail"]);
}

#[test]
fn half_a_launcher_is_warned_about() {
    let done = finish(phalanx(&["doctor"]).env("RANK", "3").env_remove("WORLD_SIZE"));
    assert!(done.stdout.contains("RANK without WORLD_SIZE"), "{}", done.stdout);
    assert!(done.stdout.contains("do: unset RANK"), "{}", done.stdout);
}
