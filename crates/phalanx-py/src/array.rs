//! A result whose memory the engine made: given to torch, numpy and others through DLPack or numpy's array interface.

use crate::dlpack;
use phalanx_collective::engine::Tensor;
use phalanx_core::DType;
use pyo3::{
    exceptions::{PyBufferError, PyTypeError},
    prelude::*,
    types::{PyBytes, PyCapsule, PyDict},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Elements of a result, until somebody takes them over.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct Array {
    dtype: DType,
    shape: Vec<u64>,
    /// A lock because threads may ask at the same time; held for moments.
    tensor: Mutex<Option<Tensor>>,
}

impl Array {
    pub fn new(tensor: Tensor) -> Array {
        Array { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), tensor: Mutex::new(Some(tensor)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.tensor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, look: impl FnOnce(&mut Tensor) -> T) -> PyResult<T> {
        let gone = || PyBufferError::new_err("the memory was taken over through DLPack already");
        self.lock().as_mut().map(look).ok_or_else(gone)
    }
}

#[pymethods]
impl Array {
    /// The code of the element type.
    #[getter]
    fn dtype(&self) -> u8 {
        self.dtype as u8
    }

    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.shape.clone()
    }

    /// A copy of the bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|tensor| PyBytes::new(py, tensor.bytes()))
    }

    /// Gives the memory away; only once.
    #[pyo3(signature = (**_options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let tensor = self.lock().take();
        let gone = || PyBufferError::new_err("the memory was taken over through DLPack already");
        dlpack::capsule(py, tensor.ok_or_else(gone)?)
    }

    /// Memory of the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kind = match self.dtype {
            DType::U8 | DType::U16 => 'u',
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => 'i',
            DType::F16 | DType::F32 | DType::F64 => 'f',
            DType::Bool => 'b',
            DType::BF16 => return Err(PyTypeError::new_err("numpy has no bfloat16")),
        };
        let order = if self.dtype.size() == 1 { '|' } else { '<' };
        let address = self.with(|tensor| tensor.address().expose_provenance())?;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", format!("{order}{kind}{}", self.dtype.size()))?;
        interface.set_item("shape", pyo3::types::PyTuple::new(py, &self.shape)?)?;
        interface.set_item("data", (address, false))?;
        Ok(interface)
    }
}
