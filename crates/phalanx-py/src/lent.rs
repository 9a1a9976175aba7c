//! Python's memory, lent to the engine together with the object that owns it.

use crate::packing::Placed;
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
        // keeps the memory; that nobody else uses it until the operation is done is the promise of the caller that submits it, as with any
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

impl LentTensor {
    /// Replaces bytes, from `at` on. The caller of Python lets nobody else use the tensor meanwhile.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), &'static str> {
        let n = self.0.bytes().len();
        if at.checked_add(bytes.len()).is_none_or(|end| end > n) {
            return Err("the range is beyond its end");
        }
        if self.0.dtype() == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err("a byte is neither true nor false");
        }
        // SAFETY: the range was just checked against the tensor's bytes, which its keeper holds and which may be written; `bytes` cannot
        // overlap them, because it is memory of Rust's. Every pattern is a value of the element types, and of bools it was checked.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.address().add(at), bytes.len()) };
        Ok(())
    }

    /// Its bytes, to be written. The caller of Python lets nobody else use the tensor meanwhile.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], &'static str> {
        if self.0.dtype() == DType::Bool {
            return Err("a byte that is written may be neither true nor false");
        }
        // SAFETY: the keeper holds these bytes, which may be written; `&mut self` makes it the only view of Rust's. Every pattern is a value
        // of the element types but bool.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.address(), self.0.bytes().len()) })
    }

    /// Copies tensors into this one, each to its place.
    pub fn copy_in(&mut self, placed: &[Placed]) -> Result<(), &'static str> {
        self.check_places(placed)?;
        for of in placed.iter().filter(|of| of.n_bytes > 0) {
            // SAFETY: the place is within the tensor, as was just checked. `python/phalanx` takes the address from a contiguous tensor of
            // that number of bytes, which it holds during the call; the GIL is held, too, so no Python program resizes it. `copy` permits overlap.
            // The program lets no thread write to a gradient while it is reduced.
            unsafe {
                let from = std::ptr::with_exposed_provenance::<u8>(of.address);
                std::ptr::copy(from, self.0.address().add(of.start), of.n_bytes);
            }
        }
        Ok(())
    }

    /// Copies this tensor to others, from the place of each.
    pub fn copy_out(&self, placed: &[Placed]) -> Result<(), &'static str> {
        self.check_places(placed)?;
        for of in placed.iter().filter(|of| of.n_bytes > 0) {
            // SAFETY: as in `copy_in`, with source and destination exchanged; both tensors have the same element type, so every value that
            // is copied is one of it.
            unsafe {
                let to = std::ptr::with_exposed_provenance_mut::<u8>(of.address);
                std::ptr::copy(self.0.address().add(of.start), to, of.n_bytes);
            }
        }
        Ok(())
    }

    fn check_places(&self, placed: &[Placed]) -> Result<(), &'static str> {
        let n = self.0.bytes().len();
        let fits = |of: &Placed| of.start.checked_add(of.n_bytes).is_some_and(|end| end <= n);
        if !placed.iter().all(fits) {
            return Err("a place is beyond the end of the buffer");
        }
        if placed.iter().any(|of| of.address == 0 && of.n_bytes > 0) {
            return Err("a tensor has no memory");
        }
        Ok(())
    }
}
