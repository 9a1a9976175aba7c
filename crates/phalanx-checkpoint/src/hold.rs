//! One session at a time saves to a directory: two would delete each other's checkpoints.
//!
//! The file `.lock` is locked with flock(2) and says who holds it. The kernel gives the lock back when its holder ends, also after `kill -9`.
//! Forked children share the lock of their parent: the holder gives it back by itself, and the file of a dead holder is replaced.
//! - HOLD-1: a directory that a living process holds is refused, with who holds it; also within that process.
//! - HOLD-2: a holder that is dead does not count, even if a child that it forked still has the file open. Nor does a file system without locks.
//! - HOLD-3: a hold that is dropped frees the directory at once, also if a child that was forked meanwhile still has the file open.
//! - HOLD-4: of two that replace the file of a dead holder, one gets the directory.

use crate::{
    CheckpointError,
    layout::{self, LOCK, Transient},
    saver::{Life, Saver},
};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// More than anything that a holder writes.
const MOST_BYTES: u64 = 1024;
/// A session of this process that is being dropped gives the lock back on a thread of its own.
const OWN_PATIENCE: Duration = Duration::from_secs(2);
/// One that has just got the lock has not said so yet.
const DEAD_PATIENCE: Duration = Duration::from_millis(200);
/// Between two looks at the lock: waiting inside of the kernel for it would have no deadline.
const PAUSE: Duration = Duration::from_millis(20);

/// Held until it is dropped. It does not matter to readers.
#[derive(Debug)]
pub struct DirHold {
    file: Option<File>,
    process: u32,
}

/// What one look at the lock has found.
enum Look {
    Held(DirHold),
    /// Another session has it, and says so, if it does.
    Taken(Option<(Saver, String)>),
    /// The file has been replaced meanwhile.
    Replaced,
}

impl DirHold {
    /// Holds a directory that exists. Waits two seconds at most for a session of this process that is being dropped.
    pub fn take(dir: impl AsRef<Path>) -> Result<DirHold, CheckpointError> {
        let dir = dir.as_ref();
        let begin = Instant::now();
        loop {
            let alone = Alone::in_dir(dir);
            let found = match look(dir) {
                Look::Held(hold) => return Ok(hold),
                Look::Taken(found) => found,
                Look::Replaced => None,
            };
            let waited = begin.elapsed();
            let is_dead = found.as_ref().is_some_and(|(saver, _)| saver.life() == Life::Dead);
            let is_own = found.as_ref().is_some_and(|(saver, _)| *saver == Saver::own());
            let patience = if is_own { OWN_PATIENCE } else { DEAD_PATIENCE };
            if is_dead && waited >= patience {
                return Ok(replace(dir).unwrap_or_else(|error| {
                    tracing::debug!(%error, dir = %dir.display(), "the lock of a dead process stays");
                    DirHold::none()
                }));
            }
            let may_change = is_dead || is_own || found.is_none();
            if !may_change || waited >= patience {
                return Err(CheckpointError::Held { dir: dir.to_path_buf(), by: named(found) });
            }
            drop(alone);
            thread::sleep(PAUSE);
        }
    }

    fn none() -> DirHold {
        DirHold { file: None, process: std::process::id() }
    }

    fn of(file: File) -> DirHold {
        DirHold { file: Some(file), ..DirHold::none() }
    }
}

impl Drop for DirHold {
    fn drop(&mut self) {
        // To close the file is not enough: a forked child has it, too. That child must not give back what its parent holds.
        if let Some(file) = self.file.as_ref().filter(|_| self.process == std::process::id()) {
            // It ends with the process at the latest.
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

fn look(dir: &Path) -> Look {
    let path = dir.join(LOCK);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    // Where it cannot be made, saving says why.
    let Ok(mut file) = opened else { return Look::Held(DirHold::none()) };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if !is_at(&file, &path) => Look::Replaced,
        Ok(()) => {
            // Only for people: the lock counts, not the text.
            let _ = file.set_len(0).and_then(|()| file.write_all(own().as_bytes()));
            Look::Held(DirHold::of(file))
        }
        Err(Errno::WOULDBLOCK) => Look::Taken(holder(&mut file)),
        Err(error) => {
            tracing::debug!(%error, dir = %dir.display(), "this file system has no locks");
            Look::Held(DirHold::none())
        }
    }
}

/// A new file in place of one that only children of a dead holder have. It is locked before others can see it.
fn replace(dir: &Path) -> io::Result<DirHold> {
    // A name of its own, which is swept if this process is killed here.
    let made = dir.join(layout::transient(Transient::File, 0, Saver::own(), u32::MAX));
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&made)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let replaced = file.write_all(own().as_bytes()).and_then(|()| fs::rename(&made, dir.join(LOCK)));
    if let Err(error) = replaced {
        let _ = fs::remove_file(&made);
        return Err(error);
    }
    Ok(DirHold::of(file))
}

/// Whether a path still leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let place = |meta: fs::Metadata| (meta.dev(), meta.ino());
    file.metadata().map(place).ok() == fs::metadata(path).map(place).ok()
}

