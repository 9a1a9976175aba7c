//! Tensors of Python's, as checkpoints see them.

use crate::{array::Array, lent::LentTensor};
use phalanx_checkpoint::{Part, PartError, Strictness, TensorInfo};
use phalanx_collective::engine::EngineTensor;
use pyo3::{exceptions::PyValueError, prelude::*};
use std::collections::BTreeMap;

/// Name, memory, and the rank that alone has it, if not all have it alike.
pub type Named = (String, LentTensor, Option<u32>);

/// Tensors that Python lends, and new ones for what it takes over from checkpoints.
pub struct LentPart {
    tensors: Vec<(TensorInfo, LentTensor)>,
    places: BTreeMap<String, usize>,
    n_lent: usize,
    /// Tensors with these beginnings are taken over, whatever they are.
    open: Vec<String>,
}

impl LentPart {
    pub fn new(named: Vec<Named>, open: Vec<String>) -> LentPart {
        let (n_lent, tensors, places) = (named.len(), Vec::new(), BTreeMap::new());
        let mut part = LentPart { tensors, places, n_lent, open };
        for (name, lent, owner) in named {
            let (dtype, shape) = (lent.0.dtype(), lent.0.shape().to_vec());
            part.push(TensorInfo { name, dtype, shape, owner }, lent);
        }
        part
    }

    fn push(&mut self, info: TensorInfo, lent: LentTensor) {
        self.places.insert(info.name.clone(), self.tensors.len());
        self.tensors.push((info, lent));
    }

    /// What was taken over.
    pub fn into_made(mut self) -> Vec<(String, Array)> {
        let made = self.tensors.split_off(self.n_lent);
        made.into_iter().map(|(info, tensor)| (info.name, Array::new(tensor.0))).collect()
    }

    fn at(&self, name: &str) -> Result<usize, PartError> {
        self.places.get(name).copied().ok_or_else(|| "there is no such tensor".into())
    }
}

impl Part for LentPart {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.tensors.iter().map(|(info, _)| info.clone()).collect()
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), PartError> {
        let start = usize::try_from(offset)?;
        let bytes = self.tensors[self.at(name)?].1.0.bytes();
        let range = start.checked_add(out.len()).and_then(|end| bytes.get(start..end));
        out.copy_from_slice(range.ok_or("the range is beyond its end")?);
        Ok(())
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), PartError> {
        let at = self.at(name)?;
        self.tensors[at].1.write(usize::try_from(offset)?, bytes).map_err(PartError::from)
    }

    fn make_room(&mut self, found: &[TensorInfo]) {
        let made = self.tensors.split_off(self.n_lent);
        for (info, _) in made {
            self.places.remove(&info.name);
        }
        for info in found.iter().filter(|info| info.owner.is_none()) {
            let is_open = self.open.iter().any(|begin| info.name.starts_with(begin));
            if is_open && !self.places.contains_key(&info.name) {
                let tensor = EngineTensor::zeros(info.dtype, info.shape.clone());
                self.push(info.clone(), LentTensor(tensor));
            }
        }
    }
}

pub fn strictness(word: &str) -> PyResult<Strictness> {
    Ok(match word {
        "exact" => Strictness::Exact,
        "subset" => Strictness::Subset,
        "partial" => Strictness::Partial,
        _ => return Err(PyValueError::new_err(format!("strictness cannot be {word:?}"))),
    })
}
