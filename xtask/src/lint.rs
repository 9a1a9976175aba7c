//! What ruff and mypy say about the Python code, and whether the stubs tell what the compiled module has.

use crate::{
    process::{Output, Shell},
    python::Environment,
    stage::Verdict,
};
use std::time::{Duration, Instant};

/// The checkers. Pinned: new versions find new faults.
pub const PACKAGES: &[&str] = &["mypy==2.4.1", "ruff==0.17.4"];

const LIMIT: Duration = Duration::from_secs(5 * 60);

/// Runs all three; the package of this clone is installed.
pub fn run(shell: &Shell, environment: &Environment) -> Verdict {
    let start = Instant::now();
    let cache = shell.target().join("mypy").to_string_lossy().into_owned();
    let stubs = [
        "-m",
        "mypy.stubtest",
        "phalanx._phalanx",
        "--concise",
        "--allowlist",
        "python/tools/stubs_allowed.txt",
    ];
    let mut checks: Vec<Vec<&str>> =
        vec![vec!["-m", "ruff", "check", "--no-cache", "python", "benches", "examples"], stubs.to_vec()];
    if environment.has_torch {
        // Without it mypy knows no types of torch's.
        checks.push(vec!["-m", "mypy", "--cache-dir", &cache]);
    }
    let mut text = String::new();
    let mut failed = Vec::new();
    for check in checks {
        let mut command = shell.command(&environment.python);
        command.args(&check).current_dir(&shell.root).env("PYTHONDONTWRITEBYTECODE", "1");
        match shell.run(&mut command, Output::Kept, LIMIT) {
            Ok(done) => {
                text += &done.text;
                failed.extend(done.check().err().map(|_| check[1].to_string()));
            }
            Err(why) => failed.push(format!("{}: {why}", check[1])),
        }
    }
    let failure = (!failed.is_empty()).then(|| format!("{} found something", failed.join(", ")));
    Verdict { took: start.elapsed(), failure, text, ..Verdict::default() }
}
