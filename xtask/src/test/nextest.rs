//! cargo-nextest in two steps: what is built is listed first, then run without cargo. Cargo would wait for builds beside the tests.

use crate::{
    process::{Output, Shell},
    stage,
};
use std::{fs, path::PathBuf, process::Command};

/// What to run, as files that nextest reads.
#[derive(Debug)]
pub struct Listed {
    binaries: PathBuf,
    metadata: PathBuf,
}

/// Lists the tests of the workspace; builds what is not built yet.
pub fn list(shell: &Shell) -> Result<Listed, String> {
    let folder = shell.target().join("nextest");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    let keep = |args: &str, name: &str| {
        let done = shell.run(&mut shell.cargo(args), Output::Kept, stage::LIMIT)?;
        done.check().map_err(|why| format!("cargo {args}: {why}\n{}", done.text.trim_end()))?;
        let path = folder.join(name);
        fs::write(&path, &done.stdout).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        Ok::<PathBuf, String>(path)
    };
    Ok(Listed {
        binaries: keep(
            "nextest list --workspace --list-type binaries-only --message-format json",
            "binaries.json",
        )?,
        metadata: keep("metadata --format-version 1", "cargo.json")?,
    })
}

impl Listed {
    pub fn command(&self, shell: &Shell) -> Command {
        let mut run = shell.cargo("nextest run --no-fail-fast --binaries-metadata");
        run.arg(&self.binaries).arg("--cargo-metadata").arg(&self.metadata);
        run
    }
}
