//! ONNX models as programs, and their files with trained values. Python reads and writes the files.

use super::{
    error,
    program::GraphProgram,
    store::{GraphStore, lock},
};
use crate::gate;
use phalanx_graph::{
    Executor, GraphError, Options, RunError,
    onnx::{self, ImportOptions, Limits, Norms, OnnxError},
};
use pyo3::{exceptions::PyValueError, prelude::*, pybacked::PyBackedBytes, types::PyBytes};

/// What can go wrong between a model and a store.
enum Fault {
    Model(OnnxError),
    Program(GraphError),
    Store(RunError),
}

impl Fault {
    fn raise(&self, py: Python<'_>, path: &str) -> PyErr {
        match self {
            Fault::Model(why) => error::of_model(py, path, why),
            Fault::Program(why) => error::of_program(py, why),
            Fault::Store(why) => error::of_run(py, why),
        }
    }
}

/// How a model is to be imported.
#[derive(FromPyObject)]
pub struct OnnxSpec {
    learn: Option<Vec<String>>,
    freeze: Vec<String>,
    batch: Option<String>,
    norms: String,
    sparse: bool,
}

impl OnnxSpec {
    fn options(self) -> PyResult<ImportOptions> {
        let norms = match self.norms.as_str() {
            "strict" => Norms::Strict,
            "learn" => Norms::Learn,
            "as_written" => Norms::AsWritten,
            other => {
                let text = format!("norms={other:?}; choose 'learn', 'as_written' or 'strict'");
                return Err(PyValueError::new_err(text));
            }
        };
        let (learn, freeze, batch, sparse) = (self.learn, self.freeze, self.batch, self.sparse);
        Ok(ImportOptions { learn, freeze, batch, norms, sparse, limits: Limits::default() })
    }
}

/// Program, inputs, outputs and what is learned.
type ImportedTuple = (GraphProgram, Vec<String>, Vec<String>, Vec<String>);

/// Reads a model; its values go into the store.
#[pyfunction]
pub fn graph_import_onnx(
    py: Python<'_>,
    store: &GraphStore,
    bytes: PyBackedBytes,
    path: &str,
    spec: OnnxSpec,
) -> PyResult<ImportedTuple> {
    let (shared, options) = (store.shared(py)?, spec.options()?);
    let imported = gate::enter(py, "import", move || {
        let model = onnx::import(&bytes, &options).map_err(Fault::Model)?;
        let executor = Executor::new(model.program.clone(), Options::default()).map_err(Fault::Program)?;
        let mut store = lock(&shared);
        executor.prepare(&mut store).map_err(Fault::Store)?;
        model.give(&mut store).map_err(Fault::Store)?;
        Ok(model)
    })?;
    let model = imported.map_err(|why: Fault| why.raise(py, path))?;
    Ok((GraphProgram::of(model.program), model.inputs, model.outputs, model.parameters))
}

/// The file of a model with the values of the store, and the names of those that were written.
#[pyfunction]
pub fn graph_export_onnx<'py>(
    py: Python<'py>,
    store: &GraphStore,
    bytes: PyBackedBytes,
    path: &str,
) -> PyResult<(Bound<'py, PyBytes>, Vec<String>)> {
    let shared = store.shared(py)?;
    let written =
        gate::enter(py, "export", move || onnx::export(&bytes, &mut lock(&shared), &Limits::default()))?;
    let written = written.map_err(|why| error::of_model(py, path, &why))?;
    Ok((PyBytes::new(py, &written.bytes), written.replaced))
}
