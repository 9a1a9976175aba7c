//! `cargo xtask bench parallax`: tables on servers against rows that everybody gathers, between hosts with slow links.
//!
//! A host is a network namespace; a bridge in a namespace of its own joins them, and tbf limits each link in both directions. Bytes are those of
//! the hosts' interfaces: a long run less a short one, so that meeting and ending count for nothing.

mod farm;
mod measures;

use super::{machine, page};
use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::{fs, time::Duration};

pub const HELP: &str = "\
cargo xtask bench parallax [OPTIONS]

  --rate 200mbit     of each host's link, in each direction
  --steps 6          steps that count
  --rows 100000      of each of the two tables
  --tokens 1280      row numbers of each table in a step of a worker
  --profile release  or demo, or test: bytes do not depend on it, times do
  --built            builds nothing: takes the example that is there
  --no-times         bytes only: leaves out what only times show
  --out FILE         the page to write; default docs/benchmarks-parallax.md; - for none
";

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    rate: String,
    steps: usize,
    rows: usize,
    tokens: usize,
    profile: Profile,
    times: bool,
    is_built: bool,
    out: Option<String>,
}

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    let Some(options) = parse(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces need root".into());
    }
    let command = format!("cargo xtask bench parallax {}", args.join(" ")).trim_end().to_string();
    let mut build = shell.cargo("build --package phalanx-train --example parallax_bench");
    build.args(["--profile", options.profile.name()]);
    if !options.is_built {
        shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    }
    let tables = measures::all(shell, &options)?;
    for table in &tables {
        println!("\n{}\n{}", table.title, table.text());
    }
    if let Some(out) = &options.out {
        let page = page::parallax(&command, &machine::describe(shell), &tables);
        fs::write(shell.root.join(out), page).map_err(|e| format!("cannot write {out}: {e}"))?;
        eprintln!("\nwritten to {out}");
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options {
        rate: "200mbit".into(),
        steps: 6,
        rows: 100_000,
        tokens: 1280,
        profile: Profile::Release,
        times: true,
        is_built: false,
        out: Some("docs/benchmarks-parallax.md".into()),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"));
        let number = |text: &String| text.parse().ok().filter(|&n: &usize| n > 0);
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--no-times" => options.times = false,
            "--built" => options.is_built = true,
            "--rate" => options.rate = value()?.clone(),
            "--out" => options.out = Some(value()?.clone()).filter(|out| out != "-"),
            "--steps" | "--rows" | "--tokens" => {
                let text = value()?;
                let n = number(text).ok_or_else(|| format!("{arg} {text} is not a number above 0"))?;
                match arg.as_str() {
                    "--steps" => options.steps = n,
                    "--rows" => options.rows = n,
                    _ => options.tokens = n,
                }
            }
            "--profile" => {
                let text = value()?;
                let all = [Profile::Release, Profile::Demo, Profile::Test];
                let found = all.into_iter().find(|profile| profile.name() == text);
                options.profile = found.ok_or_else(|| format!("there is no profile {text}\n\n{HELP}"))?;
            }
            other => return Err(format!("what is {other}?\n\n{HELP}")),
        }
    }
    Ok(Some(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let parse = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let options = parse("--profile test --steps 3 --no-times --out -").unwrap().unwrap();
        assert_eq!(
            (options.profile, options.steps, options.times, options.out),
            (Profile::Test, 3, false, None)
        );
        assert!(parse("--steps 0").is_err() && parse("--profile fast").is_err() && parse("--quick").is_err());
        assert!(parse("--help").unwrap().is_none());
    }
}
