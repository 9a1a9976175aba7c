//! One checkpoint: opened through its directory, so that it stays the same one when another takes its name.

use crate::{
    CheckpointError, Flaw, ManifestFault,
    digest::{self, PIECE},
    durable::PathContext,
    layout::{self, MANIFEST},
    manifest::{LARGEST, Manifest, ShardEntry, SliceEntry},
};
use rustix::fs::{Mode, OFlags, openat};
use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::Xxh3Default;

type Result<T> = std::result::Result<T, CheckpointError>;

/// A checkpoint whose manifest is right.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    dir: File,
    manifest: Manifest,
    digest: String,
}

/// A shard that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub path: PathBuf,
    pub flaw: Flaw,
    /// The tensors that are lost with it; none if only the header is damaged.
    pub tensors: Vec<String>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.flaw)?;
        match self.tensors.as_slice() {
            [] => write!(f, " (its header, no tensor)"),
            [one] => write!(f, " (tensor {one})"),
            [first, .., last] => write!(f, " ({} tensors: {first} to {last})", self.tensors.len()),
        }
    }
}

impl Checkpoint {
    /// Opens the directory of a checkpoint and reads its manifest. Shards are not read yet.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let dir = File::open(path).said("open", path)?;
        let manifest_path = path.join(MANIFEST);
        let mut file = open_in(&dir, MANIFEST).said("open", &manifest_path)?;
        let wrong = |why| CheckpointError::Manifest { path: manifest_path.clone(), why };
        let n = file.metadata().said("look at", &manifest_path)?.len();
        if n > LARGEST {
            return Err(wrong(ManifestFault::Large(n)));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).said("read", &manifest_path)?;
        let (manifest, digest) = Manifest::decode(&bytes).map_err(wrong)?;
        let named = path.file_name().and_then(|name| name.to_str()).and_then(layout::step_of);
        if let Some(named) = named.filter(|&named| named != manifest.step()) {
            return Err(wrong(ManifestFault::Step { found: manifest.step(), named }));
        }
        Ok(Checkpoint { path: path.to_path_buf(), dir, manifest, digest })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn step(&self) -> u64 {
        self.manifest.step()
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The digest of the manifest, and so of everything.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether all shards are there with their lengths. Their content is not read.
    pub fn look(&self) -> Result<()> {
        let shards = (0..).zip(&self.manifest.shards);
        let damage: Vec<Damage> =
            shards.filter_map(|(i, shard)| Some(self.damage(i, self.open_shard(shard).err()?))).collect();
        self.judged(damage)
    }

    /// Reads everything and compares it with its digests.
    pub fn verify(&self) -> Result<()> {
        let mut damage = Vec::new();
        for (i, shard) in (0..).zip(&self.manifest.shards) {
            let checked = self.open_shard(shard).and_then(|file| {
                let unread = |e: io::Error| Flaw::Unreadable(e.to_string());
                if digest_of(&file, shard.bytes).map_err(unread)? == shard.blake3 {
                    Ok(())
                } else {
                    Err(Flaw::Digest)
                }
            });
            if let Err(flaw) = checked {
                damage.push(self.damage(i, flaw));
            }
        }
        self.judged(damage)
    }

    /// The bytes of one tensor, compared with the checksums of its slices. For tensors that are small beside their shards.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let missing = CheckpointError::Part {
            tensor: name.to_string(),
            action: "read",
            cause: "the checkpoint does not have it".into(),
        };
        let tensor = self.manifest.tensor(name).ok_or(missing)?;
        let size = tensor.info.dtype.size() as u64;
        let mut bytes = Vec::new();
        for slice in &tensor.slices {
            let shard = &self.manifest.shards[slice.shard as usize];
            let damaged = |flaw| {
                let damage = vec![self.damage(slice.shard, flaw)];
                CheckpointError::Damaged { step: self.step(), damage }
            };
            // The file first: it has the length that the manifest claims, so the memory is worth it.
            let file = self.open_shard(shard).map_err(damaged)?;
            let begin = bytes.len();
            bytes.resize(begin + (slice.count * size) as usize, 0);
            let out = &mut bytes[begin..];
            let read = file.read_exact_at(out, slice.at).map_err(|e| Flaw::Unreadable(e.to_string()));
            let sum = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(out));
            read.and(if sum == slice.xxh3 { Ok(()) } else { Err(Flaw::Digest) }).map_err(damaged)?;
        }
        Ok(bytes)
    }

    fn judged(&self, damage: Vec<Damage>) -> Result<()> {
        if damage.is_empty() { Ok(()) } else { Err(CheckpointError::Damaged { step: self.step(), damage }) }
    }

    pub(crate) fn open_shard(&self, shard: &ShardEntry) -> std::result::Result<File, Flaw> {
        let opened = open_in(&self.dir, &shard.file).and_then(|file| Ok((file.metadata()?.len(), file)));
        match opened {
            Ok((found, file)) if found == shard.bytes => Ok(file),
            Ok((found, _)) => Err(Flaw::Length { wanted: shard.bytes, found }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Flaw::Missing),
            Err(error) => Err(Flaw::Unreadable(error.to_string())),
        }
    }

    /// What is lost with a shard.
    pub(crate) fn damage(&self, shard: u32, flaw: Flaw) -> Damage {
        let entry = &self.manifest.shards[shard as usize];
        let file = open_in(&self.dir, &entry.file);
        let is_lost = |slice: &SliceEntry, size: u64| match &file {
            Ok(file) => xxh3_of(file, slice.at, slice.count * size).ok().as_ref() != Some(&slice.xxh3),
            Err(_) => true,
        };
        let tensors = self.manifest.tensors.iter().filter(|tensor| {
            let size = tensor.info.dtype.size() as u64;
            tensor.slices.iter().any(|slice| slice.shard == shard && is_lost(slice, size))
        });
        let tensors = tensors.map(|tensor| tensor.info.name.clone()).collect();
        Damage { path: self.path.join(&entry.file), flaw, tensors }
    }
}

fn open_in(dir: &File, name: &str) -> io::Result<File> {
    Ok(openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn digest_of(file: &File, total: u64) -> io::Result<String> {
    let mut buffer = vec![0; PIECE];
    let mut values = Vec::new();
    for index in 0..digest::n_pieces(total) {
        let begin = index * PIECE as u64;
        let bytes = &mut buffer[..(total - begin).min(PIECE as u64) as usize];
        file.read_exact_at(bytes, begin)?;
        values.push(digest::piece(total, index, bytes));
    }
    Ok(digest::join(&values))
}

fn xxh3_of(file: &File, begin: u64, n: u64) -> io::Result<String> {
    let (mut hash, mut buffer) = (Xxh3Default::new(), vec![0; PIECE]);
    let mut done = 0;
    while done < n {
        let bytes = &mut buffer[..(n - done).min(PIECE as u64) as usize];
        file.read_exact_at(bytes, begin + done)?;
        hash.update(bytes);
        done += bytes.len() as u64;
    }
    Ok(format!("{:016x}", hash.digest()))
}
