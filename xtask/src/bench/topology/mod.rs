//! `cargo xtask bench topology`: shapes against each other, against the flat ring, Open MPI, MPICH and Gloo, on networks of namespaces. One run,
//! rounds of all interleaved, medians; nothing is encrypted.

mod others;
mod ours;
mod predicted;
mod tables;

use super::{
    asked::{self, Asked, tell},
    figures::Figures,
    page,
    wires::Wires,
};
use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use others::{Other, Others};
use ours::{Ours, Plan, RING, SHAPES};
use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

pub const HELP: &str = "\
cargo xtask bench topology [OPTIONS]          needs root, for network namespaces

  --rounds 3         how often everything is repeated; medians over the rounds are told
  --only PARTS       of bytes,times,shapes,racks,flat,fused,explored; writes no page unless --out is given
  --keep FILE        adds what is measured to this file, and counts what earlier runs with it measured: parts may be measured one after the other
  --python PATH      a python with torch, for Gloo; also PEER_PYTHON
  --profile release  or demo, or test
  --built            builds nothing: takes the phalanx that is there
  --out FILE         the page to write; default docs/benchmarks-topology.md; - for none

  12 ranks as network namespaces. A: 3 hosts of 4 on a switch, 200 Mbit/s at both ends of every cable. B: 2 racks of 3 hosts of 2, 100 Mbit/s between
  the racks. C: as A, without limits. What is absent is skipped, with the Debian packages that have it. A round takes about 5 minutes.
";

const BUILD_LIMIT: Duration = Duration::from_secs(25 * 60);
/// No round begins later than this.
const ENOUGH: Duration = Duration::from_secs(15 * 60);
const HOST_RATE: &str = "200mbit";
const UPLINK_RATE: &str = "100mbit";
/// 200 Mbit/s.
const LINE_BYTES_PER_S: f64 = 25e6;
const MANY: [u64; 4] = [4 << 10, 1 << 20, 16 << 20, 64 << 20];
const LARGE: u64 = 16 << 20;
const PARTS: [&str; 7] = ["bytes", "times", "shapes", "racks", "flat", "fused", "explored"];

/// B: segments in both tiers at once, one tier after the other, and the racks unknown.
const RACKS: [Plan; 3] = [
    ours::shape("2x3x2 pipelined", &[("PHALANX_TIERS", "2x3x2"), ("PHALANX_ALGORITHM", "tiers-pipelined")]),
    ours::shape("2x3x2 one after the other", &[("PHALANX_TIERS", "2x3x2"), ("PHALANX_ALGORITHM", "tiers")]),
    ours::shape("2x6", &[("PHALANX_TIERS", "2x6"), ("PHALANX_ALGORITHM", "tiers")]),
];
/// C: plans that know nothing of hosts.
const FLAT: [Plan; 3] = [
    RING,
    ours::shape("halving", &[("PHALANX_ALGORITHM", "halving")]),
    ours::shape("doubling", &[("PHALANX_ALGORITHM", "doubling")]),
];

#[derive(Debug, PartialEq)]
struct Options {
    rounds: u32,
    only: Option<Vec<&'static str>>,
    keep: Option<PathBuf>,
    python: Option<PathBuf>,
    profile: Profile,
    is_built: bool,
    out: Option<String>,
}

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    let Some(options) = parse(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    if !rustix::process::geteuid().is_root() {
        return Err("bench topology needs root to make network namespaces".into());
    }
    let private = [(options.python.as_deref(), "python3"), (options.keep.as_deref(), "FILE")];
    let command = asked::command("topology", args, &private);
    if !options.is_built {
        eprintln!("building phalanx and the programs of MPI ...");
        let mut build = shell.cargo("build --package phalanx-launch --quiet");
        shell.must(build.args(["--profile", options.profile.name()]), Output::Shown, BUILD_LIMIT)?;
    }
    let mut others = Others::build(shell, options.python.clone());
    let mut figures = Figures::default();
    let begun = Instant::now();
    let n_rounds = measure(shell, &options, &mut others, &mut figures)?;
    let took = begun.elapsed().as_secs();
    let earlier = options.keep.as_ref().and_then(|keep| fs::read_to_string(keep).ok()).unwrap_or_default();
    let several = if earlier.is_empty() { "" } else { "measured in several runs; of this one, " };
    others.note(format!("{several}rounds: {n_rounds}, in {took} s."));
    if let Some(keep) = &options.keep {
        let cannot = |e| format!("cannot write {}: {e}", keep.display());
        fs::write(keep, earlier.clone() + &figures.lines()).map_err(cannot)?;
        figures.read(&earlier)?;
    }
    let tables = tables::all(&figures);
    tell(shell, &tables, options.out.as_deref(), |machine| {
        page::topology(&command, machine, &others.notes, &tables)
    })
}

