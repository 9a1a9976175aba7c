//! The image: what Dockerfile copies is in the project, and .dockerignore lets it through. No image is built here.

use super::{Complaint, source::Source};
use std::collections::BTreeSet;

const FILE: &str = "Dockerfile";
const LET_THROUGH: &str = ".dockerignore";

pub fn check(sources: &[Source], paths: &BTreeSet<String>) -> Vec<Complaint> {
    let text = |path| sources.iter().find(|s| s.path == path).map(|s| s.text.as_str());
    let Some(file) = text(FILE) else { return Vec::new() };
    let let_through: BTreeSet<&str> =
        text(LET_THROUGH).unwrap_or_default().lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut found = Vec::new();
    let mut copied = BTreeSet::new();
    for (line, path) in copies(file) {
        let folder = format!("{path}/");
        if !paths.iter().any(|p| p == path || p.starts_with(&folder)) {
            found.push(Complaint::new(FILE, line, format!("copies {path}, which is not in the project")));
        } else if !let_through.contains(path) {
            found.push(Complaint::new(FILE, line, format!("copies {path}: add !{path} to {LET_THROUGH}")));
        }
        copied.insert(path);
    }
    for path in let_through.difference(&copied) {
        found.push(Complaint::new(
            LET_THROUGH,
            0,
            format!("lets {path} through, which {FILE} does not copy"),
        ));
    }
    found
}

/// What is copied from the project, and on which line; not what comes from another stage.
fn copies(file: &str) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    for (i, line) in file.lines().enumerate() {
        let Some(rest) = line.strip_prefix("COPY ").or_else(|| line.strip_prefix("ADD ")) else { continue };
        if rest.contains("--from=") {
            continue;
        }
        let words: Vec<&str> = rest.split_whitespace().filter(|word| !word.starts_with("--")).collect();
        all.extend(words.iter().take(words.len().saturating_sub(1)).map(|path| (i + 1, *path)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::classify;

    fn says(file: &str, let_through: &str) -> Vec<String> {
        let files = [(FILE, file), (LET_THROUGH, let_through)].map(|(path, text)| (path.into(), text.into()));
        let paths = ["LICENSE", "crates/a/src/lib.rs"].map(String::from).into();
        check(&classify(files.into()), &paths)
            .into_iter()
            .map(|c| format!("{}:{}: {}", c.path, c.line, c.what))
            .collect()
    }

    #[test]
    fn what_is_copied_is_there_and_let_through() {
        let good = "FROM a AS build\nCOPY LICENSE crates ./\nCOPY --from=build /wheels /wheels\n";
        assert_eq!(says(good, "*\n!LICENSE\n!crates\n"), [""; 0]);
        assert_eq!(
            says("COPY licence ./\n", ""),
            ["Dockerfile:1: copies licence, which is not in the project"]
        );
        assert_eq!(
            says("\nCOPY crates crates\n", "*\n"),
            ["Dockerfile:2: copies crates: add !crates to .dockerignore"]
        );
        assert_eq!(
            says("", "!xtask\n"),
            [".dockerignore:0: lets xtask through, which Dockerfile does not copy"]
        );
    }
}
