//! `cargo xtask demo torch`: two ranks train what one process trains, and get the same.

use super::{next, short};
use crate::{
    process::{Output, Shell},
    profile::Profile,
    python::{self, Torch},
};
use std::{fs, path::Path, time::Duration};

const LIMIT: Duration = Duration::from_secs(300);

pub fn run(shell: &Shell) -> Result<(), String> {
    eprintln!(
        "building the Python package in {} (the first time takes a minute or two) ...",
        short(shell, &shell.target().join(Profile::Demo.folder()))
    );
    let environment = python::ready(shell, Torch::Any, Profile::Demo)?;
    if !environment.has_torch {
        return Err("there is no torch, and it could not be installed".into());
    }
    let folder = shell.target().join("demo");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    let parameters = folder.join("one-process.pt");
    train(shell, &environment.python, 1, "--save", &parameters)?;
    train(shell, &environment.python, 2, "--expect", &parameters)?;
    eprintln!("\nTwo ranks, each with half of every batch, end with the parameters of one process.");
    next::tell(shell, next::AFTER_TORCH);
    Ok(())
}

/// In 64 bits, so that the different order of additions stays invisible.
fn train(shell: &Shell, python: &Path, n_ranks: u32, what: &str, parameters: &Path) -> Result<(), String> {
    let mut command = shell.command(python.with_file_name("phalanx"));
    let example = Path::new("examples/torch_mnist.py");
    command.args(["run", "-np", &n_ranks.to_string(), "--tag-output", "never", "--"]);
    command.arg(python).arg(example).args(["--double", what]).arg(parameters).current_dir(&shell.root);
    eprintln!(
        "\n$ phalanx run -np {n_ranks} -- python {} --double {what} {}\n",
        example.display(),
        short(shell, parameters)
    );
    shell.must(&mut command, Output::Shown, LIMIT).map(drop)
}
