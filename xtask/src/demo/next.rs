//! What to try after a demo: commands that work as they are written, because the demo built what they need.

use super::short;
use crate::{process::Shell, profile::Profile};

/// A command, and what it shows. `{phalanx}`, `{examples}` and `{bin}` are where this clone has them.
pub type Steps = &'static [(&'static str, &'static str)];

pub const AFTER_LENET: Steps = &[
    ("{phalanx} run -np 4 -- {examples}/lenet --replicas 1 --epochs 5", "four processes, the same bits"),
    ("cargo xtask demo torch", "PyTorch: two ranks against one process; downloads torch where there is none"),
    ("cargo xtask demo gradients", "four ranks reduce the gradients of a ResNet-50"),
    ("{phalanx} doctor", "what this machine has, and which problems a job would meet"),
    ("cargo install --path crates/phalanx-launch", "puts `phalanx` on the path"),
];

pub const AFTER_GRADIENTS: Steps = &[
    ("{phalanx} bench -np 2", "the speed of every collective, each result checked"),
    ("cargo xtask bench", "the same against Open MPI, Gloo and the machine's limits, with the release build"),
    ("cargo xtask demo", "two processes train LeNet"),
];

pub const AFTER_TORCH: Steps = &[
    ("{bin}/phalanx run -np 2 {bin}/python examples/torch_mnist.py", "the same in 32 bits"),
    ("{bin}/phalanx run -np 2 {bin}/python examples/graph_lenet.py", "a static program, with Paddle's names"),
    ("pip install .", "the package for your own Python, with the release build"),
];

/// Prints them, and the page to read first.
pub fn tell(shell: &Shell, steps: Steps) {
    let fill = |command: &str| {
        command
            .replace("{phalanx}", &short(shell, &shell.built(Profile::Demo, "phalanx")))
            .replace("{examples}", &short(shell, &shell.built(Profile::Demo, "examples")))
            .replace("{bin}", &short(shell, &shell.target().join("python/bin")))
    };
    eprint!("{}", written(&steps.iter().map(|(c, what)| (fill(c), *what)).collect::<Vec<_>>()));
}

fn written(steps: &[(String, &str)]) -> String {
    let width = steps.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let lines: String =
        steps.iter().map(|(command, what)| format!("  {command:width$}   {what}\n")).collect();
    format!("\nWhat to try next:\n{lines}README.md has the first minute in Rust, PyTorch and C.\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_what_they_show_stand_in_two_columns() {
        let text = written(&[("ab".into(), "one"), ("abcd".into(), "two")]);
        assert!(text.contains("\n  ab     one\n  abcd   two\n"), "{text}");
    }

    #[test]
    fn every_placeholder_is_one_that_is_filled_in() {
        for (command, _) in [AFTER_LENET, AFTER_GRADIENTS, AFTER_TORCH].concat() {
            let left = command.replace("{phalanx}", "").replace("{examples}", "").replace("{bin}", "");
            assert!(!left.contains('{'), "{command}");
        }
    }
}
