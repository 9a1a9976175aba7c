//! Values, from numpy and back. Each direction copies once.

use crate::lent::LentTensor;
use half::{bf16, f16};
use phalanx_collective::engine::EngineTensor;
use phalanx_core::{DType, Element};
use phalanx_graph::Tensor;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyByteArray};

/// Code of the element type, shape, elements.
pub type Given = (u8, Vec<usize>, Py<PyByteArray>);

pub fn take(lent: &LentTensor) -> PyResult<Tensor> {
    let memory = &lent.0;
    match memory.dtype() {
        DType::U8 => copy(memory, |dims, data: &[u8]| Tensor::new(dims, data)),
        DType::I8 => copy(memory, |dims, data: &[i8]| Tensor::new(dims, data)),
        DType::U16 => copy(memory, |dims, data: &[u16]| Tensor::new(dims, data)),
        DType::I16 => copy(memory, |dims, data: &[i16]| Tensor::new(dims, data)),
        DType::I32 => copy(memory, |dims, data: &[i32]| Tensor::new(dims, data)),
        DType::I64 => copy(memory, |dims, data: &[i64]| Tensor::new(dims, data)),
        DType::F32 => copy(memory, |dims, data: &[f32]| Tensor::new(dims, data)),
        DType::F64 => copy(memory, |dims, data: &[f64]| Tensor::new(dims, data)),
        DType::F16 => copy(memory, |dims, data: &[f16]| Tensor::new(dims, data)),
        DType::BF16 => copy(memory, |dims, data: &[bf16]| Tensor::new(dims, data)),
        DType::Bool => copy(memory, Tensor::of_booleans),
    }
}

fn copy<T: Element, E: std::fmt::Display>(
    memory: &EngineTensor,
    make: impl FnOnce(&[usize], &[T]) -> Result<Tensor, E>,
) -> PyResult<Tensor> {
    let dims: Vec<usize> = memory.shape().iter().map(|&d| d as usize).collect();
    let data = memory.as_slice().expect("asked for as what it is");
    make(&dims, data).map_err(|why| PyValueError::new_err(why.to_string()))
}

pub fn give(py: Python<'_>, tensor: &Tensor) -> Given {
    let bytes = PyByteArray::new(py, tensor.bytes()).unbind();
    (tensor.dtype() as u8, tensor.dims().to_vec(), bytes)
}
