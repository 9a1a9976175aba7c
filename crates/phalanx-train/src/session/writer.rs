//! Saves checkpoints beside the training: a copy between two steps, then a thread that writes it while training goes on.
//!
//! Every rank has such a thread. They agree through the engine, under names of their own, so the steps of the training do not wait for them.
//! A save waits for the one before it; so there is at most one copy of the state. `sent.rs` is how shards get to the chief where it writes all.
//!
//! - WRITE-2: a save succeeds on all ranks or fails on all of them, with the rank and the cause.
//! - WRITE-3: ranks of which one saves otherwise than the chief, or not at all, do not begin.
//! - WRITE-4: the mark `done` of an earlier training stays until all ranks have begun. One that cannot be removed ends the session on all ranks.

use super::{
    error::SessionError,
    peers::Peers,
    sent::{Sending, ShardWriters},
};
use phalanx_checkpoint::{
    About, Checkpoint, CheckpointDraft, CheckpointError, Checkpoints, Copied, DirHold, Keep, Manifest, Part,
    ShardId, ShardRecord, TensorInfo, TensorSlice, share_out, unmark_done,
};
use phalanx_core::Rank;
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// After this, a wait says that it waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// A copy that is to be written.
struct Job {
    about: About,
    copied: Copied,
    /// Why there is no copy. The job goes its way all the same: other ranks wait for this one.
    fault: Option<String>,
}

/// What came of it, and the memory of the copy.
type Ended = (Result<u64, SessionError>, Copied);

/// The checkpoints of one session.
#[derive(Debug)]
pub struct Writer {
    peers: Arc<Peers>,
    jobs: Option<Sender<Job>>,
    ended: Receiver<Ended>,
    thread: Option<thread::JoinHandle<()>>,
    /// The step that is being written.
    under_way: Option<u64>,
    /// Memory of the last copy, for the next one.
    spare: Copied,
    /// The last step that is on the disk.
    saved: Option<u64>,
    /// Where the mark of an earlier training is to be removed, on the chief, until it is.
    marked: Option<PathBuf>,
    /// Why it could not be removed; all ranks are told at the next boundary.
    fault: Option<CheckpointError>,
    /// Keeps other sessions from the directory, on the chief.
    _hold: Option<DirHold>,
}

impl Writer {
    /// Makes the directory on the chief, and starts the thread; nothing without a directory. Called by all ranks, which must save alike
    /// (WRITE-3).
    pub fn start(
        dir: Option<&Path>,
        keep: Keep,
        shards: ShardWriters,
        peers: Arc<Peers>,
    ) -> Result<Option<Writer>, SessionError> {
        let made = match dir.filter(|_| peers.is_chief()) {
            Some(dir) => Checkpoints::create(dir).and_then(|_| DirHold::take(dir)).map(Some),
            None => Ok(None),
        };
        let (made, hold) = match made {
            Ok(hold) => (Ok(()), hold),
            Err(why) => (Err(why.to_string()), None),
        };
        let how = dir.map_or("without a directory for checkpoints".to_string(), |_| shards.to_string());
        let mut told: Vec<(Told<()>, String)> = peers.gather("save.directory", &(made, how))?;
        if let Some(at) = told.iter().position(|(_, other)| *other != told[0].1) {
            let (rank, other) = (Rank::at(at), told.swap_remove(at).1);
            return Err(SessionError::Unlike { rank, chief: told.swap_remove(0).1, other });
        }
        let (made, _) = told.swap_remove(0);
        made.map_err(|why| SessionError::Directory { why })?;
        let Some(dir) = dir else { return Ok(None) };
        let (jobs, todo) = channel::<Job>();
        let (done, ended) = channel();
        let act = Act { dir: dir.to_path_buf(), keep, shards, peers: peers.clone() };
        let run = move || {
            while let Ok(job) = todo.recv() {
                let saved = catch_unwind(AssertUnwindSafe(|| act.save(&job)));
                let result = saved.unwrap_or_else(|panic| Err(act.panicked(&job, &*panic)));
                if done.send((result, job.copied)).is_err() {
                    return; // The session is gone.
                }
            }
        };
        let thread = thread::Builder::new().name("phalanx-save".into()).spawn(run);
        let thread = Some(thread.map_err(SessionError::Thread)?);
        let (jobs, under_way, spare, saved) = (Some(jobs), None, Copied::new(), None);
        let marked = peers.is_chief().then(|| dir.to_path_buf());
        Ok(Some(Writer {
            peers,
            jobs,
            ended,
            thread,
            under_way,
            spare,
            saved,
            marked,
            fault: None,
            _hold: hold,
        }))
    }

