//! What can go wrong with checkpoints, with path, tensor and cause.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// What to do where ranks have directories of their own.
const COMMON: &str =
    "Save to a directory that is common to all hosts, or let rank 0 write all shards (shards=\"rank0\")";

/// Why a checkpoint could not be saved, found or loaded.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot {action} {}: {cause}", path.display())]
    Io { action: &'static str, path: PathBuf, cause: io::Error },

    #[error(
        "the disk is full: cannot {action} {} ({cause}). Free space there or save elsewhere; older checkpoints are intact",
        path.display()
    )]
    DiskFull { action: &'static str, path: PathBuf, cause: io::Error },

    #[error("{}: {why}", path.display())]
    Manifest { path: PathBuf, why: ManifestFault },

    #[error("{}", described(damage))]
    Damaged { step: u64, damage: Vec<crate::Damage> },

    #[error(
        "rank {rank}'s shard is not visible to the rank that commits: {} {}. {COMMON}",
        path.display(),
        found.map_or("does not exist".to_string(), |n| format!("has {n} bytes, not {bytes}"))
    )]
    ShardNotVisible { rank: u32, path: PathBuf, bytes: u64, found: Option<u64> },

    #[error("the checkpoint that rank 0 has begun is not visible here: {} does not exist. {COMMON}", path.display())]
    DraftNotVisible { path: PathBuf },

    #[error("the checkpoint of step {step} does not fit ({}): {}", path.display(), listed(misfits))]
    Unfit { step: u64, path: PathBuf, misfits: Vec<TensorMisfit> },

    #[error("the tensor {name:?} cannot be saved: {why}")]
    Name { name: String, why: &'static str },

    #[error("the tensor {tensor:?} cannot be {action}: {cause}")]
    Part { tensor: String, action: &'static str, cause: crate::PartError },

    #[error("{}: none of the checkpoints is whole: {}", dir.display(), listed(skipped))]
    NoneWhole { dir: PathBuf, skipped: Vec<Skipped> },

    #[error(
        "{} is in use by another session, {by}: close that session, or give this one another directory",
        dir.display()
    )]
    Held { dir: PathBuf, by: String },

    #[error("{} has no checkpoints; write the directory in which a training saves", dir.display())]
    Empty { dir: PathBuf },
}

impl CheckpointError {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> CheckpointError {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        let path = path.to_path_buf();
        match cause.kind() {
            StorageFull | QuotaExceeded => CheckpointError::DiskFull { action, path, cause },
            _ => CheckpointError::Io { action, path, cause },
        }
    }

    /// Whether the checkpoint is not there any more: it was deleted while it was looked at.
    pub fn is_gone(&self) -> bool {
        match self {
            CheckpointError::Io { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
            CheckpointError::Damaged { damage, .. } => damage.iter().all(|d| matches!(d.flaw, Flaw::Missing)),
            _ => false,
        }
    }
}

/// Why a manifest is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestFault {
    #[error("the manifest is damaged: its digest does not match its content")]
    Digest,
    #[error("the manifest is damaged or was not written by phalanx: it does not end with its digest")]
    NoDigest,
    #[error("the manifest has {0} bytes, more than a manifest can have")]
    Large(u64),
    #[error("the manifest cannot be read: {0}")]
    Json(String),
    #[error("format {found} is not known here; this version reads format {known}")]
    Format { found: u64, known: u64 },
    #[error("it is the manifest of step {found}, but the directory is named for step {named}")]
    Step { found: u64, named: u64 },
    #[error("shard {shard} is described wrongly: {why}")]
    Shard { shard: u32, why: &'static str },
    #[error("the tensor {name:?} is described wrongly: {why}")]
    Tensor { name: String, why: &'static str },
    #[error("elements {from}..{to} of the tensor {name:?} are in no shard")]
    Uncovered { name: String, from: u64, to: u64 },
    #[error("elements of the tensor {name:?} from {from} on are in two shards")]
    Twice { name: String, from: u64 },
    #[error("the tensor {name:?} is {one} in one shard and {other} in another")]
    Disagree { name: String, one: String, other: String },
}

/// What is wrong with a shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("does not exist")]
    Missing,
    #[error("has {found} bytes, not {wanted}")]
    Length { wanted: u64, found: u64 },
    #[error("is damaged: its content does not match its digest")]
    Digest,
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

/// A tensor that a checkpoint and the state do not have alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMisfit {
    pub name: String,
    /// What the state has, such as `f32[3, 4]`.
    pub wanted: Option<String>,
    /// What the checkpoint has.
    pub found: Option<String>,
}

impl fmt::Display for TensorMisfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (&self.wanted, &self.found) {
            (Some(wanted), Some(found)) => write!(f, "`{name}` is {wanted}, the checkpoint has {found}"),
            (Some(wanted), None) => write!(f, "`{name}` ({wanted}) is not in the checkpoint"),
            (None, Some(found)) => write!(f, "`{name}` ({found}) is in the checkpoint only"),
            (None, None) => write!(f, "`{name}`"),
        }
    }
}

/// A checkpoint that was passed over, and why.
#[derive(Debug)]
pub struct Skipped {
    pub step: u64,
    pub path: PathBuf,
    pub why: CheckpointError,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.why)
    }
}

fn listed<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}

fn described(damage: &[crate::Damage]) -> String {
    listed(damage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_missing_shard_say_where_and_what_to_do() {
        let full = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let error = CheckpointError::io("write", Path::new("d/shard"), full);
        let says = "the disk is full: cannot write d/shard (No space left on device (os error 28)). Free space there or save \
                    elsewhere; older checkpoints are intact";
        assert_eq!(error.to_string(), says);
        let (path, bytes) = (PathBuf::from("d/shard"), 9);
        let error = CheckpointError::ShardNotVisible { rank: 3, path, bytes, found: None };
        let says = "rank 3's shard is not visible to the rank that commits: d/shard does not exist. Save to a directory that is \
                    common to all hosts, or let rank 0 write all shards (shards=\"rank0\")";
        assert_eq!(error.to_string(), says);
    }
}
