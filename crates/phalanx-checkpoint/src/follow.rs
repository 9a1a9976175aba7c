//! Sees checkpoints as they appear, for evaluators beside a training.
//!
//! - FOLLOW-1: every checkpoint that is whole when it is looked at is yielded once (or the newest only), in ascending order
//!   of steps among those that are new, and all of them before the end.
//! - FOLLOW-2: a checkpoint that is deleted while it is looked at is skipped.
//! - FOLLOW-3: a follower that knows when its job began is not ended by the mark `done` of an earlier job: the training that
//!   it follows has not removed that mark yet.

mod done;

pub use done::{mark_done, unmark_done};

use crate::{Checkpoint, CheckpointError, Checkpoints, Listed, Skipped};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    fs,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

type Result<T> = std::result::Result<T, CheckpointError>;

/// Network file systems tell nothing: the directory is looked at this often anyway.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Which checkpoints are yielded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newest {
    /// Of several new ones, the newest.
    Only,
    Each,
}

/// What came next.
#[derive(Debug)]
pub enum Followed {
    Checkpoint(Box<Checkpoint>),
    /// Training has ended, and all its checkpoints were yielded.
    Done,
    TimedOut,
}

/// A checkpoint's directory, without reading what is in it: step, inode, time of its last change in nanoseconds.
type Identity = (u64, u64, i128);

/// Follows a directory, which need not exist yet.
#[derive(Debug)]
pub struct Follow {
    checkpoints: Checkpoints,
    newest: Newest,
    /// When the job began of which the followed training is a part.
    job_began: Option<SystemTime>,
    /// Directories that need not be looked at again.
    seen: BTreeSet<Identity>,
    /// Digests of what was yielded: a copy with other times is not yielded again.
    yielded: BTreeSet<String>,
    skipped: Vec<Skipped>,
    told: BTreeSet<Identity>,
    watch: Option<OwnedFd>,
}

impl Follow {
    pub fn new(dir: impl AsRef<Path>, newest: Newest) -> Follow {
        Follow {
            checkpoints: Checkpoints::open(dir),
            newest,
            job_began: None,
            seen: BTreeSet::new(),
            yielded: BTreeSet::new(),
            skipped: Vec::new(),
            told: BTreeSet::new(),
            watch: None,
        }
    }

    /// Follows the training of a job that began then, and that may not have reached the directory yet (FOLLOW-3).
    #[must_use]
    pub fn of_job(self, began: SystemTime) -> Follow {
        Follow { job_began: Some(began), ..self }
    }

    /// When the training ended that left a mark here, and whether it is the followed one.
    pub fn ended(&self) -> Option<(SystemTime, bool)> {
        let ended = done::ended(self.checkpoints.dir())?;
        Some((ended, self.job_began.is_none_or(|began| ended >= began)))
    }

    /// The next checkpoint, as soon as there is one.
    pub fn next(&mut self, deadline: Instant) -> Result<Followed> {
        loop {
            // Watched before it is looked at, so that nothing is missed between the two; the mark is looked for before the
            // checkpoints, because it is written after the last of them.
            self.watch();
            let is_done = self.ended().is_some_and(|(_, is_ours)| is_ours);
            if let Some(checkpoint) = self.look()? {
                return Ok(Followed::Checkpoint(Box::new(checkpoint)));
            }
            if is_done {
                return Ok(Followed::Done);
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(Followed::TimedOut);
            }
            self.wait(LOOK_EVERY.min(deadline - now));
        }
    }

    /// Checkpoints that were passed over since the last call because they are not whole.
    pub fn take_skipped(&mut self) -> Vec<Skipped> {
        std::mem::take(&mut self.skipped)
    }

    fn look(&mut self) -> Result<Option<Checkpoint>> {
        let mut fresh = Vec::new();
        for step in self.checkpoints.steps()? {
            let path = self.checkpoints.dir().join(crate::layout::checkpoint(step));
            // FOLLOW-2: one that cannot be looked at is gone.
            let Ok(meta) = fs::metadata(&path) else { continue };
            let identity =
                (step, meta.ino(), i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()));
            if !self.seen.contains(&identity) {
                fresh.push(identity);
            }
        }
        if self.newest == Newest::Only {
            fresh.reverse();
        }
        for identity in fresh.clone() {
            match self.checkpoints.look(identity.0) {
                None => {}
                Some(Listed { checkpoint: Ok(checkpoint), .. }) => {
                    match self.newest {
                        Newest::Each => drop(self.seen.insert(identity)),
                        Newest::Only => self.seen.extend(fresh.iter().filter(|f| f.0 <= identity.0)),
                    }
                    if self.yielded.insert(checkpoint.digest().to_string()) {
                        return Ok(Some(checkpoint));
                    }
                }
                // It is looked at again: a network file system may show files late.
                Some(Listed { checkpoint: Err(_), .. }) if self.told.contains(&identity) => {}
                Some(Listed { step, path, checkpoint: Err(why) }) => {
                    self.told.insert(identity);
                    self.skipped.push(Skipped { step, path, why });
                }
            }
        }
        Ok(None)
    }

    /// Watches the directory, once it exists.
    fn watch(&mut self) {
        if self.watch.is_none() {
            let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
            let what = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
            self.watch = inotify::init(flags)
                .and_then(|fd| inotify::add_watch(&fd, self.checkpoints.dir(), what).map(|_| fd))
                .ok();
        }
    }

    /// Waits until something appears in the directory, or this time has passed. Without a watch, time passes.
    fn wait(&mut self, limit: Duration) {
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        let Some(watch) = &self.watch else {
            let _ = poll(&mut [], Some(&limit));
            return;
        };
        let _ = poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&limit));
        let mut events = [0; 4096];
        loop {
            match rustix::io::read(watch, &mut events) {
                Ok(n) if n > 0 => {}
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        // A directory that was removed and made again is another one.
        if !self.checkpoints.dir().exists() {
            self.watch = None;
        }
    }
}
