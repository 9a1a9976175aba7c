//! Puts a checkpoint into the state: each shard is read once, hashed and handed over piece by piece.
//!
//! A second thread reads and hashes beside the first; only the caller's thread calls the [`Part`]. What does not fit is
//! found before anything is written (CKPT-3). Damage is found while reading: the state must not be used then, unless a
//! later load succeeds.

use crate::{
    Checkpoint, CheckpointError, Flaw, Part, TensorInfo, TensorMisfit,
    digest::{self, PIECE},
    manifest::ShardEntry,
};
use std::{
    collections::BTreeSet,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread,
};

type Result<T> = std::result::Result<T, CheckpointError>;

/// Shards of fewer pieces are read by one thread.
const N_PIECES_FOR_TWO: u64 = 8;
/// Buffers that the second thread fills ahead.
const N_BUFFERS: usize = 4;

/// What happens to tensors that only one side has, or that both have in different forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// They are errors. A tensor of one rank may be missing on either side: worlds differ.
    Exact,
    /// The checkpoint may have more tensors than the state; these are listed. Everything else is an error.
    Subset,
    /// They are left as they are, and listed.
    Partial,
}

/// What was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    pub tensors: Vec<String>,
    /// What was left as it is.
    pub left: Vec<TensorMisfit>,
}

/// A range of a shard's bytes and where it goes.
struct Wanted<'a> {
    range: Range<u64>,
    name: &'a str,
    offset: u64,
}

impl Checkpoint {
    /// Loads all tensors of the part. Shards of which it wants nothing are compared with their digests as well: a checkpoint is whole for
    /// all ranks or for none (CKPT-2).
    pub fn load(&self, part: &mut dyn Part, strictness: Strictness) -> Result<Loaded> {
        // A manifest may claim anything: memory is made for what files of that length are there for.
        self.look()?;
        let found: Vec<TensorInfo> = self.manifest().tensors.iter().map(|t| t.info.clone()).collect();
        part.make_room(&found);
        let loaded = self.fit(&part.tensors(), strictness)?;
        let wanted: BTreeSet<&str> = loaded.tensors.iter().map(String::as_str).collect();
        let mut by_shard: Vec<Vec<Wanted<'_>>> = self.manifest().shards.iter().map(|_| Vec::new()).collect();
        for tensor in self.manifest().tensors.iter().filter(|t| wanted.contains(t.info.name.as_str())) {
            let size = tensor.info.dtype.size() as u64;
            for slice in &tensor.slices {
                let range = slice.at..slice.at + slice.count * size;
                let (name, offset) = (tensor.info.name.as_str(), slice.start * size);
                by_shard[slice.shard as usize].push(Wanted { range, name, offset });
            }
        }
        for (i, mut wanted) in (0..).zip(by_shard) {
            wanted.sort_by_key(|w| (w.range.start, w.range.end));
            self.load_shard(i, &wanted, part)?;
        }
        Ok(loaded)
    }

    /// Which tensors are loaded; all that does not fit at once if that is an error.
    fn fit(&self, state: &[TensorInfo], strictness: Strictness) -> Result<Loaded> {
        let mut loaded = Loaded::default();
        let mut misfits = Vec::new();
        let mut known = BTreeSet::new();
        for info in state {
            if !known.insert(info.name.as_str()) {
                let (name, why) = (info.name.clone(), "the state has two tensors of this name");
                return Err(CheckpointError::Name { name, why });
            }
            let found = self.manifest().tensor(&info.name).map(|t| &t.info);
            if found.is_some_and(|f| f.dtype == info.dtype && f.shape == info.shape) {
                loaded.tensors.push(info.name.clone());
                continue;
            }
            let (name, wanted, found) = (info.name.clone(), Some(info.form()), found.map(TensorInfo::form));
            let may_be_missing = info.owner.is_some() && found.is_none();
            let list = if may_be_missing { &mut loaded.left } else { &mut misfits };
            list.push(TensorMisfit { name, wanted, found });
        }
        for TensorInfo { name, owner, .. } in self.manifest().tensors.iter().map(|t| &t.info) {
            if !known.contains(name.as_str()) {
                let found = self.manifest().tensor(name).map(|t| t.info.form());
                let may_be_left = owner.is_some() || strictness == Strictness::Subset;
                let list = if may_be_left { &mut loaded.left } else { &mut misfits };
                list.push(TensorMisfit { name: name.clone(), wanted: None, found });
            }
        }
        if strictness != Strictness::Partial && !misfits.is_empty() {
            let path = self.path().to_path_buf();
            return Err(CheckpointError::Unfit { step: self.step(), path, misfits });
        }
        loaded.left.extend(misfits);
        Ok(loaded)
    }

