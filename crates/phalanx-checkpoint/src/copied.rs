//! A copy of this rank's share of the state, taken between two steps and written while training goes on.

use crate::{CheckpointError, Part, TensorSlice};

/// Copied slices. It keeps its memory, so the next copy finds pages that are there already.
#[derive(Clone, Debug, Default)]
pub struct Copied {
    slices: Vec<TensorSlice>,
    /// Where each slice begins in `bytes`.
    begins: Vec<usize>,
    bytes: Vec<u8>,
}

impl Copied {
    pub fn new() -> Copied {
        Copied::default()
    }

    /// Replaces what it holds by these slices of a part.
    pub fn copy(&mut self, part: &dyn Part, slices: &[TensorSlice]) -> Result<(), CheckpointError> {
        let total: u64 = slices.iter().map(TensorSlice::bytes).sum();
        self.slices.clear();
        self.begins.clear();
        if self.bytes.capacity() < total as usize {
            // New memory is zero already: its pages are touched once, by the copy.
            self.bytes = vec![0; total as usize];
        }
        self.bytes.resize(total as usize, 0);
        let mut rest = self.bytes.as_mut_slice();
        let mut begin = 0;
        for slice in slices {
            let (out, behind) = rest.split_at_mut(slice.bytes() as usize);
            let name = &slice.tensor.name;
            part.read(name, slice.offset(), out).map_err(|cause| CheckpointError::Part {
                tensor: name.clone(),
                action: "read",
                cause,
            })?;
            self.slices.push(slice.clone());
            self.begins.push(begin);
            begin += slice.bytes() as usize;
            rest = behind;
        }
        Ok(())
    }

    pub fn slices(&self) -> &[TensorSlice] {
        &self.slices
    }

    /// The bytes of the slice at this place of [`slices`](Self::slices).
    pub(crate) fn bytes(&self, at: usize) -> &[u8] {
        let begin = self.begins[at];
        &self.bytes[begin..begin + self.slices[at].bytes() as usize]
    }
}
