//! Collects what killed saves left behind.
//!
//! - SWEEP-1: what a living process of this machine is writing stays. Of other machines, only drafts that a newer commit
//!   has overtaken are removed.

use crate::{
    CheckpointError,
    durable::{PathContext, sync_dir},
    layout::{self, Transient},
    saver::Life,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// What was collected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub removed: Vec<PathBuf>,
    /// Checkpoints that were about to be replaced when the saver died; they have their names again.
    pub restored: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stay,
    Remove,
    Restore,
}

fn fate(kind: Transient, step: u64, life: Life, newest: Option<u64>, has_successor: bool) -> Fate {
    let is_abandoned = match life {
        Life::Lives => false,
        Life::Dead => true,
        Life::Elsewhere => newest.is_some_and(|newest| step < newest),
    };
    match kind {
        // Nobody reads it, and to delete a file twice does no harm.
        Transient::Gone => Fate::Remove,
        Transient::Draft | Transient::File if is_abandoned => Fate::Remove,
        Transient::Replaced if is_abandoned && has_successor => Fate::Remove,
        // After a restart the machine that died may have another name. Its checkpoint is worth more than a saver elsewhere that might be
        // between two renames: that one fails, and saves again.
        Transient::Replaced if life != Life::Lives && !has_successor => Fate::Restore,
        Transient::Draft | Transient::File | Transient::Replaced => Fate::Stay,
    }
}

/// Removes the drafts of dead savers. The one rank that commits calls this. What cannot be removed stays; a checkpoint that cannot come
/// back is an error.
pub fn sweep(dir: &Path) -> Result<Swept, CheckpointError> {
    let names = names(dir)?;
    let newest = names.iter().filter_map(|name| layout::step_of(name)).max();
    let mut swept = Swept::default();
    for name in &names {
        let Some((kind, step, saver)) = layout::transient_of(name) else { continue };
        let (path, place) = (dir.join(name), dir.join(layout::checkpoint(step)));
        match fate(kind, step, saver.life(), newest, place.exists()) {
            Fate::Stay => {}
            Fate::Remove => {
                let removed =
                    if kind == Transient::File { fs::remove_file(&path) } else { fs::remove_dir_all(&path) };
                // What is left costs space and nothing else; the next save tries again.
                match not_found_is_fine(removed) {
                    Ok(()) => swept.removed.push(path),
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "what a killed save left could not be removed");
                    }
                }
            }
            Fate::Restore => {
                not_found_is_fine(fs::rename(&path, &place)).said("restore", &place)?;
                swept.restored.push(place);
            }
        }
    }
    if swept != Swept::default() {
        sync_dir(dir)?;
    }
    Ok(swept)
}

/// Names in a directory, sorted. A directory that does not exist has none.
pub fn names(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.said("list", dir)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // What is not text is not ours.
        names.extend(entry.said("list", dir)?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn not_found_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saver::Saver;

    /// SWEEP-1.
    #[test]
    fn a_living_savers_draft_stays() {
        use {Fate::*, Life::*, Transient::*};
        for (kind, life, newest, has_successor, wanted) in [
            (Draft, Lives, Some(9), false, Stay),
            (Draft, Dead, None, false, Remove),
            (Draft, Elsewhere, None, false, Stay),
            (Draft, Elsewhere, Some(5), true, Stay),
            (Draft, Elsewhere, Some(6), false, Remove),
            (Replaced, Lives, Some(9), false, Stay),
            (Replaced, Dead, Some(9), false, Restore),
            (Replaced, Dead, Some(9), true, Remove),
            (Replaced, Elsewhere, None, false, Restore),
            (Replaced, Elsewhere, Some(4), false, Restore),
            (Replaced, Elsewhere, Some(5), true, Stay),
            (Replaced, Elsewhere, Some(6), true, Remove),
            (Gone, Lives, None, false, Remove),
        ] {
            assert_eq!(fate(kind, 5, life, newest, has_successor), wanted, "{kind:?} {life:?} {newest:?}");
        }
    }

    #[test]
    fn what_cannot_be_removed_is_told_and_the_rest_is_collected() {
        let dir = std::env::temp_dir().join(format!("phalanx-sweep-{}", std::process::id()));
        let dead = Saver { started: 1, ..Saver::own() };
        let at = |kind, n| dir.join(layout::transient(kind, 5, dead, n));
        // A directory where a file should be, and a file where a directory should be.
        fs::create_dir_all(at(Transient::File, 0)).unwrap();
        fs::write(at(Transient::Gone, 0), "x").unwrap();
        fs::create_dir_all(at(Transient::Gone, 1)).unwrap();
        let swept = sweep(&dir).unwrap();
        assert_eq!(swept.removed, [at(Transient::Gone, 1)]);
        assert!(at(Transient::File, 0).exists() && at(Transient::Gone, 0).exists());
        // A checkpoint that cannot come back is an error: training would begin anew without it.
        fs::create_dir_all(at(Transient::Replaced, 0)).unwrap();
        std::os::unix::fs::symlink(dir.join("nowhere"), dir.join(layout::checkpoint(5))).unwrap();
        let error = sweep(&dir).unwrap_err();
        fs::remove_dir_all(&dir).unwrap();
        assert!(error.to_string().contains("restore"), "{error}");
    }
}
