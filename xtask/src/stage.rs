//! The stages that `check` and `test` are made of.

use crate::{
    process::{Output, Shell},
    test::skips::Skips,
    tidy,
};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// No stage may take longer; a cold build on two cores takes a few minutes.
pub const LIMIT: Duration = Duration::from_secs(25 * 60);

/// One thing that must hold.
pub struct Stage {
    pub name: &'static str,
    /// What to do when it fails.
    pub fix: &'static str,
    pub what: What,
}

pub enum What {
    Cargo(&'static str),
    Tidy,
}

pub const FORMAT: Stage =
    Stage { name: "format", fix: "run `cargo fmt --all`", what: What::Cargo("fmt --all --check") };

pub const TIDY: Stage = Stage {
    name: "tidy",
    fix: "each line above says what to do; `cargo xtask tidy` repeats them",
    what: What::Tidy,
};

pub const CLIPPY: Stage = Stage {
    name: "clippy",
    fix: "mend what clippy names; an exception is `#[expect(lint, reason = \"...\")]`",
    what: What::Cargo("clippy --workspace --all-targets --quiet -- -D warnings"),
};

pub const UNIT: Stage = Stage {
    name: "unit tests",
    fix: "repeat one with `cargo test -p CRATE NAME`",
    what: What::Cargo("test --workspace --lib --bins --quiet"),
};

/// A stage's verdict.
#[derive(Debug, Default)]
pub struct Verdict {
    pub took: Duration,
    pub failure: Option<String>,
    /// What it wrote, if it was kept.
    pub text: String,
    /// Whether that was shown, too.
    pub is_shown: bool,
    /// What was not tested.
    pub skips: Skips,
}

impl Verdict {
    /// That of a stage that could not do what it is for.
    pub fn failed(why: String) -> Verdict {
        Verdict { failure: Some(why), ..Verdict::default() }
    }
}

impl Stage {
    pub fn run(&self, shell: &Shell, output: Output) -> Verdict {
        match self.what {
            What::Tidy => time(|| tidy::run(shell).map(|()| String::new())),
            What::Cargo(args) => run(shell, &mut shell.cargo(args), output),
        }
    }
}

/// Runs a program as a stage.
pub fn run(shell: &Shell, command: &mut Command, output: Output) -> Verdict {
    let start = Instant::now();
    match shell.run(command, output, LIMIT) {
        Ok(done) => Verdict {
            took: start.elapsed(),
            failure: done.check().err(),
            text: done.text,
            is_shown: output != Output::Kept,
            ..Verdict::default()
        },
        Err(why) => Verdict { took: start.elapsed(), ..Verdict::failed(why) },
    }
}

/// Runs our own code as a stage.
pub fn time(f: impl FnOnce() -> Result<String, String>) -> Verdict {
    let start = Instant::now();
    let (text, failure) = match f() {
        Ok(text) => (text, None),
        Err(why) => (String::new(), Some(why)),
    };
    Verdict { took: start.elapsed(), failure, text, is_shown: true, ..Verdict::default() }
}

/// `4.2 s`.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
