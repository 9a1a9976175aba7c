//! `cargo xtask tidy`: what a machine can check of the conventions.
//!
//! Each file here is one rule: a pure function from sources to complaints.

mod image;
mod invariants;
mod layers;
mod length;
mod links;
mod source;
mod trials;
mod types;
mod unsafety;
mod words;

use crate::process::Shell;
pub use links::{CHAPTERS, is_elsewhere, relinked, resolved, targets};
use source::{Kind, Source};
use std::{collections::BTreeSet, fs, path::Path};

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

/// Checks the tree.
pub fn run(shell: &Shell) -> Result<(), String> {
    let (sources, paths) = read(&shell.root)?;
    let mut complaints = Vec::new();
    complaints.extend(layers::check(&sources));
    complaints.extend(unsafety::check(&sources));
    complaints.extend(length::check(&sources));
    complaints.extend(words::check(&sources));
    complaints.extend(trials::check(&sources));
    complaints.extend(types::check(&sources));
    complaints.extend(invariants::check(&sources));
    complaints.extend(links::check(&sources, &paths));
    complaints.extend(image::check(&sources, &paths));
    complaints.sort();
    for Complaint { path, line, what } in &complaints {
        eprintln!("{path}:{line}: {what}");
    }
    match complaints.len() {
        0 => Ok(()),
        1 => Err("1 complaint".into()),
        n => Err(format!("{n} complaints")),
    }
}

/// Writes the pages that are generated from the sources.
pub fn renew(shell: &Shell) -> Result<(), String> {
    let (sources, _) = read(&shell.root)?;
    for (path, text) in [(invariants::PAGE, invariants::page(&sources)), (unsafety::PAGE, unsafety::page())] {
        fs::write(shell.root.join(path), text).map_err(|e| format!("cannot write {path}: {e}"))?;
    }
    Ok(())
}

/// Complaints about links and paths in the pages only, for the book.
pub fn check_links(shell: &Shell) -> Result<(), String> {
    let (sources, paths) = read(&shell.root)?;
    let complaints = links::check(&sources, &paths);
    for Complaint { path, line, what } in &complaints {
        eprintln!("{path}:{line}: {what}");
    }
    if complaints.is_empty() { Ok(()) } else { Err("links lead nowhere".into()) }
}

/// Every text of the project, by path, and the paths of all files.
fn read(root: &Path) -> Result<(Vec<Source>, BTreeSet<String>), String> {
    let mut paths = BTreeSet::new();
    walk(root, root, &mut paths).map_err(|e| format!("cannot list the project's files: {e}"))?;
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_string();
    let texts = paths.iter().filter(|path| source::is_text(&name(path))).filter_map(|path| {
        let text = fs::read_to_string(root.join(path)).ok()?;
        Some((path.clone(), text))
    });
    Ok((source::classify(texts.collect()), paths))
}

/// Folders that are not ours or are made.
const PASSED_OVER: [&str; 8] =
    ["target", ".git", ".venv", "__pycache__", "node_modules", "corpus", "artifacts", "proptest-regressions"];

fn walk(root: &Path, folder: &Path, paths: &mut BTreeSet<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if !PASSED_OVER.contains(&name.as_ref()) {
                walk(root, &path, paths)?;
            }
        } else if let Ok(inside) = path.strip_prefix(root) {
            paths.insert(inside.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Rust sources.
fn rust(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|s| s.kind != Kind::Text)
}
