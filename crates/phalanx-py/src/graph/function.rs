//! Python functions as operations. Workers take the GIL for a call; the thread that runs the program has let go of it.

use super::tensor::Given;
use phalanx_graph::op::{ForeignFunction, ForeignInput, ForeignOutput};
use pyo3::{
    exceptions::{PyKeyboardInterrupt, PyValueError},
    prelude::*,
    types::{PyByteArray, PyBytes},
};

/// A function that takes arrays, and gives the bytes of others.
pub fn of(call: Py<PyAny>) -> ForeignFunction {
    ForeignFunction::new(move |inputs, outputs| {
        Python::attach(|py| called(py, &call, inputs, outputs).map_err(|why| told(py, &why)))
    })
}

/// Why a program with such a function cannot be written down.
pub fn unwritten(title: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{title} is a function of Python, which cannot be written down; save a part of the program without it"
    ))
}

fn called(
    py: Python<'_>,
    call: &Py<PyAny>,
    inputs: &[ForeignInput<'_>],
    outputs: &mut [ForeignOutput<'_>],
) -> PyResult<()> {
    let given: Vec<Given> = inputs
        .iter()
        .map(|x| (x.dtype as u8, x.dims.to_vec(), PyByteArray::new(py, x.bytes).unbind()))
        .collect();
    let wanted: Vec<(u8, Vec<usize>)> = outputs.iter().map(|y| (y.dtype as u8, y.dims.to_vec())).collect();
    let made: Vec<Py<PyBytes>> = call.call1(py, (given, wanted))?.extract(py)?;
    if made.len() != outputs.len() {
        return Err(PyValueError::new_err(format!("gave {} arrays, not {}", made.len(), outputs.len())));
    }
    for (made, output) in made.iter().zip(outputs) {
        let bytes = made.as_bytes(py);
        if bytes.len() != output.bytes.len() {
            return Err(PyValueError::new_err(format!(
                "gave {} bytes, not {}",
                bytes.len(),
                output.bytes.len()
            )));
        }
        output.bytes.copy_from_slice(bytes);
    }
    Ok(())
}

/// What was raised, and where.
fn told(py: Python<'_>, why: &PyErr) -> String {
    if why.is_instance_of::<PyKeyboardInterrupt>(py) {
        return "was interrupted".into();
    }
    let line = why.traceback(py).and_then(|first| {
        let mut last = first.into_any();
        while let Ok(next) = last.getattr("tb_next") {
            if next.is_none() {
                break;
            }
            last = next;
        }
        let file: String = last
            .getattr("tb_frame")
            .ok()?
            .getattr("f_code")
            .ok()?
            .getattr("co_filename")
            .ok()?
            .extract()
            .ok()?;
        let line: u32 = last.getattr("tb_lineno").ok()?.extract().ok()?;
        Some(format!(" (at {file}:{line})"))
    });
    format!("raised {why}{}", line.unwrap_or_default())
}
