//! The integration tests of a crate are one program, `tests/main.rs`, and every file beside it is a module of it: a file that nobody names
//! would be tests that nobody runs.

use super::{Complaint, source::Source};

const ROOT: &str = "tests/main.rs";

pub fn check(sources: &[Source]) -> Vec<Complaint> {
    let mut found = Vec::new();
    for manifest in
        sources.iter().filter(|s| s.path.starts_with("crates/") && s.path.ends_with("/Cargo.toml"))
    {
        let Some(folder) = manifest.path.strip_suffix("Cargo.toml") else { continue };
        let tests: Vec<(&Source, &str)> =
            sources.iter().filter_map(|s| Some((s, module(s, folder)?))).collect();
        // Cargo finds a single file by itself.
        if tests.len() < 2 {
            continue;
        }
        let Some(root) = sources.iter().find(|s| s.path == format!("{folder}{ROOT}")) else {
            let what = "several test programs take long to link: make them modules of tests/main.rs";
            found.push(Complaint::new(&manifest.path, 0, what));
            continue;
        };
        if !manifest.text.lines().any(|line| line == "autotests = false") {
            let what =
                "tests/main.rs is the one test program: say `autotests = false` and name it in [[test]]";
            found.push(Complaint::new(&manifest.path, 0, what));
        }
        let is_named = |name: &str| root.code.lines().any(|line| line == format!("mod {name};"));
        for (source, name) in tests.into_iter().filter(|(_, name)| *name != "main" && !is_named(name)) {
            let what = format!("no test of this file runs: write `mod {name};` in {}", root.path);
            found.push(Complaint::new(&source.path, 0, what));
        }
    }
    found
}

/// The module that a file right in a crate's `tests`, or the first one in a folder there, would be.
fn module<'a>(source: &'a Source, folder: &str) -> Option<&'a str> {
    let inside = source.path.strip_prefix(folder)?.strip_prefix("tests/")?;
    let name = inside.strip_suffix("/mod.rs").or_else(|| inside.strip_suffix(".rs"))?;
    (!name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::classify;

    fn says(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(p, t)| (format!("crates/a/{p}"), t.to_string()));
        check(&classify(files.collect())).into_iter().map(|c| format!("{}: {}", c.path, c.what)).collect()
    }

    #[test]
    fn every_test_file_is_a_module_of_the_one_test_program() {
        let manifest = ("Cargo.toml", "[package]\nautotests = false\n");
        let root = ("tests/main.rs", "mod b;\nmod c;\n");
        let (b, c) = (("tests/b.rs", ""), ("tests/c/mod.rs", "mod inner;"));
        assert_eq!(says(&[manifest, root, b, c, ("tests/c/inner.rs", "")]), [""; 0]);
        let lost = says(&[manifest, ("tests/main.rs", "// mod b;\nmod c;\n"), b, c]);
        assert_eq!(
            lost,
            ["crates/a/tests/b.rs: no test of this file runs: write `mod b;` in crates/a/tests/main.rs"]
        );
        assert_eq!(says(&[("Cargo.toml", ""), root, b, c]).len(), 1, "cargo would make programs of them");
        assert_eq!(says(&[("Cargo.toml", ""), b, c]).len(), 1, "two programs");
        assert_eq!(says(&[("Cargo.toml", ""), b]), [""; 0], "one program");
    }
}
