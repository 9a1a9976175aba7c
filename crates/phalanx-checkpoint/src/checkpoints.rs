//! All checkpoints of a directory: which one is the newest whole one, and what was passed over.

use crate::{
    About, Checkpoint, CheckpointDraft, CheckpointError, Keep, Loaded, Manifest, Part, ShardId, Skipped,
    Strictness, Swept, TensorSlice,
    durable::{make_dirs, remove_later, sync_dir},
    layout::{self, LATEST},
    sweep::{names, sweep},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

type Result<T> = std::result::Result<T, CheckpointError>;

/// A directory of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    dir: PathBuf,
}

/// A checkpoint's directory, and whether it is one.
#[derive(Debug)]
pub struct Listed {
    pub step: u64,
    pub path: PathBuf,
    /// Its manifest is right, and its shards are there with their lengths.
    pub checkpoint: Result<Checkpoint>,
}

/// What the file `latest` says, compared with the directory. Nothing depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pointer {
    Right,
    Missing,
    /// It names an older whole checkpoint: a saver died before it could write the file.
    Behind {
        step: u64,
    },
    /// It is damaged, or names what is not there.
    Wrong {
        path: PathBuf,
        why: String,
    },
}

/// The newest whole checkpoint.
#[derive(Debug)]
pub struct NewestWhole {
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that are not whole, the newest first.
    pub skipped: Vec<Skipped>,
    pub pointer: Pointer,
}

/// A state that was loaded.
#[derive(Debug)]
pub struct Restored {
    pub checkpoint: Checkpoint,
    pub loaded: Loaded,
    pub skipped: Vec<Skipped>,
    pub pointer: Pointer,
}

impl Checkpoints {
    /// For reading. The directory need not exist yet.
    pub fn open(dir: impl AsRef<Path>) -> Checkpoints {
        Checkpoints { dir: dir.as_ref().to_path_buf() }
    }

