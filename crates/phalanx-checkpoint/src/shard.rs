//! Writes one shard: a safetensors file, streamed, with its digests.
//!
//! The format is a length (u64, little-endian), a JSON header, and the data without gaps. The largest elements come first,
//! so that all tensors are aligned. A tensor that is cut stands there as `name[start:end]`, with one dimension.
//!
//! A second thread hashes what the first one has written: the kernel's copying and the disk take longer, so digests cost
//! no time of their own.

use crate::{
    CheckpointError, Copied, Part,
    durable::PathContext,
    layout,
    manifest::{ShardRecord, SliceRecord},
    share::TensorSlice,
};
use phalanx_core::DType;
use serde_json::{Map, json};
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write},
    ops::Deref,
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};
use xxhash_rust::xxh3::Xxh3Default;

type Result<T> = std::result::Result<T, CheckpointError>;

/// What is written and hashed at a time: much more than a system call costs, much less than a cache holds.
const BITE: usize = 1 << 20;
/// How much is written before the disk begins.
const FLUSH_BYTES: usize = 32 << 20;
/// Buffers between the writing and the hashing thread.
const N_BUFFERS: usize = 4;

/// Which shard, and the rank that writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardId {
    pub index: u32,
    pub of: u32,
    pub rank: u32,
}

/// Where the bytes of slices come from.
pub enum SliceBytes<'a> {
    Part(&'a dyn Part),
    Copied(&'a Copied),
}

/// A piece on its way to the hashing thread.
enum Piece<'a> {
    Lent(&'a [u8]),
    Buffer(Vec<u8>),
}

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Piece::Lent(bytes) => bytes,
            Piece::Buffer(bytes) => bytes,
        }
    }
}

/// The name of a type in a safetensors header.
fn safetensors_name(dtype: DType) -> String {
    dtype.name().to_uppercase()
}

/// The header and, for each slice, where its bytes begin in the file.
fn header(slices: &[&TensorSlice]) -> Result<(Vec<u8>, Vec<u64>)> {
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), json!({ "format": "phalanx" }));
    let (mut end, mut begins) = (0, Vec::new());
    for slice in slices {
        let (name, begin) = (&slice.tensor.name, end);
        end += slice.bytes();
        begins.push(begin);
        let (key, shape) = match slice.is_whole() {
            true => (name.clone(), slice.tensor.shape.clone()),
            false => (format!("{name}[{}:{}]", slice.start, slice.start + slice.count), vec![slice.count]),
        };
        let entry = json!({ "dtype": safetensors_name(slice.tensor.dtype), "shape": shape, "data_offsets": [begin, end] });
        if entries.insert(key, entry).is_some() {
            let why = "the shard has this name twice, or it is the name of the format's own entry";
            return Err(CheckpointError::Name { name: name.clone(), why });
        }
    }
    let mut text = serde_json::to_vec(&entries).expect("plain types with text keys");
    // The data begins at a multiple of 8.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    begins.iter_mut().for_each(|begin| *begin += bytes.len() as u64);
    Ok((bytes, begins))
}

/// How slices stand in a file: in which order, behind which header.
#[derive(Debug)]
pub struct LaidOut {
    /// Places among the slices that were given.
    pub order: Vec<usize>,
    pub header: Vec<u8>,
    /// Where each slice begins in the file, in that order.
    begins: Vec<u64>,
    /// Of the whole file.
    pub bytes: u64,
}

impl LaidOut {
    pub fn new(slices: &[TensorSlice]) -> Result<LaidOut> {
        let mut names = BTreeSet::new();
        for slice in slices {
            if !names.insert((slice.tensor.name.as_str(), slice.start)) {
                let why = "two tensors have this name";
                return Err(CheckpointError::Name { name: slice.tensor.name.clone(), why });
            }
        }
        let mut order: Vec<usize> = (0..slices.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(slices[i].tensor.dtype.size()));
        let ordered: Vec<&TensorSlice> = order.iter().map(|&i| &slices[i]).collect();
        let (header, begins) = header(&ordered)?;
        let bytes = header.len() as u64 + ordered.iter().map(|s| s.bytes()).sum::<u64>();
        Ok(LaidOut { order, header, begins, bytes })
    }

    /// The record of these slices. `xxh3s` are their checksums in the order of the file; those of empty ones at the end may be missing.
    pub fn record(&self, id: ShardId, slices: &[TensorSlice], blake3: String, xxh3s: &[u64]) -> ShardRecord {
        let at = |i: usize| xxh3s.get(i).copied().unwrap_or_else(|| xxhash_rust::xxh3::xxh3_64(&[]));
        let places = self.order.iter().zip(&self.begins).enumerate();
        let records = places.map(|(i, (&from, &begin))| SliceRecord::new(&slices[from], begin, at(i)));
        let (shard, of, rank) = (id.index, id.of, id.rank);
        ShardRecord { shard, of, rank, bytes: self.bytes, blake3, slices: records.collect() }
    }
}

