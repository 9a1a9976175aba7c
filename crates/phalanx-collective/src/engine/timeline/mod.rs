//! The timeline: a trace of this rank for Perfetto and Chrome.
//!
//! - TIME-1: the file is a whole JSON array whenever the process is killed.
//! - TIME-2: recording never waits for the file: records go to a bounded queue, and those that do not fit are counted and reported.
//!
//! A timeline is written by the process that started it, never by its children.

mod file;
mod queue;
mod story;
#[cfg(test)]
mod tests;

use super::{carry::Load, negotiate::message::Agreed, spec::Kind, spec::Name};
use file::TraceFile;
use phalanx_core::Rank;
use queue::Queue;
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Instant,
};
use story::Story;

/// Why there is no timeline.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TimelineError {
    #[error("a timeline is already being written to {}; stop it first", path.display())]
    Running { path: PathBuf },
    #[error("the timeline cannot be written to {}: {why}", path.display())]
    File { path: PathBuf, why: Arc<io::Error> },
}

/// Something that happened, at this time since the timeline began.
#[derive(Debug)]
struct Record {
    at_ns: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Submitted {
        set: u32,
        name: Name,
        kind: Kind,
    },
    Agreed {
        set: u32,
        agreed: Arc<Agreed>,
    },
    Refused {
        set: u32,
        name: Name,
    },
    Moving {
        set: u32,
        agreed: Arc<Agreed>,
    },
    /// The number is the operation's place in the sequence of its set, which is the same on every rank.
    Moved {
        set: u32,
        agreed: Arc<Agreed>,
        plan: &'static str,
        number: u64,
    },
    Cycle,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    rank: Rank,
    n_ranks: u32,
    queue: Arc<Queue>,
    /// A lock because any thread may start and stop; recording does not take it.
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    path: PathBuf,
    owner: u32,
    writer: JoinHandle<io::Result<()>>,
}

impl Timeline {
    pub fn new(rank: Rank, n_ranks: u32) -> Timeline {
        Timeline { rank, n_ranks, queue: Arc::default(), running: Mutex::default() }
    }

    /// Writes to this file from now on.
    pub fn start(&self, path: &Path, mark_cycles: bool) -> Result<(), TimelineError> {
        let mut running = self.running();
        if let Some(running) = running.as_ref().filter(|r| !r.writer.is_finished()) {
            return Err(TimelineError::Running { path: running.path.clone() });
        }
        // What ended by itself has said why.
        *running = None;
        let failed = |why: io::Error| TimelineError::File { path: path.into(), why: Arc::new(why) };
        let mut story = Story::new();
        let (began, head) = (Instant::now(), story.head(self.rank, self.n_ranks));
        let file = TraceFile::create(path, &head).map_err(failed)?;
        let (queue, shown) = (self.queue.clone(), path.to_path_buf());
        self.queue.open(began, mark_cycles);
        let write = move || {
            let result = write(&queue, file, &mut story);
            if let Err(error) = &result {
                queue.close();
                let path = shown.display();
                phalanx_net::voice::warn(&format!("the timeline {path} ends here: {error}"));
            }
            result
        };
        let spawned = std::thread::Builder::new().name("phalanx-timeline".into()).spawn(write);
        let writer = spawned.map_err(|error| {
            self.queue.close();
            failed(error)
        })?;
        *running = Some(Running { path: path.into(), owner: std::process::id(), writer });
        Ok(())
    }

    /// Writes what is recorded and closes the file; nothing if there is none.
    pub fn stop(&self) -> Result<(), TimelineError> {
        // Held until the file is closed: a thread that starts another one meanwhile waits for that.
        let mut running = self.running();
        let Some(Running { path, owner, writer }) = running.take() else { return Ok(()) };
        if owner != std::process::id() {
            // The writer is the parent's.
            std::mem::forget(writer);
            return Ok(());
        }
        self.queue.close();
        match writer.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(TimelineError::File { path, why: Arc::new(error) }),
            Err(_) => {
                Err(TimelineError::File { path, why: Arc::new(io::Error::other("its writer panicked")) })
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tensor was submitted: its negotiation begins.
    pub fn submitted(&self, set: u32, name: &Name, kind: Kind) {
        if self.queue.is_open() {
            self.queue.push([What::Submitted { set, name: name.clone(), kind }]);
        }
    }

    /// All ranks have submitted these: their negotiation ends. What this rank did not submit, because it has joined, is not told before it moves:
    /// it may be agreed upon again before.
    pub fn agreed(&self, set: u32, loads: &[Load]) {
        if self.queue.is_open() {
            let submitted = loads.iter().filter(|load| load.places.is_some());
            self.queue.push(submitted.map(|load| What::Agreed { set, agreed: load.agreed.clone() }));
        }
    }

    /// Ranks disagreed about it: its negotiation ends.
    pub fn refused(&self, set: u32, name: &Name) {
        if self.queue.is_open() {
            self.queue.push([What::Refused { set, name: name.clone() }]);
        }
    }

    /// Data begin to move.
    pub fn moving(&self, set: u32, loads: &[Load]) {
        if self.queue.is_open() {
            self.queue.push(loads.iter().map(|load| What::Moving { set, agreed: load.agreed.clone() }));
        }
    }

    /// Data have moved. The first of these operations has this number.
    pub fn moved(&self, set: u32, loads: &[Load], plan: &'static str, first: u64) {
        if self.queue.is_open() {
            let what =
                |(load, number): (&Load, u64)| What::Moved { set, agreed: load.agreed.clone(), plan, number };
            self.queue.push(loads.iter().zip(first..).map(what));
        }
    }

    pub fn marks_cycles(&self) -> bool {
        self.queue.marks_cycles()
    }

    /// The engine looks, and finds something to do.
    pub fn cycle(&self) {
        if self.marks_cycles() {
            self.queue.push([What::Cycle]);
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // A failure was told when it happened.
        let _ = self.stop();
    }
}

/// The writer's life: until the queue is closed and empty, or the file cannot be written.
fn write(queue: &Queue, mut file: TraceFile, story: &mut Story) -> io::Result<()> {
    let mut taken = queue::Taken::default();
    loop {
        queue.take(&mut taken);
        file.append(story.tell(&taken))?;
        if taken.is_last {
            file.finish();
            return Ok(());
        }
    }
}

/// The file of one rank where all were given the same name: `t.json` is rank 0's, as it was with Horovod, and becomes `t.rank3.json` for rank 3.
pub(super) fn path_of_rank(path: &Path, rank: Rank) -> PathBuf {
    if rank == Rank::ZERO {
        return path.to_path_buf();
    }
    let mut name = path.file_stem().map(OsString::from).unwrap_or_default();
    name.push(format!(".rank{rank}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}
