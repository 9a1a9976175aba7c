//! Which related programs are installed. None is required; the finding is for information.

use super::{finding::Finding, timed};
use std::{ffi::OsString, io, thread, time::Duration};

const PATIENCE: Duration = Duration::from_secs(10);

/// Name, how to ask for the version, what it would be good for.
const TOOLS: [(&str, &[&str], &str); 5] = [
    ("ssh", &["ssh", "-V"], "needed to reach other hosts, unless --rsh names another command"),
    ("mpirun", &["mpirun", "--version"], "another way to start ranks"),
    ("srun", &["srun", "--version"], "another way to start ranks"),
    ("python3", &["python3", "--version"], "needed for the Python packages"),
    ("torch", &["python3", "-c", "import torch; print(torch.__version__)"], "needed for phalanx.torch"),
];

/// Asks all of them at once.
pub fn check() -> Vec<Finding> {
    let asked: Vec<_> = TOOLS.iter().map(|tool| thread::spawn(|| ask(tool))).collect();
    asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
}

fn ask((name, command, use_for): &(&str, &[&str], &str)) -> Finding {
    let words: Vec<OsString> = command.iter().map(OsString::from).collect();
    judge(name, use_for, timed::run(&words, PATIENCE))
}

fn judge(name: &str, use_for: &str, said: io::Result<timed::Said>) -> Finding {
    match said {
        Ok(said) if said.status.is_some_and(|s| s.success()) => {
            let text = if said.stdout.trim().is_empty() { said.stderr } else { said.stdout };
            Finding::ok(name, text.trim().lines().next().unwrap_or_default())
        }
        Ok(said) if said.status.is_none() => {
            Finding::note(name, format!("no answer within {} s ({use_for})", PATIENCE.as_secs()))
        }
        Ok(said) => {
            let last = said.stderr.trim().lines().last().unwrap_or("nothing").to_string();
            let here = if name == "torch" { "not found" } else { "is here, but does not work" };
            Finding::note(name, format!("{here}: it says {last:?} ({use_for})"))
        }
        Err(_) => Finding::note(name, format!("not found ({use_for})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;
    use std::process::ExitStatus;

    #[test]
    fn versions_come_from_either_stream() {
        let said = |stdout: &str, stderr: &str| {
            Ok(timed::Said {
                status: Some(ExitStatus::default()),
                stdout: stdout.to_string(),
                stderr: stderr.to_string(),
                took: Duration::ZERO,
            })
        };
        assert_eq!(judge("a", "", said("A 1.0\nmore\n", "")).fact, "A 1.0");
        assert_eq!(judge("a", "", said("", "A 2.0\n")).fact, "A 2.0");
        assert_eq!(judge("a", "for x", Err(io::ErrorKind::NotFound.into())).mark, Mark::Note);
    }
}