/// Writes these slices into the directory of a draft; they are on the disk when it returns.
pub fn write(
    draft: &Path,
    id: ShardId,
    slices: &[TensorSlice],
    origin: &SliceBytes<'_>,
) -> Result<ShardRecord> {
    let laid = LaidOut::new(slices)?;
    let path = draft.join(layout::shard(id.index, id.of));
    let file = File::create(&path).said("create", &path)?;
    let (blake3, xxh3s) = thread::scope(|scope| {
        let (to_hash, pieces) = channel();
        let (to_free, free) = channel();
        for _ in 0..N_BUFFERS {
            let _ = to_free.send(Vec::new());
        }
        let hasher = scope.spawn(move || hash(&pieces, &to_free));
        let (to_flush, grown) = channel();
        let flusher = scope.spawn({
            let file = &file;
            move || flush(file, &grown)
        });
        let mut out = Out { file: &file, path: &path, to_hash, free, to_flush, unflushed: 0 };
        out.take(None, Piece::Buffer(laid.header.clone()))?;
        for (i, &from) in laid.order.iter().enumerate() {
            match origin {
                SliceBytes::Copied(copied) => out.lent(i, copied.bytes(from))?,
                SliceBytes::Part(part) => out.read(i, &slices[from], *part)?,
            }
        }
        drop(out);
        // An error of writing back is told once: it must not be lost here.
        flusher.join().expect("flushing does not panic").said("sync", &path)?;
        file.sync_all().said("sync", &path)?;
        Ok(hasher.join().expect("hashing does not panic"))
    })?;
    Ok(laid.record(id, slices, blake3, &xxh3s))
}

/// The file, and the way to the hashing thread.
struct Out<'a, 'f> {
    file: &'f File,
    path: &'f Path,
    to_hash: Sender<(Option<usize>, Piece<'a>)>,
    free: Receiver<Vec<u8>>,
    to_flush: Sender<()>,
    unflushed: usize,
}

impl<'a> Out<'a, '_> {
    fn take(&mut self, slice: Option<usize>, piece: Piece<'a>) -> Result<()> {
        self.file.write_all(&piece).said("write", self.path)?;
        self.unflushed += piece.len();
        if self.unflushed >= FLUSH_BYTES {
            self.unflushed = 0;
            let _ = self.to_flush.send(());
        }
        // The hashing thread ends when this sender does.
        let _ = self.to_hash.send((slice, piece));
        Ok(())
    }

    fn lent(&mut self, slice: usize, bytes: &'a [u8]) -> Result<()> {
        bytes.chunks(BITE).try_for_each(|bite| self.take(Some(slice), Piece::Lent(bite)))
    }

    fn read(&mut self, i: usize, slice: &TensorSlice, part: &'a dyn Part) -> Result<()> {
        let range = slice.offset() as usize..(slice.offset() + slice.bytes()) as usize;
        if let Some(bytes) = part.lend(&slice.tensor.name).and_then(|bytes| bytes.get(range)) {
            return self.lent(i, bytes);
        }
        let mut done = 0;
        while done < slice.bytes() {
            let n = (slice.bytes() - done).min(BITE as u64) as usize;
            let mut buffer = self.free.recv().expect("the hashing thread gives every buffer back");
            buffer.resize(n, 0);
            let name = &slice.tensor.name;
            part.read(name, slice.offset() + done, &mut buffer).map_err(|cause| CheckpointError::Part {
                tensor: name.clone(),
                action: "read",
                cause,
            })?;
            self.take(Some(i), Piece::Buffer(buffer))?;
            done += n as u64;
        }
        Ok(())
    }
}

/// Has the disk write what is there already, so that it does not begin only when everything has been copied.
fn flush(file: &File, grown: &Receiver<()>) -> io::Result<()> {
    while grown.recv().is_ok() {
        // What has grown meanwhile is written with it.
        while grown.try_recv().is_ok() {}
        file.sync_data()?;
    }
    Ok(())
}

/// The digest of all pieces, and of those of each slice.
fn hash(pieces: &Receiver<(Option<usize>, Piece<'_>)>, to_free: &Sender<Vec<u8>>) -> (String, Vec<u64>) {
    let (mut whole, mut slices) = (blake3::Hasher::new(), Vec::<Xxh3Default>::new());
    for (slice, piece) in pieces {
        whole.update(&piece);
        if let Some(i) = slice {
            if slices.len() <= i {
                slices.resize_with(i + 1, Xxh3Default::new);
            }
            slices[i].update(&piece);
        }
        if let Piece::Buffer(buffer) = piece {
            let _ = to_free.send(buffer);
        }
    }
    (whole.finalize().to_hex().to_string(), slices.iter().map(Xxh3Default::digest).collect())
}
