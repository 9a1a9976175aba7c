//! What every benchmark does alike: it reads the words after its name, and tells its tables on the terminal and in a page.

use super::{machine, table::Table};
use crate::{process::Shell, profile::Profile};
use std::{fs, path::Path, slice::Iter, str::FromStr};

/// The words after `cargo xtask bench NAME`.
pub struct Asked<'a> {
    name: &'static str,
    help: &'static str,
    words: Iter<'a, String>,
}

impl<'a> Asked<'a> {
    pub fn new(name: &'static str, help: &'static str, args: &'a [String]) -> Asked<'a> {
        Asked { name, help, words: args.iter() }
    }

    /// The next flag.
    pub fn flag(&mut self) -> Option<&'a str> {
        self.words.next().map(String::as_str)
    }

    /// What follows a flag.
    pub fn value(&mut self, flag: &str) -> Result<&'a str, String> {
        self.flag().ok_or_else(|| format!("{flag} needs a value"))
    }

    /// A number above 0.
    pub fn number<T: FromStr + PartialOrd + Default>(&mut self, flag: &str) -> Result<T, String> {
        let text = self.value(flag)?;
        text.parse().ok().filter(|n| *n > T::default()).ok_or_else(|| self.bad(text))
    }

    /// Words with commas between them; each must be known.
    pub fn list(&mut self, flag: &str, known: &[&'static str]) -> Result<Vec<&'static str>, String> {
        let text = self.value(flag)?;
        let one = |word: &str| known.iter().copied().find(|k| *k == word).ok_or_else(|| self.bad(word));
        text.split(',').map(one).collect()
    }

    /// A page to write; `-` is none.
    pub fn page(&mut self, flag: &str) -> Result<Option<String>, String> {
        Ok(Some(self.value(flag)?.to_string()).filter(|page| page != "-"))
    }

    pub fn profile(&mut self, flag: &str) -> Result<Profile, String> {
        let text = self.value(flag)?;
        let all = [Profile::Release, Profile::Demo, Profile::Test];
        all.into_iter().find(|profile| profile.name() == text).ok_or_else(|| self.bad(text))
    }

    /// What is said of a word that cannot be used.
    pub fn bad(&self, word: &str) -> String {
        format!("bench {}: {word:?} cannot be used here\n\n{}", self.name, self.help)
    }
}

/// The command as it stands in a page. Where this machine keeps its files is nobody's business.
pub fn command(name: &str, args: &[String], private: &[(Option<&Path>, &str)]) -> String {
    let mut command = format!("cargo xtask bench {name} {}", args.join(" ")).trim_end().to_string();
    for (path, shown) in private {
        if let Some(path) = path {
            command = command.replace(&path.display().to_string(), shown);
        }
    }
    command
}

/// Prints the tables, and writes the page if there is to be one.
pub fn tell(
    shell: &Shell,
    tables: &[Table],
    out: Option<&str>,
    page: impl FnOnce(&[(&'static str, String)]) -> String,
) -> Result<(), String> {
    for table in tables {
        println!("\n{}\n{}", table.title, table.text());
    }
    if let Some(out) = out {
        let text = page(&machine::describe(shell));
        fs::write(shell.root.join(out), text).map_err(|e| format!("cannot write {out}: {e}"))?;
        eprintln!("\nwritten to {out}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_nonsense_is_refused() {
        let words: Vec<String> = ["2", "0", "0.5", "a,b", "a,c", "-", "test", "x"].map(String::from).into();
        let mut asked = Asked::new("x", "help", &words);
        assert_eq!(asked.number::<u32>("--n"), Ok(2));
        assert_eq!(asked.number::<u32>("--n"), Err("bench x: \"0\" cannot be used here\n\nhelp".into()));
        assert_eq!(asked.number::<f64>("--s"), Ok(0.5));
        assert_eq!(asked.list("--l", &["a", "b"]), Ok(vec!["a", "b"]));
        assert!(asked.list("--l", &["a", "b"]).unwrap_err().contains("\"c\""));
        assert_eq!(asked.page("--out"), Ok(None));
        assert_eq!(asked.profile("--profile"), Ok(Profile::Test));
        assert!(asked.profile("--profile").is_err());
        assert_eq!(asked.value("--out"), Err("--out needs a value".into()));
    }

    #[test]
    fn commands_hide_where_files_are() {
        let args = ["--python".to_string(), "/some/where".to_string()];
        let shown = command("x", &args, &[(Some(Path::new("/some/where")), "python3"), (None, "FILE")]);
        assert_eq!(shown, "cargo xtask bench x --python python3");
        assert_eq!(command("x", &[], &[]), "cargo xtask bench x");
    }
}
