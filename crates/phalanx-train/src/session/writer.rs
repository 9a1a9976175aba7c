//! Saves checkpoints beside the training: a copy between two steps, then a thread that writes it while training goes on.
//!
//! Every rank has such a thread. They agree through the engine, under names of their own, so the steps of the training do not wait for them.
//! A save waits for the one before it; so there is at most one copy of the state. `sent.rs` is how shards get to the chief where it writes all.
//!
//! - WRITE-2: a save succeeds on all ranks or fails on all of them, with the rank and the cause.
//! - WRITE-3: ranks of which one saves otherwise than the chief, or not at all, do not begin.

use super::{
    error::SessionError,
    peers::Peers,
    sent::{Sending, ShardWriters},
};
use phalanx_checkpoint::{
    About, Checkpoint, CheckpointDraft, CheckpointError, Checkpoints, Copied, Keep, Manifest, Part, ShardId,
    ShardRecord, TensorInfo, TensorSlice, share_out,
};
use phalanx_core::Rank;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread,
};

/// A copy that is to be written.
struct Job {
    about: About,
    copied: Copied,
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
            Some(dir) => Checkpoints::create(dir).map(drop).map_err(|why| why.to_string()),
            None => Ok(()),
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
                let result = act.save(&job);
                if done.send((result, job.copied)).is_err() {
                    return; // The session is gone.
                }
            }
        };
        let thread = thread::Builder::new().name("phalanx-save".into()).spawn(run);
        let thread = Some(thread.map_err(SessionError::Thread)?);
        let (jobs, under_way, spare, saved) = (Some(jobs), None, Copied::new(), None);
        Ok(Some(Writer { peers, jobs, ended, thread, under_way, spare, saved }))
    }

    /// Copies this rank's share of the state, and has it written. Waits for the save before it.
    pub fn save(&mut self, about: About, part: &dyn Part) -> Result<(), SessionError> {
        self.wait()?;
        let step = about.step;
        let slices = own_slices(&part.tensors(), self.peers.rank.0, self.peers.n_ranks);
        let mut copied = std::mem::take(&mut self.spare);
        copied.copy(part, &slices).map_err(SessionError::Checkpoint)?;
        let jobs = self.jobs.as_ref().ok_or(SessionError::Ended)?;
        jobs.send(Job { about, copied }).map_err(|_| SessionError::Ended)?;
        self.under_way = Some(step);
        Ok(())
    }

    /// Whether a save has ended since the last call; its error, if it failed.
    pub fn look(&mut self) -> Result<Option<u64>, SessionError> {
        if self.under_way.is_none() {
            return Ok(None);
        }
        match self.ended.try_recv() {
            Ok(ended) => self.take(ended).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(SessionError::Ended),
        }
    }

    /// Waits until nothing is being written. The engine ends this wait if a rank is lost.
    pub fn wait(&mut self) -> Result<(), SessionError> {
        if self.under_way.is_none() {
            return Ok(());
        }
        let ended = self.ended.recv().map_err(|_| SessionError::Ended)?;
        self.take(ended).map(drop)
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
        if let Some(thread) = self.thread.take() {
            // A panic there was told by `wait` as an end; nothing is left to do.
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
        let begun = self.peers.is_chief().then(|| CheckpointDraft::begin(&self.dir, step));
        let name = match &begun {
            Some(Ok(draft)) => Some(Ok(draft.name().to_string())),
            Some(Err(why)) => Some(Err(why.to_string())),
            None => None,
        };
        let name: Option<Told<String>> = self.peers.gather("save.draft", &name)?.swap_remove(0);
        let name = name.unwrap_or_else(|| Err("rank 0 began no save".to_string()));
        let name = name.map_err(|why| self.failed(step, 0, why))?;
        let (rank, of) = (self.peers.rank.0, self.peers.n_ranks);
        let id = ShardId { index: rank, of, rank };
        let draft = begun.and_then(Result::ok);
        let (own, draft) = match self.shards {
            ShardWriters::Each => self.write(id, draft, &name, &job.copied),
            ShardWriters::Chief { piece_bytes } => {
                let sending = Sending { peers: &self.peers, step, id, copied: &job.copied, piece_bytes };
                (sending.run(draft.as_ref())?, draft)
            }
        };
        let told: Vec<Told<ShardRecord>> = self.peers.gather("save.shards", &own)?;
        let mut records = Vec::with_capacity(told.len());
        for (rank, told) in told.into_iter().enumerate() {
            records.push(told.map_err(|why| self.failed(step, rank as u32, why))?);
        }
        let committed = draft.filter(|_| self.peers.is_chief()).map(|draft| self.commit(draft, job, records));
        let committed = committed.transpose().map(drop).map_err(|why| why.to_string());
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
    ) -> (Told<ShardRecord>, Option<CheckpointDraft>) {
        let draft = draft.map_or_else(|| CheckpointDraft::join(&self.dir, name), Ok);
        match draft.and_then(|draft| Ok((draft.write_copied(id, copied)?, draft))) {
            Ok((record, draft)) => (Ok(record), Some(draft)),
            Err(why) => (Err(why.to_string()), None),
        }
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
}
