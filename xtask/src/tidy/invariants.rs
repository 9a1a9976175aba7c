//! Invariants have names: module docs state them (`//! - NAME-1: ...`), tests and comments cite them.

use super::{
    Complaint,
    source::{Kind, Source},
};
use std::collections::{BTreeMap, BTreeSet};

/// The page that lists them all, between these two lines.
pub const PAGE: &str = "ARCHITECTURE.md";
pub const BEGIN: &str = "<!-- invariants: `cargo xtask tidy --fix` writes this table -->";
pub const END: &str = "<!-- end of invariants -->";

/// Names of the same form that are the world's, not ours.
const FOREIGN: [&str; 8] = ["UTF", "SHA", "AVX", "ISO", "RFC", "CVE", "HMAC", "SSE"];

/// Where an invariant is stated, what it says, and the files whose tests cite it.
#[derive(Debug, PartialEq, Eq)]
struct Invariant<'a> {
    path: &'a str,
    line: usize,
    text: String,
    tests: BTreeSet<&'a str>,
}

/// By prefix and number, so that `LANE-10` stands after `LANE-9`.
type Name = (String, u32);

/// What is wrong, and the names that no test cites.
pub fn check(sources: &[Source]) -> (Vec<Complaint>, Vec<String>) {
    let (invariants, mut found) = stated(sources);
    let ours = sources.iter().filter(|s| is_searched(s));
    for source in ours {
        for (i, line) in source.text.lines().enumerate() {
            for name in names(line) {
                if !invariants.contains_key(&name) {
                    let what = format!("{} is stated by no module", written(&name));
                    found.push(Complaint::new(&source.path, i + 1, what));
                }
            }
        }
    }
    if let Some(page) = sources.iter().find(|s| s.path == PAGE)
        && renewed(&page.text, &table(sources)).is_none_or(|fresh| is_stale(&page.text, &fresh))
    {
        let what = "the table of invariants is out of date: run `cargo xtask tidy --fix`";
        found.push(Complaint::new(PAGE, 0, what));
    }
    let uncited = invariants.iter().filter(|(_, i)| i.tests.is_empty()).map(|(n, _)| written(n)).collect();
    (found, uncited)
}

/// Whether the page states something else than the modules do. Which tests cite it may lag behind until the next `--fix`: that changes often,
/// and is no reason to stop anybody.
fn is_stale(page: &str, fresh: &str) -> bool {
    let without_tests = |line: &str| match line.strip_suffix(" |").and_then(|l| l.rsplit_once(" | ")) {
        Some((rest, _)) => rest.to_string(),
        None => line.to_string(),
    };
    !page.lines().map(without_tests).eq(fresh.lines().map(without_tests))
}

/// The page with this table in its place; `None` when it has none.
pub fn renewed(page: &str, table: &str) -> Option<String> {
    let begin = page.find(BEGIN)? + BEGIN.len();
    let end = begin + page[begin..].find(END)?;
    Some(format!("{}\n{table}{}", &page[..begin], &page[end..]))
}

/// All invariants as a Markdown table.
pub fn table(sources: &[Source]) -> String {
    let (invariants, _) = stated(sources);
    let short = |path: &str| path.trim_start_matches("crates/").replace("/src/", "/");
    let mut table =
        String::from("| name | what always holds | stated in | cited by tests in |\n|---|---|---|---|\n");
    for (name, invariant) in &invariants {
        let tests: Vec<String> = invariant
            .tests
            .iter()
            .map(|&t| if t == invariant.path { "itself".into() } else { short(t) })
            .collect();
        let tests = if tests.is_empty() { "-".to_string() } else { tests.join(", ") };
        let text = invariant.text.replace('|', "\\|");
        table.push_str(&format!("| {} | {text} | {} | {tests} |\n", written(name), short(invariant.path)));
    }
    table
}

/// Rust files of the crates and the pages; not tidy itself, whose tests invent names.
fn is_searched(source: &Source) -> bool {
    let is_page = source.path == PAGE || source.path.starts_with("docs/");
    source.path.starts_with("crates/") && source.kind != Kind::Text || is_page
}

