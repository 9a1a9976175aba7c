//! Tests that count what the whole process has: each runs in a process of its own, whatever runs the tests.

use std::{env, process::Command};

const NAME: &str = "PHALANX_TEST_ALONE";

/// Runs the body of the test of this name (as `--exact` takes it) where no other test runs. nextest gives every test such a process;
/// `cargo test` does not, so the test starts its own file again.
pub fn alone(test: &str, body: impl FnOnce()) {
    if env::var_os("NEXTEST").is_some() || env::var_os(NAME).is_some_and(|name| name == test) {
        return body();
    }
    let mut again = Command::new(env::current_exe().expect("a test knows its file"));
    let done = again.args(["--exact", test, "--nocapture"]).env(NAME, test).output().expect("it starts");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{test} in a process of its own:\n{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
}
