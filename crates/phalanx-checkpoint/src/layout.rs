//! The names of files and directories.

use crate::saver::Saver;
use std::path::{Path, PathBuf};

pub const LATEST: &str = "latest";
pub const DONE: &str = "done";
pub const LOCK: &str = ".lock";
pub const MANIFEST: &str = "manifest.json";

pub fn checkpoint(step: u64) -> String {
    format!("checkpoint-{step}")
}

/// The step of a checkpoint's directory.
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("checkpoint-")?.parse().ok()?;
    // `+7` and `007` are not how we write numbers.
    (checkpoint(step) == name).then_some(step)
}

pub fn shard(index: u32, of: u32) -> String {
    format!("shard-{index}-of-{of}.safetensors")
}

/// What is not a checkpoint yet, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transient {
    /// A save under way.
    Draft,
    /// A file that will replace `latest` or `done`.
    File,
    /// A checkpoint whose place the next one of the same step is about to take.
    Replaced,
    /// A checkpoint that is being deleted.
    Gone,
}

const KINDS: [(Transient, &str); 4] = [
    (Transient::Draft, ".draft-"),
    (Transient::File, ".file-"),
    (Transient::Replaced, ".replaced-"),
    (Transient::Gone, ".gone-"),
];

/// `<kind><step>-<saver>-<n>`: `n` makes it unique within the saver.
pub fn transient(kind: Transient, step: u64, saver: Saver, n: u32) -> String {
    let (_, prefix) = KINDS[kind as usize];
    format!("{prefix}{step}-{saver}-{n}")
}

/// A name of that form, taken apart.
pub fn transient_of(name: &str) -> Option<(Transient, u64, Saver)> {
    let (kind, rest) = KINDS.iter().find_map(|(kind, prefix)| Some((*kind, name.strip_prefix(prefix)?)))?;
    let (step, rest) = rest.split_once('-')?;
    let (saver, n) = rest.rsplit_once('-')?;
    n.parse::<u32>().ok()?;
    Some((kind, step.parse().ok()?, saver.parse().ok()?))
}

/// The directory and name of a path; `.` for a bare name.
pub fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_not_ours() {
        assert_eq!(step_of(&checkpoint(12)), Some(12));
        for other in ["checkpoint-", "checkpoint-007", "checkpoint-+7", "checkpoint-7.bak", "Checkpoint-7"] {
            assert_eq!(step_of(other), None, "{other}");
        }
        let saver = Saver { machine: 0xab, pid: 7, started: 99 };
        for (at, (kind, _)) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            assert_eq!(transient_of(&transient(kind, 5, saver, 3)), Some((kind, 5, saver)));
        }
        for other in
            [".draft-5", ".draft-x-000000ab-7-99-3", ".gone", "draft-5-000000ab-7-99-3", ".draft-5-ab-7"]
        {
            assert_eq!(transient_of(other), None, "{other}");
        }
    }
}
