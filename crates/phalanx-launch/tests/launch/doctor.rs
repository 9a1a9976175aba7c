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

#[test]
fn what_a_rank_refuses_fails_here_with_the_same_words() {
    for (name, value, says) in [
        ("PHALANX_RANK", "1", "phalanx is only partly set"),
        ("PHALANX_SECRET", "short", "PHALANX_SECRET has fewer than 16 characters"),
        ("PHALANX_RENDEZVOUS", "etcd://127.0.0.1:1/job", "127.0.0.1:1 cannot be reached"),
        ("PHALANX_INTERFACE", "nope0", "there is no interface \"nope0\""),
    ] {
        let done = finish(phalanx(&["doctor"]).env(name, value));
        assert_eq!(done.code, Some(1), "{name}: {}", done.stdout);
        // Lines are broken to the width of a page.
        let words = done.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(says), "{name}: {}", done.stdout);
    }
}

#[test]
fn the_engine_is_named_and_what_is_in_clear() {
    let done = finish(phalanx(&["doctor"]).env("SLURM_JOB_ID", "7").env("PHALANX_ENCRYPT", "never"));
    assert!(done.stdout.contains("in allocation 7 of Slurm"), "{}", done.stdout);
    assert!(done.stdout.contains("everything between hosts is in clear"), "{}", done.stdout);
    let rank = [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2"), ("PMI_FD", "8")];
    let done = finish(phalanx(&["doctor"]).envs(rank));
    assert!(done.stdout.contains("rank 1 of 4 by PMI: ranks meet through PMI 1"), "{}", done.stdout);
}

#[test]
fn hosts_that_are_well_measure_the_network_between_them() {
    let args = ["doctor", "-H", "a:2,b:1", "--rsh", "env PHALANX_HOST_ID={host}"];
    let done = finish(&mut phalanx(&[&args[..], &["--json"]].concat()));
    assert_eq!(done.code, Some(0), "{done:?}");
    let findings = done.stdout.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    let pair = findings.into_iter().find(|f| f["hosts"] == serde_json::json!(["a", "b"])).unwrap();
    assert_eq!((&pair["reached"], &pair["mark"]), (&true.into(), &"ok".into()), "{pair}");
    assert!(pair["measured"]["round_trip_us"].as_f64().unwrap() > 0.0, "{pair}");
    let gb = &pair["measured"]["gb_per_s"];
    assert!((0..2).all(|i| gb[i].as_f64().unwrap() > 0.0), "{pair}");
    let done = finish(&mut phalanx(&args));
    assert!(done.stdout.contains("GB/s from the row to the column"), "{done:?}");
}
