//! Samples of a rank, for `phalanx.data`.

use phalanx_core::Rank;
use phalanx_train::data::{Ends, Indices, Sampler, SamplerError, SamplerState};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What does not depend on ranks and epochs.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct DataSampler {
    n: u64,
    seed: u64,
    ends: Ends,
}

#[pymethods]
impl DataSampler {
    #[new]
    fn new(n: u64, seed: u64, ends: &str) -> PyResult<DataSampler> {
        let ends = match ends {
            "pad" => Ends::Pad,
            "drop" => Ends::Drop,
            "uneven" => Ends::Uneven,
            _ => {
                let text = format!("ends must be \"pad\", \"drop\" or \"uneven\", not {ends:?}");
                return Err(PyValueError::new_err(text));
            }
        };
        Ok(DataSampler { n, seed, ends })
    }

    /// A rank's samples of an epoch, without the first ones, which were consumed.
    fn indices(&self, world: u32, rank: u32, epoch: u64, consumed: u64) -> PyResult<DataIndices> {
        let sampler = Sampler { world, rank: Rank(rank), ..self.sampler(epoch) };
        let indices = sampler.indices(consumed).map_err(refused)?;
        Ok(DataIndices { indices: Mutex::new(indices) })
    }

    /// Whether a saved position fits.
    fn check(&self, n: u64, seed: u64, epoch: u64, consumed: u64) -> PyResult<()> {
        let state = SamplerState { n, seed, epoch, consumed };
        self.sampler(0).restore(&state).map(drop).map_err(refused)
    }
}

impl DataSampler {
    fn sampler(&self, epoch: u64) -> Sampler {
        let DataSampler { n, seed, ends } = *self;
        Sampler { n, world: 1, rank: Rank(0), seed, epoch, ends }
    }
}

fn refused(error: SamplerError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The samples of a rank, as an iterator.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct DataIndices {
    /// A lock because threads may ask at the same time; held for moments.
    indices: Mutex<Indices>,
}

impl DataIndices {
    fn lock(&self) -> MutexGuard<'_, Indices> {
        self.indices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl DataIndices {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self) -> Option<u64> {
        self.lock().next()
    }

    /// How many are left.
    fn __len__(&self) -> usize {
        self.lock().len()
    }

    /// How many this rank has taken.
    #[getter]
    fn taken(&self) -> u64 {
        self.lock().taken()
    }

    /// How many samples of the epoch all ranks have consumed once each of them took this many.
    fn consumed_after(&self, taken: u64) -> u64 {
        self.lock().consumed_after(taken)
    }
}
