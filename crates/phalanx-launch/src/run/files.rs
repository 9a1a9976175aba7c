//! `--output-filename DIR`: every rank's output, unchanged, in `DIR/rank.N/stdout` and `stderr`; the evaluator's in `DIR/evaluator`.

use super::LaunchError;
use crate::{place::WorldPlan, wire::OutputStream};
use phalanx_core::Rank;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// The open files of this launcher's ranks.
#[derive(Debug)]
pub struct OutputFiles(Vec<Option<[File; 2]>>);

impl OutputFiles {
    /// For the processes that this launcher prints: others print their own, perhaps in the same directory.
    pub fn create(
        dir: &Path,
        plan: &WorldPlan,
        is_own: impl Fn(Rank) -> bool,
    ) -> Result<OutputFiles, LaunchError> {
        let ranks = (0..plan.n_processes()).map(|process| {
            if !is_own(Rank(process)) {
                return Ok(None);
            }
            let is_evaluator = plan.evaluator() == Some(Rank(process));
            let name = if is_evaluator { "evaluator".into() } else { directory(process, plan.n_ranks()) };
            let dir = dir.join(name);
            create(&dir).map(Some).map_err(|why| LaunchError::Files { path: dir, why })
        });
        ranks.collect::<Result<_, _>>().map(OutputFiles)
    }

    pub fn write(&mut self, rank: Rank, stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0[rank.index()] {
            Some(files) => files[stream as usize].write_all(bytes),
            None => Ok(()),
        }
    }
}

fn create(dir: &Path) -> io::Result<[File; 2]> {
    fs::create_dir_all(dir)?;
    Ok([File::create(dir.join("stdout"))?, File::create(dir.join("stderr"))?])
}

/// Padded with zeros, so that a listing is in the order of ranks.
fn directory(rank: u32, n_ranks: u32) -> String {
    let width = n_ranks.saturating_sub(1).to_string().len();
    format!("rank.{rank:0width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_sort_like_ranks() {
        assert_eq!(directory(3, 4), "rank.3");
        assert_eq!(directory(3, 10), "rank.3");
        assert_eq!(directory(3, 11), "rank.03");
        assert_eq!(directory(100, 101), "rank.100");
    }
}