fn stated(sources: &[Source]) -> (BTreeMap<Name, Invariant<'_>>, Vec<Complaint>) {
    let mut all: BTreeMap<Name, Invariant<'_>> = BTreeMap::new();
    let mut found = Vec::new();
    let rust = || sources.iter().filter(|s| is_searched(s) && s.kind != Kind::Text);
    for source in rust() {
        let lines: Vec<&str> = source.text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let Some((name, first)) = statement(line) else { continue };
            let text = paragraph(first, &lines[i + 1..]);
            let new = Invariant { path: &source.path, line: i + 1, text, tests: BTreeSet::new() };
            if let Some(other) = all.get(&name) {
                let what = format!("{} is also stated at {}:{}", written(&name), other.path, other.line);
                found.push(Complaint::new(&source.path, i + 1, what));
                continue;
            }
            all.insert(name, new);
        }
    }
    for source in rust() {
        for (i, line) in source.text.lines().enumerate() {
            if !source.is_trial(i + 1) || statement(line).is_some() {
                continue;
            }
            for name in names(line) {
                if let Some(invariant) = all.get_mut(&name) {
                    invariant.tests.insert(&source.path);
                }
            }
        }
    }
    (all, found)
}

/// `//! - LANE-1: a slot's ...` as its name and text.
fn statement(line: &str) -> Option<(Name, &str)> {
    let rest = line.trim_start().strip_prefix("//! - ")?;
    let (name, text) = rest.split_once(": ")?;
    let mut found = names(name);
    let first = found.pop()?;
    (written(&first) == name).then_some((first, text))
}

/// A statement goes on in lines that are indented further.
fn paragraph(first: &str, following: &[&str]) -> String {
    let more = following.iter().map_while(|line| line.trim_start().strip_prefix("//!   "));
    let lines: Vec<&str> = std::iter::once(first.trim()).chain(more.map(str::trim)).collect();
    lines.join(" ")
}

/// Every `NAME-n` in a line that is ours.
fn names(line: &str) -> Vec<Name> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices('-') {
        let word: String = line[..at]
            .chars()
            .rev()
            .take_while(char::is_ascii_uppercase)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        let digits: String = line[at + 1..].chars().take_while(char::is_ascii_digit).collect();
        let before = line[..at - word.len()].chars().next_back();
        let after = line[at + 1 + digits.len()..].chars().next();
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
        if word.len() < 2 || FOREIGN.contains(&word.as_str()) || is_part(before) || is_part(after) {
            continue;
        }
        if let Ok(number) = digits.parse() {
            found.push((word, number));
        }
    }
    found
}

fn written((word, number): &Name) -> String {
    format!("{word}-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::classify;

    const STATES: &str = "//! About.\n//! - LANE-1: one thing\n//!   and more.\n//! - LANE-2: another.\n";

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        classify(files.iter().map(|(p, t)| (p.to_string(), t.to_string())).collect())
    }

    #[test]
    fn names_are_found_and_foreign_ones_passed_over() {
        assert_eq!(names("see LANE-1, (HUB-12) but not UTF-8, X-1, A1-2, np-1 or AB-1x").len(), 2);
        assert_eq!(names("é-1 LÄNE-2"), []);
    }

    #[test]
    fn what_is_cited_must_be_stated_and_only_once() {
        let files = [("crates/a/src/lib.rs", STATES), ("crates/a/tests/t.rs", "// LANE-1 LANE-3\n")];
        let (found, uncited) = check(&sources(&files));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "LANE-3 is stated by no module");
        assert_eq!(uncited, ["LANE-2"]);
        let twice = [("crates/a/src/lib.rs", STATES), ("crates/b/src/lib.rs", "//! - LANE-2: again.\n")];
        assert!(check(&sources(&twice)).0[0].what.contains("also stated at crates/a/src/lib.rs:4"));
    }

    #[test]
    fn the_page_is_renewed_between_its_marks() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let files = [("crates/a/src/lib.rs", STATES), ("crates/a/tests/t.rs", "// LANE-1\n"), (PAGE, &page)];
        let all = sources(&files);
        assert!(check(&all).0.iter().any(|c| c.what.contains("out of date")));
        let fresh = renewed(&page, &table(&all)).unwrap();
        assert!(fresh.contains("| LANE-1 | one thing and more. | a/lib.rs | a/tests/t.rs |"), "{fresh}");
        assert!(fresh.starts_with("before\n") && fresh.ends_with("\nafter\n"));
        let files = [files[0], files[1], (PAGE, &fresh)];
        assert_eq!(check(&sources(&files)).0, []);
        let one_test_less = [files[0], (PAGE, &fresh)];
        assert_eq!(check(&sources(&one_test_less)).0, []);
    }
}
