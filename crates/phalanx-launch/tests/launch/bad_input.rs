//! What cannot work says so, says why, and says what to do.

use crate::launch::support::{Done, TempDir, finish, phalanx, run};

fn fails(args: &[&str], code: i32, says: &[&str]) {
    let done = run(args);
    assert_eq!(done.code, Some(code), "{args:?}: {}", done.stderr);
    for text in says {
        assert!(done.stderr.contains(text), "{args:?} should say {text:?}: {}", done.stderr);
    }
}

#[test]
fn impossible_numbers() {
    fails(&["-np", "0", "true"], 2, &["-np 0: a world has at least one rank"]);
    fails(&["-np", "4", "-H", "localhost:2", "true"], 2, &["-np 4", "2 slots of -H", "localhost:4"]);
    fails(&["-np", "x", "true"], 2, &["invalid value 'x'", "e.g. -np 4"]);
    fails(&["-np", "-1", "true"], 2, &["invalid value '-1'", "e.g. -np 4"]);
    fails(
        &["-np", "2000", "true"],
        2,
        &["2000 ranks on host localhost", "1024 that one host can have", "-H"],
    );
    fails(&["-np", "1", "--timeout", "0", "true"], 2, &["positive number of seconds"]);
    fails(&["-H", "localhost:0", "true"], 2, &["\"0\" is not a number of slots"]);
}

#[test]
fn encryption_is_asked_for_in_known_words_and_in_one_way() {
    let bad = ["PHALANX_ENCRYPT=\"yes\" cannot be used", "write auto, always or never"];
    fails(&["-np", "1", "-x", "PHALANX_ENCRYPT=yes", "true"], 2, &bad);
    let both = ["-np", "1", "--insecure-plaintext", "-x", "PHALANX_ENCRYPT=always", "true"];
    fails(&both, 2, &["PHALANX_ENCRYPT=\"always\"", "--insecure-plaintext says never", "leave one"]);
    let done = run(&["-np", "1", "--insecure-plaintext", "sh", "-c", "echo is $PHALANX_ENCRYPT"]);
    assert_eq!((done.code, done.stdout.trim()), (Some(0), "is never"), "{}", done.stderr);
}

#[test]
fn a_shape_is_refused_before_anything_starts() {
    let shape = "is not a shape like 8, 4x3 or 4x8x2 (one to four positive numbers joined by x)";
    for bad in ["4x", "0", "2x0", "1x1x1x1x4", "four", ""] {
        fails(&["-np", "4", "--tiers", bad, "echo", "started"], 2, &[&format!("{bad:?} {shape}")]);
    }
    let wrong = "--tiers: shape 4x3 holds 12 ranks, but the world has 4; write a shape of as many ranks, or change -np";
    fails(&["-np", "4", "--tiers", "4x3", "echo", "started"], 2, &[wrong]);
    let both = ["-np", "4", "--tiers", "2x2", "-x", "PHALANX_TIERS=4", "echo", "started"];
    fails(&both, 2, &["PHALANX_TIERS=\"4\" cannot be used: --tiers says 2x2; leave one of the two out"]);
    let done = run(&["-np", "2", "--tiers", "2", "sh", "-c", "echo is $PHALANX_TIERS"]);
    assert_eq!(done.stdout.matches("is 2").count(), 2, "{}", done.stderr);
}

#[test]
fn the_number_may_stand_next_to_its_flag() {
    let done = run(&["-np2", "echo", "-np3"]);
    assert_eq!((done.code, done.stdout.matches("-np3").count()), (Some(0), 2), "{}", done.stderr);
}

/// `phalanx run` under a limit of the shell.
fn limited(limit: &str, args: &str) -> Done {
    let line = format!("ulimit {limit} && exec \"$0\" run {args}");
    let inner = phalanx(&[]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]).arg(inner.get_program()).stdin(std::process::Stdio::null());
    for (name, _) in inner.get_envs() {
        command.env_remove(name);
    }
    finish(&mut command)
}

#[test]
fn files_are_counted_before_anything_starts() {
    let done = limited("-n 100", "-np 30 -- true");
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let says =
        "a launcher of 30 ranks needs 289 open files, but ulimit -Hn is 100; raise that limit or lower -np";
    assert!(done.stderr.contains(says), "{}", done.stderr);
}

#[test]
fn a_soft_limit_is_raised_as_far_as_it_may_be() {
    let done = limited("-S -n 40", "-np 30 -- true");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

#[test]
fn unknown_flags_and_missing_commands() {
    fails(&["-np", "1", "--no-such-flag", "true"], 2, &["--no-such-flag"]);
    fails(&["-np", "1"], 2, &["COMMAND"]);
    fails(&["-H", "localhost:1", "--rsh", "", "true"], 2, &["--rsh is empty"]);
    fails(&["-np", "1", "--rsh", "ssh", "true"], 2, &["--rsh leads to other hosts, and none is named", "-H"]);
    fails(&["-np", "1", "-x", "", "true"], 2, &["-x \"\" names no variable; write -x NAME or -x NAME=VALUE"]);
    fails(&["-np", "1", "-x", "PHALANX_RANK=0", "true"], 2, &["-x PHALANX_RANK", "gives it to every rank"]);
    fails(&["-np", "1", "-x", "PHALANX_TEST_UNSET", "true"], 2, &["-x PHALANX_TEST_UNSET", "not set here"]);
    fails(&["-np", "1", "--interface", "nosuch0", "true"], 2, &["no interface \"nosuch0\"", "lo"]);
}

#[test]
fn host_files_that_say_nothing() {
    let dir = TempDir::new();
    let empty = dir.write("empty", "# nobody\n");
    fails(&["-np", "1", "--hostfile", &empty, "true"], 2, &["does not name a host"]);
    let wrong = dir.write("wrong", "localhost slots=many\n");
    fails(&["-np", "1", "-hostfile", &wrong, "true"], 2, &["line 1", "\"many\""]);
    fails(&["-np", "1", "--hostfile", &dir.path("missing"), "true"], 2, &["cannot read host file"]);
    let few = dir.write("few", "localhost slots=2\n");
    fails(&["-np", "3", "--hostfile", &few, "true"], 2, &["-np 3", "2 slots of --hostfile"]);
}

#[test]
fn commands_that_cannot_be_executed() {
    fails(&["-np", "2", "no-such-command"], 127, &["host localhost: command not found: no-such-command"]);
    fails(&["-np", "2", "/etc/passwd"], 126, &["/etc/passwd cannot be executed (permission denied)"]);
    let dir = TempDir::new();
    let script = dir.executable("script", "#!/no/such/interpreter\n");
    fails(&["-np", "2", &script], 127, &["the interpreter named in its first line does not"]);
}

#[test]
fn output_files_that_cannot_be_written() {
    fails(&["-np", "1", "--output-filename", "/dev/null/x", "true"], 1, &["cannot write /dev/null/x/rank.0"]);
}
