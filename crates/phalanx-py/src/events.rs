//! Event files, for `phalanx.summary`.

use phalanx_train::events::{EventError, EventWriter};
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};
use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// A file, until it is closed.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct EventFile {
    path: PathBuf,
    /// Locked only by threads that have released the GIL, so that a slow disk stops no others.
    writer: Mutex<Option<EventWriter>>,
}

#[pymethods]
impl EventFile {
    #[new]
    fn new(py: Python<'_>, logdir: PathBuf) -> PyResult<EventFile> {
        let writer = py.detach(|| EventWriter::create(&logdir)).map_err(|error| raised(&error))?;
        Ok(EventFile { path: writer.path().to_path_buf(), writer: Mutex::new(Some(writer)) })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn scalars(&self, py: Python<'_>, step: u64, values: Vec<(String, f32)>) -> PyResult<()> {
        let values: Vec<(&str, f32)> = values.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
        self.with(py, |writer| writer.scalars(step, &values))
    }

    fn histogram(&self, py: Python<'_>, step: u64, tag: String, values: Vec<f32>) -> PyResult<()> {
        self.with(py, |writer| writer.histogram(step, &tag, &values))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, EventWriter::flush)
    }

    /// Flushes and closes the file; a second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let close = || match self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(mut writer) => writer.flush(),
            None => Ok(()),
        };
        py.detach(close).map_err(|error| raised(&error))
    }
}

impl EventFile {
    fn with(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut EventWriter) -> Result<(), EventError> + Send,
    ) -> PyResult<()> {
        let acted =
            py.detach(|| self.writer.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(act));
        match acted {
            Some(result) => result.map_err(|error| raised(&error)),
            None => Err(PyValueError::new_err(format!("the writer of {} is closed", self.path.display()))),
        }
    }
}

fn raised(error: &EventError) -> PyErr {
    match error {
        EventError::NotFinite { .. } => PyValueError::new_err(error.to_string()),
        EventError::Create { .. } | EventError::Write { .. } => PyOSError::new_err(error.to_string()),
    }
}
