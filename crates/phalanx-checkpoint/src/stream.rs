//! A shard that one rank has and another one writes: the bytes of its file, piece by piece.
//!
//! - STREAM-1: a shard that was sent has the bytes and the record of one that its rank wrote itself.

use crate::{
    CheckpointError, Copied,
    durable::PathContext,
    manifest::ShardRecord,
    shard::{LaidOut, ShardId},
};
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::xxh3_64;

type Result<T> = std::result::Result<T, CheckpointError>;

/// The sender's side. Digests are made here, so a bit that changes on the way is found like one that changes on the disk.
#[derive(Debug)]
pub struct ShardStream<'a> {
    id: ShardId,
    copied: &'a Copied,
    laid: LaidOut,
    whole: blake3::Hasher,
    /// The section that goes next, 0 is the header, and what of it has gone.
    next: (usize, usize),
}

impl<'a> ShardStream<'a> {
    pub fn new(id: ShardId, copied: &'a Copied) -> Result<ShardStream<'a>> {
        let laid = LaidOut::new(copied.slices())?;
        Ok(ShardStream { id, copied, laid, whole: blake3::Hasher::new(), next: (0, 0) })
    }

    /// Of the whole file.
    pub fn bytes(&self) -> u64 {
        self.laid.bytes
    }

    /// The next `n` bytes, or all that is left.
    pub fn take(&mut self, n: usize) -> Vec<u8> {
        let mut piece = Vec::with_capacity(n.min(self.laid.bytes as usize));
        let (mut section, mut from) = self.next;
        while let Some(bytes) = self.section(section) {
            if from == bytes.len() {
                (section, from) = (section + 1, 0);
                continue;
            }
            if piece.len() == n {
                break;
            }
            let to = bytes.len().min(from + n - piece.len());
            piece.extend_from_slice(&bytes[from..to]);
            from = to;
        }
        self.next = (section, from);
        self.whole.update(&piece);
        piece
    }

    /// What rank 0 needs for the manifest, once everything has been taken.
    pub fn record(self) -> ShardRecord {
        assert!(self.section(self.next.0).is_none(), "a record is made of a shard that was sent whole");
        let xxh3s: Vec<u64> = self.laid.order.iter().map(|&from| xxh3_64(self.copied.bytes(from))).collect();
        let blake3 = self.whole.finalize().to_hex().to_string();
        self.laid.record(self.id, self.copied.slices(), blake3, &xxh3s)
    }

    fn section(&self, at: usize) -> Option<&[u8]> {
        match at.checked_sub(1) {
            None => Some(&self.laid.header),
            Some(i) => self.laid.order.get(i).map(|&from| self.copied.bytes(from)),
        }
    }
}

/// The receiver's side: the file of a shard that another rank sends.
#[derive(Debug)]
pub struct ReceivedShard {
    file: File,
    path: PathBuf,
}

impl ReceivedShard {
    pub(crate) fn create(path: &Path) -> Result<ReceivedShard> {
        let file = File::create(path).said("create", path)?;
        Ok(ReceivedShard { file, path: path.to_path_buf() })
    }

    /// Writes what has come.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).said("write", &self.path)
    }

    /// It is on the disk when this returns.
    pub fn end(self) -> Result<()> {
        self.file.sync_all().said("sync", &self.path)
    }
}
