//! Text that Kubernetes hands on unchanged (KUBE-1). It replaces `$(NAME)` by a variable and `$$` by `$`, in commands and in variables.

/// The text that becomes `text`.
pub fn literal(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        escaped.push(c);
        if c == '$' && matches!(chars.peek(), Some('$' | '(')) {
            escaped.push('$');
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Kubernetes makes of a text where every variable is set.
    fn expanded(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some((_, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
                out.push_str("VALUE");
                rest = after;
            } else {
                out.push('$');
            }
        }
        out + rest
    }

    #[test]
    fn no_text_is_expanded() {
        // Every text of up to seven of these characters.
        let letters = ['$', '(', ')', 'a'];
        for n in 0..=7u32 {
            for number in 0..4u32.pow(n) {
                let text: String = (0..n).map(|i| letters[(number >> (2 * i)) as usize & 3]).collect();
                assert_eq!(expanded(&literal(&text)), text, "KUBE-1: {text}");
            }
        }
        assert_eq!(literal("echo $HOME $1"), "echo $HOME $1");
        assert_eq!(expanded("$(A)"), "VALUE");
    }
}
