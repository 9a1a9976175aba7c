//! `cargo xtask demo`: LeNet learns to read digits on two processes, and one process gets the same bits.

use super::{build, next, short, show};
use crate::process::Shell;
use std::fs;

/// Enough for 97 %.
const EPOCHS: &str = "5";

pub fn run(shell: &Shell) -> Result<(), String> {
    build(shell, "phalanx-train", &["lenet"])?;
    let folder = shell.target().join("demo");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    let picture = short(shell, &folder.join("lenet.svg"));
    let two = show(shell, "lenet", 2, &["--replicas", "2", "--epochs", EPOCHS, "--plot", &picture])?;
    eprintln!();
    let one = show(shell, "lenet", 1, &["--replicas", "4", "--epochs", EPOCHS])?;
    let (two, one) = (digest(&two)?, digest(&one)?);
    if one != two {
        return Err(format!("two processes ended with the parameters {two}, one with {one}"));
    }
    eprintln!("\nTwo processes with two replicas each and one process with four end with the same bits.");
    eprintln!("{picture} shows how they learned.");
    next::tell(shell, next::AFTER_LENET);
    Ok(())
}

/// What the example says of its parameters.
fn digest(text: &str) -> Result<&str, String> {
    let found = text.lines().find_map(|line| line.trim().strip_prefix("parameters "));
    found.ok_or_else(|| format!("the example says nothing of its parameters:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn the_line_about_parameters_is_found() {
        assert_eq!(digest("accuracy 97 %\nparameters 00ff\n"), Ok("00ff"));
        assert!(digest("accuracy 97 %").is_err());
    }
}