fn measure(
    shell: &Shell,
    options: &Options,
    others: &mut Others<'_>,
    figures: &mut Figures,
) -> Result<u32, String> {
    let wants = |part: &'static str| options.only.as_ref().is_none_or(|only| only.contains(&part));
    let switch = Wires::new(shell, "a", &[3])?;
    let racks = Wires::new(shell, "b", &[3, 3])?;
    racks.limit(HOST_RATE, UPLINK_RATE)?;
    let profile = options.profile;
    let on_switch = |network| Ours { shell, wires: &switch, each: 4, network, profile };
    let (a, c) = (on_switch("A"), on_switch("C"));
    let b = Ours { shell, wires: &racks, each: 2, network: "B", profile };
    let (begun, mut n_rounds) = (Instant::now(), 0);
    while n_rounds < options.rounds && begun.elapsed() < ENOUGH {
        n_rounds += 1;
        let say = |what: &str| eprintln!("round {n_rounds} of {}: {what} ...", options.rounds);
        switch.limit(HOST_RATE, HOST_RATE)?;
        if wants("times") {
            for plan in [SHAPES[0].0, RING] {
                say(&format!("A, our {}", plan.name));
                a.measure(figures, plan, &MANY, a.bench(), "by host")?;
            }
            for other in Other::ALL {
                say(&format!("A, {}", other.name()));
                let sizes = match other {
                    Other::RingDealt => &[LARGE][..],
                    _ => &MANY,
                };
                others.try_one(&switch, 4, figures, other, sizes)?;
            }
        }
        if wants("shapes") {
            for (plan, _) in SHAPES {
                say(&format!("A, shape {}", plan.name));
                let shapes = Ours { network: "A shapes", ..a };
                shapes.measure(figures, plan, &[LARGE], a.bench(), "by host")?;
            }
        }
        // Once: bytes do not change from round to round.
        if wants("bytes") && n_rounds == 1 {
            for (plan, _) in SHAPES {
                say(&format!("A, shape {}, ranks dealt to the hosts", plan.name));
                let dealt = Ours { network: "A shapes", ..a };
                let measured = dealt.measure(figures, plan, &[LARGE], a.dealt(), "dealt");
                others.excuse("ranks dealt by mpirun", measured)?;
            }
            say("A, what doctor measures and simulate predicts");
            let measured = predicted::all(&a, figures);
            others.excuse("the prediction", measured)?;
        }
        if wants("fused") {
            say("A, AllReduceN");
            a.fused(figures)?;
        }
        if wants("explored") {
            say("A, ways that are tried");
            a.explored(figures)?;
        }
        if wants("racks") {
            for plan in RACKS {
                say(&format!("B, {}", plan.name));
                b.measure(figures, plan, &[LARGE], b.bench(), "by host")?;
            }
        }
        if wants("flat") {
            switch.unlimit()?;
            for plan in [SHAPES[0].0].into_iter().chain(FLAT) {
                say(&format!("C, {}", plan.name));
                c.measure(figures, plan, &MANY, c.bench(), "by host")?;
            }
        }
    }
    Ok(n_rounds)
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options {
        rounds: 3,
        only: None,
        keep: None,
        python: std::env::var_os("PEER_PYTHON").map(PathBuf::from),
        profile: Profile::Release,
        is_built: false,
        out: None,
    };
    let mut out = None;
    let mut asked = Asked::new("topology", HELP, args);
    while let Some(flag) = asked.flag() {
        match flag {
            "--help" | "-h" => return Ok(None),
            "--rounds" => options.rounds = asked.number(flag)?,
            "--only" => options.only = Some(asked.list(flag, &PARTS)?),
            "--keep" => options.keep = Some(asked.value(flag)?.into()),
            "--python" => options.python = Some(asked.value(flag)?.into()),
            "--profile" => options.profile = asked.profile(flag)?,
            "--built" => options.is_built = true,
            "--out" => out = Some(asked.page(flag)?),
            other => return Err(asked.bad(other)),
        }
    }
    let usual = options.only.is_none().then(|| "docs/benchmarks-topology.md".to_string());
    options.out = out.unwrap_or(usual);
    Ok(Some(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let read = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let usual = read("--python p").unwrap().unwrap();
        assert_eq!((usual.rounds, usual.out.as_deref()), (3, Some("docs/benchmarks-topology.md")));
        let some = read("--rounds 1 --only racks,flat --profile test --built --keep f").unwrap().unwrap();
        assert_eq!((some.rounds, some.out, some.is_built), (1, None, true));
        assert_eq!(some.only, Some(vec!["racks", "flat"]));
        assert_eq!(read("--help"), Ok(None));
        for bad in ["--rounds 0", "--only rack", "--profile fast", "--out", "--fast"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
