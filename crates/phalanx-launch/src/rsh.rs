//! The remote-shell template: turns `--rsh 'ssh -p 2222'` and a host into the command that starts an agent there.

use std::{ffi::OsString, path::Path};

/// What starts an agent on another host unless `--rsh` says otherwise.
const DEFAULT: &str = "ssh {host}";
/// What `ssh` is told unless the template says it otherwise. Agents run in the background of the terminal, where a password
/// prompt could never be answered: better a clear refusal. And a host that falls silent must be noticed.
const FOR_SSH: [(&str, &str); 3] =
    [("BatchMode", "yes"), ("ServerAliveInterval", "1"), ("ServerAliveCountMax", "3")];
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
    #[error("--rsh {text:?} has an unmatched quote")]
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
        let mut rsh = Rsh { words, for_every_host: given.is_some() && names_host };
        if rsh.program() == "ssh" {
            rsh.tell_ssh();
        }
        Ok(rsh)
    }

    /// A template of another origin than `--rsh`, for every host.
    pub fn of_words(words: Vec<String>) -> Rsh {
        Rsh { words, for_every_host: true }
    }

    /// Puts before the template's own words what they do not say.
    fn tell_ssh(&mut self) {
        let said = self.words.join(" ").to_ascii_lowercase();
        let missing = FOR_SSH.iter().filter(|(name, _)| !said.contains(&name.to_ascii_lowercase()));
        let options = missing.flat_map(|(name, value)| ["-o".to_string(), format!("{name}={value}")]);
        let options: Vec<String> = options.collect();
        self.words.splice(1..1, options);
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
        self.program().ends_with("ssh") || self.program() == "rsh"
    }

    /// Whether what it carries cannot be read on the way.
    pub fn encrypts(&self) -> bool {
        self.program() == "ssh"
    }

    /// What a message may call it.
    pub fn name(&self) -> &str {
        &self.words[0]
    }

    fn program(&self) -> String {
        Path::new(&self.words[0]).file_name().unwrap_or_default().to_string_lossy().into_owned()
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
        assert_eq!(command(Some("rsh -l me"), "/p"), ["rsh", "-l", "me", "n1", "/p", "agent"]);
        assert_eq!(
            command(Some("nsenter --net=/run/netns/{host}"), "/p"),
            ["nsenter", "--net=/run/netns/n1", "/p", "agent"]
        );
    }

    #[test]
    fn ssh_never_asks_and_notices_silence_whatever_the_template() {
        let ours = "-o BatchMode=yes -o ServerAliveInterval=1 -o ServerAliveCountMax=3";
        for (template, want) in [
            ("ssh -p 2222 -i 'my key'", format!("ssh {ours} -p 2222 -i my key n1 /p agent")),
            ("/usr/bin/ssh {host}", format!("/usr/bin/ssh {ours} n1 /p agent")),
            (
                "ssh -o serveraliveinterval=9 {host}",
                "ssh -o BatchMode=yes -o ServerAliveCountMax=3 -o serveraliveinterval=9 n1 /p agent".into(),
            ),
            ("autossh -M 0", "autossh -M 0 n1 /p agent".into()),
        ] {
            assert_eq!(command(Some(template), "/p").join(" "), want, "{template}");
        }
    }

    #[test]
    fn only_a_remote_shell_gets_quotes() {
        assert_eq!(command(Some("rsh {host}"), "/my dir/it's")[2], r"'/my dir/it'\''s'");
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
