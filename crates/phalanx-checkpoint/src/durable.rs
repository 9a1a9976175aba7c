//! Files and names that are on the disk when a call returns.

use crate::{
    CheckpointError,
    layout::{self, Transient},
    saver::Saver,
};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

type Result<T> = std::result::Result<T, CheckpointError>;

/// An error of the file system with what was done to which path.
pub trait PathContext<T> {
    fn said(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> PathContext<T> for io::Result<T> {
    fn said(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|cause| CheckpointError::io(action, path, cause))
    }
}

/// Waits until the names in a directory are on the disk.
pub fn sync_dir(path: &Path) -> Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).said("sync", path)
}

/// Makes a directory and those above it. Their names are on the disk when this returns: a checkpoint in a directory that a power loss
/// takes away is lost, too.
pub fn make_dirs(path: &Path) -> Result<()> {
    let holders = holders_of_new(path);
    fs::create_dir_all(path).said("create", path)?;
    holders.iter().try_for_each(|holder| sync_dir(holder))
}

/// The directories that get a new name if this one is made, the lowest first.
fn holders_of_new(path: &Path) -> Vec<PathBuf> {
    let is_new = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    path.ancestors().take_while(is_new).map(layout::parent).collect()
}

/// Writes a new file to the disk. Its name is there after `sync_dir`.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).said("create", path)?;
    file.write_all(bytes).said("write", path)?;
    file.sync_all().said("sync", path)
}

/// Replaces a file of `dir`: a reader sees the old or the new content.
pub fn replace_file(dir: &Path, name: &str, step: u64, bytes: &[u8]) -> Result<()> {
    let beside = fresh(dir, Transient::File, step, |path| File::create_new(path).map(drop))?;
    let renamed = write_new(&beside, bytes)
        .and_then(|()| fs::rename(&beside, dir.join(name)).said("replace", &dir.join(name)));
    if renamed.is_err() {
        let _ = fs::remove_file(&beside);
    }
    renamed?;
    sync_dir(dir)
}

/// Makes something under a name that is not in use.
pub fn fresh(
    dir: &Path,
    kind: Transient,
    step: u64,
    make: impl Fn(&Path) -> io::Result<()>,
) -> Result<PathBuf> {
    let saver = Saver::own();
    for n in 0.. {
        let path = dir.join(layout::transient(kind, step, saver, n));
        match make(&path) {
            Err(error) if is_taken(&error) => {}
            made => return made.said("create", &path).map(|()| path),
        }
    }
    unreachable!("a directory has fewer entries than there are numbers")
}

fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty)
}

/// Gives a draft the name of its checkpoint, which it replaces if there is one. The old one is removed once the new name is
/// on the disk.
pub fn put_in_place(draft: &Path, place: &Path, step: u64) -> Result<()> {
    let dir = layout::parent(place);
    let old = match fs::rename(draft, place) {
        Err(error) if is_taken(&error) => {
            match renameat_with(CWD, draft, CWD, place, RenameFlags::EXCHANGE) {
                // The old checkpoint has the draft's name now.
                Ok(()) => Some(draft.to_path_buf()),
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Some(put_aside(draft, place, step)?),
                Err(errno) => return Err(CheckpointError::io("replace", place, errno.into())),
            }
        }
        renamed => renamed.said("create", place).map(|()| None)?,
    };
    sync_dir(&dir)?;
    // The new checkpoint is there: an old one that stays is no reason to say that it is not. Its name is one that `sweep` knows.
    if let Some(Err(error)) = old.map(|old| remove_later(&dir, &old, step)) {
        tracing::warn!(%error, "a replaced checkpoint could not be removed");
    }
    Ok(())
}

/// The same on a file system that cannot exchange two names; returns where the old checkpoint is now. Between the two
/// renames it has a name that `sweep` knows and takes back.
fn put_aside(draft: &Path, place: &Path, step: u64) -> Result<PathBuf> {
    let dir = layout::parent(place);
    let aside = fresh(&dir, Transient::Replaced, step, |aside| fs::rename(place, aside))?;
    let renamed = fs::rename(draft, place).said("create", place);
    if renamed.is_err() {
        let _ = fs::rename(&aside, place);
    }
    renamed.map(|()| aside)
}

/// Removes a directory under a name that no reader looks for. A part that cannot be removed stays for `sweep`.
pub fn remove_later(dir: &Path, path: &Path, step: u64) -> Result<()> {
    let gone = fresh(dir, Transient::Gone, step, |gone| fs::rename(path, gone));
    match gone {
        Ok(gone) => {
            let _ = fs::remove_dir_all(gone);
            Ok(())
        }
        // Another process removes it.
        Err(CheckpointError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::sweep;

    #[test]
    fn every_directory_that_gets_a_new_name_is_synced() {
        let dir = std::env::temp_dir().join(format!("phalanx-dirs-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a/b/c");
        assert_eq!(holders_of_new(&path), [dir.join("a/b"), dir.join("a"), dir.clone()]);
        make_dirs(&path).unwrap();
        assert!(holders_of_new(&path).is_empty());
        assert_eq!(holders_of_new(&path.join("d")), [path.as_path()]);
        assert_eq!(
            holders_of_new(Path::new("phalanx-not-there/x")),
            [Path::new("phalanx-not-there"), Path::new(".")]
        );
        fs::write(path.join("file"), "x").unwrap();
        make_dirs(&path.join("file/d")).unwrap_err();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_name_is_taken_over_where_names_cannot_be_exchanged() {
        let dir = std::env::temp_dir().join(format!("phalanx-aside-{}", std::process::id()));
        let (draft, place) = (dir.join(".draft"), dir.join("checkpoint-3"));
        let content = || fs::read_to_string(place.join("x")).unwrap();
        for (path, text) in [(&draft, "new"), (&place, "old")] {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("x"), text).unwrap();
        }
        let aside = put_aside(&draft, &place, 3).unwrap();
        assert_eq!(
            (content().as_str(), fs::read_to_string(aside.join("x")).unwrap().as_str()),
            ("new", "old")
        );
        remove_later(&dir, &aside, 3).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);

        // The draft is gone: the old one comes back.
        put_aside(&draft, &place, 3).unwrap_err();
        assert_eq!((content().as_str(), fs::read_dir(&dir).unwrap().count()), ("new", 1));

        // Killed between the two renames.
        let dead = Saver { started: 1, ..Saver::own() };
        fs::rename(&place, dir.join(layout::transient(Transient::Replaced, 3, dead, 0))).unwrap();
        sweep(&dir).unwrap();
        assert_eq!((content().as_str(), fs::read_dir(&dir).unwrap().count()), ("new", 1));
        fs::remove_dir_all(&dir).unwrap();
    }
}
