//! What `horovodrun` and `phalanx.run` ask of the launcher, with real processes.

use crate::launch::support::{TempDir, finish, phalanx, run};
use std::fs;

#[test]
fn with_horovod_ranks_know_themselves_by_its_names_too() {
    let script = "echo $HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE \
                  $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE $HOROVOD_HOSTNAME";
    let mut command = phalanx(&[
        "run",
        "--horovod",
        "-H",
        "one:2,two:1",
        "--rsh",
        "env PHALANX_HOST_ID={host}",
        "--tag-output",
        "never",
        "sh",
        "-c",
        script,
    ]);
    // As inside another horovodrun, whose numbers must not shine through.
    let done = finish(command.env("HOROVOD_RANK", "7").env("HOROVOD_SIZE", "9"));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let mut lines: Vec<&str> = done.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0/3 0/2 0/2 one", "1/3 1/2 0/1 one", "2/3 0/1 1/2 two"]);
    let without =
        finish(phalanx(&["run", "-np", "1", "sh", "-c", "echo [$HOROVOD_RANK]"]).env("HOROVOD_RANK", "7"));
    assert_eq!(without.stdout, "[]\n", "programs that are not Horovod's are not told that they are");
}

#[test]
fn a_port_for_ssh_leaves_this_machine_alone() {
    let dir = TempDir::new();
    let ssh = dir.script("ssh", "echo \"$@\" > $0.words; exit 255");
    let done = run(&["-H", "localhost:1", "--rsh", &format!("{ssh} -p 2222"), "echo", "here"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "here\n"), "{}", done.stderr);
    let done = run(&["-H", "nowhere:1", "--rsh", &format!("{ssh} -p 2222"), "echo", "there"]);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let words = fs::read_to_string(format!("{ssh}.words")).unwrap();
    assert!(words.contains("BatchMode=yes") && words.contains("-p 2222 nowhere"), "{words}");
}

#[test]
fn several_interfaces_may_be_named_and_each_must_exist() {
    let done = run(&["-v", "-np", "1", "--interface", "lo,127.0.0.1", "true"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let done = run(&["-np", "1", "--interface", "lo,wlan9", "true"]);
    assert_eq!(done.code, Some(2), "{}", done.stderr);
    assert!(done.stderr.contains("there is no interface \"wlan9\""), "{}", done.stderr);
}

#[test]
fn slots_hold_for_hosts_that_name_none() {
    let done = run(&["--slots-per-host", "2", "-H", "localhost", "true"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let done = run(&["-np", "3", "--slots-per-host", "2", "true"]);
    assert_eq!(done.code, Some(2), "{}", done.stderr);
    assert!(
        done.stderr.contains("-np 3 asks for more ranks than the 2 slots of --slots-per-host"),
        "{}",
        done.stderr
    );
    let done = run(&["--slots-per-host", "0", "true"]);
    assert!(done.stderr.contains("a whole number of slots from 1"), "{}", done.stderr);
}

#[test]
fn the_verdict_is_left_for_the_program_that_asked() {
    let dir = TempDir::new();
    let file = dir.path("verdict");
    let script = "test $PHALANX_RANK = 1 && kill -9 $$; exec sleep 1000";
    let done = run(&["-np", "2", "--verdict", &file, "sh", "-c", script]);
    assert_eq!(done.code, Some(137), "{}", done.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), r#"{"rank":1,"signal":9}"#);
}
