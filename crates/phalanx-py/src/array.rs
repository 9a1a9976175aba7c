//! A result whose memory the engine made: given to torch, numpy and others through DLPack or numpy's array interface.
//!
//! - ARRAY-1: all views of the memory, from numpy or through DLPack, share it with this object; it is freed with the last of them.

use crate::dlpack;
use phalanx_collective::engine::EngineTensor;
use phalanx_core::DType;
use pyo3::{
    exceptions::{PyBufferError, PyTypeError},
    prelude::*,
    types::{PyBytes, PyCapsule, PyDict},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Elements of a result.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct Array {
    dtype: DType,
    shape: Vec<u64>,
    memory: Arc<Mutex<EngineTensor>>,
}

impl Array {
    pub fn new(tensor: EngineTensor) -> Array {
        Array { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), memory: Arc::new(Mutex::new(tensor)) }
    }

    /// A lock because threads may ask at the same time; held for moments.
    fn lock(&self) -> MutexGuard<'_, EngineTensor> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.lock().bytes())
    }

    /// Shares the memory (ARRAY-1), or gives a copy if that is asked for. The capsule has no version, which consumers of every version read.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // What a consumer could read at most; less than that is always right.
        let _ = max_version;
        if stream.is_some() {
            return Err(PyBufferError::new_err("CPU memory has no stream: pass stream=None"));
        }
        if let Some(device) = dl_device.filter(|d| *d != (dlpack::CPU, 0)) {
            let text =
                format!("the memory is on the CPU, (1, 0), and cannot be moved to the device {device:?}");
            return Err(PyBufferError::new_err(text));
        }
        let memory = match copy {
            Some(true) => Arc::new(Mutex::new(dlpack::copied(&self.lock()))),
            _ => self.memory.clone(),
        };
        dlpack::capsule(py, memory)
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
        let address = self.lock().address().expose_provenance();
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", format!("{order}{kind}{}", self.dtype.size()))?;
        interface.set_item("shape", pyo3::types::PyTuple::new(py, &self.shape)?)?;
        interface.set_item("data", (address, false))?;
        Ok(interface)
    }
}
