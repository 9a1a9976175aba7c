//! What cannot work says so, says why, and says what to do.

use crate::support::{TempDir, run};

fn fails(args: &[&str], code: i32, says: &[&str]) {
    let done = run(args);
    assert_eq!(done.code, Some(code), "{args:?}: {}", done.stderr);
    for text in says {
        assert!(done.stderr.contains(text), "{args:?} should say {text:?}: {}", done.stderr);
    }
}

#[test]
fn impossible_numbers() {
    fails(&["-np", "0", "true"], 2, &["-np 0 asks for no ranks"]);
    fails(&["-np", "4", "-H", "localhost:2", "true"], 2, &["-np 4", "2 slots of -H", "localhost:4"]);
    fails(&["-np", "x", "true"], 2, &["invalid value 'x'"]);
    fails(&["-np", "1", "--timeout", "0", "true"], 2, &["positive number of seconds"]);
    fails(&["-H", "localhost:0", "true"], 2, &["\"0\" is not a number of slots"]);
}

#[test]
fn unknown_flags_and_missing_commands() {
    fails(&["-np", "1", "--no-such-flag", "true"], 2, &["--no-such-flag"]);
    fails(&["-np", "1"], 2, &["COMMAND"]);
    fails(&["-np", "1", "--rsh", "", "true"], 2, &["--rsh is empty"]);
    fails(&["-np", "1", "-x", "PHALANX_TEST_UNSET", "true"], 2, &["-x PHALANX_TEST_UNSET", "not set here"]);
    fails(&["-np", "1", "--interface", "nosuch0", "true"], 2, &["no interface \"nosuch0\"", "lo"]);
}

#[test]
fn host_files_that_say_nothing() {
    let dir = TempDir::new();
    let empty = dir.write("empty", "# nobody\n");
    fails(&["-np", "1", "--hostfile", &empty, "true"], 2, &["names no host"]);
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
