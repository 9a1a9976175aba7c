//! The examples: every file in `crates/*/examples` is run. Those that communicate run as a world of one and of several.

use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::{collections::BTreeMap, fs, path::Path, time::Duration};

const RUN_LIMIT: Duration = Duration::from_secs(180);
const WORLDS: [u32; 2] = [1, 3];
/// Packages whose examples are ranks.
const COMMUNICATING: [&str; 2] = ["phalanx", "phalanx-train"];
/// Examples that would train for long, and what makes them short.
const SHORT: [(&str, &[&str]); 6] = [
    ("checkpoint_bench", &["-", "8", "1"]),
    ("lenet", &["--epochs", "1", "--batch", "48"]),
    ("parallax_words", &["--steps", "60", "--words", "500"]),
    ("reduce_bench", &["1"]),
    ("session_bench", &["-", "2"]),
    ("words", &["--steps", "60", "--words", "500"]),
];

/// Examples that train the same model, the second one as it was before the first: both end with the same perplexity.
const TWINS: (&str, &str) = ("parallax_words", "words");

/// Trained by two ranks, with an evaluator beside them.
const EVALUATED: &str = "session_digits";
/// The steps that it saves, and the least accuracy after the last one, in percent.
const SAVED: [u64; 5] = [200, 400, 600, 800, 1000];
const ACCURACY: f64 = 97.0;

/// Runs each example as this profile built it; output is shown only for those that fail. Returns how many did well and the names of those that did not.
pub fn run(shell: &Shell, profile: Profile) -> Result<(u64, Vec<String>), String> {
    let (mut n_passed, mut failed) = (0, Vec::new());
    let mut texts: BTreeMap<(String, u32), String> = BTreeMap::new();
    for (package, name) in list(&shell.root)? {
        if name == EVALUATED {
            let outcome = run_evaluated(shell, profile);
            tell(&format!("{name} (np=2, an evaluator)"), outcome, &mut n_passed, &mut failed);
            continue;
        }
        let worlds: &[u32] = if COMMUNICATING.contains(&package.as_str()) { &WORLDS } else { &[0] };
        for &n_ranks in worlds {
            if shell.interrupted() {
                return Err("was interrupted".into());
            }
            let what = match n_ranks {
                0 => name.clone(),
                n => format!("{name} (np={n})"),
            };
            let outcome = run_one(shell, profile, &name, n_ranks).and_then(|text| {
                texts.insert((name.clone(), n_ranks), text);
                let of = |name: &str| texts.get(&(name.to_string(), n_ranks));
                match (name == TWINS.1).then(|| of(TWINS.0).zip(of(TWINS.1))).flatten() {
                    Some((new, old)) => check_twins(new, old),
                    None => Ok(()),
                }
            });
            tell(&what, outcome, &mut n_passed, &mut failed);
        }
    }
    Ok((n_passed, failed))
}

fn tell(what: &str, outcome: Result<(), String>, n_passed: &mut u64, failed: &mut Vec<String>) {
    match outcome {
        Ok(()) => {
            *n_passed += 1;
            eprintln!("        example {what}: ok");
        }
        Err(why) => {
            eprintln!("        example {what}: FAILED\n{why}");
            failed.push(format!("example {what}"));
        }
    }
}

/// How an evaluator ends does not change the exit code, so its results are looked at.
fn run_evaluated(shell: &Shell, profile: Profile) -> Result<(), String> {
    let folder = shell.target().join("example-checkpoints");
    // What a killed run left would be resumed.
    let _ = fs::remove_dir_all(&folder);
    let mut command = shell.command(shell.built(profile, "phalanx"));
    command.args(["run", "-np", "2", "--evaluator", "--timeout", "120", "--"]);
    command.arg(shell.built(profile, "examples").join(EVALUATED)).arg("--checkpoints").arg(&folder);
    let done = shell.must(&mut command, Output::Kept, RUN_LIMIT)?;
    let _ = fs::remove_dir_all(&folder);
    check_results(&done.text).map_err(|why| format!("{why}\n{}", done.text))
}

/// Every checkpoint has one result, and the last one is good.
fn check_results(text: &str) -> Result<(), String> {
    let results: Vec<(u64, f64)> = text.lines().filter_map(result).collect();
    let steps: Vec<u64> = results.iter().map(|(step, _)| *step).collect();
    if steps != SAVED {
        return Err(format!("the steps {SAVED:?} were saved, and {steps:?} have results"));
    }
    match results.last() {
        Some((_, accuracy)) if *accuracy > ACCURACY => Ok(()),
        last => Err(format!("the accuracy must be more than {ACCURACY} %; the last result is {last:?}")),
    }
}

/// Step and percent of `evaluator | step 200: accuracy 95.1% on 1000 unseen digits`.
fn result(line: &str) -> Option<(u64, f64)> {
    let (step, rest) = line.split_once("step ")?.1.split_once(": accuracy ")?;
    Some((step.parse().ok()?, rest.split_once('%')?.0.parse().ok()?))
}

/// The order of sums differs, nothing else.
fn check_twins(new: &str, old: &str) -> Result<(), String> {
    match (perplexity(new), perplexity(old)) {
        (Some(a), Some(b)) if (a - b).abs() <= 0.01 * b => Ok(()),
        (a, b) => Err(format!("{} ends with the perplexity {a:?}, {} with {b:?}", TWINS.0, TWINS.1)),
    }
}

/// The last one that a text tells.
fn perplexity(text: &str) -> Option<f64> {
    text.rsplit_once("perplexity ")?.1.split_whitespace().next()?.parse().ok()
}

fn run_one(shell: &Shell, profile: Profile, name: &str, n_ranks: u32) -> Result<String, String> {
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
    shell.must(&mut command, Output::Kept, RUN_LIMIT).map(|done| done.text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_result_and_a_low_accuracy_are_failures() {
        let text = |results: &[(u64, f64)]| -> String {
            let line = |&(step, accuracy): &(u64, f64)| {
                format!("evaluator | step {step}: accuracy {accuracy:.1}% on 1000 unseen digits\n")
            };
            std::iter::once("0 | step 1000: stopped by StopAtStepHook\n".to_string())
                .chain(results.iter().map(line))
                .collect()
        };
        let good = SAVED.map(|step| (step, 97.1));
        assert_eq!(check_results(&text(&good)), Ok(()));
        assert!(check_results(&text(&good[1..])).unwrap_err().contains("have results"));
        assert!(check_results(&text(&[good.as_slice(), &good[4..]].concat())).is_err(), "one comes twice");
        let low: Vec<(u64, f64)> = SAVED.map(|step| (step, 97.0)).into();
        assert!(check_results(&text(&low)).unwrap_err().contains("more than 97"));
        assert!(check_results("").is_err());
    }

    #[test]
    fn twins_that_learn_differently_are_told() {
        let text = |n: u32| {
            format!("step 50: perplexity 900 of\nstep 60: perplexity {n} of 500 words on unseen text, 1 s\n")
        };
        assert_eq!(check_twins(&text(201), &text(200)), Ok(()));
        assert!(
            check_twins(&text(240), &text(200)).unwrap_err().contains("Some(240.0), words with Some(200.0)")
        );
        assert!(check_twins("", &text(200)).is_err());
    }
}
