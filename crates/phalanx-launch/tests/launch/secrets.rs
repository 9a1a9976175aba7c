//! The job's secret reaches every rank and nothing that others can read.

use crate::launch::support::{Running, run};
use std::fs;

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
