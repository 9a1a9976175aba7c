//! Several hosts, played by one machine: `env PHALANX_HOST_ID={host}` runs an agent here as if it were there.

use crate::launch::support::{Running, TempDir, eventually, finish, is_alive, kill, phalanx, run};
use std::time::Duration;

const RSH: &str = "env PHALANX_HOST_ID={host}";

#[test]
fn ranks_fill_the_hosts_in_order_and_know_their_place() {
    let script = "echo $PHALANX_HOST_ID $PHALANX_HOSTNAME $PHALANX_LOCAL_RANK/$PHALANX_LOCAL_SIZE $PHALANX_CROSS_RANK/$PHALANX_CROSS_SIZE";
    let done = run(&["-H", "one:2,two:1", "--rsh", RSH, "sh", "-c", script]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let mut lines: Vec<&str> = done.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one:0 | one one 0/2 0/2", "one:1 | one one 1/2 0/1", "two:2 | two two 0/1 1/2"]);
}

#[test]
fn the_plan_is_printed_with_v() {
    let dir = TempDir::new();
    let hosts = dir.write("hosts", "one slots=1\ntwo slots=2 # both\n");
    let done = run(&["-v", "--hostfile", &hosts, "--rsh", RSH, "true"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("a world of 3 ranks on 2 hosts"), "{}", done.stderr);
    assert!(done.stderr.contains("env PHALANX_HOST_ID=two "), "{}", done.stderr);
    assert!(done.stderr.contains("ranks meet at "), "{}", done.stderr);
    assert!(done.stderr.contains("every host has answered; cores: one "), "{}", done.stderr);
}

#[test]
fn with_v_the_plan_comes_before_the_trouble_and_the_shells_words_come_once() {
    let dir = TempDir::new();
    let ssh = dir.script("ssh", "echo \"ssh: Could not resolve hostname $7\" >&2; exit 255");
    let done = run(&["-v", "-H", "nowhere:1", "--rsh", &ssh, "true"]);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let at = |text: &str| done.stderr.find(text).unwrap_or_else(|| panic!("{text}: {}", done.stderr));
    let (plan, words, verdict) =
        (at("a world of 1 rank on 1 host"), at("phalanx: nowhere: ssh: Could not"), at("could not connect"));
    assert!(plan < words && words < verdict, "{}", done.stderr);
    assert_eq!(done.stderr.matches("Could not resolve").count(), 1, "{}", done.stderr);
}

#[test]
fn the_environment_travels_but_other_launchers_ranks_do_not() {
    let script = "echo [$CARRIED] [$ADDED] [$RANK] [$OMPI_COMM_WORLD_RANK] [$OMP_NUM_THREADS] [$SSH_TTY]";
    for rsh in [None, Some(RSH)] {
        let mut args = vec!["run", "-np", "1", "-H", "localhost", "-x", "ADDED=2", "-x", "OMP_NUM_THREADS"];
        args.extend(rsh.iter().flat_map(|rsh| ["--rsh", rsh]));
        args.extend(["sh", "-c", script]);
        let mut command = phalanx(&args);
        command
            .env("CARRIED", "1")
            .env("RANK", "5")
            .env("OMPI_COMM_WORLD_RANK", "5")
            .env("OMP_NUM_THREADS", "3");
        let done = finish(command.env_remove("SSH_TTY"));
        assert_eq!(done.stdout, "[1] [2] [] [] [3] []\n", "{rsh:?} {}", done.stderr);
    }
}

#[test]
fn ranks_take_large_tensors_in_huge_pages_unless_the_user_says_no() {
    let said = |value: Option<&str>| {
        let mut command = phalanx(&["run", "-np", "1", "sh", "-c", "echo [$THP_MEM_ALLOC_ENABLE]"]);
        command.env_remove("THP_MEM_ALLOC_ENABLE");
        finish(command.envs(value.map(|value| ("THP_MEM_ALLOC_ENABLE", value)))).stdout
    };
    assert_eq!((said(None), said(Some("0"))), ("[1]\n".into(), "[0]\n".into()));
}

#[test]
fn the_failing_ranks_host_is_named() {
    let script = "test $PHALANX_RANK = 2 && exit 9; exec sleep 1000";
    let done = run(&["-H", "one:2,two:2", "--rsh", RSH, "sh", "-c", script]);
    assert_eq!(done.code, Some(9));
    assert!(done.stderr.contains("phalanx: rank 2 on two (pid "), "{}", done.stderr);
}

/// JOB-1.
#[test]
fn nothing_starts_anywhere_when_one_host_cannot_be_reached() {
    let dir = TempDir::new();
    let rsh = dir.script("rsh", "[ $1 = two ] && exit 1; shift; exec \"$@\"");
    let started = dir.path("started");
    let done = run(&["-H", "one:1,two:1", "--rsh", &format!("{rsh} {{host}}"), "touch", &started]);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("cannot start ranks on host two"), "{}", done.stderr);
    assert!(!std::path::Path::new(&started).exists());
}

#[test]
fn trouble_on_several_hosts_is_told_at_once() {
    let done = run(&["-H", "one:1,two:1", "--rsh", RSH, "no-such-command"]);
    assert_eq!(done.code, Some(127), "{}", done.stderr);
    assert!(done.stderr.contains("host one: command not found"), "{}", done.stderr);
    assert!(done.stderr.contains("host two: command not found"), "{}", done.stderr);
}

#[test]
fn a_host_that_cannot_be_reached_is_named_with_the_shells_words() {
    let dir = TempDir::new();
    let ssh = dir.script("ssh", "echo \"ssh: Could not resolve hostname $7\" >&2; exit 255");
    let done = run(&["-H", "nowhere:1", "--rsh", &ssh, "true"]);
    assert_eq!(done.code, Some(1));
    for text in [
        "host nowhere",
        "could not connect",
        "  | ssh: Could not resolve hostname nowhere",
        "ServerAliveCountMax=3 nowhere true",
    ] {
        assert!(done.stderr.contains(text), "{text}: {}", done.stderr);
    }
}

#[test]
fn a_missing_remote_shell_is_named() {
    let done = run(&["-H", "nowhere:1", "--rsh", "/no/such/rsh", "true"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("cannot start \"/no/such/rsh\" to reach host nowhere"), "{}", done.stderr);
}

#[test]
fn a_phalanx_missing_on_the_other_side_is_explained() {
    let done = run(&["-H", "one:1", "--rsh", RSH, "--remote-exe", "/no/such/phalanx", "true"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("found no /no/such/phalanx there"), "{}", done.stderr);
}

#[test]
fn a_shell_that_talks_and_leads_to_no_agent_is_explained() {
    let done = run(&["-H", "one:1", "--rsh", "sh -c 'echo Welcome to {host}'", "true"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("it said \"Welcome to one\""), "{}", done.stderr);
}

#[test]
fn a_silent_host_ends_with_the_start_timeout() {
    let dir = TempDir::new();
    let rsh = dir.script("rsh", "echo $$ > $0.pid; exec sleep 1000");
    let done = run(&["-H", "one:1", "--start-timeout", "0.5", "--rsh", &rsh, "true"]);
    assert_eq!(done.code, Some(124));
    assert!(done.stderr.contains("no answer from one within 0.5 s"), "{}", done.stderr);
    let pid = std::fs::read_to_string(format!("{rsh}.pid")).unwrap().trim().parse().unwrap();
    eventually(Duration::from_secs(10), "the remote shell's end", || !is_alive(pid));
}

#[test]
fn a_host_that_disappears_is_lost_and_the_others_end() {
    let script = "echo $PHALANX_RANK $PPID; exec sleep 1000";
    let mut running = Running::run(&["-H", "one:1,two:1", "--rsh", RSH, "sh", "-c", script]);
    let lines = [running.line(), running.line()];
    let of_two = lines.iter().find(|l| l.contains("two:1")).unwrap();
    let agent: u32 = of_two.rsplit(' ').next().unwrap().parse().unwrap();
    kill(agent, "KILL");
    let done = running.finish();
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("phalanx: lost host two with rank 1"), "{}", done.stderr);
    assert!(done.stderr.contains("rank 0 ended on request"), "{}", done.stderr);
    eventually(Duration::from_secs(10), "the agent's end", || !is_alive(agent));
}

#[test]
fn bound_ranks_get_their_own_cores() {
    let done = run(&["-np", "2", "--bind", "sh", "-c", "grep Cpus_allowed_list /proc/self/status"]);
    let masks: Vec<&str> = done.stdout.lines().filter_map(|l| l.split('\t').nth(1)).collect();
    assert_eq!(masks.len(), 2, "{} {}", done.stdout, done.stderr);
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert_ne!(masks[0], masks[1]);
    }
}
