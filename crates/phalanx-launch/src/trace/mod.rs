//! `phalanx trace`: merges the timelines of ranks, aligns their clocks, and reports which rank delayed the others.
//!
//! [`read`] reads the files, [`join`] writes the merged one; [`clock`] and [`late`] are pure.

mod clock;
mod join;
mod late;
mod read;
#[cfg(test)]
mod tests;

use clap::{Args, Subcommand};
use read::TraceError;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Reads the files that ranks write with PHALANX_TIMELINE=t.json, and reports which rank was late and by how much. Clocks
/// of hosts differ; they are aligned by the ends of operations, which all ranks reach together.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "phalanx trace [--json] FILE...\n       phalanx trace merge [--json] OUT FILE...",
    after_help = "Examples:\n  PHALANX_TIMELINE=t.json phalanx run -np 4 train.py\n  phalanx trace t.json t.rank*.json\n  phalanx trace merge all.json t.json t.rank*.json    # then open all.json in https://ui.perfetto.dev"
)]
pub struct TraceArgs {
    #[command(subcommand)]
    pub command: Option<TraceCommand>,

    #[command(flatten)]
    pub files: Files,
}

#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Merge the ranks' files into one, with a group per rank and one clock
    Merge {
        /// The file to write
        #[arg(value_name = "OUT")]
        out: PathBuf,

        #[command(flatten)]
        files: Files,
    },
}

#[derive(Debug, Args)]
pub struct Files {
    /// The timelines, one file per rank
    #[arg(value_name = "FILE", required = true)]
    pub paths: Vec<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn main(args: &TraceArgs) -> ExitCode {
    let done = match &args.command {
        None => report(&args.files, None),
        Some(TraceCommand::Merge { out, files }) => report(files, Some(out)),
    };
    match done {
        Ok(text) => {
            // A reader that went away has read enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("phalanx trace: {error}");
            ExitCode::from(2)
        }
    }
}

fn report(files: &Files, out: Option<&Path>) -> Result<String, TraceError> {
    let traces = read::all(&files.paths)?;
    let offsets_us = clock::offsets(&traces);
    if let Some(out) = out {
        join::write(out, &files.paths, &traces, &offsets_us)?;
    }
    let report = late::Report::new(&traces, &offsets_us, out);
    if files.json {
        return Ok(serde_json::to_string(&report).unwrap_or_default() + "\n");
    }
    Ok(report.to_string())
}
