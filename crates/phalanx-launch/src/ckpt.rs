//! `phalanx ckpt`: lists checkpoints, shows what is in one, and compares files with their digests.

use crate::table::aligned;
use clap::{Args, Subcommand};
use phalanx_checkpoint::{Checkpoint, CheckpointError, Checkpoints, Listed, Pointer, TensorRecord};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Reads the directory in which a training saves. Nothing is changed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  phalanx ckpt list runs/a\n  phalanx ckpt show runs/a/checkpoint-300\n  phalanx ckpt verify runs/a"
)]
pub struct CkptArgs {
    #[command(subcommand)]
    command: CkptCommand,
}

#[derive(Debug, Subcommand)]
enum CkptCommand {
    /// List the checkpoints of a directory; file contents are not read
    List(Target),
    /// Show what one checkpoint holds: the newest whole one, or the one that is named
    Show(Target),
    /// Compare all files with their digests; the exit code is 1 if a file is damaged
    Verify(Target),
}

#[derive(Debug, Args)]
struct Target {
    /// The directory, or one checkpoint in it (DIR/checkpoint-N)
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Print one JSON object per checkpoint
    #[arg(long)]
    json: bool,
}

/// What is printed, and whether all is well.
struct Answer {
    text: String,
    is_well: bool,
}

