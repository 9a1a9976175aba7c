//! `cargo xtask bench frameworks`: collectives and training steps with TensorFlow, Keras and JAX beside their own ways, interleaved.

use super::{
    asked::{self, Asked, tell},
    figures::Figures,
    page,
    table::{Table, mark, ratio},
};
use crate::{
    frameworks::{self, Framework},
    process::{Output, Shell},
    profile::Profile,
    python::{self, Environment, Missing, Torch},
};
use std::{collections::BTreeMap, path::Path, time::Duration};

pub const HELP: &str = "\
cargo xtask bench frameworks [OPTIONS]

  --rounds 3         how often everything is repeated; medians over the rounds are told
  --seconds 3        for each program in each round
  --built            builds nothing: takes the Python package that is there
  --out FILE         the page to write; default docs/benchmarks-frameworks.md; - for none
";

const LIMIT: Duration = Duration::from_secs(180);
const MODELS: [(&str, &str); 2] = [
    ("conv", "Keras fit, two convolutions, 57 k parameters"),
    ("dense", "Keras fit, dense, 25 M parameters"),
];
/// How much of the peers' time ours may take.
const OF_PEERS: f64 = 1.0;
/// How much of the time that numpy's arrays take.
const SMALL: f64 = 3.0;
const LARGE: f64 = 1.3;
const JAX_US: f64 = 150.0;

#[derive(Debug, PartialEq)]
struct Options {
    rounds: usize,
    seconds: f64,
    is_built: bool,
    out: Option<String>,
}

/// One program of a round.
struct Program {
    framework: &'static str,
    /// Whether it is started on ranks; the others start their processes themselves.
    on_ranks: bool,
    words: &'static [&'static str],
}

