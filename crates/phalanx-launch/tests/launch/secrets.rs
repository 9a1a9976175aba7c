//! The job's secret reaches every rank and nothing that others can read.

use crate::launch::support::{Running, finish, phalanx, run};
use std::{fs, process::Command};

const SHOW: &str = "od -An -v -tx1 /proc/self/fd/$PHALANX_SECRET_FD | tr -d ' \\n'; echo; exec sleep 1000";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

#[test]
fn all_ranks_have_the_same_secret_and_nobody_elses_eyes_see_it() {
    let mut running = Running::run(&["-np", "2", "-v", "sh", "-c", SHOW]);
    let secrets: Vec<String> =
        (0..2).map(|_| running.line().split(" | ").nth(1).unwrap().to_string()).collect();
    assert_eq!(secrets[0].len(), 64);
    assert_eq!(secrets[0], secrets[1]);
    let raw = bytes(&secrets[0]);
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        for file in ["cmdline", "environ"] {
            let Ok(text) = fs::read(entry.path().join(file)) else { continue };
            let shows = |secret: &[u8]| text.windows(secret.len()).any(|w| w.eq_ignore_ascii_case(secret));
            assert!(!shows(&raw) && !shows(secrets[0].as_bytes()), "{:?}/{file}", entry.path());
        }
    }
    running.signal("TERM");
    let done = running.finish();
    assert!(!done.stderr.contains(&secrets[0]), "the plan of -v shows no secret");
}

#[test]
fn a_rank_sees_the_descriptors_number_and_nothing_else_named_secret() {
    let done = run(&["-np", "1", "env"]);
    let is_named =
        |line: &&str| line.split('=').next().is_some_and(|name| name.to_uppercase().contains("SECRET"));
    let secret: Vec<&str> = done.stdout.lines().filter(is_named).collect();
    assert_eq!(secret.len(), 1, "{secret:?}");
    assert!(secret[0].starts_with("PHALANX_SECRET_FD="));
}

#[test]
fn every_job_has_its_own_secret() {
    let show = "od -An -v -tx1 /proc/self/fd/$PHALANX_SECRET_FD";
    let secret = || run(&["-np", "1", "sh", "-c", show]).stdout;
    assert_ne!(secret(), secret());
}

/// Kubernetes and Docker mount secrets so; the mode is of their choice.
#[test]
fn a_secret_on_a_read_only_mount_may_have_any_mode() {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|s| s.success()) {
        eprintln!("skipped: mounts of one's own need root");
        return;
    }
    let us = phalanx(&[]).get_program().to_string_lossy().into_owned();
    let mounted = "mount -t tmpfs none /mnt && echo correct horse battery staple > /mnt/key && chmod $0 /mnt/key && mount -o remount,$1 /mnt \
                   && shift && PHALANX_SECRET_FILE=/mnt/key exec \"$@\"";
    let node = [
        "run",
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--rdzv",
        "127.0.0.1:1",
        "--start-timeout",
        "0.1",
        "true",
    ];
    let with = |mode: &str, how: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", mounted, mode, how, &us])
            .args(node)
            .env_remove("PHALANX_SECRET");
        finish(&mut command)
    };
    for mode in ["777", "644", "400"] {
        let done = with(mode, "ro");
        assert!(done.code == Some(124) && done.stderr.contains("no launcher of node 0"), "{mode}: {done:?}");
    }
    for (mode, why) in [("777", "other users can write it"), ("644", "other users can read it")] {
        let done = with(mode, "rw");
        assert!(done.code == Some(1) && done.stderr.contains(why), "{mode}: {done:?}");
    }
}
