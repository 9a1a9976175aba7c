//! What was not tested, and why. A test that skips itself says `skipped: ...` and passes; it must not count as passed.

use crate::process::Shell;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Tests that did not test anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skips {
    pub n: u64,
    /// Each reason once.
    pub why: Vec<String>,
}

/// Where nextest writes what each test said (see .config/nextest.toml).
pub fn report(shell: &Shell) -> PathBuf {
    shell.target().join("nextest/default/junit.xml")
}

/// The tests of nextest's report that say `skipped: ...`.
pub fn told(junit: &str) -> Skips {
    let mut skips = Skips::default();
    for case in junit.split("<testcase ").skip(1) {
        let mut reasons = case.lines().filter_map(|line| Some(line.split_once("skipped: ")?.1)).peekable();
        skips.n += u64::from(reasons.peek().is_some());
        for reason in reasons {
            let reason =
                reason.split("</").next().unwrap_or_default().replace("&apos;", "'").replace("&quot;", "\"");
            if !skips.why.contains(&reason) {
                skips.why.push(reason);
            }
        }
    }
    skips
}

/// How many functions `python/tests` has that are tests; with parameters they are more.
pub fn python_tests(root: &Path) -> u64 {
    tests_in(&root.join("python/tests"))
}

/// The same of any folder.
pub fn tests_in(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts.map(|text| text.lines().filter(|line| line.starts_with("def test_")).count() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_skip_themselves_are_counted_and_each_reason_is_told_once() {
        let junit = "<testsuite><testcase name=\"a\"><system-err>skipped: no root\n</system-err></testcase>\n\
                     <testcase name=\"b\"><system-err>x\nskipped: no root</system-err></testcase>\n\
                     <testcase name=\"c\"><system-out>skipped: no C (cc)\nskipped: no C (cc)\n</system-out></testcase>\n\
                     <testcase name=\"d\"/></testsuite>";
        assert_eq!(told(junit), Skips { n: 3, why: vec!["no root".into(), "no C (cc)".into()] });
        assert_eq!(told("<testcase name=\"is_skipped\"/>"), Skips::default());
    }
}
