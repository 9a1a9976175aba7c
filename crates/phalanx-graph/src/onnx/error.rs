//! The errors of a model. Each names the node or tensor, both sides, and what to do.

use crate::ir::{GraphError, Shape, Sig};
use phalanx_core::DType;
use std::fmt;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OnnxError {
    #[error(
        "the file has {got} or more {what}, the limit is {limit}; raise it in `Limits` if you trust the file"
    )]
    TooLarge { what: &'static str, got: usize, limit: usize },
    #[error("not an ONNX file, or damaged: byte {at}: {what}")]
    Malformed { at: usize, what: &'static str },
    #[error("not an ONNX file, or damaged: {0}")]
    Undecodable(prost::DecodeError),
    #[error("the file has no graph; it is not an ONNX model, or damaged")]
    NoGraph,
    #[error("the model uses operator set {got}, this reads {low} to {high}; export it with opset_version=17")]
    Opset { got: i64, low: i64, high: i64 },
    #[error("tensor `{name}`: {why}")]
    Tensor { name: String, why: TensorFault },
    #[error("input `{name}`: {why}")]
    Input { name: String, why: InputFault },
    #[error("{} cannot be imported: {}", plural(.0.len()), listed(.0))]
    Unknown(Vec<Unknown>),
    #[error("node {index} `{name}` ({op}): {why}")]
    Node { index: usize, name: String, op: String, why: Box<Fault> },
    #[error("the model has no outputs")]
    NoOutputs,
    #[error("output `{name}` is not computed by any node")]
    NoOutput { name: String },
    #[error("`{name}` is named twice, among inputs, initializers and outputs of nodes")]
    Twice { name: String },
    #[error(
        "`{name}` is named as {what}, but the model has no floating-point initializer of that name that its outputs depend on"
    )]
    NoSuchWeight { name: String, what: &'static str },
    #[error("initializer `{name}` is {wanted}, the store has {got}; export into the file that was imported")]
    StoreMisfit { name: String, wanted: String, got: String },
    #[error(
        "none of the model's {n} initializers is in the store; run or prepare the imported program on it first"
    )]
    NothingToWrite { n: usize },
    #[error(
        "the file has no initializer `{name}`, which the imported model has. Of initializers with equal values \
         exporters may keep one: export the file from a model whose values differ, such as a trained one"
    )]
    NotInFile { name: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Operations of one kind that are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// With its domain, unless that is ONNX's own.
    pub op: String,
    pub nodes: Vec<String>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The most nodes that are named; of the others only the number is told.
        const NAMED: usize = 4;
        let named: Vec<String> = self.nodes.iter().take(NAMED).map(|n| format!("`{n}`")).collect();
        let more = if self.nodes.len() > NAMED { ", ..." } else { "" };
        write!(f, "{} ({} times: {}{more})", self.op, self.nodes.len(), named.join(", "))
    }
}

fn plural(n: usize) -> String {
    if n == 1 { "an operation".into() } else { format!("{n} kinds of operations") }
}

fn listed(all: &[Unknown]) -> String {
    all.iter().map(Unknown::to_string).collect::<Vec<_>>().join("; ")
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TensorFault {
    #[error("its values are in another file; export the model into one file (external_data=False)")]
    External,
    #[error("has element type number {0}; f32, f64, i64, i32, u8 and bool are read")]
    DType(i32),
    #[error("has {0:?} as its dimensions; every one must be at least 1 and their product within reason")]
    Dims(Vec<i64>),
    #[error("has {got} bytes or elements of data, its dimensions want {wanted}")]
    Length { wanted: usize, got: usize },
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InputFault {
    #[error("has no tensor type and shape")]
    NoShape,
    #[error("has element type number {0}; f32, f64, i64, u8 and bool are taken")]
    DType(i32),
    #[error(
        "has the fixed shape {shape}: the batch size is fixed. Export with the batch as a symbol: \
         torch.onnx.export(..., dynamic_axes={{\"{name}\": {{0: \"batch\"}}}})"
    )]
    Baked { name: String, shape: Shape },
    #[error(
        "dimension {axis} is `{got}`, but the batch is `{batch}` and only it may be a symbol; fix the size when exporting"
    )]
    Symbol { axis: usize, got: String, batch: String },
    #[error("dimension {axis} has neither size nor symbol")]
    Unsized { axis: usize },
    #[error("dimension {axis} has size {got}; wants at least 1 and within reason")]
    Size { axis: usize, got: i64 },
}

/// Why a node cannot become operations.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("input {slot} is missing")]
    Missing { slot: usize },
    #[error("reads `{name}`, which no earlier node computes")]
    Undefined { name: String },
    #[error("has no output")]
    NoOutput,
    #[error("output {slot} is used; only those before it are supported")]
    OutputUsed { slot: usize },
    #[error("attribute `{name}`: wants {wanted}, got {got}")]
    Attribute { name: &'static str, wanted: &'static str, got: String },
    #[error("input {slot}: wants {wanted}, got {got}")]
    Input { slot: usize, wanted: &'static str, got: String },
    #[error("input {slot} is computed from data; it must be a constant, or computed from shapes")]
    NotConstant { slot: usize },
    #[error(
        "what is computed from constants and shapes so far has more than {limit} elements, too many for this file"
    )]
    Budget { limit: usize },
    #[error("{0} would need the square of the batch, or a part of it")]
    Batch(&'static str),
    #[error(
        "cannot give {from} the shape {to}: the batch size is fixed. In the model write x.flatten(1) or \
         x.view(x.size(0), -1) instead of numbers, and export with dynamic_axes"
    )]
    Baked { from: Shape, to: String },
    #[error("{a} and {b} do not fit together")]
    Pair { a: Shape, b: Shape },
    #[error(
        "normalises with fixed statistics (training_mode=0). Export a model in training mode with \
         torch.onnx.export(..., dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False), \
         or choose in `ImportOptions::norms`"
    )]
    FixedNorm,
    #[error("`{name}` is used as running statistics and so must be an initializer")]
    Statistics { name: String },
    #[error("tensor: {0}")]
    Tensor(#[from] TensorFault),
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl Fault {
    pub fn input(slot: usize, wanted: &'static str, got: &Sig) -> Fault {
        Fault::Input { slot, wanted, got: got.to_string() }
    }

    pub fn dtype(slot: usize, wanted: &'static str, got: DType) -> Fault {
        Fault::Input { slot, wanted, got: got.to_string() }
    }
}
