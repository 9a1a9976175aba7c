//! `cargo xtask demo`: the project's main job on this machine.

mod lenet;
mod torch;

use crate::{
    examples,
    process::{Output, Shell},
};
use std::{path::Path, time::Duration};

const LIMIT: Duration = Duration::from_secs(300);

pub fn run(shell: &Shell, args: &[String]) -> Result<(), String> {
    match args {
        [] => lenet::run(shell),
        [which] if which == "torch" => torch::run(shell),
        [which] if which == "gradients" => gradients(shell),
        other => {
            let other = other.join(" ");
            Err(format!("there is `demo`, `demo gradients` and `demo torch`, not `demo {other}`"))
        }
    }
}

fn gradients(shell: &Shell) -> Result<(), String> {
    build(shell)?;
    show(shell, "gradients", 4, &[])?;
    eprintln!();
    show(shell, "overlap", 2, &[]).map(drop)
}

fn build(shell: &Shell) -> Result<(), String> {
    eprintln!(
        "building the phalanx command and the examples, optimised, in {} (the first time takes a few minutes) ...",
        short(shell, &shell.target())
    );
    examples::build(shell)
}

/// Runs one example as a world of so many ranks; gives what it wrote.
fn show(shell: &Shell, example: &str, n_ranks: u32, args: &[&str]) -> Result<String, String> {
    let phalanx = shell.release("phalanx");
    let example = shell.release("examples").join(example);
    let mut command = shell.command(&phalanx);
    command.args(["run", "-np", &n_ranks.to_string(), "--tag-output", "never", "--"]);
    command.arg(&example).args(args);
    let shown = format!("{} {}", short(shell, &example), args.join(" "));
    eprintln!("$ {} run -np {n_ranks} -- {}\n", short(shell, &phalanx), shown.trim_end());
    shell.must(&mut command, Output::Both, LIMIT).map(|done| done.text).map_err(|why| {
        format!(
            "{why}\n  `{} doctor` looks for what is missing on this machine;\n  \
             PHALANX_TRANSPORT=tcp cargo xtask demo does without shared memory;\n  \
             docs/troubleshooting.md explains the usual errors",
            short(shell, &phalanx)
        )
    })
}

/// A path as seen from the project.
fn short(shell: &Shell, path: &Path) -> String {
    path.strip_prefix(&shell.root).unwrap_or(path).display().to_string()
}
