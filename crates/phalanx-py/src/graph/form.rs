//! Shapes, places and JSON, as they cross (PYGRAPH-1, PYGRAPH-2).

use phalanx_graph::{Dim, Shape, ir::Site};
use pyo3::{exceptions::PyValueError, prelude::*};
use serde::de::DeserializeOwned;

/// A file and a line.
pub type SourceLine = (String, u32);

/// A place in Python's code.
pub fn site((file, line): SourceLine) -> Site {
    Site::new(file, line)
}

/// `-k` stands for k times the batch.
pub fn shape(dims: &[i64]) -> PyResult<Shape> {
    let dim = |&d: &i64| match usize::try_from(d.unsigned_abs()) {
        Ok(n) if d < 0 => Ok(Dim::Batch(n)),
        Ok(n) => Ok(Dim::Fixed(n)),
        Err(_) => Err(PyValueError::new_err(format!("{d} is not a size of a dimension"))),
    };
    Ok(Shape(dims.iter().map(dim).collect::<PyResult<_>>()?))
}

pub fn dims(shape: &Shape) -> Vec<i64> {
    let number = |d: &Dim| match *d {
        Dim::Fixed(n) => n as i64,
        Dim::Batch(times) => -(times as i64),
        // Of gradients of tables alone, which no program declares.
        Dim::BatchPlus(..) => -1,
    };
    shape.dims().iter().map(number).collect()
}

/// What Python has written down.
pub fn read<T: DeserializeOwned>(what: &str, json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(|why| PyValueError::new_err(format!("{json} is not a {what}: {why}")))
}
