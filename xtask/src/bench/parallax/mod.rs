//! `cargo xtask bench parallax`: tables on servers against rows that everybody gathers, between hosts with slow links.
//!
//! A host is a network namespace; a bridge in a namespace of its own joins them, and tbf limits each link in both directions. Bytes are those of
//! the hosts' interfaces: a long run less a short one, so that meeting and ending count for nothing.

mod farm;
mod measures;

use super::{
    asked::{self, Asked, tell},
    page,
};
use crate::{
    process::{Output, Shell},
    profile::Profile,
    python::{self, Missing, Torch},
};
use std::time::Duration;

pub const HELP: &str = "\
cargo xtask bench parallax [OPTIONS]

  --rate 200mbit     of each host's link, in each direction
  --steps 6          steps that count
  --rounds 3         how often everything is repeated; medians over the rounds are told
  --rows 100000      of each of the two tables
  --tokens 1280      row numbers of each table in a step of a worker
  --profile release  or demo, or test: bytes do not depend on it, times do
  --built            builds nothing: takes the example and the Python package that are there
  --no-times         bytes only: leaves out what only times show
  --out FILE         the page to write; default docs/benchmarks-parallax.md; - for none
";

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    rate: String,
    steps: usize,
    rounds: usize,
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
    let command = asked::command("parallax", args, &[]);
    let mut build = shell.cargo("build --package phalanx-train --example parallax_bench");
    build.args(["--profile", options.profile.name()]);
    if !options.is_built {
        shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    }
    let mut notes = Vec::new();
    let environment = match options.is_built {
        true => python::environment(shell, Torch::IfThere).map_err(Missing::into_text)?,
        false => python::ready(shell, Torch::IfThere, options.profile)?,
    };
    let environment = Some(environment).filter(|environment| environment.has_torch);
    if environment.is_none() {
        notes.push(
            "no torch: neither DDP over Gloo, servers over RPC nor the ranks of one host were measured"
                .to_string(),
        );
    }
    let tables = measures::all(shell, &options, environment.as_ref(), &mut notes)?;
    tell(shell, &tables, options.out.as_deref(), |machine| page::parallax(&command, machine, &notes, &tables))
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options {
        rate: "200mbit".into(),
        steps: 6,
        rounds: 3,
        rows: 100_000,
        tokens: 1280,
        profile: Profile::Release,
        times: true,
        is_built: false,
        out: Some("docs/benchmarks-parallax.md".into()),
    };
    let mut asked = Asked::new("parallax", HELP, args);
    while let Some(flag) = asked.flag() {
        match flag {
            "--help" | "-h" => return Ok(None),
            "--no-times" => options.times = false,
            "--built" => options.is_built = true,
            "--rate" => options.rate = asked.value(flag)?.into(),
            "--steps" => options.steps = asked.number(flag)?,
            "--rounds" => options.rounds = asked.number(flag)?,
            "--rows" => options.rows = asked.number(flag)?,
            "--tokens" => options.tokens = asked.number(flag)?,
            "--profile" => options.profile = asked.profile(flag)?,
            "--out" => options.out = asked.page(flag)?,
            other => return Err(asked.bad(other)),
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
