//! One session at a time saves to a directory: two would delete each other's checkpoints.
//!
//! The file `.lock` is locked with flock(2) and says who holds it. The kernel gives the lock back when its holder ends, also after `kill -9`.
//! - HOLD-1: a directory that a living process holds is refused, with who holds it; also within that process.
//! - HOLD-2: a holder that is dead does not count, even if a child that it forked still has the file open. Nor does a file system without locks.

use crate::{
    CheckpointError,
    layout::LOCK,
    saver::{Life, Saver},
};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    path::Path,
};

/// More than anything that a holder writes.
const MOST_BYTES: u64 = 1024;

/// Held until it is dropped. It does not matter to readers.
#[derive(Debug)]
pub struct DirHold {
    _file: Option<File>,
}

impl DirHold {
    /// Holds a directory that exists.
    pub fn take(dir: impl AsRef<Path>) -> Result<DirHold, CheckpointError> {
        let dir = dir.as_ref();
        let opened =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(LOCK));
        // Where it cannot be made, saving says why.
        let Ok(mut file) = opened else { return Ok(DirHold { _file: None }) };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // Only for people: the lock counts, not the text.
                let _ = file
                    .set_len(0)
                    .and_then(|()| file.rewind())
                    .and_then(|()| file.write_all(own().as_bytes()));
                Ok(DirHold { _file: Some(file) })
            }
            Err(Errno::WOULDBLOCK) => match holder(&mut file) {
                Some((saver, _)) if saver.life() == Life::Dead => Ok(DirHold { _file: None }),
                found => Err(CheckpointError::Held { dir: dir.to_path_buf(), by: named(found) }),
            },
            Err(error) => {
                tracing::debug!(%error, dir = %dir.display(), "this file system has no locks");
                Ok(DirHold { _file: None })
            }
        }
    }
}

fn own() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{} {host}\n", Saver::own())
}

/// Who holds the lock, and on which host.
fn holder(file: &mut File) -> Option<(Saver, String)> {
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    let (saver, host) = text.strip_suffix('\n')?.split_once(' ')?;
    Some((saver.parse().ok()?, host.to_string()))
}

fn named(found: Option<(Saver, String)>) -> String {
    match found {
        Some((saver, _)) if saver == Saver::own() => "of this process".to_string(),
        Some((saver, host)) => format!("of process {} on host {host}", saver.pid),
        None => "of another process".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// HOLD-1 and HOLD-2.
    #[test]
    fn a_living_holder_is_named_and_a_dead_one_does_not_count() {
        let dir = std::env::temp_dir().join(format!("phalanx-hold-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let held = DirHold::take(&dir).unwrap();
        let why = DirHold::take(&dir).unwrap_err().to_string();
        assert!(why.contains("in use by another session, of this process"), "{why}");
        let others = Saver { pid: 1, machine: 0, ..Saver::own() };
        fs::write(dir.join(LOCK), format!("{others} far\n")).unwrap();
        let why = DirHold::take(&dir).unwrap_err().to_string();
        assert!(why.contains("of process 1 on host far"), "{why}");
        // As if the holder had been killed, and a child of it had the file.
        let dead = Saver { started: 1, ..Saver::own() };
        fs::write(dir.join(LOCK), format!("{dead} here\n")).unwrap();
        DirHold::take(&dir).unwrap();
        fs::write(dir.join(LOCK), "").unwrap();
        assert!(DirHold::take(&dir).unwrap_err().to_string().contains("of another process"));
        drop(held);
        DirHold::take(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        DirHold::take(&dir).unwrap();
    }
}
