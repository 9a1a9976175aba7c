//! Tensors as files have them: little-endian, whatever the host is.

use super::tensor::{Tensor, TensorError};
use phalanx_core::DType;

impl Tensor {
    pub fn to_le_bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes().to_vec();
        turn(&mut bytes, self.dtype().size());
        bytes
    }

    /// Nothing is allocated before the bytes were seen to be as many as the dimensions say.
    pub fn from_le_bytes(dtype: DType, dims: &[usize], bytes: &[u8]) -> Result<Tensor, TensorError> {
        let wanted = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        if wanted.checked_mul(dtype.size()) != Some(bytes.len()) {
            let got = bytes.len() / dtype.size();
            return Err(TensorError::Length { dims: dims.to_vec(), wanted, got });
        }
        let mut tensor = Tensor::zeros(dtype, dims);
        tensor.bytes_mut().copy_from_slice(bytes);
        turn(tensor.bytes_mut(), dtype.size());
        Ok(tensor)
    }
}

fn turn(bytes: &mut [u8], size: usize) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}
