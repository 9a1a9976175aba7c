//! `cargo xtask bench torch`: training steps with Phalanx, with torch's own DistributedDataParallel and alone, interleaved.

use super::{
    asked::{self, Asked, tell},
    figures::Figures,
    page,
    table::{Table, mark, ratio},
};
use crate::{
    process::{Output, Shell},
    profile::Profile,
    python::{self, Environment, Torch},
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

pub const HELP: &str = "\
cargo xtask bench torch [OPTIONS]

  --rounds 5         turns of each program with each model; medians over the turns are told
  --seconds 1        for each turn
  --models LIST      only these, for a look: mlp, resnet, lm-dense, lm-sparse, wide, small, many, transformer, conv, tiny
  --out FILE         the page to write; default docs/benchmarks-torch.md; - for none
";

const LIMIT: Duration = Duration::from_secs(180);
/// For all turns of one model, beside the seconds that were asked for.
const RACE_LIMIT: Duration = Duration::from_secs(300);
/// Programs that take turns.
const N_MODES: f64 = 6.0;
/// Models, and how much of DistributedDataParallel's time ours may take.
const MODELS: [(&str, &str, f64); 10] = [
    ("mlp", "MLP, 25 M parameters", 0.7),
    ("resnet", "ResNet-50's parameters", 0.7),
    ("lm-dense", "language model, dense gradients", 0.6),
    ("lm-sparse", "language model, sparse gradients", 1.0),
    ("wide", "2 x Linear 2048-8192, 134 MB", 0.7),
    ("small", "200 x Linear(48, 48), 402 tensors", 0.8),
    ("many", "5,000 parameters of 4 elements", 0.8),
    ("transformer", "transformer, 7.4 M parameters", 1.0),
    ("conv", "convolutions with batch norm, 1.2 M", 1.0),
    ("tiny", "two tiny layers", 1.0),
];
/// Microseconds that small things may take.
const SMALL: [(&str, f64); 5] = [
    ("allreduce_ of 4 bytes", 60.0),
    ("allreduce of 4 bytes", 60.0),
    ("broadcast_parameters of 160 tensors, first", 30_000.0),
    ("broadcast_parameters of 160 tensors, again", 30_000.0),
    ("import phalanx.torch after torch", 100_000.0),
];
/// Memory beyond that of one process, as a multiple of the gradients.
const MEMORY: f64 = 1.1;
/// Below this the memory of the world itself is all that there is to see.
const MEASURABLE: f64 = 1e6;

#[derive(Debug, PartialEq)]
struct Options {
    rounds: usize,
    seconds: f64,
    models: Vec<&'static str>,
    out: Option<String>,
}

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    let Some(options) = parse(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    let command = asked::command("torch", args, &[]);
    eprintln!("building the Python package ...");
    let environment = python::ready(shell, Torch::Pinned, Profile::Release)?;
    if !environment.has_torch {
        return Err("there is no torch to measure with".into());
    }
    let mut figures = Figures::default();
    for model in &options.models {
        eprintln!("{model}: {} turns of each program ...", options.rounds);
        let raced = raced(shell, &environment, model, &[], options.seconds, options.rounds)?;
        figures.read(&raced.lines())?;
    }
    for round in 1..=options.rounds {
        eprintln!("small things, round {round} of {} ...", options.rounds);
        let text = phalanx(shell, &environment, Path::new("benches/torch/small.py"))?;
        for line in text.lines().filter_map(|line| line.strip_prefix("small\t")) {
            let (name, value) = line.split_once('\t').ok_or_else(|| format!("unreadable: {line}"))?;
            figures.keep("small", name, value)?;
        }
    }
    let tables = [steps_table(&figures), aside_table(&figures), small_table(&figures)];
    tell(shell, &tables, options.out.as_deref(), |machine| page::torch(&command, machine, &tables))
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let known = MODELS.map(|(model, ..)| model);
    let out = Some("docs/benchmarks-torch.md".into());
    let mut options = Options { rounds: 5, seconds: 1.0, models: known.to_vec(), out };
    let mut asked = Asked::new("torch", HELP, args);
    while let Some(flag) = asked.flag() {
        match flag {
            "--help" | "-h" => return Ok(None),
            "--rounds" => options.rounds = asked.number(flag)?,
            "--seconds" => options.seconds = asked.number(flag)?,
            "--models" => options.models = asked.list(flag, &known)?,
            "--out" => options.out = asked.page(flag)?,
            other => return Err(asked.bad(other)),
        }
    }
    Ok(Some(options))
}

/// All turns of one model in these modes of `steps.py`, or in all; `race.py` starts the programs and says whose turn it is.
pub fn raced(
    shell: &Shell,
    environment: &Environment,
    model: &str,
    modes: &[&str],
    seconds: f64,
    rounds: usize,
) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut command = shell.command(&environment.python);
    command.args(["benches/torch/race.py", model, &seconds.to_string(), &rounds.to_string()]);
    command.arg(command_of(environment)).args(modes).current_dir(&shell.root);
    let turns = Duration::from_secs_f64(seconds * N_MODES * rounds as f64 * 4.0);
    let text = shell.must(&mut command, Output::Kept, RACE_LIMIT + turns)?.stdout;
    keep_steps(&text, &mut figures)?;
    Ok(figures)
}

/// The `phalanx` command that came with the package.
fn command_of(environment: &Environment) -> PathBuf {
    environment.python.with_file_name("phalanx")
}

