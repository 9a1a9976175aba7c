//! Python's memory, lent to the engine together with the object that owns it.

use phalanx_collective::engine::{EngineTensor, spec::Form};
use phalanx_core::DType;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

/// `(address, element type, shape, owner)`, or bytes, which are copied.
pub struct LentTensor(pub EngineTensor);

impl<'py> FromPyObject<'_, 'py> for LentTensor {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<LentTensor> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(LentTensor(EngineTensor::new(bytes.as_bytes().to_vec())));
        }
        let (address, code, shape, owner): (usize, u8, Vec<u64>, Py<PyAny>) = object.extract()?;
        let form = Form { dtype: dtype(code)?, shape };
        if form.n_bytes() > 0 && (address == 0 || !address.is_multiple_of(form.dtype.size())) {
            let text = format!("a tensor of {} cannot be at address {address:#x}", form.dtype);
            return Err(PyValueError::new_err(text));
        }
        // SAFETY: `python/phalanx` takes address, type and shape from a contiguous tensor or array and passes that very object as the owner, which
        // keeps the memory; that nobody else uses it until the operation is done is the promise of whoever submits it, as with any
        // asynchronous operation. Alignment was just checked; of the element types only bool has invalid values, and neither torch nor numpy makes them.
        let tensor = unsafe {
            EngineTensor::lent(std::ptr::with_exposed_provenance_mut(address), form, Box::new(owner))
        };
        Ok(LentTensor(tensor))
    }
}

pub fn dtype(code: u8) -> PyResult<DType> {
    DType::from_code(code)
        .ok_or_else(|| PyValueError::new_err(format!("no element type has the code {code}")))
}
