//! Writes YAML that every reader understands in the same way: a text that looks like anything else in any version of YAML is quoted. Keys are
//! sorted, as `kubectl` sorts them.

use serde_json::Value;
use std::fmt::Write as _;

/// One document of a manifest.
#[derive(Debug)]
pub struct Document {
    /// A line before it; nothing, if empty.
    pub comment: &'static str,
    pub value: Value,
}

impl From<Value> for Document {
    fn from(value: Value) -> Document {
        Document { comment: "", value }
    }
}

pub fn write(documents: &[Document]) -> String {
    let mut text = String::new();
    for Document { comment, value } in documents {
        text.push_str("---\n");
        if !comment.is_empty() {
            let _ = writeln!(text, "# {comment}");
        }
        for line in lines(value) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// The lines of a value, as a block where it has parts.
fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let field = |(key, value): (&String, &Value)| {
                let key = quoted(key);
                let inner = lines(value);
                match value {
                    Value::Object(parts) if !parts.is_empty() => {
                        let inner = inner.iter().map(|line| format!("  {line}"));
                        std::iter::once(format!("{key}:")).chain(inner).collect()
                    }
                    Value::Array(parts) if !parts.is_empty() => {
                        std::iter::once(format!("{key}:")).chain(inner).collect()
                    }
                    _ => vec![format!("{key}: {}", inner[0])],
                }
            };
            fields.iter().flat_map(field).collect::<Vec<String>>()
        }
        Value::Array(items) if !items.is_empty() => {
            let item = |value| {
                let mark = |(i, line): (usize, String)| match i {
                    0 => format!("- {line}"),
                    _ => format!("  {line}"),
                };
                lines(value).into_iter().enumerate().map(mark).collect::<Vec<_>>()
            };
            items.iter().flat_map(item).collect()
        }
        Value::Object(_) => vec!["{}".into()],
        Value::Array(_) => vec!["[]".into()],
        Value::String(text) => vec![quoted(text)],
        Value::Null | Value::Bool(_) | Value::Number(_) => vec![value.to_string()],
    }
}

/// A text as it is, or in double quotes.
fn quoted(text: &str) -> String {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "true", "false", "on", "off", "null"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./:-".contains(c))
        && !text.ends_with(':')
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_plain {
        return text.into();
    }
    let mut quoted = String::from('"');
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            '\n' => write!(quoted, "\\n"),
            '\t' => write!(quoted, "\\t"),
            '\0'..' ' | '\x7f'..'\u{a0}' => write!(quoted, "\\x{code:02x}"),
            // Ends of lines, a mark of the order of bytes, and what is no character.
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => write!(quoted, "\\u{code:04x}"),
            _ => write!(quoted, "{c}"),
        };
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Vec<Value> {
        use serde::Deserialize;
        serde_norway::Deserializer::from_str(text)
            .map(|d| Value::deserialize(d).expect("it is YAML"))
            .collect()
    }

    /// Texts that some version of YAML takes for something else, and every character that may need an escape.
    fn hard_texts() -> Vec<String> {
        let words = "y N yes No true False ON off null NULL ~ 1 01 0o7 0x1f 1e3 1_000 12:30:45 1:30 .5 .inf -.inf .nan +1 - -- -a --a a: :a a:b \
                     a#b #a & &a *a !a !!str |a > %a @a `a ' \" \\ a\\nb { } [ ] , ? ?a = << --- ... a, $(A) {{a}} 2026-11-17 é 日本 😀 \u{a0}";
        let mut texts: Vec<String> = words.split(' ').map(String::from).collect();
        texts.extend(
            ["", " ", " a", "a ", "a b", "a: b", "a #b", "two\nlines", "\n", "\ttab", "a\r\nb"]
                .map(String::from),
        );
        let codes = (0..0x200)
            .chain([0x2028, 0x2029, 0xd7ff, 0xe000, 0xfeff, 0xfffd, 0xfffe, 0xffff, 0x10000, 0x10ffff]);
        texts.extend(codes.filter_map(char::from_u32).map(|c| format!("{c}x{c}")));
        texts
    }

    #[test]
    fn every_text_is_read_again_as_it_was() {
        for text in hard_texts() {
            let value = json!({ "a": text, "b": [text, [text, { "c": text }]], text.clone(): { "d": text } });
            let written = write(&[value.clone().into()]);
            assert_eq!(read(&written), [value], "{text:?}: {written}");
        }
    }

    #[test]
    fn documents_are_read_again_as_they_were() {
        let values = [
            json!({ "b": { "a": [1, true, null, -5], "c": {}, "d": [] }, "a": [{ "x": 1, "y": [[1, 2], [3]] }, {}] }),
            json!({ "z": "last" }),
        ];
        let documents = values.clone().map(Document::from);
        assert_eq!(read(&write(&documents)), values);
        let said = write(&[Document { comment: "a: word", value: json!({ "a": 1 }) }]);
        assert_eq!(said, "---\n# a: word\na: 1\n");
    }
}
