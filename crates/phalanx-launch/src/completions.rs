//! `phalanx completions`: prints completion scripts for shells.

use crate::cli::{Cli, CompletionsArgs, Shell};
use clap::CommandFactory;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Prints the script; a reader that closes the output early wants no more of it.
pub fn main(args: &CompletionsArgs) -> ExitCode {
    let _ = io::stdout().write_all(&script(args.shell));
    ExitCode::SUCCESS
}

fn script(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "phalanx", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_knows_the_commands_and_their_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            for word in ["simulate", "doctor", "kube", "trainjob", "completions", "only-rank", "hostfile"] {
                assert!(script.contains(word), "{shell:?} has no {word}");
            }
        }
    }
}
