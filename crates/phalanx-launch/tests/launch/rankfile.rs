//! `phalanx run -rf FILE`: ranks run where the file says, on the cores that it names.

use crate::launch::support::{TempDir, finish, phalanx, run};

/// What each rank prints of itself: rank, host, local rank and size, cores.
const SELF: &str = "cores=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
    echo $PHALANX_RANK $PHALANX_HOSTNAME $PHALANX_LOCAL_RANK/$PHALANX_LOCAL_SIZE $PHALANX_CROSS_RANK $cores";

#[test]
fn ranks_run_on_the_hosts_and_cores_of_the_file() {
    let dir = TempDir::new();
    let rsh = format!("{} {{host}}", dir.script("rsh", "shift; exec \"$@\""));
    let file = dir.write("dealt.rf", "rank 1=b slot=0\nrank 0=a slot=0\nrank 2=a # anywhere\n");
    let done = run(&["-rf", &file, "--rsh", &rsh, "--tag-output", "never", "sh", "-c", SELF]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let mut lines: Vec<Vec<&str>> = done.stdout.lines().map(|line| line.split(' ').collect()).collect();
    lines.sort();
    let of = |i: usize| &lines[i][..4];
    assert_eq!(
        [of(0), of(1), of(2)],
        [["0", "a", "0/2", "0"], ["1", "b", "0/1", "1"], ["2", "a", "1/2", "0"]]
    );
    assert_eq!([lines[0][4], lines[1][4]], ["0", "0"], "the cores that the file names");
}

#[test]
fn what_the_command_writes_is_run() {
    let dir = TempDir::new();
    let rsh = format!("{} {{host}}", dir.script("rsh", "shift; exec \"$@\""));
    let file = dir.write("2x2.rf", "");
    let made = finish(&mut phalanx(&["rankfile", "1x2", "n0,n1", "--cores", "1", "-o", &file]));
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let done = run(&["-np", "2", "-rf", &file, "--rsh", &rsh, "-v", "true"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("2 ranks on 2 hosts"), "{}", done.stderr);
}

/// Each is one line on stderr, before anything starts.
#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let dir = TempDir::new();
    for (text, args, says) in [
        (
            "rank 0=localhost slot=0\nrank 0=localhost slot=0\n",
            &[][..],
            "line 2: rank 0 is named already in line 1",
        ),
        ("rank 0=localhost\nrank 2=localhost\n", &[], "names ranks up to 2, but not rank 1"),
        (
            "rank 0=localhost\nrank 1=nowhere\n",
            &["-H", "localhost:4"],
            "line 2: host nowhere is not among the hosts of -H: localhost",
        ),
        (
            "rank 0=localhost slot=0\nrank 1=localhost slot=4095\n",
            &[],
            "line 2: rank 1 is to run on core 4095, which is not there; ranks may use cores ",
        ),
        (
            "rank 0=localhost slot=77:0\n",
            &[],
            "line 1: rank 0 is to run on core 0 of socket 77, which is not there",
        ),
        ("rank 0=localhost\n", &["-np", "2"], "-np 2, but "),
        ("nonsense\n", &[], "line 1: \"nonsense\" is not understood; write e.g. rank 3=node1 slot=0-1"),
        ("rank 0=localhost\n", &["--servers", "1"], "--servers 1 leaves no worker among 1 ranks"),
    ] {
        let file = dir.write("bad.rf", text);
        let line: Vec<&str> =
            ["-rf", &file].into_iter().chain(args.iter().copied()).chain(["echo", "started"]).collect();
        let done = run(&line);
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{text}: {}", done.stderr);
        assert!(done.stderr.contains(says), "{text}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    let done = run(&["-rf", "/no/such.rf", "true"]);
    assert_eq!(done.code, Some(2));
    assert!(done.stderr.contains("cannot read rank file /no/such.rf"), "{}", done.stderr);
}
