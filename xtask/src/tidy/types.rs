//! One name, one type: a public type has a name that no other public type of the crates has.
//!
//! There are no exceptions. ONNX's messages have ONNX's own names (`NodeProto`), and the types of phalanx.h get their C names from
//! cbindgen.toml.

use super::{
    Complaint, rust,
    source::{Source, is_word},
};
use std::collections::BTreeMap;

const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

pub fn check(sources: &[Source]) -> Vec<Complaint> {
    let mut first: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    let mut found = Vec::new();
    for source in rust(sources).filter(|s| is_in_crate(&s.path)) {
        for (line, name) in source.product().filter_map(|(line, code)| Some((line, public_type(code)?))) {
            let (path, at) = *first.entry(name).or_insert((&source.path, line));
            if (path, at) != (&source.path, line) {
                let what = format!("{name} is also the name of the type at {path}:{at}: rename one of them");
                found.push(Complaint::new(&source.path, line, what));
            }
        }
    }
    found
}

/// Whether the path is `crates/NAME/src/...`.
fn is_in_crate(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates") && parts.nth(1) == Some("src")
}

/// The name of the public type that a line of code defines. `pub(crate)` is not public.
fn public_type(code: &str) -> Option<&str> {
    let rest = code.trim_start().strip_prefix("pub ")?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (keyword, rest) = rest.split_once(' ')?;
    if !KEYWORDS.contains(&keyword) {
        return None;
    }
    let name = rest.split(|c| !is_word(c)).next().unwrap_or_default();
    // Nothing stands before the `$` of a macro's `$name`.
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::classify;

    fn says(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(path, text)| (path.to_string(), text.to_string()));
        let complaints = check(&classify(files.collect()));
        complaints.into_iter().map(|c| format!("{}:{}: {}", c.path, c.line, c.what)).collect()
    }

    #[test]
    fn a_second_public_type_of_a_name_is_refused_with_both_places() {
        let (a, b) = ("crates/a/src/lib.rs", "crates/b/src/deep/plan.rs");
        assert_eq!(
            says(&[(a, "pub struct Plan {\n"), (b, "\npub enum Plan<'a> {\n")]),
            [
                "crates/b/src/deep/plan.rs:2: Plan is also the name of the type at crates/a/src/lib.rs:1: rename one of them"
            ]
        );
        assert_eq!(says(&[(a, "mod b {\n    pub type Id = u8;\n}\npub unsafe trait Id {}\n")]).len(), 1);
        assert_eq!(says(&[(a, "pub struct Plan;\npub struct Planner;\npub fn plan() {}\n")]), [""; 0]);
    }

    #[test]
    fn private_types_tests_comments_and_macros_may_share_a_name() {
        let a = ("crates/a/src/lib.rs", "pub struct Plan;\n");
        for text in [
            "struct Plan;\npub(crate) struct Plan;\n",
            "// pub struct Plan;\n",
            "pub struct $name(u8);\npub struct $name(u16);\n",
            "#[cfg(test)]\nmod tests {\n    pub struct Plan;\n}\n",
        ] {
            assert_eq!(says(&[a, ("crates/b/src/lib.rs", text)]), [""; 0], "{text}");
        }
        assert_eq!(says(&[a, ("crates/a/tests/main.rs", "pub struct Plan;\n")]), [""; 0]);
        assert_eq!(says(&[a, ("xtask/src/main.rs", "pub struct Plan;\n")]), [""; 0]);
    }
}
