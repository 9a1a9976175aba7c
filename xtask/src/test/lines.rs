//! The table at the end: a line a stage, what was skipped, what failed, and the sum.

use super::first_line;
use crate::{
    counts::{self, Counts},
    stage::{self, Verdict},
};

#[derive(Debug, Default)]
pub struct Lines(Vec<Line>);

#[derive(Debug)]
struct Line {
    name: &'static str,
    verdict: Verdict,
    counts: Counts,
}

impl Lines {
    /// Tells how a stage ended, and what it wrote if nobody saw that yet and it failed.
    pub fn add(&mut self, name: &'static str, verdict: Verdict) {
        let mut counts = Counts::parse(&verdict.text);
        // A stage that fails without naming a test counts as one.
        counts.failed = counts.failed.max(u64::from(verdict.failure.is_some()));
        let skipped_themselves = verdict.skips.n.min(counts.passed);
        counts.passed -= skipped_themselves;
        counts.skipped += verdict.skips.n;
        let word = match (&verdict.failure, counts.passed, verdict.skips.n) {
            (Some(_), ..) => "FAILED",
            (None, 0, 1..) => "SKIPPED",
            (None, ..) => "ok",
        };
        if verdict.failure.is_some() && !verdict.is_shown {
            eprintln!("{}", verdict.text.trim_end());
        }
        eprintln!("{word:7} {name:14} {:>8}", stage::seconds(verdict.took));
        self.0.push(Line { name, verdict, counts });
    }

    /// Prints the table; the last line, on stdout, is the sum.
    pub fn summary(&self) -> Result<(), String> {
        eprint!("\n{}\n", self.table());
        for (name, why) in self.reasons() {
            eprintln!("SKIPPED {name}: {why}");
        }
        for name in self.failing_names() {
            eprintln!("FAILED  {name}");
        }
        println!("{}", self.sum());
        if self.0.iter().any(|l| l.verdict.failure.is_some()) {
            return Err("some stages failed; see the table above".into());
        }
        Ok(())
    }

    fn table(&self) -> String {
        let number = |n: u64| if n == 0 { "-".to_string() } else { n.to_string() };
        let row = |name: &str, [time, passed, failed, skipped]: [&str; 4], why: &str| {
            let row = format!("{name:14} {time:>9} {passed:>8} {failed:>8} {skipped:>8}   {why}");
            row.trim_end().to_string() + "\n"
        };
        let mut table = row("stage", ["time", "passed", "failed", "skipped"], "");
        for line in &self.0 {
            let Counts { passed, failed, skipped } = line.counts;
            let (passed, failed, skipped) = (number(passed), number(failed), number(skipped));
            let why = line.verdict.failure.as_deref().map(first_line).unwrap_or_default();
            table += &row(line.name, [&stage::seconds(line.verdict.took), &passed, &failed, &skipped], why);
        }
        table
    }

    fn sum(&self) -> String {
        let mut all = Counts::default();
        self.0.iter().for_each(|line| all.add(line.counts));
        format!("{} passed, {} failed, {} skipped", all.passed, all.failed, all.skipped)
    }

    fn reasons(&self) -> Vec<(&str, &str)> {
        let of_line = |line| {
            let Line { name, verdict, .. }: &Line = line;
            verdict.skips.why.iter().map(|why| (*name, why.as_str()))
        };
        self.0.iter().flat_map(of_line).collect()
    }

    /// Every test that failed; a stage that failed without naming one stands for itself.
    fn failing_names(&self) -> Vec<String> {
        let of_line = |line: &Line| {
            let names = counts::failing(&line.verdict.text);
            match &line.verdict.failure {
                Some(why) if names.is_empty() => vec![format!("{}: {}", line.name, first_line(why))],
                _ => names,
            }
        };
        self.0.iter().flat_map(of_line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::skips::Skips;

    fn verdict(failure: Option<&str>, text: &str) -> Verdict {
        let (failure, text) = (failure.map(str::to_string), text.to_string());
        Verdict { failure, text, is_shown: true, ..Verdict::default() }
    }

    #[test]
    fn the_end_repeats_the_names_of_failing_tests() {
        let mut lines = Lines::default();
        lines.add("format", verdict(Some("exit status: 1\nmore"), ""));
        lines.add("tidy", verdict(None, ""));
        lines.add("tests", verdict(Some("exit status: 100"), "test a ... ok\ntest b::c ... FAILED\n"));
        assert_eq!(lines.failing_names(), ["format: exit status: 1", "b::c"]);
        assert!(lines.summary().is_err());
    }

    #[test]
    fn a_test_that_skipped_itself_did_not_pass() {
        let mut lines = Lines::default();
        let skips = Skips { n: 2, why: vec!["not root".into()] };
        lines.add("tests", Verdict { skips, ..verdict(None, "7 tests run: 7 passed, 0 skipped") });
        let skips = Skips { n: 40, why: vec!["python3 is not here".into()] };
        lines.add("Python", Verdict { skips, ..verdict(None, "") });
        assert_eq!(lines.sum(), "5 passed, 0 failed, 42 skipped");
        assert_eq!(lines.reasons(), [("tests", "not root"), ("Python", "python3 is not here")]);
        let table = lines.table();
        let python: Vec<&str> = table.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(python, ["Python", "0.0", "s", "-", "-", "40"], "{table}");
    }
}