/// Runs a script on two ranks.
fn phalanx(shell: &Shell, environment: &Environment, script: &Path) -> Result<String, String> {
    let mut command = shell.command(command_of(environment));
    command.args(["run", "-np", "2", "--tag-output", "never", "--"]).arg(&environment.python).arg(script);
    command.env("OMP_NUM_THREADS", "1").current_dir(&shell.root);
    Ok(shell.must(&mut command, Output::Kept, LIMIT)?.stdout)
}

/// The lines of `steps.py`, one for each turn.
fn keep_steps(text: &str, figures: &mut Figures) -> Result<(), String> {
    let lines = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let mut n_turns = 0;
    for fields in lines.filter(|fields| fields.len() == 10) {
        let [mode, model, _, bytes, middle, _, peak, least_peak, others, switches] = fields[..] else {
            unreachable!("ten were asked for")
        };
        n_turns += 1;
        figures.keep(mode, model, middle)?;
        figures.keep(&format!("{mode} memory"), model, peak)?;
        figures.keep(&format!("{mode} least memory"), model, least_peak)?;
        figures.keep(&format!("{mode} others"), model, others)?;
        figures.keep(&format!("{mode} switches"), model, switches)?;
        figures.keep("bytes", model, bytes)?;
    }
    if n_turns == 0 { Err(format!("steps.py printed no figures:\n{text}")) } else { Ok(()) }
}

fn steps_table(figures: &Figures) -> Table {
    let columns = [
        "model",
        "alone",
        "two apart",
        "DDP over Gloo",
        "DDP without huge pages",
        "DistributedOptimizer",
        "our DistributedDataParallel",
        "optimizer / DDP",
        "wrapper / DDP",
        "efficiency",
        "apart / optimizer",
        "extra memory / gradients",
    ];
    let mut table =
        Table::new("A training step, 2 ranks, one thread each (milliseconds)".into(), 1, &columns);
    for (model, title, goal) in MODELS {
        let of = |mode: &str| figures.get(mode, model);
        let ms = |mode: &str| of(mode).map_or("-".into(), |ms| format!("{ms:.1}"));
        let share = |mode: &str| {
            let share = of(mode).zip(of("phalanx")).map(|(other, ours)| other / ours);
            share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0))
        };
        let extra = of("phalanx memory").zip(of("single memory")).map(|(ours, single)| ours - single);
        table.push(vec![
            title.into(),
            ms("single"),
            ms("apart"),
            ms("ddp"),
            ms("ddp-plain"),
            ms("phalanx"),
            ms("phalanx-ddp"),
            ratio(of("phalanx"), of("ddp"), Some(goal)),
            ratio(of("phalanx-ddp"), of("ddp"), Some(goal)),
            share("single"),
            share("apart"),
            ratio(extra, of("bytes").filter(|&n| n >= MEASURABLE), Some(MEMORY)),
        ]);
    }
    table
}

/// What a step takes beside the thread that computes.
fn aside_table(figures: &Figures) -> Table {
    let columns = [
        "model",
        "other threads, DDP (ms)",
        "optimizer (ms)",
        "wrapper (ms)",
        "context switches, DDP",
        "optimizer",
        "wrapper",
    ];
    let mut table = Table::new("Beside the main thread, in one step of a rank".into(), 1, &columns);
    for (model, title, _) in MODELS {
        let of = |mode: &str, what: &str| {
            figures.get(&format!("{mode} {what}"), model).map_or("-".into(), |value| format!("{value:.1}"))
        };
        let mut row = vec![title.to_string()];
        for what in ["others", "switches"] {
            row.extend(["ddp", "phalanx", "phalanx-ddp"].map(|mode| of(mode, what)));
        }
        table.push(row);
    }
    table
}

fn small_table(figures: &Figures) -> Table {
    let mut table = Table::new("Small things, 2 ranks (microseconds)".into(), 1, &["what", "time", "goal"]);
    for (name, goal) in SMALL {
        let Some(value) = figures.get("small", name) else { continue };
        table.push(vec![name.into(), format!("{value:.1}"), format!("{goal:.0} {}", mark(value <= goal))]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_rounds_become_ratios() {
        let mut figures = Figures::default();
        for (mode, ms) in
            [("ddp", "200.0"), ("ddp", "100.0"), ("ddp", "180.0"), ("phalanx", "90.0"), ("single", "81")]
        {
            keep_steps(&format!("a note\n{mode}\tmlp\t2\t100\t{ms}\t1.0\t300\t200\t2.5\t7\n"), &mut figures)
                .unwrap();
        }
        let text = steps_table(&figures).text();
        assert!(text.contains("0.50x, goal 0.70 ✓") && text.contains("90 %"), "{text}");
        assert!(aside_table(&figures).text().contains("2.5"));
        assert!(keep_steps("nothing", &mut figures).is_err());
    }

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let parse = |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        assert_eq!(parse("--rounds 2 --out -").unwrap().unwrap().out, None);
        assert_eq!(parse("--models tiny,mlp").unwrap().unwrap().models, ["tiny", "mlp"]);
        assert!(parse("--models tiny,mpl").is_err());
        assert!(parse("--rounds 0").is_err() && parse("--seconds x").is_err() && parse("--fast").is_err());
        assert!(parse("--help").unwrap().is_none());
    }
}
