//! How many tests passed, failed and were skipped, read from what the test runners print.

/// Tests by their ending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// What the runners say: the sum of all summaries of `cargo test`, or the last of `cargo nextest run`, which shows the output of
    /// failed tests, with summaries of their own, and repeats its summary.
    pub fn parse(text: &str) -> Counts {
        let mut all = Counts::default();
        let mut nextest = None;
        for line in text.lines() {
            let line = without_colour(line);
            if let Some((_, numbers)) = line.split_once("test result: ") {
                all.add(sum(numbers));
            } else if let Some((_, numbers)) =
                line.split_once(" tests run: ").or_else(|| line.split_once(" test run: "))
            {
                nextest = Some(sum(numbers));
            }
        }
        nextest.unwrap_or(all)
    }
}

/// The names of the tests that failed, in the order in which they did, each once: from lines of `cargo test` (`test a::b ... FAILED`), or of
/// `cargo nextest run` (`FAIL [   0.1s] (3/9) crate a::b`), which shows the lines of the tests themselves, too.
pub fn failing(text: &str) -> Vec<String> {
    let lines: Vec<String> = text.lines().map(without_colour).collect();
    let named = |name_of: fn(&str) -> Option<String>| {
        let mut names: Vec<String> = Vec::new();
        for name in lines.iter().filter_map(|line| name_of(line)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    };
    let by_nextest = named(of_nextest);
    if !by_nextest.is_empty() {
        return by_nextest;
    }
    let by_cargo_test = named(of_cargo_test);
    if by_cargo_test.is_empty() { named(of_pytest) } else { by_cargo_test }
}

fn of_cargo_test(line: &str) -> Option<String> {
    Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_string())
}

/// `FAILED python/tests/test_x.py::test_y[2] - AssertionError: ...`
fn of_pytest(line: &str) -> Option<String> {
    let named = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
    let name = named.split(" - ").next()?;
    (name.contains(".py::") || name.ends_with(".py")).then(|| name.to_string())
}

fn of_nextest(line: &str) -> Option<String> {
    let (word, rest) = line.trim_start().split_once(" [")?;
    let ends_badly = ["FAIL", "TIMEOUT", "ABORT", "XFAIL", "LEAK-FAIL"].contains(&word.trim())
        || word.starts_with("SIG") && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    let (_, name) = rest.split_once(']').filter(|_| ends_badly)?;
    // Its place among all tests, which newer versions say.
    let name = name.trim_start();
    let name = match name.strip_prefix('(').and_then(|n| n.split_once(") ")) {
        Some((_, name)) => name,
        None => name,
    };
    Some(name.trim().to_string())
}

/// `11 passed (1 slow), 2 failed, 1 timed out, 0 skipped`: the word after a number says what it counts.
fn sum(numbers: &str) -> Counts {
    let mut counts = Counts::default();
    let words: Vec<&str> =
        numbers.split([' ', ',', ';', '(', ')', '.']).filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        let Ok(n) = pair[0].parse::<u64>() else { continue };
        match pair[1] {
            "passed" => counts.passed += n,
            // "timed out" and "exec failed" are nextest's.
            "failed" | "timed" | "exec" => counts.failed += n,
            "skipped" | "ignored" => counts.skipped += n,
            _ => {}
        }
    }
    counts
}

/// The line without terminal escapes.
fn without_colour(line: &str) -> String {
    let mut plain = String::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_summary_of_cargo_test_counts() {
        let text = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.01s\n\
                    test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(Counts::parse(text), Counts { passed: 7, failed: 2, skipped: 0 });
    }

    #[test]
    fn the_last_summary_of_nextest_counts() {
        let text = "     Summary [   0.5s] 9 tests run: 9 passed, 0 skipped\n\
                    \u{1b}[31;1m     Summary\u{1b}[0m [   0.013s] \u{1b}[1m5\u{1b}[0m tests run: \u{1b}[1m2\u{1b}[0m \
                    \u{1b}[32;1mpassed\u{1b}[0m (1 slow), 1 failed, 1 timed out, 1 exec failed, 4 skipped\n\
                    test result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        assert_eq!(Counts::parse(text), Counts { passed: 2, failed: 3, skipped: 4 });
        assert_eq!(
            Counts::parse("1 test run: 1 passed, 0 skipped"),
            Counts { passed: 1, failed: 0, skipped: 0 }
        );
    }

    #[test]
    fn failing_tests_are_named_once() {
        let text = "test a::good ... ok\ntest a::bad ... FAILED\n---- a::bad stdout ----\nfailures:\n    a::bad\n\
                    test src/lib.rs - x (line 3) ... FAILED\n";
        assert_eq!(failing(text), ["a::bad", "src/lib.rs - x (line 3)"]);
        let text = "        PASS [   0.004s] (1/4) phalanx-net cores::tests::fine\n\
                    \u{1b}[31;1m        FAIL\u{1b}[0m [   0.006s] (2/4) \u{1b}[35;1mphalanx-launch::launch\u{1b}[0m ends::x\n\
                    test ends::x ... FAILED\n\
                    \x20    TIMEOUT [  60.006s] phalanx-net y\n\
                    \x20    SIGSEGV [   0.006s] (4/4) phalanx-net z\n\
                    ────────────\n     Summary [   0.013s] 4 tests run: 1 passed, 3 failed\n\
                    \x20       FAIL [   0.006s] (2/4) phalanx-launch::launch ends::x\n";
        assert_eq!(failing(text), ["phalanx-launch::launch ends::x", "phalanx-net y", "phalanx-net z"]);
    }

    #[test]
    fn failing_tests_of_pytest_are_named_with_their_parameters() {
        let text = "..F\nFAILED python/tests/test_a.py::test_b[2] - AssertionError: FAILED to agree\n\
                    ERROR python/tests/test_c.py\n1 failed, 2 passed, 3 skipped in 3.21s\n";
        assert_eq!(failing(text), ["python/tests/test_a.py::test_b[2]", "python/tests/test_c.py"]);
        assert_eq!(Counts::parse("test result: 2 passed; 1 failed; 3 skipped").skipped, 3);
    }

    #[test]
    fn other_lines_do_not_count() {
        assert_eq!(failing("FAIL or not\ntest it ... ok\n  SLOW [> 5.0s] a b\n"), [""; 0]);
        assert_eq!(Counts::parse("12 passed the gate\nok"), Counts::default());
    }
}
