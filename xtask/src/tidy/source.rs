//! Source files as the rules see them: which lines are product code, and what is left without comments and strings.

use std::collections::BTreeSet;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rust that users run.
    Product,
    /// Rust that only tests and examples run.
    Trial,
    /// Not Rust.
    Text,
}

/// One file.
#[derive(Clone, Debug)]
pub struct Source {
    /// From the project's root.
    pub path: String,
    pub text: String,
    /// Rust without comments and the contents of literals; the same number of lines. Empty for other files.
    pub code: String,
    pub kind: Kind,
    /// Lines before the tests at the end of the file.
    pub n_product_lines: usize,
}

/// Whether a file of this name is looked at.
pub fn is_text(name: &str) -> bool {
    const ENDINGS: [&str; 11] =
        [".rs", ".toml", ".md", ".sh", ".py", ".c", ".h", ".yml", ".yaml", ".pyi", ".json"];
    ENDINGS.iter().any(|e| name.ends_with(e))
        || ["run", "LICENSE", ".gitignore", "Dockerfile", ".dockerignore"].contains(&name)
}

impl Source {
    /// Numbered lines of product code, without comments and literals.
    pub fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        let n = if self.kind == Kind::Product { self.n_product_lines } else { 0 };
        self.code.lines().take(n).enumerate().map(|(i, line)| (i + 1, line))
    }

    /// Whether the line (from 1) is test code.
    pub fn is_trial(&self, line: usize) -> bool {
        self.kind == Kind::Trial || line > self.n_product_lines
    }
}

/// Finds out what each file is. A module is a trial when its parent declares it under `#[cfg(test)]`.
pub fn classify(files: Vec<(String, String)>) -> Vec<Source> {
    let mut sources: Vec<Source> = files
        .into_iter()
        .map(|(path, text)| {
            let is_rust = path.ends_with(".rs");
            let code = if is_rust { strip(&text) } else { String::new() };
            let in_folder = |name| path.split('/').rev().skip(1).any(|part| part == name);
            let kind = match is_rust {
                false => Kind::Text,
                true if ["tests", "examples", "benches", "fuzz"].into_iter().any(in_folder) => Kind::Trial,
                true => Kind::Product,
            };
            let n_product_lines = product_lines(&code);
            Source { path, text, code, kind, n_product_lines }
        })
        .collect();
    let trials: BTreeSet<String> = sources.iter().flat_map(trial_modules).collect();
    for source in &mut sources {
        let stem = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let is_trial =
            stem.match_indices('/').any(|(at, _)| trials.contains(&stem[..at])) || trials.contains(stem);
        if is_trial && source.kind == Kind::Product {
            source.kind = Kind::Trial;
        }
    }
    sources
}

/// The paths, without `.rs`, of the modules that this file declares for tests only.
fn trial_modules(source: &Source) -> Vec<String> {
    let stem = source.path.trim_end_matches(".rs");
    let folder = match stem.rsplit_once('/') {
        Some((folder, "mod" | "lib" | "main")) => folder,
        _ => stem,
    };
    let lines: Vec<&str> = source.code.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]").filter_map(|pair| {
        let name = pair[1].trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        name.strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.map(|name| format!("{folder}/{name}")).collect()
}

/// How many lines stand before the file's own `mod tests { ... }`, which comes last.
fn product_lines(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().collect();
    let begins = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].trim_end().ends_with('{')
    };
    lines.windows(2).position(begins).unwrap_or(lines.len())
}

/// Blanks comments and the contents of string and character literals.
pub fn strip(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    while at < chars.len() {
        let end = match token_end(&chars, at) {
            Some(end) => end,
            None => {
                out.push(chars[at]);
                at += 1;
                continue;
            }
        };
        // Newlines stay, so that line numbers do.
        out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// The end of the comment or literal that begins here, if one does.
fn token_end(chars: &[char], at: usize) -> Option<usize> {
    let get = |i: usize| chars.get(i).copied().unwrap_or('\0');
    match (get(at), get(at + 1)) {
        ('/', '/') => Some(find(chars, at, |i| get(i) == '\n')),
        ('/', '*') => Some(block_comment_end(chars, at)),
        ('"', _) => Some(literal_end(chars, at, '"')),
        ('r', '"' | '#') if at == 0 || !is_word(get(at - 1)) => raw_end(chars, at),
        // 'a' and '\n' are characters, 'a alone is a lifetime.
        ('\'', '\\') => Some(literal_end(chars, at, '\'')),
        ('\'', _) if get(at + 2) == '\'' => Some(at + 3),
        _ => None,
    }
}

fn find(chars: &[char], from: usize, wanted: impl Fn(usize) -> bool) -> usize {
    (from..chars.len()).find(|&i| wanted(i)).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') if depth == 1 => return i + 2,
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    chars.len()
}

fn literal_end(chars: &[char], at: usize, quote: char) -> usize {
    let mut i = at + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            c if c == quote => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// `r#"..."#`; `None` for a raw identifier like `r#type`.
fn raw_end(chars: &[char], at: usize) -> Option<usize> {
    let quote = find(chars, at + 1, |i| chars[i] != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - at - 1;
    let closes = |i: usize| {
        chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
    };
    let end = find(chars, quote + 1, closes);
    Some((end + 1 + hashes).min(chars.len()))
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_kept() {
        let code = strip(
            "let a = \"unsafe // x\"; // unsafe\n/* unsafe\n/* nested */ */ b('\"', '\\'', r#\"\"unsafe\"#)",
        );
        assert!(!code.contains("unsafe"), "{code}");
        assert_eq!(code.lines().count(), 3);
        assert!(code.contains("let a =") && code.contains("b(") && code.trim_end().ends_with(')'));
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        assert_eq!(strip("fn f<'a>(x: &'a str, r#type: u8)"), "fn f<'a>(x: &'a str, r#type: u8)");
    }

    #[test]
    fn tests_at_the_end_are_no_product() {
        let text = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
        let source = &classify(vec![("crates/x/src/lib.rs".into(), text.into())])[0];
        assert_eq!(source.n_product_lines, 2);
        assert!(source.is_trial(5) && !source.is_trial(1));
    }

    #[test]
    fn modules_declared_for_tests_are_trials() {
        let files = [
            ("c/src/plan/mod.rs", "mod ring;\n#[cfg(test)]\nmod proofs;\n"),
            ("c/src/plan/proofs/mod.rs", "mod cost;\n"),
            ("c/src/plan/proofs/cost.rs", ""),
            ("c/src/plan/ring.rs", "#[cfg(test)]\nmod trial;\n"),
            ("c/src/plan/ring/trial.rs", ""),
            ("c/tests/all.rs", ""),
            ("c/Cargo.toml", ""),
        ];
        let sources = classify(files.iter().map(|(p, t)| (p.to_string(), t.to_string())).collect());
        let kinds: Vec<Kind> = sources.iter().map(|s| s.kind).collect();
        use Kind::{Product, Text, Trial};
        assert_eq!(kinds, [Product, Trial, Trial, Product, Trial, Trial, Text]);
    }
}