pub fn main(args: &CkptArgs) -> ExitCode {
    let answer = match &args.command {
        CkptCommand::List(target) => list(target),
        CkptCommand::Show(target) => show(target),
        CkptCommand::Verify(target) => verify(target),
    };
    match answer {
        Ok(answer) => {
            // A reader that went away has read enough.
            let _ = std::io::stdout().write_all(answer.text.as_bytes());
            if answer.is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("phalanx ckpt: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether the path is one checkpoint, not a directory of them.
fn is_one(path: &Path) -> bool {
    path.join("manifest.json").exists() || Checkpoints::step_of(path).is_some()
}

/// All checkpoints that the path means, at least one.
fn listed(path: &Path) -> Result<Vec<Listed>, CheckpointError> {
    if is_one(path) {
        let checkpoint = Checkpoint::open(path).and_then(|c| c.look().map(|()| c));
        if checkpoint.as_ref().is_err_and(CheckpointError::is_gone) && !path.exists() {
            return checkpoint.map(|_| Vec::new());
        }
        let step = checkpoint.as_ref().map_or(Checkpoints::step_of(path).unwrap_or(0), Checkpoint::step);
        return Ok(vec![Listed { step, path: path.to_path_buf(), checkpoint }]);
    }
    let found = Checkpoints::open(path).list()?;
    if found.is_empty() {
        return Err(CheckpointError::Empty { dir: path.to_path_buf() });
    }
    Ok(found)
}

fn list(target: &Target) -> Result<Answer, CheckpointError> {
    let found = listed(&target.dir)?;
    let mut rows = vec![["step", "epoch", "ranks", "shards", "tensors", "size", "state"].map(String::from)];
    let mut text = String::new();
    for Listed { step, path, checkpoint } in &found {
        let (row, value) = match checkpoint {
            Ok(checkpoint) => {
                let manifest = checkpoint.manifest();
                let (shards, tensors) = (manifest.shards.len(), manifest.tensors.len());
                let (epoch, world, bytes) = (manifest.about.epoch, manifest.about.world, manifest.bytes());
                let numbers =
                    [*step, epoch, world.into(), shards as u64, tensors as u64].map(|n| n.to_string());
                let [step_text, epoch_text, world_text, shards_text, tensors_text] = numbers;
                let row = [
                    step_text,
                    epoch_text,
                    world_text,
                    shards_text,
                    tensors_text,
                    size(bytes),
                    "whole".into(),
                ];
                let value = json!({ "step": step, "path": path, "whole": true, "epoch": epoch, "world": world,
                    "shards": shards, "tensors": tensors, "bytes": bytes });
                (row, value)
            }
            Err(why) => {
                let [a, b, c, d, e] = ["-"; 5].map(String::from);
                let row = [step.to_string(), a, b, c, d, e, format!("NOT WHOLE: {why}")];
                (row, json!({ "step": step, "path": path, "whole": false, "why": why.to_string() }))
            }
        };
        rows.push(row);
        if target.json {
            let _ = writeln!(text, "{value}");
        }
    }
    if !target.json {
        text = aligned(&rows);
        if !is_one(&target.dir) {
            text.push_str(&remark(&target.dir)?);
        }
    }
    Ok(Answer { text, is_well: true })
}

/// What else the directory says.
fn remark(dir: &Path) -> Result<String, CheckpointError> {
    let mut text = String::new();
    match Checkpoints::open(dir).latest()?.pointer {
        Pointer::Right => {}
        Pointer::Missing => {
            text.push_str("\n`latest` does not exist. Nothing depends on it; the next save writes it.\n");
        }
        Pointer::Behind { step } => {
            let _ = writeln!(
                text,
                "\n`latest` still names step {step}: the next save was killed before it wrote the file."
            );
        }
        Pointer::Wrong { why, .. } => {
            let _ = writeln!(
                text,
                "\n`latest` is wrong: {why}. Nothing depends on it; the next save writes it again."
            );
        }
    }
    if dir.join("done").exists() {
        text.push_str("\nTraining has ended (`done`).\n");
    }
    Ok(text)
}

fn show(target: &Target) -> Result<Answer, CheckpointError> {
    let checkpoint = if is_one(&target.dir) {
        Checkpoint::open(&target.dir)?
    } else {
        listed(&target.dir)?;
        let newest = Checkpoints::open(&target.dir).latest()?;
        let none = CheckpointError::NoneWhole { dir: target.dir.clone(), skipped: newest.skipped };
        newest.checkpoint.ok_or(none)?
    };
    let manifest = checkpoint.manifest();
    if target.json {
        let mut value = serde_json::to_value(manifest).unwrap_or_default();
        value["path"] = json!(checkpoint.path());
        value["blake3"] = json!(checkpoint.digest());
        return Ok(Answer { text: format!("{value}\n"), is_well: true });
    }
    let about = &manifest.about;
    let mut facts = vec![
        ["path".into(), checkpoint.path().display().to_string()],
        ["step".into(), about.step.to_string()],
        ["epoch".into(), about.epoch.to_string()],
        ["seed, run".into(), format!("{}, {}", about.seed, about.run)],
        ["ranks".into(), about.world.to_string()],
        ["size".into(), format!("{} in {} shards", size(manifest.bytes()), manifest.shards.len())],
    ];
    for (name, value) in [("sampler", &about.sampler), ("extra", &about.extra)] {
        if *value != Value::Null {
            facts.push([name.into(), value.to_string()]);
        }
    }
    let mut rows = vec![["tensor", "type", "size", "shards"].map(String::from)];
    for TensorRecord { info, slices } in &manifest.tensors {
        let mut shards: Vec<u32> = slices.iter().map(|s| s.shard).collect();
        shards.dedup();
        let shards: Vec<String> = shards.iter().map(u32::to_string).collect();
        let owner = info.owner.map(|rank| format!(" (of rank {rank})")).unwrap_or_default();
        rows.push([info.name.clone(), info.form(), size(info.bytes()), shards.join(" ") + &owner]);
    }
    Ok(Answer { text: format!("{}\n{}", aligned(&facts), aligned(&rows)), is_well: true })
}

fn verify(target: &Target) -> Result<Answer, CheckpointError> {
    let (mut text, mut is_well) = (String::new(), true);
    for Listed { step, path, checkpoint } in listed(&target.dir)? {
        let verified = checkpoint.and_then(|c| c.verify().map(|()| c.manifest().bytes()));
        is_well &= verified.is_ok();
        let line = match &verified {
            _ if target.json => verdict(step, &path, &verified).to_string(),
            Ok(bytes) => format!("step {step}: ok, {} read", size(*bytes)),
            Err(CheckpointError::Damaged { damage, .. }) => {
                let lines = damage.iter().map(|d| {
                    let tensors = d.tensors.iter().map(|name| format!("\n    tensor {name}"));
                    format!("step {step}: {} {}{}", d.path.display(), d.flaw, tensors.collect::<String>())
                });
                lines.collect::<Vec<_>>().join("\n")
            }
            Err(why) => format!("step {step}: {why}"),
        };
        let _ = writeln!(text, "{line}");
    }
    Ok(Answer { text, is_well })
}

fn verdict(step: u64, path: &Path, verified: &Result<u64, CheckpointError>) -> Value {
    let damage = match verified {
        Err(CheckpointError::Damaged { damage, .. }) => damage.as_slice(),
        _ => &[],
    };
    let damage: Vec<Value> = damage
        .iter()
        .map(|d| json!({ "file": d.path, "why": d.flaw.to_string(), "tensors": d.tensors }))
        .collect();
    let why = verified.as_ref().err().map(CheckpointError::to_string);
    json!({ "step": step, "path": path, "ok": verified.is_ok(), "why": why, "damage": damage })
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_checkpoint::{About, OwnedTensors};

    #[test]
    fn sizes_have_units() {
        assert_eq!([size(999), size(1_000), size(2_340_000_000)], ["999 B", "1.0 kB", "2.3 GB"]);
    }

    #[test]
    fn a_directory_of_checkpoints_may_have_any_name() {
        let temp = std::env::temp_dir().join(format!("phalanx-ckpt-{}", std::process::id()));
        for name in ["checkpoint-runs", "checkpoint-007", "checkpoint-7.bak"] {
            let dir = temp.join(name);
            let about = About { step: 3, world: 1, ..About::default() };
            Checkpoints::open(&dir).save(about, &OwnedTensors::new()).unwrap();
            let steps: Vec<u64> = listed(&dir).unwrap().iter().map(|listed| listed.step).collect();
            assert_eq!((is_one(&dir), steps), (false, vec![3]), "{name}");
            assert!(is_one(&dir.join("checkpoint-3")) && is_one(&dir.join("checkpoint-4")), "{name}");
        }
        std::fs::remove_dir_all(&temp).unwrap();
    }
}
