//! A save under way. Rank 0 begins it and commits it; every rank writes its shard into it.

use crate::{
    Checkpoint, CheckpointError, Copied, Part,
    durable::{PathContext, fresh, make_dirs, put_in_place, remove_later, replace_file, sync_dir, write_new},
    layout::{self, LATEST, MANIFEST, Transient},
    manifest::{Manifest, ShardRecord},
    shard::{self, ShardId, SliceBytes},
    share::TensorSlice,
    stream::ReceivedShard,
    sweep::sweep,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

type Result<T> = std::result::Result<T, CheckpointError>;

/// A checkpoint that is not there yet. Dropped before it is committed, it is removed, unless another rank began it.
#[derive(Debug)]
pub struct CheckpointDraft {
    dir: PathBuf,
    path: PathBuf,
    step: u64,
    /// Whether this process began it and has neither committed nor abandoned it.
    is_own: bool,
}

impl CheckpointDraft {
    /// Begins a save, and collects what killed saves have left. One rank does this and tells the others the
    /// [`name`](Self::name).
    pub fn begin(dir: impl AsRef<Path>, step: u64) -> Result<CheckpointDraft> {
        let dir = dir.as_ref();
        make_dirs(dir)?;
        sweep(dir)?;
        let path = fresh(dir, Transient::Draft, step, |path| fs::create_dir(path))?;
        Ok(CheckpointDraft { dir: dir.to_path_buf(), path, step, is_own: true })
    }

    /// The draft that another rank began, by its name.
    pub fn join(dir: impl AsRef<Path>, name: &str) -> Result<CheckpointDraft> {
        let (dir, path) = (dir.as_ref(), dir.as_ref().join(name));
        match layout::transient_of(name) {
            Some((Transient::Draft, step, _)) => {
                Ok(CheckpointDraft { dir: dir.to_path_buf(), path, step, is_own: false })
            }
            _ => {
                let cause = io::Error::new(io::ErrorKind::InvalidInput, "this is not the name of a draft");
                Err(CheckpointError::Io { action: "join", path, cause })
            }
        }
    }

    pub fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn step(&self) -> u64 {
        self.step
    }

    /// Writes a shard from the state itself, which must not change meanwhile. It is on the disk when this returns.
    pub fn write_shard(&self, id: ShardId, slices: &[TensorSlice], part: &dyn Part) -> Result<ShardRecord> {
        self.seen(shard::write(&self.path, id, slices, &SliceBytes::Part(part)))
    }

    /// Writes a shard from a copy, for a thread beside the training. It is on the disk when this returns.
    pub fn write_copied(&self, id: ShardId, copied: &Copied) -> Result<ShardRecord> {
        self.seen(shard::write(&self.path, id, copied.slices(), &SliceBytes::Copied(copied)))
    }

    /// The file for a shard that another rank sends.
    pub fn receive_shard(&self, index: u32, of: u32) -> Result<ReceivedShard> {
        ReceivedShard::create(&self.path.join(layout::shard(index, of)))
    }

    /// Tells a directory that is another one than that of the rank that began the draft from one that cannot be written.
    fn seen<T>(&self, written: Result<T>) -> Result<T> {
        match written {
            Err(CheckpointError::Io { cause, .. })
                if cause.kind() == io::ErrorKind::NotFound && !self.is_own && !self.path.exists() =>
            {
                Err(CheckpointError::DraftNotVisible { path: self.path.clone() })
            }
            written => written,
        }
    }

    /// Makes the checkpoint visible, once all ranks have written their shards. It replaces one of the same step.
    pub fn commit(mut self, manifest: &Manifest) -> Result<Checkpoint> {
        assert_eq!(manifest.step(), self.step, "a draft is committed with the manifest of its step");
        for shard in &manifest.shards {
            let path = self.path.join(&shard.file);
            // Opened, not only looked at: a network file system asks its server then.
            let found = fs::File::open(&path).and_then(|file| file.metadata()).map(|meta| meta.len());
            let found = match found {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                found => Some(found.said("open", &path)?),
            };
            if found != Some(shard.bytes) {
                let (rank, bytes) = (shard.rank, shard.bytes);
                return Err(CheckpointError::ShardNotVisible { rank, path, bytes, found });
            }
        }
        let (bytes, digest) = manifest.encode();
        write_new(&self.path.join(MANIFEST), &bytes)?;
        sync_dir(&self.path)?;
        let name = layout::checkpoint(manifest.step());
        let place = self.dir.join(&name);
        put_in_place(&self.path, &place, manifest.step())?;
        self.is_own = false;
        let pointer = format!("{name}\nblake3 {digest}\n");
        replace_file(&self.dir, LATEST, manifest.step(), pointer.as_bytes())?;
        Checkpoint::open(&place)
    }

    /// Removes the draft. A rank that did not begin it leaves it to the one that did.
    pub fn abandon(mut self) -> Result<()> {
        self.remove()
    }

    fn remove(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_own) {
            return Ok(());
        }
        remove_later(&self.dir, &self.path, self.step)
    }
}

impl Drop for CheckpointDraft {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "a draft could not be removed; the next save does");
        }
    }
}
