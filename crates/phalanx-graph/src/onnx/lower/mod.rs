//! How each ONNX operation is translated. To add one, write a function in a file here and a line in the table.

mod arith;
mod choose;
mod grouped;
mod image;
mod layout;
mod linear;
mod loss;
mod norm;
mod recurrent;
mod reduce;
mod resize;
mod slicing;

use super::{error::Fault, import::Import, node::OnnxNode};

/// Adds the operations of a node and says what its outputs are.
pub(super) type Lower = for<'a> fn(&mut Import<'a>, &OnnxNode<'a>) -> Result<(), Fault>;

/// What lowers this operation.
pub(super) fn find(op: &str) -> Option<Lower> {
    OPERATORS.iter().find(|(name, _)| *name == op).map(|(_, lower)| *lower)
}

const OPERATORS: &[(&str, Lower)] = &[
    ("Abs", arith::map),
    ("Add", arith::add),
    ("AveragePool", image::average_pool),
    ("BatchNormalization", norm::batch),
    ("Cast", layout::cast),
    ("CastLike", layout::cast_like),
    ("Ceil", arith::map),
    ("Clip", arith::clip),
    ("Concat", slicing::concat),
    ("Constant", layout::constant),
    ("ConstantOfShape", layout::filled),
    ("Conv", image::conv),
    ("ConvTranspose", grouped::conv_transpose),
    ("Cos", arith::map),
    ("CumSum", choose::running_sum),
    ("Div", arith::div),
    ("Dropout", norm::dropout),
    ("Elu", arith::map),
    ("Equal", choose::compare),
    ("Erf", arith::map),
    ("Exp", arith::map),
    ("Expand", layout::expand),
    ("Flatten", layout::flatten),
    ("Floor", arith::map),
    ("GRU", recurrent::gru),
    ("Gather", slicing::gather),
    ("Gelu", arith::gelu),
    ("Gemm", linear::gemm),
    ("GlobalAveragePool", image::global_average_pool),
    ("Greater", choose::compare),
    ("GreaterOrEqual", choose::compare),
    ("GroupNormalization", grouped::group),
    ("HardSigmoid", arith::map),
    ("HardSwish", choose::hard_swish),
    ("Identity", layout::identity),
    ("InstanceNormalization", grouped::instance),
    ("LSTM", recurrent::lstm),
    ("LayerNormalization", norm::layer),
    ("LeakyRelu", arith::map),
    ("Less", choose::compare),
    ("LessOrEqual", choose::compare),
    ("Log", arith::map),
    ("LogSoftmax", norm::log_softmax),
    ("MatMul", linear::matmul),
    ("Max", arith::max),
    ("MaxPool", image::max_pool),
    ("Min", arith::min),
    ("Mul", arith::mul),
    ("Neg", arith::map),
    ("NegativeLogLikelihoodLoss", loss::likelihood),
    ("PRelu", choose::prelu),
    ("Pow", arith::pow),
    ("Reciprocal", arith::map),
    ("ReduceMax", reduce::max),
    ("ReduceMean", reduce::mean),
    ("ReduceMin", reduce::min),
    ("ReduceSum", reduce::sum),
    ("Relu", arith::map),
    ("Reshape", layout::reshape),
    ("Resize", resize::resize),
    ("Shape", layout::shape),
    ("Sigmoid", arith::map),
    ("Sign", arith::map),
    ("Sin", arith::map),
    ("Slice", slicing::slice),
    ("Softmax", norm::softmax),
    ("SoftmaxCrossEntropyLoss", loss::cross_entropy),
    ("Softplus", arith::map),
    ("Softsign", arith::map),
    ("Split", slicing::split),
    ("Sqrt", arith::map),
    ("Squeeze", layout::squeeze),
    ("Sub", arith::sub),
    ("Sum", arith::add),
    ("Tanh", arith::map),
    ("Transpose", layout::transpose),
    ("Trilu", choose::triangle),
    ("Unsqueeze", layout::unsqueeze),
    ("Where", choose::select),
];
