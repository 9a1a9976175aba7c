//! `cargo xtask book`: the pages of this project as a book with search, made by mdBook.
//!
//! Pages link to each other as they lie in the repository. For the book they are put into one folder, with their links changed
//! accordingly, and the files that they link to beside them.

use crate::{
    process::{Output, Shell},
    tidy,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Pinned: a new one is a change of its own.
const VERSION: &str = "0.4.52";
const INSTALL_LIMIT: Duration = Duration::from_secs(25 * 60);
const BUILD_LIMIT: Duration = Duration::from_secs(5 * 60);

pub fn run(shell: &Shell, flags: &[String]) -> Result<(), String> {
    if let Some(other) = flags.iter().find(|f| *f != "--open") {
        return Err(format!("book knows --open, not {other:?}"));
    }
    tidy::check_links(shell)?;
    let folder = shell.target().join("book");
    stage(&shell.root, &folder)?;
    let mut build = shell.command(mdbook(shell)?);
    build.arg("build").arg(&folder);
    if !flags.is_empty() {
        build.arg("--open");
    }
    shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    println!("{}", folder.join("html/index.html").display());
    Ok(())
}

/// The program: the one on the path, or one that is installed into this clone's target directory.
fn mdbook(shell: &Shell) -> Result<PathBuf, String> {
    let tools = shell.target().join("tools");
    let own = tools.join("bin/mdbook");
    for program in [Path::new("mdbook"), &own] {
        let mut version = shell.command(program);
        version.arg("--version");
        if shell.must(&mut version, Output::Kept, Duration::from_secs(60)).is_ok() {
            return Ok(program.to_path_buf());
        }
    }
    eprintln!(
        "mdbook is not installed: installing {VERSION} into {} with cargo, once (some minutes) ...",
        tools.display()
    );
    let mut install = shell.cargo("install mdbook --locked --version");
    install.arg(VERSION).arg("--root").arg(&tools);
    shell.must(&mut install, Output::Shown, INSTALL_LIMIT)?;
    Ok(own)
}

/// Puts the book's pages and the files they link to into `folder`.
fn stage(root: &Path, folder: &Path) -> Result<(), String> {
    let told = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let read = |path: &str| fs::read_to_string(root.join(path)).map_err(|e| told(&root.join(path), e));
    let chapters = read(tidy::CHAPTERS)?;
    let mut pages = BTreeMap::from([(tidy::CHAPTERS.to_string(), chapters.clone())]);
    for path in chapters.lines().flat_map(|line| linked(tidy::CHAPTERS, line)) {
        let text = read(&path)?;
        pages.insert(path, text);
    }
    let source = folder.join("src");
    let _ = fs::remove_dir_all(&source); // So that nothing of an earlier book is left.
    let put = |to: &str, bytes: &[u8]| {
        let to = source.join(to);
        let made = to.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&to, bytes)).map_err(|e| told(&to, e))
    };
    for (path, text) in &pages {
        put(place(path), in_book(path, text).as_bytes())?;
        for file in text.lines().flat_map(|line| linked(path, line)).filter(|file| !pages.contains_key(file))
        {
            // A link may lead to a folder: there is nothing to show then.
            if let Ok(bytes) = fs::read(root.join(&file)) {
                put(place(&file), &bytes)?;
            }
        }
    }
    let settings = read("book.toml")?;
    fs::write(folder.join("book.toml"), settings).map_err(|e| told(&folder.join("book.toml"), e))
}

/// The files that a line of a page links to, from the project's root.
fn linked(page: &str, line: &str) -> Vec<String> {
    let targets = tidy::targets(line).into_iter().filter(|t| !tidy::is_elsewhere(t) && !t.starts_with('#'));
    targets.filter_map(|target| tidy::resolved(page, target)).collect()
}

/// A page as it stands in the book.
fn in_book(path: &str, text: &str) -> String {
    tidy::relinked(text, |target| {
        if tidy::is_elsewhere(target) || target.starts_with('#') {
            return target.to_string();
        }
        let heading = target.split_once('#').map(|(_, heading)| format!("#{heading}")).unwrap_or_default();
        match tidy::resolved(path, target) {
            Some(file) => format!("{}{heading}", place(&file)),
            None => target.to_string(),
        }
    })
}

/// Where a file of the project is in the book: pages of `docs/` stand beside the others.
fn place(path: &str) -> &str {
    path.strip_prefix("docs/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_two_folders_link_to_each_other_in_one() {
        let text = "[a](../README.md#status) [b](b.md) ![c](layers.svg) [d](#here) [e](https://e.example)\n";
        let expected = "[a](README.md#status) [b](b.md) ![c](layers.svg) [d](#here) [e](https://e.example)\n";
        assert_eq!(in_book("docs/a.md", text), expected);
        assert_eq!(in_book("README.md", "[a](docs/a.md) [l](LICENSE)\n"), "[a](a.md) [l](LICENSE)\n");
    }
}