    /// All ranks have begun: the training that ended here is not the last one any more (WRITE-4). The other ranks have passed this boundary:
    /// a failure is told by [`look`](Self::look) at the next one.
    pub fn begun(&mut self) {
        self.fault = self.marked.take().and_then(|dir| unmark_done(dir).err()).or(self.fault.take());
    }

    /// Copies this rank's share of the state, and has it written. Waits for the save before it. A copy that fails is told like a save that
    /// fails: by [`look`](Self::look) and [`wait`](Self::wait), on all ranks.
    pub fn save(&mut self, about: About, part: &dyn Part) -> Result<(), SessionError> {
        // Other ranks copy now, too: a fault waits for the boundary.
        self.settle()?;
        let step = about.step;
        let slices = own_slices(&part.tensors(), self.peers.rank.0, self.peers.n_ranks);
        let mut copied = std::mem::take(&mut self.spare);
        let fault = copied.copy(part, &slices).err().map(|why| why.to_string());
        let jobs = self.jobs.as_ref().ok_or(SessionError::Ended)?;
        jobs.send(Job { about, copied, fault }).map_err(|_| SessionError::Ended)?;
        self.under_way = Some(step);
        Ok(())
    }

    /// Whether a save has ended since the last call; its error, if it failed.
    pub fn look(&mut self) -> Result<Option<u64>, SessionError> {
        self.faultless()?;
        if self.under_way.is_none() {
            return Ok(None);
        }
        match self.ended.try_recv() {
            Ok(ended) => self.take(ended).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(SessionError::Ended),
        }
    }

    /// Waits until nothing is being written. The engine ends this wait if a rank is lost; how long a disk takes, nobody knows.
    pub fn wait(&mut self) -> Result<(), SessionError> {
        self.faultless()?;
        self.settle()
    }

    fn faultless(&mut self) -> Result<(), SessionError> {
        self.fault.take().map_or(Ok(()), |why| Err(SessionError::Checkpoint(why)))
    }

    fn settle(&mut self) -> Result<(), SessionError> {
        let Some(step) = self.under_way else {
            return Ok(());
        };
        let begin = Instant::now();
        loop {
            match self.ended.recv_timeout(PATIENCE) {
                Ok(ended) => return self.take(ended).map(drop),
                Err(RecvTimeoutError::Disconnected) => return Err(SessionError::Ended),
                Err(RecvTimeoutError::Timeout) => {
                    let waited_s = begin.elapsed().as_secs();
                    tracing::warn!(step, waited_s, "the session waits until a checkpoint is written");
                }
            }
        }
    }

    /// The last step that is on the disk, or on its way there. The same on all ranks.
    pub fn newest(&self) -> Option<u64> {
        self.under_way.or(self.saved)
    }

    fn take(&mut self, (result, copied): Ended) -> Result<u64, SessionError> {
        (self.under_way, self.spare) = (None, copied);
        let step = result?;
        self.saved = Some(step);
        Ok(step)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // Only for what it says meanwhile: nobody is left who could be told of an error.
        if let Err(error) = self.settle() {
            tracing::warn!(%error, "the last save of a session that is gone has failed");
        }
        if let Some(thread) = self.thread.take() {
            // Panics there are told as errors.
            let _ = thread.join();
        }
    }
}

/// What this rank writes: its share of what all ranks have alike, and what only it has.
fn own_slices(tensors: &[TensorInfo], rank: u32, n_ranks: u32) -> Vec<TensorSlice> {
    let common: Vec<TensorInfo> = tensors.iter().filter(|t| t.owner.is_none()).cloned().collect();
    let mut slices = share_out(&common, n_ranks as usize).swap_remove(rank as usize);
    let own = tensors.iter().filter(|t| t.owner == Some(rank));
    slices.extend(own.cloned().map(TensorSlice::whole));
    slices
}

/// The thread's side.
struct Act {
    dir: PathBuf,
    keep: Keep,
    shards: ShardWriters,
    peers: Arc<Peers>,
}

/// What one rank did: what it made, or why not.
pub type Told<T> = Result<T, String>;

