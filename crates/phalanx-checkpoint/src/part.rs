//! The state that is saved and loaded, as its owners show it.

use crate::{CheckpointError, TensorInfo};
use std::collections::BTreeMap;

/// Why a part could not give or take bytes.
pub type PartError = Box<dyn std::error::Error + Send + Sync>;

/// Named tensors: a graph's store, a module's state, tables. Bytes are little-endian and dense, in row-major order.
///
/// The methods are called on the thread that saves or loads, never on another one.
pub trait Part {
    /// All tensors, in the same order on every rank that has them alike.
    fn tensors(&self) -> Vec<TensorInfo>;

    /// Copies bytes of a tensor, from `offset` on, as many as `out` takes.
    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), PartError>;

    /// All bytes of a tensor, if they lie in memory as they are saved: a save then needs no copy of them.
    fn lend(&self, _name: &str) -> Option<&[u8]> {
        None
    }

    /// Replaces bytes of a tensor, from `offset` on. All calls of a load together cover each loaded tensor once.
    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), PartError>;

    /// Called before a load with all tensors of the checkpoint. A part that takes over what it finds makes room for it now, and names it among its
    /// [`tensors`](Part::tensors) from now on.
    fn make_room(&mut self, _found: &[TensorInfo]) {}
}

/// Tensors in memory of their own, for callers whose state cannot be written in pieces: they load into this, then take
/// each tensor whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedTensors {
    tensors: Vec<(TensorInfo, Vec<u8>)>,
    places: BTreeMap<String, usize>,
}

impl OwnedTensors {
    pub fn new() -> OwnedTensors {
        OwnedTensors::default()
    }

    /// Zeros for each of these tensors.
    pub fn zeros(infos: impl IntoIterator<Item = TensorInfo>) -> OwnedTensors {
        let mut tensors = OwnedTensors::new();
        for info in infos {
            let bytes = vec![0; info.bytes() as usize];
            tensors.insert(info, bytes);
        }
        tensors
    }

    /// Adds a tensor, or replaces the one of that name. Panics if the bytes are not as many as the form says.
    pub fn insert(&mut self, info: TensorInfo, bytes: Vec<u8>) {
        assert_eq!(bytes.len() as u64, info.bytes(), "the bytes of {info}");
        match self.places.get(&info.name) {
            Some(&at) => self.tensors[at] = (info, bytes),
            None => {
                self.places.insert(info.name.clone(), self.tensors.len());
                self.tensors.push((info, bytes));
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.places.get(name).map(|&at| self.tensors[at].1.as_slice())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&TensorInfo, &[u8])> {
        self.tensors.iter().map(|(info, bytes)| (info, bytes.as_slice()))
    }

    fn range(
        &self,
        name: &str,
        offset: u64,
        len: usize,
    ) -> Result<(usize, std::ops::Range<usize>), PartError> {
        let &at = self.places.get(name).ok_or("there is no such tensor")?;
        let start = usize::try_from(offset)?;
        let range = start..start.saturating_add(len);
        if range.end > self.tensors[at].1.len() {
            return Err("the range is beyond its end".into());
        }
        Ok((at, range))
    }
}

impl Part for OwnedTensors {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.tensors.iter().map(|(info, _)| info.clone()).collect()
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), PartError> {
        let (at, range) = self.range(name, offset, out.len())?;
        out.copy_from_slice(&self.tensors[at].1[range]);
        Ok(())
    }

    fn lend(&self, name: &str) -> Option<&[u8]> {
        self.get(name)
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), PartError> {
        let (at, range) = self.range(name, offset, bytes.len())?;
        self.tensors[at].1[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// Several parts as one. Their tensors have different names.
pub struct Several<'a> {
    parts: Vec<&'a mut dyn Part>,
    places: BTreeMap<String, usize>,
}

impl std::fmt::Debug for Several<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Several").field("places", &self.places).finish_non_exhaustive()
    }
}

impl<'a> Several<'a> {
    pub fn new(parts: Vec<&'a mut dyn Part>) -> Result<Several<'a>, CheckpointError> {
        let mut places = BTreeMap::new();
        for (i, part) in parts.iter().enumerate() {
            for TensorInfo { name, .. } in part.tensors() {
                if places.insert(name.clone(), i).is_some_and(|earlier| earlier != i) {
                    return Err(CheckpointError::Name { name, why: "two parts have a tensor of this name" });
                }
            }
        }
        Ok(Several { parts, places })
    }

    fn of(&self, name: &str) -> Result<usize, PartError> {
        self.places.get(name).copied().ok_or_else(|| "no part has it".into())
    }
}

impl Part for Several<'_> {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.parts.iter().flat_map(|part| part.tensors()).collect()
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), PartError> {
        self.parts[self.of(name)?].read(name, offset, out)
    }

    fn lend(&self, name: &str) -> Option<&[u8]> {
        self.parts[self.of(name).ok()?].lend(name)
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), PartError> {
        let at = self.of(name)?;
        self.parts[at].write(name, offset, bytes)
    }

    fn make_room(&mut self, found: &[TensorInfo]) {
        for (i, part) in self.parts.iter_mut().enumerate() {
            part.make_room(found);
            for TensorInfo { name, .. } in part.tensors() {
                self.places.entry(name).or_insert(i);
            }
        }
    }
}
