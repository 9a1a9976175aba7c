//! `cargo xtask check`: what must hold before review, cheapest first.

use crate::{
    process::{Output, Shell},
    stage::{self, CLIPPY, FORMAT, TIDY, UNIT},
};

pub fn run(shell: &Shell) -> Result<(), String> {
    for stage in [FORMAT, TIDY, CLIPPY, UNIT] {
        let verdict = stage.run(shell, Output::Shown);
        match verdict.failure {
            None => eprintln!("ok      {:12} {:>8}", stage.name, stage::seconds(verdict.took)),
            Some(why) => {
                eprintln!("FAILED  {:12} {:>8}", stage.name, stage::seconds(verdict.took));
                return Err(format!("{} failed ({why}): {}", stage.name, stage.fix));
            }
        }
    }
    Ok(())
}
