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

/// Removes the drafts of dead savers. The one rank that commits calls this.
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
                not_found_is_fine(removed).said("remove", &path)?;
                swept.removed.push(path);
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
}
