//! Invariants have names: module docs state them (`//! - NAME-1: ...` in Rust, `* NAME-1: ...` in Python), tests cite them. A name that no
//! test cites is a complaint: it is cited by the test that proves it, or it is a sentence without a name.

use super::{
    Complaint,
    source::{Kind, Source},
};
use std::collections::{BTreeMap, BTreeSet};

/// The page that lists them all; all of it is generated.
pub const PAGE: &str = "docs/invariants.md";

const INTRODUCTION: &str = "\
# Invariants

What always holds, by name. Module docs state an invariant; tests cite it. `cargo xtask tidy --fix` writes this page from the sources, and
`cargo xtask tidy` complains about a name that no test cites.

";

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

/// What is wrong with names, and a page that is out of date.
pub fn check(sources: &[Source]) -> Vec<Complaint> {
    let (invariants, mut found) = stated(sources);
    for source in sources.iter().filter(|s| is_searched(s)) {
        for (i, line) in source.text.lines().enumerate() {
            for name in names(line) {
                if !invariants.contains_key(&name) {
                    let what = format!("{} is stated by no module", written(&name));
                    found.push(Complaint::new(&source.path, i + 1, what));
                }
            }
        }
    }
    for (name, invariant) in invariants.iter().filter(|(_, i)| i.tests.is_empty()) {
        let name = written(name);
        let what = format!(
            "no test cites {name}: add the name to the doc comment of the test that proves it, or take the name away"
        );
        found.push(Complaint::new(invariant.path, invariant.line, what));
    }
    if let Some(page) = sources.iter().find(|s| s.path == PAGE)
        && is_stale(&page.text, &self::page(sources))
    {
        found.push(Complaint::new(PAGE, 0, "is out of date: run `cargo xtask tidy --fix`"));
    }
    found
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

/// The whole page.
pub fn page(sources: &[Source]) -> String {
    format!("{INTRODUCTION}{}", table(sources))
}

/// All invariants as a Markdown table.
fn table(sources: &[Source]) -> String {
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
        let tests = tests.join(", ");
        let text = invariant.text.replace('|', "\\|");
        table.push_str(&format!("| {} | {text} | {} | {tests} |\n", written(name), short(invariant.path)));
    }
    table
}

/// Rust files of the crates, the Python package and its tests, and the pages; not tidy itself, whose tests invent names.
fn is_searched(source: &Source) -> bool {
    let is_page =
        source.path.ends_with(".md") && (source.path.starts_with("docs/") || !source.path.contains('/'));
    is_code(source) || is_page && source.path != PAGE
}

fn is_code(source: &Source) -> bool {
    let is_rust = source.path.starts_with("crates/") && source.kind != Kind::Text;
    is_rust || source.path.starts_with("python/") && source.path.ends_with(".py")
}

/// Whether a name in this line (from 1) is a test's.
fn is_trial(source: &Source, line: usize) -> bool {
    match source.kind {
        Kind::Text => source.path.starts_with("python/tests"),
        _ => source.is_trial(line),
    }
}

fn stated(sources: &[Source]) -> (BTreeMap<Name, Invariant<'_>>, Vec<Complaint>) {
    let mut all: BTreeMap<Name, Invariant<'_>> = BTreeMap::new();
    let mut found = Vec::new();
    let code = || sources.iter().filter(|s| is_code(s));
    for source in code() {
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
    for source in code() {
        for (i, line) in source.text.lines().enumerate() {
            if !is_trial(source, i + 1) || statement(line).is_some() {
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

/// `//! - LANE-1: a slot's ...`, or `* LANE-1: ...` in Python, as its name and text.
fn statement(line: &str) -> Option<(Name, &str)> {
    let rest = line.trim_start().strip_prefix("//! - ").or_else(|| line.strip_prefix("* "))?;
    let (name, text) = rest.split_once(": ")?;
    let mut found = names(name);
    let first = found.pop()?;
    (written(&first) == name).then_some((first, text))
}

/// A statement goes on in lines that are indented further.
fn paragraph<'a>(first: &'a str, following: &[&'a str]) -> String {
    let goes_on =
        |line: &&'a str| line.trim_start().strip_prefix("//!   ").or_else(|| line.strip_prefix("  "));
    let more = following.iter().map_while(goes_on);
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

    fn says(files: &[(&str, &str)]) -> Vec<String> {
        check(&sources(files)).into_iter().map(|c| format!("{}:{}: {}", c.path, c.line, c.what)).collect()
    }

    #[test]
    fn what_is_cited_must_be_stated_and_only_once_and_what_is_stated_be_cited() {
        let files = [("crates/a/src/lib.rs", STATES), ("crates/a/tests/t.rs", "// LANE-1 LANE-3\n")];
        let found = says(&files);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], "crates/a/tests/t.rs:1: LANE-3 is stated by no module");
        assert!(found[1].starts_with("crates/a/src/lib.rs:4: no test cites LANE-2"), "{found:?}");
        let twice = [("crates/a/src/lib.rs", STATES), ("crates/b/src/lib.rs", "//! - LANE-2: again.\n")];
        assert!(says(&twice)[0].contains("also stated at crates/a/src/lib.rs:4"));
    }

    #[test]
    fn python_states_and_cites_too() {
        let states = "\"\"\"About.\n\n* ROUND-1: one thing,\n  and more.\n\"\"\"\n";
        let module = ("python/phalanx/a.py", states);
        let cites = ("python/tests/test_a.py", "    \"\"\"It holds (ROUND-1).\"\"\"\n");
        assert_eq!(says(&[module, cites]), [""; 0]);
        assert!(
            page(&sources(&[module, cites]))
                .contains("| ROUND-1 | one thing, and more. | python/phalanx/a.py |")
        );
        let elsewhere = ("python/phalanx/b.py", "# ROUND-1\n");
        assert_eq!(says(&[module, elsewhere]).len(), 1, "product code is no test");
    }

    #[test]
    fn the_page_is_written_anew_when_statements_change() {
        let (code, test) = (("crates/a/src/lib.rs", STATES), ("crates/a/tests/t.rs", "// LANE-1 LANE-2\n"));
        assert_eq!(
            says(&[code, test, (PAGE, "old\n")]),
            [format!("{PAGE}:0: is out of date: run `cargo xtask tidy --fix`")]
        );
        let fresh = page(&sources(&[code, test]));
        assert!(fresh.contains("| LANE-1 | one thing and more. | a/lib.rs | a/tests/t.rs |"), "{fresh}");
        assert_eq!(says(&[code, test, (PAGE, &fresh)]), [""; 0]);
        let another_test = ("crates/a/tests/u.rs", "// LANE-1\n");
        assert_eq!(says(&[code, test, another_test, (PAGE, &fresh)]), [""; 0]);
    }
}
