//! The remote-shell template: how `--rsh 'ssh -p 2222'` and a host become the command that starts an agent there.

use std::{ffi::OsString, path::Path};

/// What starts an agent on another host unless `--rsh` says otherwise. Agents run in the background of the terminal,
/// where a password prompt could never be answered: better a clear refusal.
pub const DEFAULT: &str = "ssh -o BatchMode=yes -o ServerAliveInterval=1 -o ServerAliveCountMax=3 {host}";
const HOST: &str = "{host}";

/// A template, cut into words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rsh {
    words: Vec<String>,
    /// The user wrote a template with `{host}`: it is used for every host, this machine too.
    for_every_host: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RshError {
    #[error("--rsh is empty; write e.g. --rsh 'ssh -p 2222 {{host}}'")]
    Empty,
    #[error("--rsh {text:?} has a quote without its partner")]
    OpenQuote { text: String },
}

impl Rsh {
    pub fn new(given: Option<&str>) -> Result<Rsh, RshError> {
        let text = given.unwrap_or(DEFAULT);
        let mut words = split_words(text).ok_or_else(|| RshError::OpenQuote { text: text.to_string() })?;
        if words.is_empty() {
            return Err(RshError::Empty);
        }
        let names_host = words.iter().any(|w| w.contains(HOST));
        if !names_host {
            words.push(HOST.to_string());
        }
        Ok(Rsh { words, for_every_host: given.is_some() && names_host })
    }

    /// Whether this machine, too, is reached through the template.
    pub fn for_every_host(&self) -> bool {
        self.for_every_host
    }

    /// The command that runs `exe arg` on a host.
    pub fn command(&self, host: &str, exe: &Path, arg: &str) -> Vec<OsString> {
        let mut command: Vec<OsString> = self.words.iter().map(|w| w.replace(HOST, host).into()).collect();
        command.push(if self.goes_through_a_shell() { quoted(exe) } else { exe.into() });
        command.push(arg.into());
        command
    }

    /// `ssh` and `rsh` join the words and let the shell of the other side cut them again; wrappers like `nsenter` do not.
    pub fn goes_through_a_shell(&self) -> bool {
        let program = Path::new(&self.words[0]).file_name().unwrap_or_default().to_string_lossy();
        program.ends_with("ssh") || program == "rsh"
    }
}

fn quoted(path: &Path) -> OsString {
    let text = path.to_string_lossy();
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c)) {
        return path.into();
    }
    format!("'{}'", text.replace('\'', r"'\''")).into()
}

/// Cuts text as a shell would, without expanding anything. `None` when a quote is left open.
pub fn split_words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '\\') => word.get_or_insert_default().push(chars.next()?),
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(given: Option<&str>, exe: &str) -> Vec<String> {
        let words = Rsh::new(given).unwrap().command("n1", Path::new(exe), "agent");
        words.into_iter().map(|w| w.into_string().unwrap()).collect()
    }

    #[test]
    fn words_are_cut_like_a_shell_does() {
        let cut = |text| split_words(text).unwrap();
        assert_eq!(cut("ssh  -p 22"), ["ssh", "-p", "22"]);
        assert_eq!(cut(r#"a 'b c' "d \" e" f\ g '' h'i'"#), ["a", "b c", "d \" e", "f g", "", "hi"]);
        assert_eq!(cut(""), Vec::<String>::new());
        assert_eq!(split_words("a 'b"), None);
        assert_eq!(split_words("a \\"), None);
    }

    #[test]
    fn the_host_goes_where_the_template_says_or_last() {
        assert_eq!(
            command(None, "/bin/phalanx"),
            [
                "ssh",
                "-o",
                "BatchMode=yes",
                "-o",
                "ServerAliveInterval=1",
                "-o",
                "ServerAliveCountMax=3",
                "n1",
                "/bin/phalanx",
                "agent"
            ]
        );
        assert_eq!(command(Some("ssh -p 2222"), "/p"), ["ssh", "-p", "2222", "n1", "/p", "agent"]);
        assert_eq!(
            command(Some("nsenter --net=/run/netns/{host}"), "/p"),
            ["nsenter", "--net=/run/netns/n1", "/p", "agent"]
        );
    }

    #[test]
    fn only_a_remote_shell_gets_quotes() {
        assert_eq!(command(Some("ssh {host}"), "/my dir/it's")[2], r"'/my dir/it'\''s'");
        assert_eq!(command(Some("env X={host}"), "/my dir/p")[2], "/my dir/p");
    }

    #[test]
    fn only_an_explicit_placeholder_covers_this_machine() {
        assert!(!Rsh::new(None).unwrap().for_every_host());
        assert!(!Rsh::new(Some("ssh -p 2222")).unwrap().for_every_host());
        assert!(Rsh::new(Some("env A={host}")).unwrap().for_every_host());
    }

    #[test]
    fn bad_templates_are_errors() {
        assert_eq!(Rsh::new(Some("  ")), Err(RshError::Empty));
        assert!(matches!(Rsh::new(Some("ssh '")), Err(RshError::OpenQuote { .. })));
    }
}
