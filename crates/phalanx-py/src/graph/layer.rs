//! Layers, expanded for Python: which parameters and operations it has to add, under names of its own.

use super::{error, form};
use crate::lent::dtype;
use phalanx_graph::{
    Sig,
    layers::draft::{LayerFault, LayerKind},
};
use pyo3::{exceptions::PyValueError, prelude::*};

/// What a layer called `op` consists of, for inputs given by name, text for errors, element type and shape.
#[pyfunction]
pub fn graph_draft(
    py: Python<'_>,
    op: &str,
    layer: &str,
    inputs: Vec<(String, String, u8, Vec<i64>)>,
) -> PyResult<String> {
    let layer: LayerKind = form::read("layer", layer)?;
    let (mut names, mut shown, mut sigs) = (Vec::new(), Vec::new(), Vec::new());
    for (name, text, code, shape) in inputs {
        names.push(name);
        shown.push(text);
        sigs.push(Sig::dense(dtype(code)?, form::shape(&shape)?));
    }
    let draft = layer.draft(&sigs).map_err(|fault| {
        let var = fault.input().and_then(|input| names.get(input));
        let culprit = if let LayerFault::NoActivation { act, .. } = &fault { act } else { op };
        error::of_layer(py, culprit, var, fault.tell(op, &shown))
    })?;
    serde_json::to_string(&draft).map_err(|why| PyValueError::new_err(why.to_string()))
}
