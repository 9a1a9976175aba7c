//! Findings as text: a table, with remedies below its rows.

use super::finding::{Finding, Mark};
use crate::table::{TextTable, left, widest};
use std::fmt::Write;

/// A line a finding; what follows from it and what to do below it. `n_ok_elsewhere` more are well and shown elsewhere.
pub fn render(findings: &[Finding], n_ok_elsewhere: usize, colour: bool) -> String {
    let width = widest(findings.iter().map(|f| f.check.as_str()));
    let table = TextTable::wide(&[left("", 4), left("check", width), left("fact", 0)]);
    let mut text = String::new();
    for finding in findings {
        let (word, code) = mark(finding.mark);
        let word = if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_string() };
        let _ = writeln!(text, "{}", table.row(&[word.as_str(), &finding.check, &finding.fact]));
        let indent = " ".repeat(width + 10);
        if let Some(consequence) = &finding.consequence {
            let _ = writeln!(text, "{indent}so: {consequence}");
        }
        if let Some(action) = &finding.action {
            let _ = writeln!(text, "{indent}do: {action}");
        }
    }
    let count = |mark| findings.iter().filter(|f| f.mark == mark).count();
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let _ = writeln!(
        text,
        "\n  {} ok, {}, {}",
        count(Mark::Ok) + n_ok_elsewhere,
        plural(count(Mark::Warn), "warning"),
        plural(count(Mark::Fail), "failure")
    );
    text
}

fn mark(mark: Mark) -> (&'static str, u8) {
    match mark {
        Mark::Ok => ("ok  ", 32),
        Mark::Note => ("--  ", 2),
        Mark::Warn => ("warn", 33),
        Mark::Fail => ("FAIL", 31),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_line_up() {
        let findings = [
            Finding::ok("cores", "8"),
            Finding::note("mpirun", "not found"),
            Finding::fail("n1", "no answer", "no rank can start there", "try: ssh n1 true"),
        ];
        assert_eq!(
            render(&findings, 0, false),
            "  ok    cores   8\n\
             \x20 --    mpirun  not found\n\
             \x20 FAIL  n1      no answer\n\
             \x20               so: no rank can start there\n\
             \x20               do: try: ssh n1 true\n\
             \n  1 ok, 0 warnings, 1 failure\n"
        );
        assert!(render(&findings, 0, true).contains("\x1b[31mFAIL\x1b[0m"));
    }
}