impl Act {
    fn save(&self, job: &Job) -> Result<u64, SessionError> {
        let step = job.about.step;
        let begin = || CheckpointDraft::begin(&self.dir, step).map_err(|why| why.to_string());
        let begun = self.peers.is_chief().then(|| guarded(begin));
        let name = match &begun {
            Some(Ok(draft)) => Some(Ok(draft.name().to_string())),
            Some(Err(why)) => Some(Err(why.clone())),
            None => None,
        };
        let name: Option<Told<String>> = self.peers.gather("save.draft", &name)?.swap_remove(0);
        let name = name.unwrap_or_else(|| Err("rank 0 began no save".to_string()));
        let name = name.map_err(|why| self.failed(step, 0, why))?;
        let (rank, of) = (self.peers.rank.0, self.peers.n_ranks);
        let id = ShardId { index: rank, of, rank };
        let draft = begun.and_then(Result::ok);
        let (own, draft) = match self.shards {
            ShardWriters::Each => match guarded(|| self.write(id, draft, &name, job.copied()?)) {
                Ok((record, draft)) => (Ok(record), Some(draft)),
                Err(why) => (Err(why), None),
            },
            ShardWriters::Chief { piece_bytes } => {
                let sending = Sending { peers: &self.peers, step, id, copied: job.copied(), piece_bytes };
                (sending.run(draft.as_ref())?, draft)
            }
        };
        let told: Vec<Told<ShardRecord>> = self.peers.gather("save.shards", &own)?;
        let mut records = Vec::with_capacity(told.len());
        for (rank, told) in told.into_iter().enumerate() {
            records.push(told.map_err(|why| self.failed(step, rank as u32, why))?);
        }
        let commit = |draft| self.commit(draft, job, records).map(drop).map_err(|why| why.to_string());
        let committed = match draft.filter(|_| self.peers.is_chief()) {
            Some(draft) => guarded(|| commit(draft)),
            None => Ok(()),
        };
        let told: Vec<Told<()>> = self.peers.gather("save.commit", &committed)?;
        match told.into_iter().next() {
            Some(Ok(())) => Ok(step),
            Some(Err(why)) => Err(self.failed(step, 0, why)),
            None => Err(SessionError::Ended),
        }
    }

    /// Writes this rank's shard into the chief's draft.
    fn write(
        &self,
        id: ShardId,
        draft: Option<CheckpointDraft>,
        name: &str,
        copied: &Copied,
    ) -> Told<(ShardRecord, CheckpointDraft)> {
        let draft = draft.map_or_else(|| CheckpointDraft::join(&self.dir, name), Ok);
        let written = draft.and_then(|draft| Ok((draft.write_copied(id, copied)?, draft)));
        written.map_err(|why| why.to_string())
    }

    fn commit(
        &self,
        draft: CheckpointDraft,
        job: &Job,
        records: Vec<ShardRecord>,
    ) -> Result<Checkpoint, CheckpointError> {
        let manifest = Manifest::new(job.about.clone(), records)
            .map_err(|fault| CheckpointError::Manifest { path: draft.path().to_path_buf(), why: fault })?;
        let made = draft.commit(&manifest)?;
        // What cannot be removed is tried again by the next save.
        if let Err(error) = Checkpoints::open(&self.dir).retain(&self.keep) {
            tracing::warn!(%error, "an old checkpoint could not be removed");
        }
        Ok(made)
    }

    fn failed(&self, step: u64, rank: u32, why: String) -> SessionError {
        SessionError::Save { step, rank: Rank(rank), why }
    }

    fn panicked(&self, job: &Job, panic: &(dyn Any + Send)) -> SessionError {
        self.failed(job.about.step, self.peers.rank.0, words_of(panic))
    }
}

impl Job {
    fn copied(&self) -> Result<&Copied, &str> {
        self.fault.as_deref().map_or(Ok(&self.copied), Err)
    }
}

/// Does what other ranks must learn the outcome of, whatever happens: a panic is told like an error.
pub fn guarded<T>(act: impl FnOnce() -> Told<T>) -> Told<T> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(words_of(&*panic)))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no word");
    format!("a panic, please report it: {said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_beside_the_training_is_told_with_its_words() {
        assert_eq!(guarded(|| Ok(3)), Ok(3));
        let n = 7;
        let told: Told<()> = guarded(|| panic!("shard {n}"));
        assert_eq!(told, Err("a panic, please report it: shard 7".to_string()));
    }
}
