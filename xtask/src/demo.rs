//! `cargo xtask demo`: the project's main job on this machine, a few minutes after a clone.

mod lenet;
mod next;
mod torch;

use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::{path::Path, time::Duration};

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
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
    build(shell, "phalanx", &["gradients", "overlap"])?;
    show(shell, "gradients", 4, &[])?;
    eprintln!();
    show(shell, "overlap", 2, &[])?;
    next::tell(shell, next::AFTER_GRADIENTS);
    Ok(())
}

/// Builds the `phalanx` command and these examples of one package, nothing else. Cargo shows how far it is.
fn build(shell: &Shell, package: &str, examples: &[&str]) -> Result<(), String> {
    eprintln!(
        "building the phalanx command and {} in {} (the first time takes a minute or two) ...",
        examples.join(", "),
        short(shell, &shell.target().join(Profile::Demo.folder()))
    );
    let mut command = shell.cargo("build --package phalanx-launch --bin phalanx");
    command.args(["--profile", Profile::Demo.name(), "--package", package]);
    // Kernels for AVX-512 give the same bits, and take a tenth of the time that everything takes to build.
    command.arg("--no-default-features");
    command.args(examples.iter().flat_map(|example| ["--example", example]));
    shell.must(&mut command, Output::Shown, BUILD_LIMIT)?;
    eprintln!();
    Ok(())
}

/// Runs one example as a world of this many ranks; gives what it wrote.
fn show(shell: &Shell, example: &str, n_ranks: u32, args: &[&str]) -> Result<String, String> {
    let phalanx = shell.built(Profile::Demo, "phalanx");
    let example = shell.built(Profile::Demo, "examples").join(example);
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