/// One process at a time looks at the lock of a directory, and replaces it (HOLD-4): the directory itself is locked meanwhile.
struct Alone(Option<File>);

impl Alone {
    fn in_dir(dir: &Path) -> Alone {
        // Not all file systems lock directories; then the file alone counts.
        let Ok(file) = File::open(dir) else { return Alone(None) };
        let until = Instant::now() + DEAD_PATIENCE;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Alone(Some(file)),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(PAUSE),
                Err(_) => return Alone(None),
            }
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // A child that was forked meanwhile has it, too.
            let _ = flock(file, FlockOperation::Unlock);
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
    use std::{path::PathBuf, sync::Barrier};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir = std::env::temp_dir().join(format!("phalanx-hold-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Scratch(dir)
        }

        fn says(&self, text: &str) {
            fs::write(self.0.join(LOCK), text).unwrap();
        }

        fn refusal(&self) -> String {
            DirHold::take(&self.0).unwrap_err().to_string()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// As a child that was forked has it: the same open file.
    fn inherited(hold: &DirHold) -> File {
        hold.file.as_ref().unwrap().try_clone().unwrap()
    }

    fn dead() -> String {
        format!("{} here\n", Saver { started: 1, ..Saver::own() })
    }

    /// HOLD-1.
    #[test]
    fn a_living_holder_is_named() {
        let dir = Scratch::new("named");
        let held = DirHold::take(&dir.0).unwrap();
        let why = dir.refusal();
        assert!(why.contains("in use by another session, of this process"), "{why}");
        dir.says(&format!("{} far\n", Saver { pid: 1, machine: 0, ..Saver::own() }));
        let why = dir.refusal();
        assert!(why.contains("of process 1 on host far"), "{why}");
        dir.says("");
        let why = dir.refusal();
        assert!(why.contains("of another process"), "{why}");
        drop(held);
        DirHold::take(&dir.0).unwrap();
        fs::remove_dir_all(&dir.0).unwrap();
        DirHold::take(&dir.0).unwrap();
    }

    /// HOLD-3.
    #[test]
    fn a_hold_that_is_dropped_is_free_though_a_child_has_the_file() {
        let dir = Scratch::new("forked");
        let held = DirHold::take(&dir.0).unwrap();
        let child = inherited(&held);
        drop(held);
        let again = DirHold::take(&dir.0).unwrap();
        // A child that ends does not give back what its parent holds.
        let held = DirHold { process: 0, file: Some(inherited(&again)) };
        drop((held, child));
        assert!(dir.refusal().contains("of this process"));
        drop(again);
    }

    /// HOLD-3: a session that was collected drops its hold on a thread of its own.
    #[test]
    fn a_hold_that_is_about_to_be_dropped_is_waited_for() {
        let dir = Scratch::new("dropped");
        let held = DirHold::take(&dir.0).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(held));
            DirHold::take(&dir.0).unwrap();
        });
    }

    /// HOLD-2: the next one is refused by the name of the one that has replaced the file.
    #[test]
    fn the_file_of_a_dead_holder_is_replaced() {
        let dir = Scratch::new("dead");
        let held = DirHold::take(&dir.0).unwrap();
        dir.says(&dead());
        let next = DirHold::take(&dir.0).unwrap();
        assert!(dir.refusal().contains("of this process"));
        drop(held);
        assert!(dir.refusal().contains("of this process"), "the old file does not count");
        drop(next);
        DirHold::take(&dir.0).unwrap();
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "nothing else stays");
    }

    /// HOLD-4.
    #[test]
    fn one_of_several_takes_over_from_a_dead_holder() {
        let dir = Scratch::new("together");
        let held = DirHold::take(&dir.0).unwrap();
        dir.says(&dead());
        let (begin, end) = (Barrier::new(4), Barrier::new(4));
        let take = || {
            begin.wait();
            let taken = DirHold::take(&dir.0);
            end.wait();
            taken.is_ok_and(|hold| hold.file.is_some())
        };
        let taken = thread::scope(|scope| {
            let each: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            each.into_iter().map(|one| one.join().unwrap()).filter(|&has| has).count()
        });
        assert_eq!(taken, 1);
        drop(held);
    }
}
