//! What is known of a model before its nodes are translated: which nodes matter, the feeds, the unsupported operations.

use super::{
    error::{InputFault, OnnxError, Unknown},
    fold, lower, node, proto, tensor,
};
use crate::ir::{BATCH, Dim, Shape, Sig};
use phalanx_core::DType;
use std::collections::{BTreeMap, BTreeSet};

/// Versions of the operators whose meaning is known here.
const OPSETS: (i64, i64) = (13, 25);

pub fn opset(model: &proto::Model) -> Result<(), OnnxError> {
    let own = model.opsets.iter().find(|o| is_own(&o.domain));
    let (low, high) = OPSETS;
    match own.map_or(0, |o| o.version) {
        got if (low..=high).contains(&got) => Ok(()),
        got => Err(OnnxError::Opset { got, low, high }),
    }
}

fn is_own(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// Which nodes the outputs depend on, and every name that is read on the way. Nodes stand after what they read.
pub fn live(graph: &proto::GraphProto) -> (Vec<bool>, BTreeSet<&str>) {
    let mut read: BTreeSet<&str> = graph.outputs.iter().map(|o| &o.name[..]).collect();
    let mut live = vec![false; graph.nodes.len()];
    for (i, n) in graph.nodes.iter().enumerate().rev() {
        if n.outputs.iter().any(|o| !o.is_empty() && read.contains(&o[..])) {
            live[i] = true;
            read.extend(n.inputs.iter().filter(|i| !i.is_empty()).map(|i| &i[..]));
        }
    }
    (live, read)
}

/// Every name stands for one thing.
pub fn names(graph: &proto::GraphProto) -> Result<(), OnnxError> {
    let weights: BTreeSet<&str> = graph.initializers.iter().map(|t| &t.name[..]).collect();
    let mut seen = BTreeSet::new();
    let given = graph.nodes.iter().flat_map(|n| &n.outputs).map(|o| &o[..]).filter(|o| !o.is_empty());
    // An initializer may be an input as well: then it is the input's default.
    let fed = graph.inputs.iter().map(|i| &i.name[..]).filter(|i| !weights.contains(i));
    let held = graph.initializers.iter().map(|t| &t.name[..]);
    for name in held.chain(fed).chain(given) {
        if !seen.insert(name) {
            return Err(OnnxError::Twice { name: name.into() });
        }
    }
    Ok(())
}

/// All operations that are not known, at once (ONNX-2).
pub fn known(graph: &proto::GraphProto, live: &[bool]) -> Result<(), OnnxError> {
    let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for n in graph.nodes.iter().zip(live).filter(|(_, live)| **live).map(|(n, _)| n) {
        let is_known =
            is_own(&n.domain) && (lower::find(&n.op).is_some() || fold::FOLDED.contains(&&n.op[..]));
        if !is_known {
            let op = if is_own(&n.domain) { n.op.clone() } else { format!("{}::{}", n.domain, n.op) };
            missing.entry(op).or_default().push(node::name(n).into());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(OnnxError::Unknown(missing.into_iter().map(|(op, nodes)| Unknown { op, nodes }).collect()))
}

/// Element type and shape of an input; the batch must be a symbol, and the same in all of them (ONNX-4).
pub fn feed(input: &proto::ValueInfo, batch: &mut Option<String>) -> Result<Sig, OnnxError> {
    let fault = |why| OnnxError::Input { name: input.name.clone(), why };
    let kind = input.kind.as_ref().and_then(|k| k.tensor.as_ref());
    let Some((kind, shape)) = kind.and_then(|k| Some((k, k.shape.as_ref()?))) else {
        return Err(fault(InputFault::NoShape));
    };
    let dtype = tensor::dtype(kind.dtype)
        .filter(|&d| d != DType::I32)
        .ok_or_else(|| fault(InputFault::DType(kind.dtype)))?;
    let mut dims = Vec::new();
    for (axis, dim) in shape.dims.iter().enumerate().take(crate::ir::MAX_RANK + 1) {
        dims.push(size(dim, axis, batch).map_err(fault)?);
    }
    if !dims.is_empty() && !dims.contains(&BATCH) {
        return Err(fault(InputFault::Baked { name: input.name.clone(), shape: Shape(dims) }));
    }
    Ok(Sig::dense(dtype, dims))
}

fn size(dim: &proto::Dimension, axis: usize, batch: &mut Option<String>) -> Result<Dim, InputFault> {
    /// No dimension of an input is larger.
    const LARGEST: i64 = 1 << 31;
    if let Some(symbol) = dim.symbol.as_ref().filter(|s| !s.is_empty()) {
        let batch = batch.get_or_insert_with(|| symbol.clone());
        if batch == symbol {
            return Ok(BATCH);
        }
        return Err(InputFault::Symbol { axis, got: symbol.clone(), batch: batch.clone() });
    }
    match dim.value {
        Some(n) if (1..=LARGEST).contains(&n) => Ok(Dim::Fixed(n as usize)),
        Some(got) => Err(InputFault::Size { axis, got }),
        None => Err(InputFault::Unsized { axis }),
    }
}
