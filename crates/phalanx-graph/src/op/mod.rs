//! The operations, one struct each: its fields are its attributes. To add one, write it in a file here (shape rule,
//! kernel, gradient) and give it a line in `operators!`.

mod accumulate;
mod auc;
mod binary;
mod check;
mod control;
mod conv;
mod crf;
mod cumsum;
mod dropout;
mod edit_distance;
mod embedding;
mod fill;
mod foreign;
mod gate;
mod gather;
mod gather_nd;
mod gru;
mod hsigmoid;
mod layout;
mod logical;
mod loss;
mod lstm;
mod matmul;
mod metric;
mod norm;
mod peephole_lstm;
mod pool;
mod pool_windows;
mod product;
mod ragged;
mod rate;
mod reduce;
mod reset_gru;
mod rnn;
mod rows;
mod rules;
mod scatter;
mod scatter_rows;
mod select;
mod sequence;
mod served;
mod softmax;
mod sort;
mod squares;
mod sync_norm;
mod unary;
mod update;
mod whole;

use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Op, Sig},
    kernel::{Call, KernelError},
};
use serde::{Deserialize, Serialize};

pub use accumulate::{Accumulate, Every};
pub use auc::{AucArea, AucCounts};
pub use binary::{Arith, Binary, Compare, Comparison, Pick, SumTo};
pub use control::{Cond, CondGrad, Inside, While, WhileGrad};
pub use conv::{Conv2d, Conv2dFilterGrad, Conv2dInputGrad};
pub use crf::{CrfDecoding, LinearChainCrf, LinearChainCrfGrad};
pub use cumsum::CumSum;
pub use dropout::{Dropout, DropoutGrad, Random, Samples};
pub use edit_distance::EditDistance;
pub use embedding::{Embedding, EmbeddingGrad, EmbeddingRows};
pub use fill::{Assign, Cast, Fill, Increment, LossGrad, Sum};
pub use foreign::{Foreign, ForeignBackward, ForeignFunction, ForeignInput, ForeignOutput};
pub use gate::GateAct;
pub use gather::{Gather, GatherGrad, OneHot};
pub use gather_nd::{GatherNd, GatherNdGrad};
pub use gru::{Gru, GruGrad};
pub use hsigmoid::{HSigmoid, HSigmoidGrad};
pub use layout::{Concat, Expand, Reshape, Slice, SliceGrad, Transpose};
pub use logical::Logical;
pub use loss::{
    CrossEntropy, CrossEntropyGrad, SigmoidCrossEntropy, SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad,
};
pub use lstm::{Lstm, LstmGrad};
pub use matmul::MatMul;
pub use metric::{Accuracy, ArgMax, TopK};
pub use norm::{BatchNorm, BatchNormFixed, BatchNormFixedGrad, BatchNormGrad, LayerNorm, LayerNormGrad};
pub use peephole_lstm::{PeepholeLstm, PeepholeLstmGrad};
pub use pool::{Pool, Pool2d, Pool2dGrad};
pub use pool_windows::{PoolWindows, PoolWindowsGrad, WindowRule};
pub use product::{ReduceProd, ReduceProdGrad};
pub use rate::{Rate, Schedule};
pub use reduce::{Reduce, ReduceGrad, Reduction};
pub use reset_gru::{ResetGru, ResetGruGrad};
pub use rows::{MergeRows, RowsToDense};
pub use rules::{Adadelta, Adamax, DecayedAdagrad, Ftrl, LambDirection, LambRate, SignDecay};
pub use scatter_rows::ScatterRows;
pub use select::{Masked, Where};
pub(crate) use sequence::MASKED;
pub use sequence::{MaskScores, SequenceExpand, SequenceMask, SequenceOp, SequencePool, SequencePoolGrad};
pub use served::{PullRows, PushRows, ReleaseRows, ServedSquares};
pub use softmax::{BoundedSoftmax, Softmax, SoftmaxGrad};
pub use sort::{PutAlong, Sort};
pub use squares::{Squares, SumSquares};
pub use sync_norm::{
    ChannelSquares, ChannelSum, SyncNorm, SyncNormGrad, SyncNormSlopes, SyncNormStats, SyncSum,
};
pub use unary::{Func, Unary, UnaryGrad};
pub use update::{Adagrad, Adam, ClipFactor, Decay, LarsRate, Momentum, RmsProp, ScaleBy, Sgd, SquaredNorm};
pub use whole::{Whole, WholeOp};

