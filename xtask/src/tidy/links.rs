//! Links and paths in the pages lead somewhere: every relative link, its heading if it names one, and every file named in backticks. The
//! book's list of chapters has every page of `docs/`.

use super::{
    Complaint,
    source::{Source, is_word},
};
use std::collections::BTreeSet;

/// The book's list of chapters.
pub const CHAPTERS: &str = "docs/SUMMARY.md";

/// Pages that tell of files that are gone.
const HISTORY: [&str; 1] = ["CHANGELOG.md"];

/// Endings of files that are ours when a page names one.
const ENDINGS: [&str; 11] =
    [".rs", ".md", ".py", ".pyi", ".toml", ".c", ".h", ".svg", ".sh", ".yml", ".json"];

/// `paths` are all files of the project.
pub fn check(sources: &[Source], paths: &BTreeSet<String>) -> Vec<Complaint> {
    let pages: Vec<&Source> = sources.iter().filter(|s| s.path.ends_with(".md")).collect();
    let mut found = Vec::new();
    for page in &pages {
        for (line_number, line) in prose(&page.text) {
            let mut say = |what: String| found.push(Complaint::new(&page.path, line_number, what));
            for target in targets(line) {
                if let Err(what) = follow(&page.path, target, &pages, paths) {
                    say(what);
                }
            }
            let named =
                spans(line).into_iter().filter(|s| !HISTORY.contains(&page.path.as_str()) && is_path(s));
            for name in named.filter(|name| !exists(name, paths)) {
                say(format!("there is no file `{name}`"));
            }
        }
    }
    found.extend(chapters(&pages));
    found
}

/// Pages of `docs/` that are no chapter.
fn chapters(pages: &[&Source]) -> Vec<Complaint> {
    let Some(list) = pages.iter().find(|p| p.path == CHAPTERS) else { return Vec::new() };
    let listed: BTreeSet<String> =
        list.text.lines().flat_map(targets).filter_map(|t| resolved(CHAPTERS, t)).collect();
    let missing = pages.iter().filter(|p| p.path.starts_with("docs/") && p.path != CHAPTERS);
    missing
        .filter(|p| !listed.contains(&p.path))
        .map(|p| Complaint::new(&p.path, 0, format!("is no chapter: add it to {CHAPTERS}")))
        .collect()
}

/// Whether a link leads to a file, and to a heading of it if it names one.
fn follow(from: &str, target: &str, pages: &[&Source], paths: &BTreeSet<String>) -> Result<(), String> {
    if is_elsewhere(target) {
        return Ok(());
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { Some(from.to_string()) } else { resolved(from, file) };
    let Some(path) = path.filter(|p| exists_exactly(p, paths)) else {
        return Err(format!("the link to {target} leads nowhere"));
    };
    let page = pages.iter().find(|p| p.path == path).filter(|_| !heading.is_empty());
    match page {
        Some(page) if !headings(&page.text).contains(heading) => {
            Err(format!("{path} has no heading #{heading}"))
        }
        _ => Ok(()),
    }
}

/// Whether a link is none of this project's files.
pub fn is_elsewhere(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// A link's file from the project's root; `None` if it leaves the project.
pub fn resolved(from: &str, file: &str) -> Option<String> {
    let file = file.split('#').next().unwrap_or_default();
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The page with every link's target replaced.
pub fn relinked(text: &str, new: impl Fn(&str) -> String) -> String {
    let prose: BTreeSet<usize> = prose(text).map(|(n, _)| n).collect();
    let mut page = String::with_capacity(text.len());
    for (i, line) in text.lines().enumerate() {
        let mut rest = line;
        for target in if prose.contains(&(i + 1)) { targets(line) } else { Vec::new() } {
            let Some((before, after)) = rest.split_once(&format!("]({target})")) else { continue };
            page.push_str(&format!("{before}]({})", new(target)));
            rest = after;
        }
        page.push_str(rest);
        page.push('\n');
    }
    page
}

/// Numbered lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(i, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((i + 1, line))
    })
}

/// The targets of all `[text](target)` in a line.
pub fn targets(line: &str) -> Vec<&str> {
    let begins =
        line.match_indices("](").filter(|(at, _)| line[..*at].matches('`').count().is_multiple_of(2));
    begins.filter_map(|(at, _)| line[at + 2..].split_once(')').map(|(target, _)| target)).collect()
}