    /// For a training that is about to begin: makes the directory, and collects what killed saves left. One rank does this. The mark of a
    /// training that ended stays until [`unmark_done`](crate::unmark_done).
    pub fn create(dir: impl AsRef<Path>) -> Result<Checkpoints> {
        let dir = dir.as_ref();
        make_dirs(dir)?;
        sweep(dir)?;
        Ok(Checkpoints::open(dir))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Saves the state of a single process.
    pub fn save(&self, about: About, part: &dyn Part) -> Result<Checkpoint> {
        let draft = CheckpointDraft::begin(&self.dir, about.step)?;
        let slices: Vec<TensorSlice> = part.tensors().into_iter().map(TensorSlice::whole).collect();
        let record = draft.write_shard(ShardId { index: 0, of: 1, rank: 0 }, &slices, part)?;
        let manifest = Manifest::new(about, vec![record])
            .map_err(|why| CheckpointError::Manifest { path: draft.path().to_path_buf(), why })?;
        draft.commit(&manifest)
    }

    /// All checkpoints, whole or not, in ascending order of steps. Content of shards is not read.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for step in self.steps()? {
            listed.extend(self.look(step));
        }
        Ok(listed)
    }

    /// The step for which a path is named, if it is the name of a checkpoint.
    pub fn step_of(path: &Path) -> Option<u64> {
        layout::step_of(path.file_name()?.to_str()?)
    }

    /// The steps that have directories, in ascending order.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let mut steps: Vec<u64> = names(&self.dir)?.iter().filter_map(|name| layout::step_of(name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// `None` if it has been deleted meanwhile.
    pub(crate) fn look(&self, step: u64) -> Option<Listed> {
        let path = self.dir.join(layout::checkpoint(step));
        let checkpoint = Checkpoint::open(&path).and_then(|c| c.look().map(|()| c));
        let is_gone = checkpoint.as_ref().is_err_and(CheckpointError::is_gone) && !path.exists();
        (!is_gone).then_some(Listed { step, path, checkpoint })
    }

    /// The newest whole checkpoint. Content of shards is compared with its digests when it is loaded.
    pub fn latest(&self) -> Result<NewestWhole> {
        let (mut skipped, mut checkpoint) = (Vec::new(), None);
        for step in self.steps()?.into_iter().rev() {
            match self.look(step) {
                None => {}
                Some(Listed { checkpoint: Ok(whole), .. }) => {
                    checkpoint = Some(whole);
                    break;
                }
                Some(Listed { path, checkpoint: Err(why), .. }) => skipped.push(Skipped { step, path, why }),
            }
        }
        let pointer = self.pointer(checkpoint.as_ref());
        Ok(NewestWhole { checkpoint, skipped, pointer })
    }

    /// What `latest` says, given what it should say.
    fn pointer(&self, newest: Option<&Checkpoint>) -> Pointer {
        let path = self.dir.join(LATEST);
        let wrong = |why: String| Pointer::Wrong { path: path.clone(), why };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Pointer::Missing,
            Err(error) => return wrong(error.to_string()),
        };
        let parsed = text.strip_suffix('\n').and_then(|text| text.split_once("\nblake3 "));
        let Some((step, digest)) = parsed.and_then(|(name, digest)| Some((layout::step_of(name)?, digest)))
        else {
            return wrong("it does not name a checkpoint".into());
        };
        if let Some(newest) = newest
            && newest.step() == step
        {
            let is_right = newest.digest() == digest;
            return if is_right {
                Pointer::Right
            } else {
                wrong(format!("its digest is not that of step {step}"))
            };
        }
        match self.look(step).map(|listed| listed.checkpoint) {
            Some(Ok(older)) if older.digest() == digest => Pointer::Behind { step },
            Some(Ok(_)) => wrong(format!("its digest is not that of step {step}")),
            Some(Err(_)) => wrong(format!("it names step {step}, which is damaged")),
            None => wrong(format!("it names step {step}, which is not there")),
        }
    }

    /// Loads the newest checkpoint that is whole to the last bit; `None` if there is none at all.
    ///
    /// One that is whole but does not fit is an error: an older one would fit no better.
    pub fn load_newest(&self, part: &mut dyn Part, strictness: Strictness) -> Result<Option<Restored>> {
        let mut skipped = Vec::new();
        for step in self.steps()?.into_iter().rev() {
            let Some(Listed { path, checkpoint, .. }) = self.look(step) else { continue };
            let loaded = checkpoint.and_then(|checkpoint| {
                if strictness == Strictness::Partial {
                    // An older one might not replace all that a damaged one has put there.
                    checkpoint.verify()?;
                }
                checkpoint.load(part, strictness).map(|loaded| (checkpoint, loaded))
            });
            match loaded {
                Ok((checkpoint, loaded)) => {
                    let pointer = self.pointer(Some(&checkpoint));
                    return Ok(Some(Restored { checkpoint, loaded, skipped, pointer }));
                }
                Err(why @ (CheckpointError::Damaged { .. } | CheckpointError::Manifest { .. })) => {
                    tracing::warn!(step, %why, "a checkpoint was skipped");
                    skipped.push(Skipped { step, path, why });
                }
                Err(why @ CheckpointError::Io { .. }) => skipped.push(Skipped { step, path, why }),
                Err(other) => return Err(other),
            }
        }
        if skipped.is_empty() {
            return Ok(None);
        }
        Err(CheckpointError::NoneWhole { dir: self.dir.clone(), skipped })
    }

    /// Loads the checkpoint of one step.
    pub fn load(
        &self,
        step: u64,
        part: &mut dyn Part,
        strictness: Strictness,
    ) -> Result<(Checkpoint, Loaded)> {
        let checkpoint = Checkpoint::open(self.dir.join(layout::checkpoint(step)))?;
        let loaded = checkpoint.load(part, strictness)?;
        Ok((checkpoint, loaded))
    }

    /// Reads the checkpoint of one step and compares everything with its digests.
    pub fn verify(&self, step: u64) -> Result<Checkpoint> {
        let checkpoint = Checkpoint::open(self.dir.join(layout::checkpoint(step)))?;
        checkpoint.verify()?;
        Ok(checkpoint)
    }

    /// Removes the drafts of dead savers. The rank that commits does this; every save does, too.
    pub fn sweep(&self) -> Result<Swept> {
        sweep(&self.dir)
    }

    /// Removes old checkpoints, and returns their steps. Those that are not whole neither count nor go.
    pub fn retain(&self, keep: &Keep) -> Result<Vec<u64>> {
        let whole = self.list()?.into_iter().filter(|listed| listed.checkpoint.is_ok());
        let steps: Vec<u64> = whole.map(|listed| listed.step).collect();
        let text = fs::read_to_string(self.dir.join(LATEST)).unwrap_or_default();
        let pinned = text.lines().next().and_then(layout::step_of);
        let removed = keep.to_remove(&steps, pinned);
        for &step in &removed {
            remove_later(&self.dir, &self.dir.join(layout::checkpoint(step)), step)?;
        }
        if !removed.is_empty() {
            sync_dir(&self.dir)?;
        }
        Ok(removed)
    }
}