const fn ours(framework: &'static str, words: &'static [&'static str]) -> Program {
    Program { framework, on_ranks: true, words }
}

const fn peer(framework: &'static str, words: &'static [&'static str]) -> Program {
    Program { framework, on_ranks: false, words }
}

const PROGRAMS: [Program; 13] = [
    ours("tensorflow", &["small"]),
    ours("tensorflow", &["apart", "conv"]),
    peer("tensorflow", &["mirrored", "conv"]),
    ours("tensorflow", &["legacy", "conv"]),
    ours("tensorflow", &["keras", "conv"]),
    ours("tensorflow", &["apart", "dense"]),
    peer("tensorflow", &["mirrored", "dense"]),
    ours("tensorflow", &["legacy", "dense"]),
    ours("tensorflow", &["keras", "dense"]),
    ours("jax", &["small"]),
    ours("jax", &["apart"]),
    peer("jax", &["gloo"]),
    ours("jax", &["phalanx"]),
];

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    let Some(options) = parse(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    let command = asked::command("frameworks", args, &[]);
    let first = if options.is_built {
        python::environment(shell, Torch::IfThere).map_err(Missing::into_text)?
    } else {
        eprintln!("building the Python package ...");
        python::ready(shell, Torch::IfThere, Profile::Release)?
    };
    let mut environments = BTreeMap::new();
    for framework in &frameworks::ALL {
        environments.insert(framework.name, environment(shell, &first, framework)?);
    }
    let mut figures = Figures::default();
    for round in 1..=options.rounds {
        for program in &PROGRAMS {
            let Program { framework, on_ranks, words } = program;
            eprintln!("round {round} of {}, {framework}, {} ...", options.rounds, words.join(" "));
            let environment = environments.get(framework).ok_or("an environment for each was just made")?;
            match measure(shell, environment, program, options.seconds) {
                Ok(text) => keep(framework, &text, &mut figures)?,
                Err(why) if !on_ranks => eprintln!("this round goes on without it: {why}"),
                Err(why) => return Err(why),
            }
        }
    }
    let tables = [collectives(&figures), steps(&figures)];
    tell(shell, &tables, options.out.as_deref(), |machine| page::frameworks(&command, machine, &tables))
}

fn environment(shell: &Shell, first: &Environment, framework: &Framework) -> Result<Environment, String> {
    let made = framework.environment(shell, first, true)?;
    made.ok_or_else(|| format!("{} cannot be installed", framework.name))
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options {
        rounds: 3,
        seconds: 3.0,
        is_built: false,
        out: Some("docs/benchmarks-frameworks.md".into()),
    };
    let mut asked = Asked::new("frameworks", HELP, args);
    while let Some(flag) = asked.flag() {
        match flag {
            "--help" | "-h" => return Ok(None),
            "--rounds" => options.rounds = asked.number(flag)?,
            "--seconds" => options.seconds = asked.number(flag)?,
            "--built" => options.is_built = true,
            "--out" => options.out = asked.page(flag)?,
            other => return Err(asked.bad(other)),
        }
    }
    Ok(Some(options))
}

fn measure(
    shell: &Shell,
    environment: &Environment,
    program: &Program,
    seconds: f64,
) -> Result<String, String> {
    let script = Path::new("benches/frameworks").join(format!("{}_steps.py", program.framework));
    let mut command = if program.on_ranks {
        let mut command = shell.command(environment.python.with_file_name("phalanx"));
        command.args(["run", "-np", "2", "--tag-output", "never", "--"]).arg(&environment.python);
        command
    } else {
        shell.command(&environment.python)
    };
    command.arg(script).args(program.words).arg(seconds.to_string());
    command.env("OMP_NUM_THREADS", "1").current_dir(&shell.root);
    Ok(shell.must(&mut command, Output::Kept, LIMIT)?.stdout)
}

/// The lines that the programs print.
fn keep(framework: &str, text: &str, figures: &mut Figures) -> Result<(), String> {
    let mut any = false;
    for line in text.lines().filter_map(|line| line.strip_prefix("figure\t")) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [what, of, value] = fields[..] else { return Err(format!("unreadable: {line}")) };
        figures.keep(&format!("{framework} {what}"), of, value)?;
        any = true;
    }
    if any { Ok(()) } else { Err(format!("no figures were printed:\n{text}")) }
}

/// The figure of a framework.
fn median(figures: &Figures, framework: &str, what: &str, of: &str) -> Option<f64> {
    figures.get(&format!("{framework} {what}"), of)
}

fn collectives(figures: &Figures) -> Table {
    let columns =
        ["allreduce", "time", "phalanx.numpy", "ratio", "without a collective", "the rest", "goal in all"];
    let mut table = Table::new("Allreduce of 2 ranks (microseconds)".into(), 1, &columns);
    let rows = [
        ("tensorflow", "chain", "4 bytes", "tf.function, of 100 operations, 4 bytes", Some(SMALL)),
        ("tensorflow", "tf.function", "4 bytes", "tf.function, a call with one, 4 bytes", Some(SMALL)),
        ("tensorflow", "eager", "4 bytes", "TensorFlow, eager, 4 bytes", None),
        ("tensorflow", "tf.function", "4 M floats", "tf.function, 4 M floats", Some(LARGE)),
        ("tensorflow", "eager", "4 M floats", "TensorFlow, eager, 4 M floats", None),
        ("jax", "jax.jit", "4 bytes", "jax.jit, 4 bytes", None),
        ("jax", "jax.jit", "1,000 floats", "jax.jit, 1,000 floats", None),
        ("jax", "jax.jit", "4 M floats", "jax.jit, 4 M floats", None),
    ];
    for (framework, what, of, title, goal) in rows {
        let figure = |what: &str| median(figures, framework, what, of);
        let us = |value: Option<f64>| value.map_or("-".into(), |us| format!("{us:.1}"));
        let without = if what == "chain" { None } else { figure(&format!("{what} without a collective")) };
        // A call of a function is TensorFlow's; what a collective adds to it is ours.
        let rest = figure(what).zip(without).map(|(all, empty)| (all - empty).max(0.0));
        let of_rest = (framework == "tensorflow").then_some(SMALL);
        let is_thousand = of == "1,000 floats";
        let own = figure(what).filter(|_| is_thousand);
        table.push(vec![
            title.into(),
            us(figure(what)),
            us(figure("phalanx.numpy")),
            ratio(figure(what), figure("phalanx.numpy"), goal),
            us(without),
            ratio(rest, figure("phalanx.numpy"), of_rest),
            own.map_or("-".into(), |us| format!("{JAX_US:.0} {}", mark(us <= JAX_US))),
        ]);
    }
    table
}

fn steps(figures: &Figures) -> Table {
    let columns =
        ["step", "apart", "peer", "ours, as the peer", "ours / peer", "ours, Keras 3", "Keras 3 / peer"];
    let mut table = Table::new("A training step of 2 ranks (milliseconds)".into(), 1, &columns);
    let ms = |value: Option<f64>| value.map_or("-".into(), |us| format!("{:.2}", us / 1e3));
    let mut push = |title: &str, all: [Option<f64>; 4]| {
        let [apart, peer, own, newest] = all;
        table.push(vec![
            title.into(),
            ms(apart),
            ms(peer),
            ms(own),
            ratio(own, peer, Some(OF_PEERS)),
            ms(newest),
            ratio(newest, peer, Some(OF_PEERS)),
        ]);
    };
    for (model, title) in MODELS {
        push(
            title,
            ["apart", "mirrored", "legacy", "keras"].map(|mode| median(figures, "tensorflow", mode, model)),
        );
    }
    let of = |mode: &str| median(figures, "jax", mode, "mlp");
    push("JAX, MLP, 25 M parameters", [of("apart"), of("gloo"), of("phalanx"), None]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_rounds_become_ratios() {
        let mut figures = Figures::default();
        for (what, us) in
            [("mirrored", "200.0"), ("mirrored", "100.0"), ("mirrored", "180.0"), ("legacy", "90.0")]
        {
            keep("tensorflow", &format!("a note\nfigure\t{what}\tconv\t{us}\n"), &mut figures).unwrap();
        }
        let text = steps(&figures).text();
        assert!(text.contains("0.50x, goal 1.00 ✓"), "{text}");
        keep("jax", "figure\tjax.jit\t1,000 floats\t151\n", &mut figures).unwrap();
        for (what, us) in
            [("phalanx.numpy", 10), ("tf.function", 95), ("tf.function without a collective", 70)]
        {
            keep("tensorflow", &format!("figure\t{what}\t4 bytes\t{us}\n"), &mut figures).unwrap();
        }
        let text = collectives(&figures).text();
        assert!(text.contains("150 ✗"), "{text}");
        assert!(text.contains("9.50x, goal 3.00 ✗") && text.contains("2.50x, goal 3.00 ✓"), "{text}");
        assert!(keep("jax", "nothing", &mut figures).is_err());
        assert!(keep("jax", "figure\ta\tb\n", &mut figures).is_err());
    }

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let parse = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        assert_eq!(parse("--rounds 2 --out -").unwrap().unwrap().out, None);
        assert!(parse("--rounds 0").is_err() && parse("--seconds x").is_err() && parse("--fast").is_err());
        assert!(parse("--help").unwrap().is_none());
    }
}