    fn load_shard(&self, index: u32, wanted: &[Wanted<'_>], part: &mut dyn Part) -> Result<()> {
        let shard = &self.manifest().shards[index as usize];
        let damaged = |flaw| {
            let damage = vec![self.damage(index, flaw)];
            CheckpointError::Damaged { step: self.step(), damage }
        };
        let file = self.open_shard(shard).map_err(damaged)?;
        let mut to_part = |begin: u64, bytes: &[u8]| hand_over(wanted, begin, bytes, part);
        match read_through(&file, shard, &mut to_part) {
            Ok(digest) if digest == shard.blake3 => Ok(()),
            Ok(_) => Err(damaged(Flaw::Digest)),
            Err(Broken::Read(error)) => Err(damaged(Flaw::Unreadable(error.to_string()))),
            Err(Broken::Part(error)) => Err(error),
        }
    }
}

/// Gives the part what it wants of these bytes of a shard.
fn hand_over(wanted: &[Wanted<'_>], begin: u64, bytes: &[u8], part: &mut dyn Part) -> Result<()> {
    let end = begin + bytes.len() as u64;
    let first = wanted.partition_point(|w| w.range.end <= begin);
    for w in wanted[first..].iter().take_while(|w| w.range.start < end) {
        let (from, to) = (w.range.start.max(begin), w.range.end.min(end));
        if from >= to {
            continue;
        }
        let bytes = &bytes[(from - begin) as usize..(to - begin) as usize];
        part.write(w.name, w.offset + (from - w.range.start), bytes).map_err(|cause| {
            CheckpointError::Part { tensor: w.name.to_string(), action: "written", cause }
        })?;
    }
    Ok(())
}

enum Broken {
    Read(io::Error),
    Part(CheckpointError),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::Read(error)
    }
}

/// The pieces of a shard, taken by two threads.
struct Pieces<'a> {
    file: &'a File,
    total: u64,
    next: AtomicU64,
}

impl Pieces<'_> {
    /// The index of a piece that no thread has taken. Relaxed: nothing but the number is shared.
    fn take(&self) -> Option<u64> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < digest::n_pieces(self.total)).then_some(index)
    }

    fn read(&self, index: u64, buffer: &mut Vec<u8>) -> io::Result<[u8; 32]> {
        let begin = index * PIECE as u64;
        buffer.resize((self.total - begin).min(PIECE as u64) as usize, 0);
        self.file.read_exact_at(buffer, begin)?;
        Ok(digest::piece(self.total, index, buffer))
    }
}

type Filled = (u64, Vec<u8>, io::Result<[u8; 32]>);

/// Hands all bytes of a shard over, in any order, and returns its digest.
fn read_through(
    file: &File,
    shard: &ShardEntry,
    to: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> std::result::Result<String, Broken> {
    let pieces = Pieces { file, total: shard.bytes, next: AtomicU64::new(0) };
    let n = digest::n_pieces(shard.bytes);
    let mut values = vec![[0; 32]; n as usize];
    let is_worth = n >= N_PIECES_FOR_TWO && thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    thread::scope(|scope| {
        let (to_caller, filled) = channel();
        let (to_free, free) = channel();
        if is_worth {
            for _ in 0..N_BUFFERS {
                let _ = to_free.send(Vec::new());
            }
            let pieces = &pieces;
            scope.spawn(move || read_ahead(pieces, &free, &to_caller));
        } else {
            drop(to_caller);
        }
        let mut own = Vec::new();
        loop {
            // What is filled comes first: its bytes are still in a cache.
            let (index, buffer, value) = match filled.try_recv() {
                Ok(taken) => taken,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => match pieces.take() {
                    Some(index) => {
                        values[index as usize] = pieces.read(index, &mut own)?;
                        to(index * PIECE as u64, &own).map_err(Broken::Part)?;
                        continue;
                    }
                    // The other thread ends when no piece is left, and its sender with it.
                    None => match filled.recv() {
                        Ok(taken) => taken,
                        Err(_) => return Ok(digest::join(&values)),
                    },
                },
            };
            values[index as usize] = value?;
            to(index * PIECE as u64, &buffer).map_err(Broken::Part)?;
            let _ = to_free.send(buffer);
        }
    })
}

/// Fills the buffers that are free, until no piece is left or the caller has given up.
fn read_ahead(pieces: &Pieces<'_>, free: &Receiver<Vec<u8>>, to_caller: &Sender<Filled>) {
    for mut buffer in free {
        let Some(index) = pieces.take() else { return };
        let value = pieces.read(index, &mut buffer);
        if to_caller.send((index, buffer, value)).is_err() {
            return;
        }
    }
}
