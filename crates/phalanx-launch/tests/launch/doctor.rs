//! The doctor on this machine and on hosts played by it.

use crate::launch::support::{Done, TempDir, finish, phalanx};

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
    let hosts = dir.write("hosts", "fine slots=2\nold\ndead # for long\n");
    for named in [["-H", "fine,old,dead"], ["--hostfile", &hosts]] {
        let args = ["doctor", named[0], named[1], "--rsh", &rsh, "--json"];
        judged(&finish(&mut phalanx(&args)));
    }
}

fn judged(done: &Done) {
    assert_eq!(done.code, Some(1), "{}", done.stdout);
    let mark = |check: &str| {
        let findings = done.stdout.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        let finding = findings.into_iter().find(|f| f["check"] == check).unwrap();
        finding["mark"].as_str().unwrap().to_string()
    };
    assert_eq!([mark("fine"), mark("old"), mark("dead")], ["ok", "fail", "fail"]);
}

#[test]
fn a_misspelled_setting_is_found() {
    let done = finish(phalanx(&["doctor"]).env("PHALANX_TIMOUT", "5"));
    assert_eq!(done.code, Some(1), "{}", done.stdout);
    let says = "PHALANX_TIMOUT is not a setting; did you mean PHALANX_TIMEOUT?";
    assert!(done.stdout.contains(says), "{}", done.stdout);
}

#[test]
fn half_a_launcher_is_warned_about() {
    let done = finish(phalanx(&["doctor"]).env("RANK", "3").env_remove("WORLD_SIZE"));
    assert!(done.stdout.contains("RANK set, but not WORLD_SIZE"), "{}", done.stdout);
    assert!(done.stdout.contains("do: unset RANK"), "{}", done.stdout);
}
