//! `cargo xtask tidy`: what a machine can check of the conventions.
//!
//! Each file here is one rule: a pure function from sources to complaints.

mod invariants;
mod layers;
mod length;
mod source;
mod trials;
mod unsafety;
mod words;

use crate::process::Shell;
use source::{Kind, Source};
use std::{fs, path::Path};

/// Something that must change, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    pub path: String,
    /// From 1; 0 is the whole file.
    pub line: usize,
    pub what: String,
}

impl Complaint {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Complaint {
        Complaint { path: path.to_string(), line, what: what.into() }
    }
}

/// Checks the tree. `verbose` lists what is only a reminder.
pub fn run(shell: &Shell, verbose: bool) -> Result<(), String> {
    let sources = read(&shell.root)?;
    let mut complaints = Vec::new();
    complaints.extend(layers::check(&sources));
    complaints.extend(unsafety::check(&sources));
    complaints.extend(length::check(&sources));
    complaints.extend(words::check(&sources));
    complaints.extend(trials::check(&sources));
    let (wrong, uncited) = invariants::check(&sources);
    complaints.extend(wrong);
    complaints.sort();
    for Complaint { path, line, what } in &complaints {
        eprintln!("{path}:{line}: {what}");
    }
    if let Some(reminder) = reminder(&uncited, verbose) {
        eprintln!("{reminder}");
    }
    match complaints.len() {
        0 => Ok(()),
        n => Err(format!("{n} complaints")),
    }
}

/// One line about invariants that no test names: they may be held by assertions or by tests that do not name them.
fn reminder(uncited: &[String], verbose: bool) -> Option<String> {
    match uncited.len() {
        0 => None,
        _ if verbose => Some(format!("tidy: no test cites {}", uncited.join(", "))),
        n => Some(format!(
            "tidy: for information, {n} invariants are cited by no test (`cargo xtask tidy --verbose` lists them)"
        )),
    }
}

/// Writes what is generated from the sources.
pub fn renew(shell: &Shell) -> Result<(), String> {
    let (root, sources) = (&shell.root, &read(&shell.root)?);
    let Some(page) = sources.iter().find(|s| s.path == invariants::PAGE) else {
        return Err(format!("{} is missing", invariants::PAGE));
    };
    let renewed = invariants::renewed(&page.text, &invariants::table(sources)).ok_or_else(|| {
        format!("{} has no place for the table of invariants ({})", page.path, invariants::BEGIN)
    })?;
    fs::write(root.join(&page.path), renewed).map_err(|e| format!("cannot write {}: {e}", page.path))
}

/// Every text of the project, by path.
fn read(root: &Path) -> Result<Vec<Source>, String> {
    let mut paths = Vec::new();
    walk(root, root, &mut paths).map_err(|e| format!("cannot list the project's files: {e}"))?;
    paths.sort();
    let texts = paths.into_iter().filter_map(|path| {
        let text = fs::read_to_string(root.join(&path)).ok()?;
        Some((path, text))
    });
    Ok(source::classify(texts.collect()))
}

/// Folders that are not ours or are made.
const PASSED_OVER: [&str; 8] =
    ["target", ".git", ".venv", "__pycache__", "node_modules", "corpus", "artifacts", "proptest-regressions"];

fn walk(root: &Path, folder: &Path, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if !PASSED_OVER.contains(&name.as_ref()) {
                walk(root, &path, paths)?;
            }
        } else if source::is_text(&name)
            && let Ok(inside) = path.strip_prefix(root)
        {
            paths.push(inside.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Rust sources.
fn rust(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|s| s.kind != Kind::Text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminders_are_one_line_and_whole_only_on_request() {
        let uncited: Vec<String> = (1..40).map(|n| format!("NAME-{n}")).collect();
        let short = reminder(&uncited, false).unwrap();
        assert!(
            short.contains("39 invariants") && !short.contains("NAME-7") && short.lines().count() == 1,
            "{short}"
        );
        assert!(reminder(&uncited, true).unwrap().contains("NAME-7, NAME-8"));
        assert_eq!(reminder(&[], true), None);
    }
}
