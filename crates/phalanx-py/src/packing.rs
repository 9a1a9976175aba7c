//! Copies many small tensors into one buffer and back, with one call for all of them.

use crate::lent::LentTensor;
use pyo3::{exceptions::PyValueError, prelude::*};

/// Where each of several tensors lies in a buffer: its first byte and its number of bytes.
#[derive(Debug)]
#[pyclass(frozen)]
pub struct Packing {
    places: Vec<(usize, usize)>,
}

#[pymethods]
impl Packing {
    #[new]
    fn new(places: Vec<(usize, usize)>) -> Packing {
        Packing { places }
    }

    /// Copies the contiguous tensors at these addresses into the buffer.
    fn pack(&self, mut buffer: LentTensor, addresses: Vec<usize>) -> PyResult<()> {
        buffer.copy_in(&self.at(&addresses)?).map_err(PyValueError::new_err)
    }

    /// Copies the buffer to the contiguous tensors at these addresses.
    fn unpack(&self, buffer: LentTensor, addresses: Vec<usize>) -> PyResult<()> {
        buffer.copy_out(&self.at(&addresses)?).map_err(PyValueError::new_err)
    }
}

impl Packing {
    fn at(&self, addresses: &[usize]) -> PyResult<Vec<Placed>> {
        if addresses.len() != self.places.len() {
            let (n, places) = (addresses.len(), self.places.len());
            return Err(PyValueError::new_err(format!("{n} tensors do not fit {places} places")));
        }
        let placed = |(&address, &(start, n_bytes))| Placed { address, start, n_bytes };
        Ok(addresses.iter().zip(&self.places).map(placed).collect())
    }
}

/// A tensor's memory and its place in the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    pub address: usize,
    pub start: usize,
    pub n_bytes: usize,
}
