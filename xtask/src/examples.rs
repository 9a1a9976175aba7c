//! The examples: every file in `crates/*/examples` is run. Those that communicate run as a world of one and of several.

use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::{fs, path::Path, time::Duration};

const RUN_LIMIT: Duration = Duration::from_secs(180);
const WORLDS: [u32; 2] = [1, 3];
/// Packages whose examples are ranks.
const COMMUNICATING: [&str; 2] = ["phalanx", "phalanx-train"];
/// Examples that would train for long, and what makes them short.
const SHORT: [(&str, &[&str]); 4] = [
    ("checkpoint_bench", &["-", "8", "1"]),
    ("lenet", &["--epochs", "1", "--batch", "48"]),
    ("session_bench", &["-", "2"]),
    ("words", &["--steps", "20", "--words", "500"]),
];

/// Runs each example as this profile built it; output is shown only for those that fail. Returns how many did well and the names of those that did not.
pub fn run(shell: &Shell, profile: Profile) -> Result<(u64, Vec<String>), String> {
    let (mut n_passed, mut failed) = (0, Vec::new());
    for (package, name) in list(&shell.root)? {
        let worlds: &[u32] = if COMMUNICATING.contains(&package.as_str()) { &WORLDS } else { &[0] };
        for &n_ranks in worlds {
            if shell.interrupted() {
                return Err("was interrupted".into());
            }
            let what = match n_ranks {
                0 => name.clone(),
                n => format!("{name} (np={n})"),
            };
            match run_one(shell, profile, &name, n_ranks) {
                Ok(()) => {
                    n_passed += 1;
                    eprintln!("        example {what}: ok");
                }
                Err(why) => {
                    eprintln!("        example {what}: FAILED\n{why}");
                    failed.push(format!("example {what}"));
                }
            }
        }
    }
    Ok((n_passed, failed))
}

fn run_one(shell: &Shell, profile: Profile, name: &str, n_ranks: u32) -> Result<(), String> {
    let example = shell.built(profile, "examples").join(name);
    let mut command = match n_ranks {
        0 => shell.command(example),
        n => {
            let mut command = shell.command(shell.built(profile, "phalanx"));
            command.args(["run", "-np", &n.to_string(), "--timeout", "120", "--"]).arg(example);
            command
        }
    };
    if let Some((_, args)) = SHORT.iter().find(|(short, _)| *short == name) {
        command.args(*args);
    }
    shell.must(&mut command, Output::Kept, RUN_LIMIT).map(drop)
}

/// Package and name of every example, in order.
fn list(root: &Path) -> Result<Vec<(String, String)>, String> {
    let names = |folder: &Path| -> Vec<String> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let mut names: Vec<String> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    let crates = root.join("crates");
    let mut all = Vec::new();
    for package in names(&crates) {
        for file in names(&crates.join(&package).join("examples")) {
            if let Some(name) = file.strip_suffix(".rs") {
                all.push((package.clone(), name.to_string()));
            }
        }
    }
    if all.is_empty() { Err(format!("{} has no examples", crates.display())) } else { Ok(all) }
}