/// What an operation is.
pub trait Operator {
    fn name(&self) -> &'static str;

    /// What it gives for these inputs.
    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit>;

    /// Bytes of scratch memory it wants, for the dimensions of its inputs.
    fn workspace(&self, _dims: &[&[usize]], _element: usize) -> usize {
        0
    }

    /// Programs that it runs within itself, in its workspace.
    fn bodies(&self) -> Vec<Inside<'_>> {
        Vec::new()
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError>;

    /// Adds what computes the gradients of its inputs; `Ok(false)` if it has none.
    fn grad(&self, _grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        Ok(false)
    }

    /// Inputs and the outputs that may take their place; the kernel reaches them through `Call::pair`.
    fn shares(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Whether the output is the input under another shape: they share memory whenever they can.
    fn is_view(&self) -> bool {
        false
    }

    /// What stands in its place in a test program, if not itself.
    fn for_test(&self, _op: &Op) -> Option<Op> {
        None
    }

    /// Whether it updates each element from the same element of its dense operands (scalars aside), so that ranges of it
    /// can be done by different workers.
    fn is_elementwise(&self) -> bool {
        false
    }
}

macro_rules! operators {
    ($($op:ident),* $(,)?) => {
        /// Any operation.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum OpKind { $($op($op)),* }

        impl OpKind {
            /// Every kind of operation.
            pub const KINDS: &[&str] = &[$(stringify!($op)),*];

            pub fn kind(&self) -> &'static str {
                match self { $(OpKind::$op(_) => stringify!($op)),* }
            }

            pub fn operator(&self) -> &dyn Operator {
                match self { $(OpKind::$op(op) => op),* }
            }
        }

        $(impl From<$op> for OpKind {
            fn from(op: $op) -> OpKind { OpKind::$op(op) }
        })*
    };
}

operators! {
    Unary, UnaryGrad, Binary, Compare, Pick, SumTo, MatMul, Reduce, ReduceGrad,
    Reshape, Transpose, Concat, Slice, SliceGrad, Expand, Gather, GatherGrad, OneHot,
    Fill, Assign, Cast, Increment, Sum, LossGrad, Random, Dropout, DropoutGrad,
    Softmax, SoftmaxGrad, CrossEntropy, CrossEntropyGrad, SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad, SigmoidCrossEntropy,
    Conv2d, Conv2dInputGrad, Conv2dFilterGrad, Pool2d, Pool2dGrad,
    BatchNorm, BatchNormFixed, BatchNormGrad, LayerNorm, LayerNormGrad,
    SyncSum, ChannelSum, ChannelSquares, SyncNorm, SyncNormStats, SyncNormSlopes, SyncNormGrad,
    Embedding, EmbeddingGrad, EmbeddingRows, MergeRows, RowsToDense,
    TopK, ArgMax, Accuracy,
    Lstm, LstmGrad, Gru, GruGrad, LinearChainCrf, LinearChainCrfGrad, CrfDecoding,
    SequencePool, SequencePoolGrad, SequenceExpand, SequenceMask, MaskScores,
    Every, Accumulate, Logical, While, WhileGrad, Cond, CondGrad,
    Sgd, Momentum, Adam, Adagrad, RmsProp, LarsRate, SquaredNorm, ClipFactor, ScaleBy, Decay, Rate,
    // Programs are written down with the number of an operation: new ones come last.
    BoundedSoftmax,
    Where, Masked, CumSum, Sort, PutAlong, ScatterRows, GatherNd, GatherNdGrad, Whole, ReduceProd, ReduceProdGrad,
    PoolWindows, PoolWindowsGrad, EditDistance, HSigmoid, HSigmoidGrad, BatchNormFixedGrad,
    Adamax, Adadelta, DecayedAdagrad, Ftrl, LambDirection, LambRate, SignDecay,
    PullRows, PushRows,
    Squares, SumSquares,
    PeepholeLstm, PeepholeLstmGrad, ResetGru, ResetGruGrad, AucCounts, AucArea, Foreign,
    ServedSquares, ReleaseRows,
}
