//! Words that must not stand in the sources, and where an exception has a reason.

use super::{
    Complaint, rust,
    source::{Source, is_word},
};

/// Found anywhere in Rust.
const NOWHERE: &[(&str, &str)] = &[
    ("#[allow(", "write #[expect(lint, reason = \"...\")]"),
    ("#![allow(", "write #[expect(lint, reason = \"...\")] where it is needed"),
    ("#[ignore", "a test runs or does not exist; one that needs root skips itself with a message"),
    ("#[should_panic", "assert on an error instead"),
    ("todo!(", "finish it or leave it out"),
    ("unimplemented!(", "finish it or leave it out"),
];

/// Crates whose product code may print: they are commands.
const COMMANDS: [&str; 2] = ["crates/phalanx-launch/", "xtask/"];
const PRINTS: [&str; 4] = ["println!", "print!", "eprintln!", "eprint!"];

/// Product code that sleeps, and why nothing better is at hand.
const SLEEPERS: &[(&str, &str)] = &[
    (
        "crates/phalanx-launch/src/run/agents.rs",
        "a full console gives no event when it has room again, and the wait must end when its output is given up",
    ),
    (
        "crates/phalanx-checkpoint/src/hold.rs",
        "flock(2) waits without a deadline or not at all, and the text of the lock changes without an event",
    ),
];

/// Folders of machines, put together so that this file names none.
const PLACES: [&str; 3] = [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];
const VAGUE: [&str; 8] = ["utils", "util", "common", "helper", "helpers", "base", "manager", "misc"];

/// Words that hide who does something or how many; CONTRIBUTING.md says what to write.
const UNCLEAR: [&str; 3] = ["whoever", "so many", "differently many"];
/// What quotes them, or tells of the past.
const EXEMPT: [&str; 3] = ["CONTRIBUTING.md", "CHANGELOG.md", "xtask/src/tidy/words.rs"];
const WRITTEN: [&str; 3] = [".md", ".rs", ".py"];

pub fn check(sources: &[Source]) -> Vec<Complaint> {
    let mut found = Vec::new();
    let is_written = |path: &str| WRITTEN.iter().any(|end| path.ends_with(end)) && !EXEMPT.contains(&path);
    for source in sources.iter().filter(|s| is_written(&s.path)) {
        style(source, &mut found);
    }
    for source in rust(sources) {
        everywhere(source, &mut found);
        prints_and_sleeps(source, &mut found);
        vague_name(source, &mut found);
    }
    // This file must name what it looks for.
    for source in sources.iter().filter(|s| !s.path.ends_with("tidy/words.rs")) {
        places(source, &mut found);
    }
    found
}

fn style(source: &Source, found: &mut Vec<Complaint>) {
    for (i, line) in source.text.lines().enumerate() {
        let line = line.to_lowercase();
        for word in UNCLEAR.iter().filter(|word| has_word(&line, word)) {
            let what = format!("{word:?}: say who, or how many; see CONTRIBUTING.md");
            found.push(Complaint::new(&source.path, i + 1, what));
        }
    }
}

fn everywhere(source: &Source, found: &mut Vec<Complaint>) {
    for (i, line) in source.code.lines().enumerate() {
        for (word, instead) in NOWHERE {
            if line.contains(word) {
                found.push(Complaint::new(&source.path, i + 1, format!("{word}: {instead}")));
            }
        }
    }
}

fn prints_and_sleeps(source: &Source, found: &mut Vec<Complaint>) {
    let may_print = COMMANDS.iter().any(|c| source.path.starts_with(c));
    let may_sleep = SLEEPERS.iter().any(|(p, _)| *p == source.path);
    for (line_number, line) in source.product() {
        let mut say = |what: &str| found.push(Complaint::new(&source.path, line_number, what));
        if !may_print && PRINTS.iter().any(|p| has_word(line, p)) {
            say("libraries do not print; use tracing");
        }
        if !may_sleep && line.contains("thread::sleep") {
            say("wait for an event with a deadline; an exception needs its reason in tidy/words.rs");
        }
    }
}

fn vague_name(source: &Source, found: &mut Vec<Complaint>) {
    let stem = source.path.trim_end_matches(".rs");
    if stem.split('/').any(|part| VAGUE.contains(&part)) {
        found.push(Complaint::new(&source.path, 0, "name the idea: utils, common, helper say nothing"));
    }
}

fn places(source: &Source, found: &mut Vec<Complaint>) {
    for (i, line) in source.text.lines().enumerate() {
        for place in PLACES {
            let begins = |at: usize| !line[..at].ends_with(|c: char| is_word(c) || "./~}$)-".contains(c));
            if line.match_indices(place).any(|(at, _)| begins(at)) {
                let what = format!("{place} is a folder of one machine");
                found.push(Complaint::new(&source.path, i + 1, what));
            }
        }
    }
}

/// Whether the word stands in the text, not as part of a longer one.
pub fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_word)
            && (!word.ends_with(is_word) || !text[at + word.len()..].starts_with(is_word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::classify;

    fn says(path: &str, text: &str) -> Vec<String> {
        let sources = classify(vec![(path.into(), text.into())]);
        check(&sources).into_iter().map(|c| format!("{}: {}", c.line, c.what)).collect()
    }

    #[test]
    fn forbidden_words_count_in_code_only() {
        assert_eq!(says("crates/a/src/lib.rs", "// todo!()\nlet x = \"#[allow(\";\n"), [""; 0]);
        assert_eq!(says("crates/a/src/lib.rs", "x();\ntodo!()\n"), ["2: todo!(: finish it or leave it out"]);
        assert_eq!(says("crates/a/tests/t.rs", "#[ignore]\n").len(), 1);
    }

    #[test]
    fn libraries_do_not_print_or_sleep_but_tests_and_commands_may() {
        let text = "fn a() { println!(\"\"); }\n";
        assert_eq!(says("crates/a/src/lib.rs", text).len(), 1);
        assert_eq!(says("crates/a/examples/b.rs", text).len(), 0);
        assert_eq!(says("crates/phalanx-launch/src/main.rs", text).len(), 0);
        assert_eq!(says("crates/a/src/lib.rs", "std::thread::sleep(d);\n").len(), 1);
        assert_eq!(
            says("crates/a/src/lib.rs", "#[cfg(test)]\nmod tests {\n thread::sleep(d);\n}\n").len(),
            0
        );
    }

    #[test]
    fn machine_paths_and_vague_names_are_refused() {
        assert_eq!(says("docs/a.md", &format!("see {}x\n", PLACES[1])).len(), 1);
        assert_eq!(says("docs/a.md", &format!("https://a.example{0}x and $HOME{0}x\n", PLACES[0])).len(), 0);
        assert_eq!(says("crates/a/src/utils.rs", "").len(), 1);
        assert_eq!(says("crates/a/src/common/x.rs", "").len(), 1);
    }

    #[test]
    fn pages_and_comments_say_who_and_how_many() {
        assert_eq!(says("docs/a.md", "Whoever waits.\nAfter so many tasks.\n").len(), 2);
        assert_eq!(says("docs/a.md", "The rank that waits.\n").len(), 0);
        assert_eq!(says("CONTRIBUTING.md", "whoever\n").len(), 0);
        assert_eq!(says("crates/a/src/lib.rs", "// whoever\n").len(), 1);
        assert_eq!(says("python/a.py", "# After so many.\n").len(), 1);
    }
}