/// What stands in backticks.
fn spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Whether it is the name of a file or folder of this project, from wherever. Scripts of users have no folder; `target/` is made.
fn is_path(span: &str) -> bool {
    let is_plain = span.chars().all(|c| is_word(c) || "/.-".contains(c));
    let begins_well =
        !span.starts_with(['/', '.', '-']) && !span.starts_with("target/") && !span.contains("..");
    let is_file = ENDINGS.iter().any(|e| span.ends_with(e)) && (span.contains('/') || span.ends_with(".rs"));
    const FOLDERS: [&str; 6] = ["crates/", "docs/", "python/", "examples/", "xtask/", "benches/"];
    is_plain && begins_well && (is_file || FOLDERS.iter().any(|f| span.starts_with(f)))
}

/// Whether some file or folder has this path, or ends with it.
fn exists(name: &str, paths: &BTreeSet<String>) -> bool {
    let name = name.trim_end_matches('/');
    let end = format!("/{name}");
    exists_exactly(name, paths) || paths.iter().any(|p| p.ends_with(&end))
}

fn exists_exactly(path: &str, paths: &BTreeSet<String>) -> bool {
    let inside = format!("{path}/");
    paths.contains(path) || paths.range(inside.clone()..).next().is_some_and(|p| p.starts_with(&inside))
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = prose(text).filter(|(_, line)| line.starts_with('#'));
    lines
        .map(|(_, line)| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|&c| is_word(c) || c == ' ' || c == '-');
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::classify;

    fn says(pages: &[(&str, &str)], others: &[&str]) -> Vec<String> {
        let paths = pages.iter().map(|(p, _)| *p).chain(others.iter().copied()).map(str::to_string).collect();
        let sources = classify(pages.iter().map(|(p, t)| (p.to_string(), t.to_string())).collect());
        check(&sources, &paths).into_iter().map(|c| format!("{}:{}: {}", c.path, c.line, c.what)).collect()
    }

    #[test]
    fn links_lead_to_files_folders_and_headings() {
        let a = "# Some `Words`, and-more\n[b](../b.md) [c](c.md#x) [d](../src/d.rs) [e](../src) [f](https://f.example)\n";
        let other = "[a](docs/a.md#some-words-and-more) [g](#nothing)\n";
        let found = says(&[("docs/a.md", a), ("b.md", other)], &["src/d.rs"]);
        assert_eq!(
            found,
            ["docs/a.md:2: the link to c.md#x leads nowhere", "b.md:1: b.md has no heading #nothing"]
        );
    }

    #[test]
    fn files_in_backticks_exist_and_code_blocks_are_not_read() {
        let text = "`net/link.rs` `gone.rs` `train.py` `a/gone.py` `--x/y.md` `target/x.rs` `crates/net` `crates/away`\n\
                    ```sh\n`no/file.rs` [x](y)\n```\n";
        let found = says(&[("README.md", text)], &["crates/net/link.rs"]);
        let gone = |name: &str| format!("README.md:1: there is no file `{name}`");
        assert_eq!(found, [gone("gone.rs"), gone("a/gone.py"), gone("crates/away")]);
        assert_eq!(says(&[("CHANGELOG.md", "`gone.rs`\n")], &[]), [""; 0]);
    }

    #[test]
    fn every_page_is_a_chapter() {
        let pages = [(CHAPTERS, "[Home](../README.md)\n[A](a.md)\n"), ("docs/a.md", ""), ("README.md", "")];
        assert_eq!(says(&pages, &[]), [""; 0]);
        let found = says(&[pages[0], pages[1], pages[2], ("docs/b.md", "")], &[]);
        assert_eq!(found, [format!("docs/b.md:0: is no chapter: add it to {CHAPTERS}")]);
    }

    #[test]
    fn links_are_replaced_and_nothing_else() {
        let text = "[a](a.md), `[x](a.md)` and [b](b.md)\n```\n[a](a.md)\n```\n";
        let new = relinked(text, |target| format!("../{target}"));
        assert_eq!(new, "[a](../a.md), `[x](a.md)` and [b](../b.md)\n```\n[a](a.md)\n```\n");
    }
}
