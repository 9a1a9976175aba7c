//! A directory that all hosts have, as a board: a name is a file in it. Others may read the directory, so ranks need a given secret.
//!
//! A directory that others can write is refused, because they could replace the file.

use super::{LOOK_EVERY, Notices, Wait, wire::MAX_ANSWER};
use crate::{error::BoardError, whole_file};
use phalanx_core::Rank;
use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes the directory, if it is not there.
    pub fn open(path: &str) -> Result<Directory, BoardError> {
        let path = PathBuf::from(path);
        let failed = |error| file(&path, error);
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        check(&path)?;
        Ok(Directory { path })
    }

    /// Whether [`open`](Self::open) would take the directory, or could make it.
    pub fn is_fit(path: &Path) -> Result<(), BoardError> {
        match path.parent() {
            Some(folder) if !path.exists() => match fs::metadata(folder) {
                Ok(found) if found.is_dir() => Ok(()),
                Ok(_) => Err(file(path, io::ErrorKind::NotADirectory.into())),
                Err(error) => Err(file(path, error)),
            },
            _ => check(path),
        }
    }

    /// The text; `None` while there is no such file.
    fn read(&self, key: &str) -> Result<Option<String>, BoardError> {
        let place = self.path.join(key);
        let failed = |error| file(&place, error);
        let found = match File::open(&place) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed)?,
        };
        let mut text = String::new();
        found.take(MAX_ANSWER as u64 + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() > MAX_ANSWER { Err(super::wire::nonsense(&text)) } else { Ok(Some(text)) }
    }
}

fn check(path: &Path) -> Result<(), BoardError> {
    let found = fs::metadata(path).map_err(|error| file(path, error))?;
    if !found.is_dir() {
        return Err(file(path, io::ErrorKind::NotADirectory.into()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(BoardError::OthersWrite { path: path.display().to_string() });
    }
    Ok(())
}

fn file(path: &Path, error: io::Error) -> BoardError {
    BoardError::File { path: path.display().to_string(), error }
}

impl Notices for Directory {
    fn publish(&mut self, key: &str, text: &str, _: Wait) -> Result<(), BoardError> {
        let place = self.path.join(key);
        whole_file::create(&place, text).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => BoardError::There { key: key.into() },
            _ => file(&place, error),
        })
    }

    fn replace(&mut self, key: &str, text: &str, _: Wait) -> Result<(), BoardError> {
        let place = self.path.join(key);
        whole_file::replace(&place, text).map_err(|error| file(&place, error))
    }

    fn settle(&mut self, _: Wait) -> Result<(), BoardError> {
        Ok(())
    }

    fn look(&mut self, by: Rank, key: &str, wait: Wait) -> Result<String, BoardError> {
        loop {
            if let Some(text) = self.read(key)? {
                return Ok(text);
            }
            let Some(left) = wait.left() else {
                return Err(wait.late(format!("rank {by} to write {}", self.path.join(key).display())));
            };
            std::thread::park_timeout(left.min(LOOK_EVERY));
        }
    }

    fn glance(&mut self, key: &str, _: Wait) -> Result<Option<String>, BoardError> {
        self.read(key)
    }

    fn longest(&self) -> usize {
        MAX_ANSWER
    }

    fn withdraw(&mut self, key: &str, text: &str) {
        if self.read(key).is_ok_and(|found| found.as_deref() == Some(text)) {
            let _ = fs::remove_file(self.path.join(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::fs::PermissionsExt, time::Duration};

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("phalanx-board-{name}-{}", std::process::id()))
    }

    fn soon() -> Wait {
        Wait::within(Duration::from_millis(30))
    }

    #[test]
    fn texts_are_whole_private_and_leave_nothing_aside() {
        let path = folder("whole");
        let mut board = Directory::open(path.to_str().unwrap()).unwrap();
        let late = board.look(Rank(0), "k", soon()).unwrap_err().to_string();
        assert!(late.contains("for rank 0 to write"), "RDZV-3: {late}");
        board.publish("k", "one", soon()).unwrap();
        assert!(
            matches!(board.publish("k", "two", soon()), Err(BoardError::There { .. })),
            "it is there already"
        );
        assert_eq!(board.look(Rank(0), "k", soon()).unwrap(), "one");
        board.replace("k", "two", soon()).unwrap();
        assert_eq!(board.look(Rank(0), "k", soon()).unwrap(), "two");
        assert_eq!(fs::metadata(path.join("k")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        board.withdraw("k", "one");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "RDZV-6: it is another rank's");
        board.withdraw("k", "two");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "RDZV-6");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn directories_that_others_write_and_files_without_end_are_refused() {
        let path = folder("open");
        let name = path.to_str().unwrap();
        let mut board = Directory::open(name).unwrap();
        fs::write(path.join("k"), vec![b'x'; MAX_ANSWER + 2]).unwrap();
        assert!(matches!(board.look(Rank(0), "k", soon()), Err(BoardError::Nonsense { .. })), "RDZV-2");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).unwrap();
        let error = Directory::open(name).unwrap_err().to_string();
        assert!(error.contains("others can write"), "{error}");
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(Directory::open(name).is_err());
        fs::remove_file(path).unwrap();
    }
}
